"""Labels that BM25 and a bi-encoder both contradict, the most doubtful first.

A side's doubt of a positive is 1 - s(positive) / s(best), where best is the passage with the highest score of
those that are no positives of the question, and scores below 0 count as 0; of a negative it is 1 - s(best
positive) / s(negative). The doubt of a label is the lesser of both sides' doubts, so that both have to agree.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from dpr.core.records import Passage, TrainingSample
from dpr.formats.training_records import passage_to_json
from dpr.formats.training_sets import TrainingSet
from dpr.mining.job import BlockJob, run_job, source_of
from dpr.mining.search import Finder, Query, Search
from dpr.mining.work import BlockWriter
from dpr.storage.steps import Steps

_VERSION, _DEPTH = 1, 10
_COUNTED = ("questions", "positives in doubt", "negatives in doubt")
Scores = tuple[dict[int, float], dict[str, float]]
"""Of one side and one question: those of its own passages by row, and of the best of the corpus by id."""


def find_suspects(
    train: TrainingSet, out: Path, searches: Sequence[Search], *, most: int, overwrite: bool = False
) -> dict[str, Any]:
    """Writes the ``most`` most doubtful labels to ``out``, a JSON line each (docs/file_formats.md), and
    returns how many are in doubt.

    The passages of the training set are searched. The result does not depend on interruptions.

    Raises:
        InputError, LostRankError, CheckpointError: as ``dpr.mining.job.mine``.
    """
    base = {
        "version": _VERSION,
        "train": train.fingerprint,
        "search": [search.facts() for search in searches],
    }

    def prepare(steps: Steps, blocks: Sequence[range]) -> BlockDoubts:
        work = steps.folder.parent
        block = BlockDoubts(train, source_of(train, None, work), steps)
        return replace(
            block, finders=tuple(search.prepare(train, blocks, block.corpus, work) for search in searches)
        )

    job = BlockJob(
        "doubting",
        base,
        base | {"most": most},
        searches[0].block_rows,
        prepare,
        _total,
        join=partial(_most_doubtful, most),
    )
    counts: dict[str, Any] = run_job(job, train, out, processes=1, overwrite=overwrite)["counts"]
    return counts


@dataclass(frozen=True)
class BlockDoubts(BlockWriter):
    """Doubts the labels of a block."""

    finders: tuple[Finder, ...] = ()

    def find(self, rows: range) -> list[list[Scores]]:
        """The scores of each side, for each question."""
        samples = [self.train[row] for row in rows]
        passages = [
            list(dict.fromkeys(map(self._row, sample.positives + sample.hard_negatives)))
            for sample in samples
        ]
        queries, sides = [Query(sample.question, ()) for sample in samples], []
        depth = max(len(sample.positives) for sample in samples) + _DEPTH
        for finder in self.finders:
            own = finder.scores(rows, [query.question for query in queries], passages)
            hits = [dict(one.hits) for one in finder.find(rows, queries, depth)]
            sides.append(
                [
                    (dict(zip(*pair, strict=True)), best)
                    for *pair, best in zip(passages, own, hits, strict=True)
                ]
            )
        return [list(scores) for scores in zip(*sides, strict=True)]

    def write(self, rows: range, found: Sequence[list[Scores]], scorer: Any = None) -> None:
        counts: Counter[str] = Counter(dict.fromkeys(_COUNTED, 0))

        def records() -> Iterator[dict[str, Any]]:
            for row, sides in zip(rows, found, strict=True):
                counts["questions"] += 1
                for record in self._doubted(self.train[row], sides):
                    counts[f"{record['label']}s in doubt"] += 1
                    yield {**record, "row": row}

        self.save(rows, records(), lambda: {"counts": dict(counts)})

    def _doubted(self, sample: TrainingSample, sides: list[Scores]) -> Iterator[dict[str, Any]]:
        """The labels of a question that both sides contradict."""
        right = {self._row(passage) for passage in sample.positives}
        known = {self.corpus.id_at(row) for row in right}
        others = [
            {key: score for key, score in best.items() if key not in known and score > 0} for _, best in sides
        ]
        if all(others):
            best = [max(listed.values()) for listed in others]
            sums: defaultdict[str, float] = defaultdict(float)
            for listed, top in zip(others, best, strict=True):
                for key, score in listed.items():
                    sums[key] += score / top
            instead = self.corpus.passage(max(sums, key=sums.__getitem__))
            for passage in sample.positives:
                doubt = min(
                    _doubt(own[self._row(passage)], top) for (own, _), top in zip(sides, best, strict=True)
                )
                if doubt > 0:
                    yield _record(doubt, "positive", sample, passage) | {"instead": passage_to_json(instead)}
        for passage in sample.hard_negatives:
            doubt = min(_doubt(max(own[row] for row in right), own[self._row(passage)]) for own, _ in sides)
            if doubt > 0 and self._row(passage) not in right:
                yield _record(doubt, "negative", sample, passage)

    def _row(self, passage: Passage) -> int:
        row = self.corpus.row_of(passage)
        assert row is not None  # the corpus is made of these passages
        return row


def _doubt(claimed: float, rival: float) -> float:
    return 1 - max(claimed, 0.0) / rival if rival > 0 else 0.0


def _record(doubt: float, label: str, sample: TrainingSample, passage: Passage) -> dict[str, Any]:
    return {
        "doubt": round(doubt, 4),
        "label": label,
        "question": sample.question,
        "passage": passage_to_json(passage),
    }


def _total(blocks: Iterable[dict[str, Any]]) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    for block in blocks:
        counts.update(block["counts"])
    return {"counts": dict(counts)}


def _most_doubtful(most: int, parts: Iterable[Path]) -> list[str]:
    def lines() -> Iterator[tuple[float, int, str]]:
        number = 0
        for part in parts:
            with part.open(encoding="utf-8") as file:
                for line in file:
                    number += 1
                    yield json.loads(line)["doubt"], -number, line

    return [line for *_, line in heapq.nlargest(most, lines())]
