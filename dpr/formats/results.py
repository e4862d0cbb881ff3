"""Results of retrieval: DPR's JSON, the input of readers, and TREC run files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from dpr.formats.record_fields import number_of
from dpr.formats.record_files import indented_record
from dpr.formats.text_input import iter_lines, located
from dpr.formats.text_output import durable_text, require_word
from dpr.storage.untrusted import describe


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
    compressed."""
    with durable_text(Path(path), note={}) as out:
        separator = "["
        for result in results:
            record = {
                "question": result.question,
                "id": result.id,
                "answers": list(result.answers),
                "ctxs": [asdict(hit) | {"score": repr(float(hit.score))} for hit in result.hits],
            }
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
