"""The stratified sample of a corpus: the hard pool and passages drawn from the rest, written once into the cache as a corpus of its own.

stratum-<key>/
  passages.jsonl   the passages of both, in the order of the corpus
  drawn.json       the ids of those drawn, and how many passages each stands for
  manifest.json
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from dpr.core.distributed import on_main
from dpr.core.errors import InputError
from dpr.core.logs import get_logger
from dpr.core.records import Passage, Question
from dpr.core.seeding import generator_for
from dpr.embedding.source import PassageSource
from dpr.formats.corpora import write_passages
from dpr.formats.results import read_trec_run
from dpr.indexer.bm25 import Bm25Index
from dpr.indexer.ranking import SearchResult
from dpr.indexer.registry import Texts
from dpr.storage.checksums import cache_root, content_sha256
from dpr.storage.durable import durable_folder, read_json, write_json
from dpr.storage.outputs import cache_key, ensure_built
from dpr.training.validations.estimates import Stratum
from dpr.training.validations.retrieval_settings import RetrievalValidationSettings

logger = get_logger(__name__)

_LAYOUT = 1
_DRAWN = 97  # keeps these random numbers apart from others
_PASSAGES, _NUMBERS = "passages.jsonl", "drawn.json"


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
        return {key for found in lexical_search(source, questions, depth)[1] for key in found}
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
