"""Blocks of questions: each searched, its negatives chosen, and its records written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpr.core.records import TrainingSample
from dpr.formats.training_records import sample_to_json
from dpr.mining.audit import BlockAudit
from dpr.mining.negatives import Candidate, MiningSettings, PairScorer, as_written, choose_negatives, finish_together, scored_by
from dpr.mining.search import Finder, Query, QueryHits
from dpr.mining.work import BlockWriter
from dpr.storage.durable import durable_file, write_json


@dataclass(frozen=True)
class BlockMiner(BlockWriter):
    """Mines a block."""

    finder: Finder
    mined_by: str
    settings: MiningSettings

    def find(self, rows: range) -> list[QueryHits]:
        """What the search finds for each question of a block."""
        queries = []
        for row in rows:
            sample = self.train[row]
            positives = (self.corpus.row_of(passage) for passage in sample.positives)
            queries.append(Query(sample.question, tuple(row for row in positives if row is not None)))
        return self.finder.find(rows, queries, self.settings.to_rank)

    def write(self, rows: range, hits: Sequence[QueryHits], scorer: PairScorer | None = None) -> None:
        """Chooses the negatives of a block and writes its records and its audit."""
        corpus = self.corpus
        prepared: list[TrainingSample] = []
        choices = []
        for row, one in zip(rows, hits, strict=True):
            sample = self.train[row]
            positives = tuple(corpus.named(passage) for passage in sample.positives)
            existing = tuple(corpus.named(passage) for passage in sample.hard_negatives) if self.settings.keep_existing else ()
            choosing = choose_negatives(
                one.hits,
                corpus.passage,
                positives=positives + tuple(corpus.named(passage) for passage in self.train.known_positives(row)),
                existing=existing,
                answers=sample.answers,
                positive_score=one.positive_score,
                row=row,
                settings=self.settings,
            )
            prepared.append(replace(sample, positives=positives, hard_negatives=existing))
            choices.append((sample.question, choosing))
        block_audit = BlockAudit()
        results = finish_together(choices, scorer)
        if scorer is not None:
            prepared = scored_by(scorer, prepared)
        with durable_file(self.part(rows)) as out:
            for sample, one, mined in zip(prepared, hits, results, strict=True):
                in_corpus = any(corpus.row_of(passage) is not None for passage in sample.positives)
                block_audit.add(sample, mined, one.positive_score, in_corpus=in_corpus)
                out.write(json.dumps(_record(sample, mined.negatives, self.mined_by), ensure_ascii=False) + "\n")
        write_json(self.audit(rows), block_audit.record())


def _record(sample: TrainingSample, negatives: list[Candidate], mined_by: str) -> dict[str, Any]:
    existing = sample.hard_negatives
    mined = tuple(replace(candidate.passage, teacher_score=as_written(candidate.log_odds)) for candidate in negatives)
    record = sample_to_json(replace(sample, hard_negatives=existing + mined))
    for entry, candidate in zip(record["hard_negative_ctxs"][len(existing) :], negatives, strict=True):
        entry.update(score=round(candidate.score, 4), rank=candidate.rank, mined_by=mined_by)
        if candidate.cross_encoder_score is not None:
            entry["cross_encoder_score"] = round(candidate.cross_encoder_score, 4)
    return record
