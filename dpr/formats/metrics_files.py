"""Metrics files: what a retrieval was measured at, over a question set and for each of its questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from dpr.core.errors import InputError
from dpr.formats.json_records import is_finite_number
from dpr.storage.durable import durable_file, json_text, read_json
from dpr.storage.untrusted import describe, inside

RESULTS = "results.json"
"""Of a whole evaluation, in its output folder."""
BESIDE = {"bm25": "BM25", "hybrid": "hybrid", "guard": "guard"}
"""In metrics of step 0, what stands beside those of the model: ``eval/<set>/bm25/ndcg@10``."""
_FINEST = ("ndcg@10", "mrr@10", "accuracy@20")
_EXPECTED = "what dpr retrieve metrics_file=... writes"
_AGAIN = "the file was changed; run the retrieval again"
_ROUNDING = 1e-9


@dataclass(frozen=True)
class PerQuestion:
    """The metrics of every question asked. ``values``: by metric, parallel to ``ids``; None where a metric is
    not taken over a question."""

    ids: list[str]
    texts: list[str]
    values: dict[str, list[float | None]]

    def judged(self, metric: str) -> dict[str, float]:
        """The questions that a metric is taken over, with its value."""
        return {
            key: value for key, value in zip(self.ids, self.values[metric], strict=True) if value is not None
        }


@dataclass(frozen=True)
class MetricsFile:
    """A file read back. ``report``: all of it but the values of each question; ``each``: these, None in files
    of earlier versions."""

    question_set: str
    num_questions: int
    metrics: dict[str, float]
    report: dict[str, Any]
    each: PerQuestion | None = None


def write_metrics(
    path: Path, report: Mapping[str, Any], each: PerQuestion, *, note: Mapping[str, Any] | None = None
) -> None:
    """Writes ``report`` with sorted keys, then ``per_question``, one line for each metric, since the values
    are many."""
    lines = {"ids": each.ids, "questions": each.texts}
    rows = [f'    "{name}": {json_text(values)}' for name, values in lines.items()]
    values = ",\n".join(
        f"      {json_text(name)}: {json_text(values)}" for name, values in each.values.items()
    )
    with durable_file(path, note=note) as out:
        out.write(json_text(report, indent=2).removesuffix("\n}") + ',\n  "per_question": {\n')
        out.write(",\n".join([*rows, f'    "values": {{\n{values}\n    }}']) + "\n  }\n}\n")


def read_metrics(path: str | Path) -> MetricsFile:
    """Reads a metrics file.

    Raises:
        InputError: it is none, a metric is not a number, or the values of its questions do not fit together.
    """
    file = Path(path)
    report = read_json(file)
    kinds = {"metrics": dict, "question_set": str, "num_questions": int}
    if not isinstance(report, dict) or not all(
        isinstance(report.get(name), kind) for name, kind in kinds.items()
    ):
        raise InputError("not a metrics file", file=file, expected=_EXPECTED)
    for name, value in report["metrics"].items():
        if not is_finite_number(value):
            raise InputError(f"the metric {name} is {describe(value)}", file=file, expected="a number")
    stored = report.pop("per_question", None)
    each = None if stored is None else per_question(stored, file)
    require_consistent(report, each, file)
    return MetricsFile(report["question_set"], report["num_questions"], report["metrics"], report, each)


def require_consistent(report: Mapping[str, Any], each: PerQuestion | None, file: Path) -> None:
    """Every reader of metrics asks here whether a file says one thing: a single changed digit would otherwise
    be shown as a result.

    Raises:
        InputError: a metric is below 0 or above 1, is not the mean over its questions, or does not follow
        from the ranks.
    """
    values = {} if each is None else each.values
    ranks = report.get("first_right_rank")
    counts, without = (
        (ranks.get("counts"), ranks.get("not_found")) if isinstance(ranks, dict) else (None, None)
    )
    if not isinstance(counts, list) or not all(
        type(number) is int and number >= 0 for number in (*counts, without)
    ):
        counts, without = [], 0
    if each is not None and report.get("num_questions") != len(each.ids):
        raise InputError(
            f"num_questions is {report.get('num_questions')}, per_question lists {len(each.ids)}", file=file
        )
    for name, value in report["metrics"].items():
        judged = [item for item in values.get(name, ()) if item is not None]
        if not all(0 <= item <= 1 for item in (value, *judged)):
            raise InputError(
                f"the metric {name}, or its value for a question, is not from 0 to 1", file=file, hint=_AGAIN
            )
        if judged and abs(sum(judged) / len(judged) - value) > _ROUNDING:
            mean = sum(judged) / len(judged)
            raise InputError(
                f"the metric {name} is {value}, the mean over its {len(judged)} questions {mean}",
                file=file,
                hint=_AGAIN,
            )
        kind, _, depth = name.partition("@")
        if kind == "accuracy" and depth.isdecimal() and int(depth) <= len(counts):
            share = sum(counts[: int(depth)]) / max(sum(counts) + without, 1)
            if abs(share - value) > _ROUNDING:
                raise InputError(
                    f"the metric {name} is {value}, by first_right_rank {share}", file=file, hint=_AGAIN
                )


def read_evaluation(folder: Path) -> tuple[list[str], list[str]]:
    """Test sets and systems of an output folder of dpr evaluate; the metrics of each are in
    ``<set>/<system>.json``.

    Raises:
        InputError: it is none.
    """
    file = folder / RESULTS
    if not file.is_file():
        raise InputError(f"no {RESULTS}", file=folder, expected="the output_dir of dpr evaluate suite=...")
    value = read_json(file)
    columns: list[list[str]] = []
    for key in ("sets", "systems"):
        names = value.get(key) if isinstance(value, dict) else None
        if not _are_texts(names) or not names or any(Path(name).name != name for name in names):
            raise InputError(
                "not the results of an evaluation", file=file, expected="what dpr evaluate suite=... writes"
            )
        columns.append(names)
    for name in columns[0]:
        for system in columns[1]:
            inside(folder, f"{name}/{system}.json", stated_in=RESULTS)
    return columns[0], columns[1]


def per_question(value: Any, file: Path) -> PerQuestion:
    """The values of each question out of a file's ``per_question``.

    Raises:
        InputError: they do not fit together.
    """
    ids, texts, values = (
        (value if isinstance(value, dict) else {}).get(name) for name in ("ids", "questions", "values")
    )
    if not _are_texts(ids) or not _are_texts(texts) or not isinstance(values, dict):
        raise InputError("per_question has no ids, questions and values", file=file, expected=_EXPECTED)
    if len(set(ids)) != len(ids):
        raise InputError("per_question lists a question twice", file=file)
    for name, listed in [("questions", texts), *values.items()]:
        if not isinstance(listed, list) or len(listed) != len(ids):
            raise InputError(
                f"per_question: {name} is not a list of {len(ids)} values, one for each id", file=file
            )
    for name, listed in values.items():
        if not all(item is None or is_finite_number(item) for item in listed):
            raise InputError(f"per_question: {name} holds something else than numbers and null", file=file)
    return PerQuestion(ids, texts, values)


def is_beside(name: str) -> bool:
    """Whether a metric of a validation is of something that stands beside the model."""
    parts = name.split("/")
    return len(parts) > 3 and parts[-2] in BESIDE


def finest(names: Sequence[str]) -> list[str]:
    """Of the metrics of each set that was searched, the one that tells small differences best."""
    heads = dict.fromkeys(name.rpartition("/")[0] for name in names if "@" in name)
    names_of_heads = (
        next((f"{head}/{kind}" for kind in _FINEST if f"{head}/{kind}" in names), None) for head in heads
    )
    return [name for name in names_of_heads if name]


def _are_texts(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
