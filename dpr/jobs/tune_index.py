"""Settings -> the curve of an index, recall against time: a table, a picture, and the breadth that reaches
the recall that is wanted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from dpr.core.distributed import resolve_device
from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.evaluation.report.figures import curves_svg
from dpr.indexer.ranking import SearchResult
from dpr.indexer.recall import DEPTH, held_back, recall_values
from dpr.indexer.registry import Index, IndexChoice
from dpr.indexer.settings import ExactSettings
from dpr.jobs.indexes import build_retriever, index_choice, open_vector_index
from dpr.jobs.retrieve import question_form
from dpr.jobs.sources import resolve_passage_sources, resolve_question_set
from dpr.retrieval.retrievers import DenseRetriever
from dpr.retrieval.settings import TuneIndexConfig
from dpr.storage.durable import durable_file, write_json
from dpr.storage.outputs import require_writable

logger = get_logger(__name__)

_AT = f"recall@{DEPTH}"
_ROUNDS = 3
_ALONE = 50
_ENOUGH = 0.9995


def run(config: TuneIndexConfig) -> float | None:
    """Prints the curve and writes it. Returns the recall@100 of the breadth that is enough, on the questions
    it was not chosen by."""
    choice = index_choice(config.indexer)
    if not choice.index_class.breadth_setting:
        raise ConfigError(
            f"indexer={choice.kind} has no setting that makes its search broader; there is nothing to tune"
        )
    for file in filter(None, (config.curve_file,)):
        require_writable(file)
    question_set = resolve_question_set(str(config.qa_dataset), config.datasets)
    sources = resolve_passage_sources(config.passage_names(), config.ctx_sources)
    texts = question_set.read()
    form = question_form(question_set.options, config.encoder_path)
    asked = [form.asked(texts[row].text) for row in held_back(len(texts), config.num_questions)]
    if len(asked) < 2:
        raise ConfigError(
            f"qa_dataset={config.qa_dataset} has {len(asked)} questions; at least 2 are compared"
        )
    device = resolve_device(config.device_or_cpu)
    dense = build_retriever(
        config, sources, form=form, device=device, questions=[form.asked(text.text) for text in texts]
    )
    assert isinstance(dense, DenseRetriever)
    queries = dense.encode(asked)
    exact = IndexChoice("exact", ExactSettings())
    truth = open_vector_index(replace(config, index_path=None), exact, dense.model, sources, device)
    exact_time, (_, best) = timed(truth, queries)
    points = measure_curve(dense.index, queries, best)
    name, target = choice.index_class.breadth_setting, config.indexer.target_recall
    print("\n".join(_table(name, points, exact_time)))
    chosen = least_that_reaches(points, target)
    if chosen is None:
        print(
            f"no {name} reaches {_AT} {target:g}; the highest is"
            f" {max(point.recall[_AT] for point in points):.3f}"
        )
    else:
        speed = chosen.time.per_second / exact_time.per_second
        message = f"{_AT} {chosen.recall[_AT]:.3f} on the {len(asked) // 2} questions it was not chosen by"
        print(f"indexer.{name}={chosen.breadth}: {message}, {speed:.1f} times as fast as exact search")
    if config.curve_file:
        facts = {
            "kind": choice.kind,
            "breadth": name,
            "questions": len(asked),
            "target_recall": target,
            "exact": asdict(exact_time),
        }
        _write(Path(config.curve_file), facts, points, exact_time)
    return chosen.recall[_AT] if chosen else None


def _table(name: str, points: list[CurvePoint], exact: Timed) -> list[str]:
    lines = [f"{name:>10} {'recall@10':>10} {_AT:>11} {'questions/s':>12} {'ms alone':>9}"]
    rows = [
        (str(point.breadth), f"{point.recall['recall@10']:.3f}", f"{point.recall[_AT]:.3f}", point.time)
        for point in points
    ]
    for label, first, all_, taken in [*rows, ("exact", "1.000", "1.000", exact)]:
        lines.append(
            f"{label:>10} {first:>10} {all_:>11} {taken.per_second:>12,.0f} {1000 * taken.alone:>9.2f}"
        )
    return lines


def _write(file: Path, facts: dict[str, object], points: list[CurvePoint], exact: Timed) -> None:
    title = f"{facts['kind']}: recall against time, {facts['questions']} questions"
    curves = {
        name: [(1000 * point.time.together, point.recall[name]) for point in points]
        for name in ("recall@10", _AT)
    }
    x_label = f"ms per question, all asked together (exact search: {1000 * exact.together:.3g})"
    with durable_file(file, note={}) as out:
        out.write(curves_svg(title, curves, x_label=x_label, log_x=True))
    write_json(file.with_suffix(".json"), {**facts, "points": [point.as_dict() for point in points]}, note={})
    logger.info("curve written to %s, its numbers to %s", file, file.with_suffix(".json"))


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds per question: ``together``, all asked at once (the best of some rounds), and ``alone``, one at
    a time (the median)."""

    together: float
    alone: float

    @property
    def per_second(self) -> float:
        return 1 / self.together


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One breadth. ``chosen_on`` is the recall over every other question, ``recall`` that over the rest,
    ``time`` that of all."""

    breadth: int
    time: Timed
    chosen_on: dict[str, float]
    recall: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def timed(index: Index, queries: np.ndarray) -> tuple[Timed, SearchResult]:
    """The times of an index, and what it found for all questions (Q, D)."""
    result = index.search(queries, DEPTH)  # reads what the first search reads
    together, alone = [], []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        index.search(queries, DEPTH)
        together.append((time.perf_counter() - start) / len(queries))
    for query in queries[:_ALONE]:
        start = time.perf_counter()
        index.search(query[None], DEPTH)
        alone.append(time.perf_counter() - start)
    return Timed(min(together), median(alone)), result


def measure_curve(index: Index, queries: np.ndarray, truth: Sequence[Sequence[str]]) -> list[CurvePoint]:
    """A point for each breadth, ascending, up to the first that finds everything. The index is left with the
    last of them."""
    points = []
    for breadth in index.breadths(DEPTH):
        index.search_with(breadth)
        taken, (_, hits) = timed(index, queries)
        halves = [recall_values(hits[half], truth[half]) for half in (slice(0, None, 2), slice(1, None, 2))]
        points.append(CurvePoint(breadth, taken, *halves))
        if min(values[f"recall@{DEPTH}"] for values in halves) >= _ENOUGH:
            break
    return points


def least_that_reaches(points: Sequence[CurvePoint], target: float) -> CurvePoint | None:
    """The first point with this recall on the questions to choose on; None where no point has it."""
    return next((point for point in points if point.chosen_on[f"recall@{DEPTH}"] >= target), None)
