"""Estimates of retrieval metrics from a stratified sample of a corpus: a hard pool that is searched whole, and a draw from the rest.

The sample is written once into the cache as a corpus of its own:

stratum-<key>/
  passages.jsonl   the passages of both, in the order of the corpus
  drawn.json       the ids of those drawn, and how many passages each stands for
  manifest.json

How many passages of the pool are above a right passage is known; how many of the rest, is estimated from those drawn
(``dpr/evaluation/drawn_ranks.py``). Metrics that depend on the very first ranks (top-1, MRR, nDCG) would be rough, so only accuracy and
recall at 20 and 100 are estimated. The interval is about which passages were drawn, not about the choice of questions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpr.core.distributed import on_main
from dpr.core.errors import InputError
from dpr.core.logs import get_logger
from dpr.core.records import Passage, Question
from dpr.core.seeding import generator_for
from dpr.embedding.source import PassageSource
from dpr.evaluation.drawn_ranks import probabilities_within
from dpr.formats.corpora import write_passages
from dpr.formats.results import read_trec_run
from dpr.indexer.bm25 import Bm25Index
from dpr.indexer.ranking import Ranking, SearchResult
from dpr.indexer.registry import Texts
from dpr.storage.checksums import cache_root, content_sha256
from dpr.storage.durable import durable_folder, read_json, write_json
from dpr.storage.outputs import cache_key, ensure_built
from dpr.training.validations.retrieval_settings import RetrievalValidationSettings

logger = get_logger(__name__)

ESTIMATED = ("accuracy@20", "accuracy@100", "recall@20", "recall@100")
_LAYOUT = 1
_DRAWN = 97  # keeps these random numbers apart from others
_DEVIATIONS = 3  # two would do if questions followed the fitted distribution exactly; measured in docs/training.md
_PASSAGES, _NUMBERS = "passages.jsonl", "drawn.json"


@dataclass(frozen=True)
class Stratum:
    """The part of a corpus that is searched: ``sampled`` are the ids drawn, of which each stands for ``weight`` passages."""

    source: PassageSource
    num_passages: int
    sampled: Collection[str]
    weight: float


Judged = tuple[Ranking, Sequence[bool], int]
"""What was found for a question, whether each is right, and how many right ones there are."""


def open_stratum(
    source: PassageSource,
    num_passages: int,
    questions: Sequence[Question],
    qrels: Mapping[str, Mapping[str, int]],
    options: RetrievalValidationSettings,
) -> Stratum:
    """The stratified sample that ``options`` describe, made on rank 0 if it is not in the cache; all ranks call it together.

    Raises:
        InputError: a run ranks passages that are not in the corpus.
    """
    files = [Path(file) for file in (options.questions, options.qrels, *options.runs()) if file]
    drawn = [options.match, options.sample, options.hard_depth, options.seed]
    folder = cache_root(None) / f"stratum-{cache_key(files, [_LAYOUT, content_sha256(source.file), drawn])}"

    def build(target: Path) -> None:
        relevant = {key for grades in qrels.values() for key, grade in grades.items() if grade > 0}
        hard = relevant.union(_hard(source, questions, options))
        with durable_folder(target, overwrite=True, metadata={"kind": "stratum", "cache": target.name}) as temporary:
            ids: list[str] = []
            chosen = _chosen(source, hard, num_passages, options, ids)
            written = write_passages(temporary / _PASSAGES, chosen)
            weight = (num_passages - written + len(ids)) / max(len(ids), 1)
            write_json(temporary / _NUMBERS, {"ids": ids, "weight": weight, "passages": written})

    on_main(lambda: ensure_built(folder, build))
    numbers = read_json(folder / _NUMBERS)
    part = PassageSource(folder / _PASSAGES, source.name, passage_prefix=source.passage_prefix)
    stratum = Stratum(part, numbers["passages"], numbers["ids"], numbers["weight"])
    logger.info(
        "%s: estimates from %d passages of the hard pool and %d of the other %d of the corpus, drawn by seed %d",
        *(source.name, stratum.num_passages - len(stratum.sampled), len(stratum.sampled)),
        *(num_passages - stratum.num_passages + len(stratum.sampled), options.seed),
    )
    return stratum


def lexical_search(source: PassageSource, questions: Sequence[Question], depth: int) -> SearchResult:
    """What BM25 ranks highest in the whole corpus, which it indexes in memory."""
    ids = [str(passage.id) for passage in source.read()]
    index = Bm25Index.build(Texts(ids, (f"{passage.title} {passage.text}" for passage in source.read())))
    return index.search([question.text for question in questions], depth)


def _hard(source: PassageSource, questions: Sequence[Question], options: RetrievalValidationSettings) -> Iterable[str]:
    """What the runs, or BM25, rank highest for any of the questions."""
    depth = options.hard_depth
    if not options.runs():
        return {key for ids in lexical_search(source, questions, depth)[1] for key in ids}
    asked = {question.id for question in questions}
    runs = [read_trec_run(file) for file in options.runs()]
    for file, run in zip(options.runs(), runs, strict=True):
        if not asked & run.keys():
            raise InputError(f"ranks none of the questions of {options.questions}", file=file, expected="a TREC run on these questions")
    return {key for run in runs for question, ranking in run.items() if question in asked for key, _ in ranking[:depth]}


def _chosen(
    source: PassageSource, hard: set[str], num_passages: int, options: RetrievalValidationSettings, drawn: list[str]
) -> Iterator[Passage]:
    """The passages of the hard pool and those drawn from the others, whose ids ``drawn`` gets, in the order of the corpus."""
    num_others = num_passages - sum(passage.id in hard for passage in source.read())
    size = min(options.sample, num_others)
    wanted = set(generator_for(_DRAWN, options.seed).choice(num_others, size, replace=False, shuffle=False).tolist()) if size else set()
    number = 0
    for passage in source.read():
        if passage.id not in hard:
            number += 1
            if number - 1 not in wanted:
                continue
            drawn.append(str(passage.id))
        yield passage


def estimated(judged: Mapping[str, Sequence[Judged]], stratum: Stratum) -> dict[str, float]:
    """``est_<prefix><metric>`` with ``..._low`` and ``..._high``, the ends of its interval, by prefix and judged questions."""
    drawn, share = frozenset(stratum.sampled), min(1.0, 1 / max(stratum.weight, 1.0))
    metrics: dict[str, float] = {}
    for prefix, questions in judged.items():
        above = [_above_right(ranking, right, drawn) for ranking, right, _ in questions]
        question = np.repeat(np.arange(len(above)), [len(counts) for counts in above])
        hard, seen = np.array([pair for counts in above for pair in counts], dtype=np.int64).reshape(-1, 2).T
        is_best = np.diff(question, prepend=-1) > 0
        total = np.array([total for _, _, total in questions])
        reached = {k: probabilities_within(k, hard, seen, share) for k in (20, 100)}
        for name in ESTIMATED:
            kind, _, k = name.partition("@")
            within = reached[int(k)]
            weights = is_best if kind == "accuracy" else 1 / total[question]
            # Passages of one question are reached or missed together, those of several independently.
            deviations = np.bincount(question, np.sqrt(within * (1 - within)) * weights, len(questions))
            value, margin = (within * weights).sum() / len(questions), _DEVIATIONS * np.linalg.norm(deviations) / len(questions)
            bounds = {"": value, "_low": max(value - margin, 0.0), "_high": min(value + margin, 1.0)}
            metrics |= {f"est_{prefix}{name}{end}": float(number) for end, number in bounds.items()}
    return metrics


def _above_right(ranking: Ranking, right: Sequence[bool], drawn: Collection[str]) -> list[tuple[int, int]]:
    """For each right passage of a ranking how many of the hard pool and how many of those drawn are above it."""
    counts, above = list[tuple[int, int]](), [0, 0]
    for (key, _), is_right in zip(ranking, right, strict=True):
        if is_right:
            counts.append((above[0], above[1]))
        above[key in drawn] += 1
    return counts
