"""Validation by retrieval: the metrics of ``dpr retrieve`` over the whole corpus, or a sample of it, with the
present model."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpr.core.batch import TokenBatch
from dpr.core.distributed import (
    current_ranks,
    from_main,
    gather_rows,
    largest_over_ranks,
    on_main,
    sum_over_ranks,
)
from dpr.core.errors import ConfigError, InputError, LostRankError
from dpr.core.logs import counted, get_logger
from dpr.core.other_names import hint
from dpr.core.records import Passage, Question
from dpr.core.seeding import generator_for
from dpr.core.settings import CONTENT, IDENTITY, NO_EFFECT, WARNED, Settings, flat_values, listed, setting
from dpr.embedding.encode import CHUNK_ROWS, CorpusTokens, TokenChunk, default_batch_tokens, encode_tokens
from dpr.embedding.source import PassageSource, StoredSource, with_store
from dpr.evaluation.answer_match import warn_of_empty_answers
from dpr.evaluation.evaluator import Evaluator
from dpr.evaluation.ranking_metrics import Qrels, finest, validated_names, with_relevant
from dpr.formats.corpora import write_passages
from dpr.formats.question_sets import read_qrels, read_questions, require_judged
from dpr.indexer.bm25 import Bm25Index
from dpr.indexer.exact import RunningSearch
from dpr.indexer.ranking import RunningTopK, SearchResult, fuse_linear, to_rankings
from dpr.indexer.registry import IndexTexts
from dpr.indexer.settings import DEFAULT_WEIGHT
from dpr.indexer.vectors import check_finite
from dpr.models.towers import Towers
from dpr.storage.checksums import cache_root, content_sha256, shared_content
from dpr.storage.durable import durable_folder, read_manifest
from dpr.storage.outputs import cache_key, ensure_built
from dpr.training.validations.protocol import Metrics, Validation

logger = get_logger(__name__)

KIND = "retrieval"
NUM_DOCS = 100  # passages of each question
BLOCK_ROWS = 8192
_MERGED_ROWS = 4096
_MOST_INDEXED = 300_000  # takes a minute or two, while other ranks wait
_PASSAGES = "passages.jsonl"
_DRAWN = 97  # keeps these random numbers apart from others
_NO_TOKENS = TokenBatch.from_lists([])


@dataclass
class RetrievalValidationSettings(Settings):
    """Search of questions in a whole corpus, or in a sample of it, with the present model."""

    corpus: str = setting("", on_resume=CONTENT, path="input")
    """Passages: TSV (id, text, title), BEIR's corpus.jsonl or Parquet."""
    questions: str = setting("", on_resume=CONTENT, path="input")
    """Questions: TSV (question, answers), JSON lines, or BEIR's queries.jsonl."""
    qrels: str | None = setting(None, on_resume=CONTENT, path="input")
    """Relevance judgements, BEIR's TSV or TREC's four columns."""
    match: str = setting("auto", choices=("auto", "string", "regex", "qrels"), on_resume=IDENTITY)
    """string or regex: an answer in the text, also if there are qrels; qrels: judgements only; auto = qrels
    where given, else string."""
    name: str | None = setting(None, on_resume=NO_EFFECT)
    """Name in those of metrics, eval/<name>/...; absent = the name of the questions' file."""
    guard: float | None = setting(None, least=0, on_resume=WARNED)
    """Margin by which nDCG@10 of the best checkpoint may be below that of step 0 (top-20 accuracy without
    judgements); absent = no limit."""
    sample: int = setting(0, unit="passages", least=0, on_resume=IDENTITY)
    """Search only the relevant passages and this many random others: the metrics are optimistic; 0 = the
    whole corpus."""
    prompt: str | None = setting(None, on_resume=IDENTITY)
    """Name of the model's prompt for these questions; absent = its query prompt."""

    def check_together(self, prefix: str) -> None:
        for key, file in (("corpus", self.corpus), ("questions", self.questions), ("qrels", self.qrels)):
            if file == "":
                raise ConfigError(f"{prefix}{key} is not set; name a file")
            if file and not Path(file).is_file():
                raise ConfigError(
                    f"{prefix}{key}={file} is not a file{hint('set') if Path(file).is_dir() else ''}"
                )
        if self.match == "qrels" and not self.qrels:
            raise ConfigError(f"{prefix}match=qrels needs {prefix}qrels=<file>")
        if self.sample and not self.qrels:
            raise ConfigError(f"{prefix}sample needs {prefix}qrels=<file>, whose relevant passages it keeps")


