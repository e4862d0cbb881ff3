"""Metrics files with the values for a question set and for each of its questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from dpr.core.errors import InputError
from dpr.formats.record_fields import is_finite_number
from dpr.storage.durable import durable_file, json_text
from dpr.storage.untrusted import describe, inside, read_json

RESULTS = "results.json"
"""Results of a whole evaluation, in its output folder."""
_EXPECTED = "a file from dpr retrieve metrics_file=..."


@dataclass(frozen=True)
class PerQuestion:
    """Metrics of every question asked. ``values`` are lists by metric, parallel to ``ids``, with None if a
    metric is not taken over a question."""

    ids: list[str]
    texts: list[str]
    values: dict[str, list[float | None]]

    def judged(self, metric: str) -> dict[str, float]:
        """Returns the questions that a metric is taken over, with their values."""
        return {
            key: value for key, value in zip(self.ids, self.values[metric], strict=True) if value is not None
        }


@dataclass(frozen=True)
class MetricsFile:
    """A metrics file read back. ``report`` is everything but the values of each question, which are ``each``;
    None in files of earlier versions."""

    question_set: str
    num_questions: int
    metrics: dict[str, float]
    report: dict[str, Any]
    each: PerQuestion | None = None


def write_metrics(
    path: Path, report: Mapping[str, Any], each: PerQuestion, *, note: Mapping[str, Any] | None = None
) -> None:
    """Writes ``report`` with sorted keys, then ``per_question`` with one line for each metric, since the
    values are many."""
    values = ",\n".join(
        f"      {json_text(name)}: {json_text(values)}" for name, values in each.values.items()
    )
    with durable_file(path, note=note) as out:
        out.write(json_text(report, indent=2).removesuffix("\n}") + ',\n  "per_question": {\n')
        out.write(f'    "ids": {json_text(each.ids)},\n    "questions": {json_text(each.texts)},\n')
        out.write(f'    "values": {{\n{values}\n    }}\n  }}\n}}\n')


def read_metrics(path: str | Path) -> MetricsFile:
    """Reads a metrics file.

    Raises:
        InputError: it is no metrics file, a metric is not a number, or the values of its questions do not fit
        together (an id that is listed twice included).
    """
    file = Path(path)
    report = read_json(file)
    kinds = {"metrics": dict, "question_set": str, "num_questions": int}
    if not isinstance(report, dict) or not all(isinstance(report.get(name), kinds[name]) for name in kinds):
        raise InputError("not a metrics file", file=file, expected=_EXPECTED)
    for name, value in report["metrics"].items():
        if not is_finite_number(value):
            raise InputError(f"the metric {name} is {describe(value)}", file=file, expected="a number")
    stored = report.pop("per_question", None)
    each = None
    if stored is not None:
        ids, texts, values = (
            (stored if isinstance(stored, dict) else {}).get(name) for name in ("ids", "questions", "values")
        )
        if not (
            _are_texts(ids)
            and _are_texts(texts)
            and isinstance(values, dict)
            and all(
                isinstance(listed, list) and len(listed) == len({*ids})
                for listed in (texts, *values.values())
            )
            and all(item is None or is_finite_number(item) for listed in values.values() for item in listed)
        ):
            found = "per_question does not list distinct ids, each with a question and numbers"
            raise InputError(found, file=file, expected=_EXPECTED)
        each = PerQuestion(ids, texts, values)
    return MetricsFile(report["question_set"], report["num_questions"], report["metrics"], report, each)


def read_evaluation(folder: Path) -> tuple[list[str], list[str]]:
    """Returns the test sets and systems in an output folder of dpr evaluate; ``<set>/<system>.json`` holds
    the metrics of each.

    Raises:
        InputError: it is no such folder.
    """
    file = folder / RESULTS
    if not file.is_file():
        raise InputError(f"no {RESULTS}", file=folder, expected="the output_dir of dpr evaluate")
    value = read_json(file)
    stated = value if isinstance(value, dict) else {}
    sets = stated.get("sets")
    systems = stated.get("systems")
    if not _are_texts(sets) or not _are_texts(systems) or not sets or not systems:
        expected = "a file from dpr evaluate suite=..."
        raise InputError("not the results of an evaluation", file=folder / RESULTS, expected=expected)
    for name in sets:
        for system in systems:
            inside(folder, f"{name}/{system}.json", stated_in=RESULTS)
    return sets, systems


def _are_texts(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
