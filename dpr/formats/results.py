"""What a retrieval gave: DPR's JSON (the input of readers), TREC run files, and metrics files: what it was measured
at, over a question set and for each of its questions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from dpr.core.errors import InputError
from dpr.formats.corpora import durable_text, require_word
from dpr.formats.json_records import indented_record, is_finite_number, iter_json_objects
from dpr.formats.text_input import iter_lines, located
from dpr.formats.training_records import checked_id, checked_text, title_of
from dpr.storage.durable import durable_file, json_text, read_json
from dpr.storage.untrusted import describe, inside

RESULTS = "results.json"
"""Of a whole evaluation, in its output folder."""
BASELINES = {"bm25": "BM25", "hybrid": "hybrid", "guard": "guard"}
"""In metrics of step 0, what stands beside those of the model: ``eval/<set>/bm25/ndcg@10``."""
_FINEST = ("ndcg@10", "mrr@10", "accuracy@20")
_EXPECTED = "what dpr retrieve metrics_file=... writes"
_AGAIN = "the file was changed; run the retrieval again"
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Hit:
    """A retrieved passage; title and text are empty in results without texts. ``has_answer`` is None where it
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


def write_results(path: str | Path, results: Iterable[RetrievedQuestion], *, with_texts: bool = True) -> None:
    """Writes DPR's results JSON (an array, indented by 4, scores as strings) and its checksum; ``.gz`` is
    packed.

    Without texts a hit has neither ``title`` nor ``text``, which takes about a tenth of the space.
    """
    with durable_text(Path(path), note={}) as out:
        separator = "["
        for result in results:
            record = {"question": result.question, "id": result.id, "answers": list(result.answers)}
            hits = [
                {
                    "id": hit.id,
                    **({"title": hit.title, "text": hit.text} if with_texts else {}),
                    "score": repr(float(hit.score)),
                    "has_answer": hit.has_answer,
                }
                for hit in result.hits
            ]
            out.write(separator + indented_record({**record, "ctxs": hits}))
            separator = ","
        out.write("[]\n" if separator == "[" else "\n]\n")


def iter_results(path: str | Path) -> Iterator[RetrievedQuestion]:
    """Reads a results JSON of this toolkit or of DPR (which has no question ids: the position stands in).

    Raises:
        InputError: names the file and the line where the record starts.
    """
    file = Path(path)
    for index, (line, value) in enumerate(iter_json_objects(file)):
        with located(file, line):
            result = _result(value, index)
        yield result


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


def read_trec_run(path: str | Path, *, as_trec_eval: bool = False) -> dict[str, list[tuple[str, float]]]:
    """Hits of each question, best first: by score, equal scores by passage id. The rank column is not used.

    Args:
        as_trec_eval: order them as trec_eval does: scores are narrowed to float32, equal ones ordered by
        passage id, descending.

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
            hits[passage] = _score(score)
    if as_trec_eval:
        return {
            question: sorted(hits.items(), key=_trec_eval_order, reverse=True)
            for question, hits in run.items()
        }
    return {
        question: sorted(hits.items(), key=lambda hit: (-hit[1], hit[0])) for question, hits in run.items()
    }


def _result(value: dict[str, Any], number: int) -> RetrievedQuestion:
    answers = value.get("answers") or []
    contexts = value.get("ctxs")
    if not isinstance(answers, list) or not isinstance(contexts, list):
        raise ValueError("answers and ctxs are not both lists, expected a DPR results record")
    return RetrievedQuestion(
        question=checked_text(value, "question"),
        id=checked_id(value.get("id", number), "id"),
        answers=tuple(checked_text({"answers[]": answer}, "answers[]") for answer in answers),
        hits=[_hit(context) for context in contexts],
    )


def _hit(context: Any) -> Hit:
    if not isinstance(context, dict):
        raise ValueError(f"an entry of ctxs is {describe(context)}, expected an object")
    has_answer = context.get("has_answer")
    if has_answer is not None and not isinstance(has_answer, bool):
        raise ValueError(f"has_answer is {describe(has_answer)}, expected true, false or null")
    return Hit(
        id=checked_id(context.get("id"), "id"),
        title=title_of(context.get("title"), "title"),
        text="" if "text" not in context else checked_text(context, "text"),
        score=_score(context.get("score")),
        has_answer=has_answer,
    )


def _trec_eval_order(hit: tuple[str, float]) -> tuple[float, bytes]:
    passage, score = hit
    with np.errstate(over="ignore"):  # beyond float32 is infinity there too
        return float(np.float32(score)), passage.encode()


def _score(value: Any) -> float:
    try:
        score = math.nan if isinstance(value, bool) or value is None else float(value)
    except (ValueError, TypeError, OverflowError):
        score = math.nan
    if not math.isfinite(score):  # 1e400 is infinity here, and two of them tie
        raise ValueError(f"the score is {describe(value)}, expected a finite number")
    return score


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
        counts = []
        without = 0
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


def is_baseline(name: str) -> bool:
    """Whether a metric of a validation is of something that stands beside the model."""
    parts = name.split("/")
    return len(parts) > 3 and parts[-2] in BASELINES


def finest(names: Sequence[str]) -> list[str]:
    """Of the metrics of each set that was searched, the one that tells small differences best."""
    heads = dict.fromkeys(name.rpartition("/")[0] for name in names if "@" in name)
    names_of_heads = (
        next((f"{head}/{kind}" for kind in _FINEST if f"{head}/{kind}" in names), None) for head in heads
    )
    return [name for name in names_of_heads if name]


def _are_texts(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