def read_entry(entry: Any, number: int) -> RetrievalValidationSettings | None:
    """Returns the settings of an entry that names a kind, else None. ``number`` counts the entries from 0.

    Raises:
        ConfigError: another kind, an unknown key, a wrong value, or a file that is not there.
    """
    if not isinstance(entry, Mapping) or "kind" not in entry:
        return None
    key = f"train.validation[{number}]"
    values = dict(entry)
    kind = values.pop("kind")
    if kind != KIND:
        raise ConfigError(
            f"{key}.kind={kind} is not known; choose {KIND}, or a class of yours with use: module:Class"
        )
    return RetrievalValidationSettings.from_mapping(values, f"{key}.")


def search_corpus(
    model: Towers, corpus: CorpusTokens, questions: TokenBatch, *, depth: int, precision: str
) -> RunningTopK:
    """Returns the best passages of each question, on rank 0, in one pass over the corpus. Each chunk is
    encoded, compared with all questions, and dropped. All ranks call it together.

    Chunk k belongs to rank k mod W. A rank keeps the best passages of each question that it has seen, and the
    ranks' lists are merged at the end. ``RunningSearch`` nominates passages by products and ranks them in
    float64. So the result has the same bits for any number of ranks, and memory grows with the questions, not
    with the corpus.

    Raises:
        InputError: the corpus has changed or cannot be read; a vector is NaN or infinite.
        LostRankError: that happened on another rank.
    """
    ranks = current_ranks()
    budget = default_batch_tokens(model.device)

    def encoded(tokens: TokenBatch, encoder_type: str) -> np.ndarray:
        return encode_tokens(
            model, tokens, encoder_type=encoder_type, batch_tokens=budget, precision=precision
        )

    vectors = encoded(questions, "question")
    check_finite(np.arange(len(vectors)).astype(bytes), vectors)
    running = RunningSearch(vectors, depth, device=str(model.device), block_rows=BLOCK_ROWS)

    # Chunks are joined into blocks, since a product of many rows is faster.
    block: list[tuple[np.ndarray, np.ndarray]] = []

    def search_block() -> None:
        if block:
            ids, vectors = zip(*block, strict=True)
            running.add(np.concatenate(ids), np.concatenate(vectors))
            block.clear()

    mine = list(range(ranks.rank, corpus.num_chunks, ranks.world_size))
    chunks = corpus.read(mine)
    # The ranks meet after every chunk, so that one that fails is noticed soon.
    starts = range(0, corpus.num_passages, corpus.chunk_size * ranks.world_size)
    for turn, _ in enumerate(counted(starts, f"encoding and searching {corpus.source.name}")):
        failure = None
        chunk: TokenChunk | None = None
        try:
            chunk = next(chunks) if turn < len(mine) else None
        except Exception as error:  # the other ranks must learn of it first, or they would wait forever
            failure = error
        if largest_over_ranks(int(failure is not None)):
            raise failure or LostRankError(
                "another rank stopped while it read the corpus; its message says why"
            )
        # a sharded model encodes on all ranks together
        vectors = encoded(_NO_TOKENS if chunk is None else chunk.tokens, "ctx")
        if chunk is not None:
            if sum(len(ids) for ids, _ in block) + len(chunk.ids) > BLOCK_ROWS:
                search_block()
            block.append((chunk.ids, vectors))
    search_block()
    return merged_on_main(running.best, len(questions))


def merged_on_main(best: RunningTopK, num_questions: int) -> RunningTopK:
    """Returns the best passages of all ranks on rank 0, and only this rank's elsewhere. Each listed passage
    is sent as 4 bytes and an id."""
    ranks = current_ranks()
    if ranks.world_size == 1:
        return best
    width = largest_over_ranks(best.part(slice(0, 0))[1].dtype.itemsize)
    for first in range(0, num_questions, _MERGED_ROWS):
        scores, ids, counts = best.part(slice(first, first + _MERGED_ROWS))
        text = torch.from_numpy(ids.astype(f"S{width}").view(np.uint8).reshape(*ids.shape, width).copy())
        sent = torch.from_numpy(scores.copy()), text, torch.from_numpy(counts.copy())
        parts = zip(*(gather_rows(part[None]).unbind(0) for part in sent), strict=True)
        for rank, (others, letters, sizes) in enumerate(parts):
            if ranks.is_main and rank:
                keys = np.ascontiguousarray(letters.numpy()).view(f"S{width}")[..., 0]
                best.add_part(first, others.numpy(), keys, sizes.numpy())
    return best


