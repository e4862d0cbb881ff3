"""Results of retrieval: DPR's JSON (the input of readers), TREC run files, and metrics files with the values
for a question set and for each of its questions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from dpr.core.errors import InputError
from dpr.formats.corpora import durable_text, require_word
from dpr.formats.json_records import indented_record, is_finite_number
from dpr.formats.text_input import iter_lines, located
from dpr.formats.training_records import number_of
from dpr.storage.durable import durable_file, json_text, read_json
from dpr.storage.untrusted import describe, inside

RESULTS = "results.json"
"""Results of a whole evaluation, in its output folder."""
BASELINES = {"bm25": "BM25", "hybrid": "hybrid", "guard": "guard"}
"""Labels of the baselines beside the model in metrics of step 0: ``eval/<set>/bm25/ndcg@10``."""
_FINEST = ("ndcg@10", "mrr@10", "accuracy@20")
_EXPECTED = "what dpr retrieve metrics_file=... writes"


@dataclass(frozen=True, slots=True)
class Hit:
    """A retrieved passage. Title and text are empty in results without texts. ``has_answer`` is None if it
    was not judged."""

    id: str
    title: str
    text: str
    score: float
    has_answer: bool | None = None


@dataclass(frozen=True, slots=True)
class RetrievedQuestion:
    """A question with its hits, best first."""

    question: str
    id: str
    answers: tuple[str, ...]
    hits: list[Hit]


def write_results(path: str | Path, results: Iterable[RetrievedQuestion]) -> None:
    """Writes DPR's results JSON (an array, indented by 4, scores as strings) and its checksum; ``.gz`` is
    packed."""
    with durable_text(Path(path), note={}) as out:
        separator = "["
        for result in results:
            record: dict[str, Any] = {
                "question": result.question,
                "id": result.id,
                "answers": list(result.answers),
            }
            record["ctxs"] = [
                {
                    "id": hit.id,
                    "title": hit.title,
                    "text": hit.text,
                    "score": repr(float(hit.score)),
                    "has_answer": hit.has_answer,
                }
                for hit in result.hits
            ]
            out.write(separator + indented_record(record))
            separator = ","
        out.write("[]\n" if separator == "[" else "\n]\n")


def write_trec_run(
    path: str | Path, run: Mapping[str, Sequence[tuple[str, float]]], tag: str = "dpr"
) -> None:
    """Writes ``question Q0 passage rank score tag`` lines, ranks from 1, in the order given, and the file's
    checksum.

    Raises:
        InputError: an id or tag that is empty or holds white space, which the format cannot hold.
    """
    file = Path(path)
    with durable_text(file, note={}) as out:
        for question, hits in run.items():
            for rank, (passage, score) in enumerate(hits, 1):
                for value in (question, passage, tag):
                    require_word(value, file)
                out.write(f"{question} Q0 {passage} {rank} {float(score)!r} {tag}\n")


def read_trec_run(path: str | Path) -> dict[str, list[tuple[str, float]]]:
    """Returns the hits of each question, best first as trec_eval orders them: scores are narrowed to float32,
    and equal ones are ordered by passage id, descending. The rank column is not used.

    Raises:
        InputError: a line without six columns, a score that is not a finite number, a passage listed twice
        for one question.
    """
    file = Path(path)
    run: dict[str, dict[str, float]] = {}
    for line, text in iter_lines(file):
        columns = text.split()
        if not columns:
            continue
        with located(file, line):
            if len(columns) != 6:
                raise ValueError(
                    f"{len(columns)} columns, expected 6: question, Q0, passage, rank, score, tag"
                )
            question, _, passage, _, score, _ = columns
            hits = run.setdefault(question, {})
            if passage in hits:
                raise ValueError(f"passage {passage!r} is listed twice for question {question!r}")
            number = number_of(score)
            if number is None:  # 1e400 too, and two of them would tie
                raise ValueError(f"the score is {describe(score)}, expected a finite number")
            hits[passage] = number

    def order(hit: tuple[str, float]) -> tuple[float, bytes]:
        with np.errstate(over="ignore"):  # beyond float32 is infinity there too
            return float(np.float32(hit[1])), hit[0].encode()

    return {question: sorted(hits.items(), key=order, reverse=True) for question, hits in run.items()}


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
    is_report = isinstance(report, dict) and all(isinstance(report.get(name), kinds[name]) for name in kinds)
    if not is_report:
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
        if not _are_texts(ids) or not _are_texts(texts) or not isinstance(values, dict):
            raise InputError("per_question has no ids, questions and values", file=file, expected=_EXPECTED)
        for name, listed in [("questions", texts), *values.items()]:
            if not isinstance(listed, list) or len(listed) != len({*ids}):
                raise InputError(f"per_question: {name} is not a list of {len(ids)} values", file=file)
        if not all(item is None or is_finite_number(item) for listed in values.values() for item in listed):
            raise InputError("per_question: values are not all numbers and null", file=file)
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
        expected = "what dpr evaluate suite=... writes"
        raise InputError("not the results of an evaluation", file=folder / RESULTS, expected=expected)
    for name in sets:
        for system in systems:
            inside(folder, f"{name}/{system}.json", stated_in=RESULTS)
    return sets, systems


def is_baseline(name: str) -> bool:
    """True if a metric of a validation is that of a baseline beside the model."""
    parts = name.split("/")
    return len(parts) > 3 and parts[-2] in BASELINES


def finest(names: Sequence[str]) -> list[str]:
    """Returns, for each set that was searched, the metric that distinguishes small differences best."""
    heads = dict.fromkeys(name.rpartition("/")[0] for name in names if "@" in name)
    names_of_heads = (
        next((f"{head}/{kind}" for kind in _FINEST if f"{head}/{kind}" in names), None) for head in heads
    )
    return [name for name in names_of_heads if name]


def _are_texts(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
