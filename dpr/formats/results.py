"""Retrieval results: DPR's JSON (the input of readers) and TREC run files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpr.formats.corpora import durable_text, require_word
from dpr.formats.json_records import indented_record, iter_json_objects
from dpr.formats.text_input import iter_lines, located
from dpr.formats.training_records import checked_id, checked_text, title_of
from dpr.storage.untrusted import describe


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
    answers, contexts = value.get("answers") or [], value.get("ctxs")
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