def evaluator_of(options: RetrievalValidationSettings) -> Evaluator:
    """Returns the evaluator of the questions that have judgements or answers.

    Raises:
        InputError: a row is bad, or no question has a relevant passage or an answer.
    """
    questions = read_questions(options.questions)
    qrels: Qrels = {}
    if options.qrels:
        judged = read_qrels(options.qrels)
        ids = [question.id for question in questions]
        require_judged(ids, judged, file=options.qrels, of=str(options.questions))
        qrels = with_relevant(judged)
    match = "string" if options.match == "auto" and not options.qrels else options.match
    answer_match = match if match in ("string", "regex") else None
    kept = [question for question in questions if question.id in qrels or (answer_match and question.answers)]
    if not kept or (answer_match and not any(question.answers for question in kept)):
        missing = "has answers" if answer_match else f"has a passage judged relevant in {options.qrels}"
        raise InputError(
            f"no question {missing}",
            file=options.questions,
            hint="question ids and judgements must belong together",
        )
    if answer_match:
        warn_of_empty_answers(kept)
    return Evaluator(kept, qrels or None, answer_match, NUM_DOCS, only_answered=True)


def lexical_search(source: PassageSource, questions: Sequence[Question], depth: int) -> SearchResult:
    """Returns the passages that BM25 ranks highest in the whole corpus, which it indexes in memory."""
    ids = [str(passage.id) for passage in source.read()]
    index = Bm25Index.build(IndexTexts(ids, (f"{passage.title} {passage.text}" for passage in source.read())))
    return index.search([question.text for question in questions], depth)


def found_in(source: PassageSource, ids: set[str]) -> dict[str, Passage]:
    """Returns the passages with these ids; without a store it reads the whole file."""
    if isinstance(source, StoredSource):
        return source.find(ids)
    return {str(passage.id): passage for passage in source.read() if passage.id in ids}


