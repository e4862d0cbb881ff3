"""Labels that BM25 and a bi-encoder both contradict, the most doubtful first.

The doubt of a positive on one side is 1 - s(positive) / s(best). Here best is the passage with the highest
score that is no positive of the question, and scores below 0 count as 0. The doubt of a negative is 1 -
s(best positive) / s(negative). The doubt of a label is the lesser of both sides' doubts, so that both sides
have to agree.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpr.core.records import Passage, TrainingSample
from dpr.formats.passage_records import passage_to_json
from dpr.mining.blocks import BlockJob, Record
from dpr.mining.search import Query

_DEPTH = 10
_COUNTED = ("questions", "positives in doubt", "negatives in doubt")


SearchScores = tuple[dict[int, float], dict[str, float]]
"""Scores of one search for a question: of its listed passages by row, and of the best of the corpus by id."""


@dataclass
class Doubts(BlockJob):
    """Job that writes the ``most`` most doubtful labels, a JSON line each (docs/file_formats.md). The passages of
    the training set are searched."""

    most: int = 200
    name = "doubting"

    def chosen(self) -> dict[str, Any]:
        return {"most": self.most}

    def do_block(self, rows: range) -> tuple[list[Record], Record]:
        samples = [self.train[row] for row in rows]
        questions = [sample.question for sample in samples]
        queries = [Query(question) for question in questions]
        passages = [
            list(dict.fromkeys(map(self._row, sample.positives + sample.hard_negatives)))
            for sample in samples
        ]
        depth = max(len(sample.positives) for sample in samples) + _DEPTH
        sides: list[list[SearchScores]] = [[] for _ in samples]
        for search in self.searches:
            scores = search.scores(questions, passages)
            found = search.find(queries, depth)
            for of_question, listed, own, (best, _) in zip(sides, passages, scores, found, strict=True):
                of_question.append((dict(zip(listed, own, strict=True)), dict(best)))

        counts: Counter[str] = Counter(dict.fromkeys(_COUNTED, 0))
        counts["questions"] = len(samples)
        records = []
        for row, sample, of_question in zip(rows, samples, sides, strict=True):
            for record in self._doubted(sample, of_question):
                counts[f"{record['label']}s in doubt"] += 1
                records.append({**record, "row": row})
        return records, {"counts": dict(counts)}

    def joined(self, parts: Iterable[Path]) -> Iterator[str]:
        def lines() -> Iterator[tuple[float, int, str]]:
            number = 0
            for part in parts:
                with part.open(encoding="utf-8") as file:
                    for line in file:
                        number += 1
                        yield json.loads(line)["doubt"], -number, line

        return (line for *_, line in heapq.nlargest(self.most, lines()))

    def _doubted(self, sample: TrainingSample, sides: Sequence[SearchScores]) -> Iterator[Record]:
        """Yields the labels of a question that both sides contradict."""
        right = {self._row(passage) for passage in sample.positives}
        known = {self.corpus.id_at(row) for row in right}
        others = [
            {key: score for key, score in best.items() if key not in known and score > 0} for _, best in sides
        ]
        if all(others):
            tops = [max(listed.values()) for listed in others]
            sums: defaultdict[str, float] = defaultdict(float)
            for listed, top in zip(others, tops, strict=True):
                for key, score in listed.items():
                    sums[key] += score / top
            instead = self.corpus.passage(max(sums, key=sums.__getitem__))
            for passage in sample.positives:
                row = self._row(passage)
                doubt = min(_doubt(own[row], top) for (own, _), top in zip(sides, tops, strict=True))
                if doubt > 0:
                    yield _record(doubt, "positive", sample, passage) | {"instead": passage_to_json(instead)}
        for passage in sample.hard_negatives:
            row = self._row(passage)
            doubt = min(_doubt(max(own[one] for one in right), own[row]) for own, _ in sides)
            if doubt > 0 and row not in right:
                yield _record(doubt, "negative", sample, passage)

    def _row(self, passage: Passage) -> int:
        row = self.corpus.row_of(passage)
        assert row is not None  # the corpus is made of these passages
        return row


def _doubt(claimed: float, rival: float) -> float:
    return 1 - max(claimed, 0.0) / rival if rival > 0 else 0.0


def _record(doubt: float, label: str, sample: TrainingSample, passage: Passage) -> Record:
    return {
        "doubt": round(doubt, 4),
        "label": label,
        "question": sample.question,
        "passage": passage_to_json(passage),
    }
