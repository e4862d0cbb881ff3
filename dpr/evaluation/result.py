"""The result of ``dpr.evaluate``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpr.core.paths import user_path
from dpr.evaluation.ranking_metrics import Run, heading_of, text_table
from dpr.evaluation.significance import SHOWN, estimate
from dpr.formats.metrics_files import MetricsFile, PerQuestion, write_metrics


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class Evaluation(MetricsFile, Mapping[str, float]):
    """Metrics of a ranking of passages for each question: a mapping from names to means, which prints as a
    table. Metrics of single questions are in ``per_question``.

    Attributes:
        run: passage ids with scores by question id, best first.
        shown: names of the metrics in the table.
    """

    each: PerQuestion
    run: Run
    shown: Sequence[str]

    @property
    def per_question(self) -> dict[str, dict[str, float]]:
        """Returns the values by metric and question id."""
        return {name: self.each.judged(name) for name in self.metrics}

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """Returns the 95 % interval of each mean over the questions that could have been asked."""
        return {name: estimate([*values.values()]).ends for name, values in self.per_question.items()}

    def save(self, file: str | Path) -> None:
        """Writes the metrics file that ``dpr compare`` and ``dpr report`` read."""
        write_metrics(user_path(file), self.report, self.each, note={})

    def __getitem__(self, name: str) -> float:
        return self.metrics[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.metrics)

    def __len__(self) -> int:
        return len(self.metrics)

    def __repr__(self) -> str:
        rows = [["", "mean", "95 % interval"]]
        intervals = self.intervals
        for name in self.shown:
            low, high = intervals[name]
            rows.append([heading_of(name), f"{self[name]:{SHOWN}}", f"[{low:{SHOWN}}, {high:{SHOWN}}]"])
        return f"{self.question_set}, {self.num_questions} questions\n{text_table(rows)}"