class RetrievalValidation(Validation):
    """``eval/<name>/accuracy@20``, ``mrr@10`` and other metrics over the whole corpus, or over a sample of
    it, where they are optimistic.

    They have the same bits for any number of ranks.
    """

    def __init__(
        self, options: RetrievalValidationSettings, *, precision: str = "fp32", chunk_size: int | None = None
    ) -> None:
        options.check("train.validation.")
        self.options = options
        self.name = options.name or Path(options.questions).name.partition(".")[0]
        self.guard = options.guard
        self.evaluator = evaluator_of(options)
        self._kinds = self.evaluator.names(validated_names())
        self.judged_by = finest(self.names()) or self.names()[-1:]
        self._precision = precision
        self._chunk_size = chunk_size or CHUNK_ROWS
        self._corpus: CorpusTokens | None = None

    def names(self) -> list[str]:
        """Returns the metrics by their full names."""
        return [f"eval/{self.name}/{kind}" for kind in self._kinds]

    def content(self) -> dict[str, Any]:
        files = flat_values(self.options, (CONTENT,))
        return flat_values(self.options, (IDENTITY,)) | {
            key: shared_content(list(map(Path, listed(paths)))) for key, paths in files.items()
        }

    def __call__(self, model: Towers) -> Metrics:
        return self._measured(model, [""])

    def at_start(self, model: Towers) -> Metrics:
        """Measures BM25 and the hybrid of both, with the default weight, besides the model. In a large corpus
        it measures the model alone."""
        if self.corpus_of(model).num_passages > _MOST_INDEXED:
            logger.info(
                "%s: more than %d passages, so BM25 is not measured for comparison",
                self.name,
                _MOST_INDEXED,
            )
            return self(model)
        return self._measured(model, ["", "bm25/", "hybrid/"])

    def num_texts(self, model: Towers) -> int:
        return self.corpus_of(model).num_passages + len(self.evaluator.questions)

    def _measured(self, model: Towers, ways: Sequence[str]) -> Metrics:
        """Returns the metrics of the model and, if ``ways`` has them, of BM25 and the hybrid."""
        corpus = self.corpus_of(model)
        questions = self.evaluator.questions
        tokens = model.tensorizer.question_tokens(
            [question.text for question in questions], prompt=self.options.prompt
        )
        start = time.perf_counter()
        hits = search_corpus(
            model,
            corpus,
            TokenBatch.from_lists(tokens),
            depth=min(NUM_DOCS, corpus.num_passages),
            precision=self._precision,
        )
        logger.info(
            "%s: %d passages encoded and searched for %d questions in %.1f s",
            self.name,
            corpus.num_passages,
            len(questions),
            time.perf_counter() - start,
        )
        kinds = self._kinds
        means = torch.zeros(len(ways), len(kinds), dtype=torch.float64)

        def judge() -> None:
            rankings = [to_rankings(hits.result())]
            if len(ways) > 1:
                lexical = to_rankings(lexical_search(corpus.source, questions, NUM_DOCS))
                both = fuse_linear(rankings[0], lexical, weight=DEFAULT_WEIGHT, k=NUM_DOCS)
                rankings += [lexical, both]
            found = dict(self.values)
            for row, (way, of_way) in enumerate(zip(ways, rankings, strict=True)):
                ids = {key for ranking in of_way for key, _ in ranking}
                texts = found_in(corpus.source, ids) if self.evaluator.answer_match else None
                judged = self.evaluator.evaluate(of_way, texts)
                means[row] = torch.tensor([judged.metrics[kind] for kind in kinds], dtype=torch.float64)
                for kind, of_kind in judged.values.items():
                    found[f"eval/{self.name}/{way}{kind}"] = list(of_kind.values())
            self.values = found

        on_main(judge)
        names = [f"eval/{self.name}/{way}{kind}" for way in ways for kind in kinds]
        return dict(zip(names, sum_over_ranks(means).flatten().tolist(), strict=True))

    def corpus_of(self, model: Towers) -> CorpusTokens:
        """Returns the corpus, counted and checked on the first call. All ranks call it together.

        Raises:
            InputError: it has a bad row or a repeated id, or holds no passage that is judged relevant.
        """
        if self._corpus is None:
            source = PassageSource(Path(self.options.corpus), self.name)
            size = [0]

            def count() -> None:
                stored = with_store(source)  # made by rank 0; the others then find it in the cache
                size[0] = stored.count_unique()
                if relevant := self.evaluator.relevant():
                    first = next(stored.read()).id
                    found = found_in(stored, relevant)
                    self.evaluator.require_relevant(
                        found, f"the corpus begins with {first!r}", file=source.file
                    )

            on_main(count)
            source = with_store(source)
            num_passages = from_main(size[0])
            if self.options.sample:
                source, num_passages = self._sampled(source, num_passages)
            source = source.agreed(model.tensorizer.text)
            self._corpus = CorpusTokens(source, num_passages, model.tensorizer, chunk_size=self._chunk_size)
        return self._corpus

    def _sampled(self, source: PassageSource, num_passages: int) -> tuple[PassageSource, int]:
        """Returns the passages judged relevant and those drawn from the others, as a corpus of its own in the
        cache, and their number. Rank 0 writes it, and all ranks call this together."""
        options = self.options
        relevant = self.evaluator.relevant()
        files = [Path(options.questions), Path(str(options.qrels))]
        key = cache_key(files, [content_sha256(source.file), options.sample])
        folder = cache_root(None) / f"sample-{key}"

        def build(target: Path) -> None:
            num_others = num_passages - sum(passage.id in relevant for passage in source.read())
            size = min(options.sample, num_others)
            generator = generator_for(_DRAWN, 0)
            drawn = set(generator.choice(num_others, size, replace=False, shuffle=False).tolist())
            number = itertools.count()
            kept = (passage for passage in source.read() if passage.id in relevant or next(number) in drawn)
            metadata: dict[str, Any] = {"kind": "sample", "cache": target.name}
            with durable_folder(target, overwrite=True, metadata=metadata) as temporary:
                metadata["passages"] = write_passages(temporary / _PASSAGES, kept)

        on_main(lambda: ensure_built(folder, build))
        size = read_manifest(folder)["metadata"]["passages"]
        if current_ranks().is_main:
            logger.warning(
                "%s: %d of %d passages are searched, all relevant ones among them: its metrics are"
                " optimistic; sample=0 searches all",
                self.name,
                size,
                num_passages,
            )
        return PassageSource(folder / _PASSAGES, source.name), size
