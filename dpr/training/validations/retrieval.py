"""Validation by retrieval: the metrics of ``dpr retrieve`` over the whole corpus, with the
present model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dpr.core.batch import TokenBatch
from dpr.core.distributed import from_main, on_main, sum_over_ranks
from dpr.core.errors import InputError
from dpr.core.logs import get_logger
from dpr.core.records import Passage, Question
from dpr.core.settings import CONTENT, IDENTITY, flat_values, listed
from dpr.embedding.corpus_tokens import CHUNK_ROWS, CorpusTokens
from dpr.embedding.source import PassageSource, StoredSource, with_store
from dpr.evaluation.answer_match import warn_of_empty_answers
from dpr.evaluation.evaluator import Evaluator
from dpr.evaluation.ranking_metrics import Qrels, validated_names, with_relevant
from dpr.formats.metrics_files import finest
from dpr.formats.question_sets import read_qrels, read_questions, require_judged
from dpr.indexer.bm25 import Bm25Index
from dpr.indexer.fusion import fuse_linear
from dpr.indexer.ranking import SearchResult, to_rankings
from dpr.indexer.registry import Texts
from dpr.indexer.settings import DEFAULT_WEIGHT
from dpr.models.biencoder import BiEncoder
from dpr.storage.checksums import shared_content
from dpr.training.metrics import Metrics
from dpr.training.validations.corpus_pass import QuerySet, search_corpus
from dpr.training.validations.protocol import Validation
from dpr.training.validations.retrieval_settings import RetrievalValidationSettings

logger = get_logger(__name__)

NUM_DOCS = 100  # passages of each question
_MOST_INDEXED = 300_000  # in a minute or two, while other ranks wait


def evaluator_of(options: RetrievalValidationSettings) -> Evaluator:
    """The questions that something is known about, with their judgements and answers.

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
    """What BM25 ranks highest in the whole corpus, which it indexes in memory."""
    ids = [str(passage.id) for passage in source.read()]
    index = Bm25Index.build(Texts(ids, (f"{passage.title} {passage.text}" for passage in source.read())))
    return index.search([question.text for question in questions], depth)


def found_in(source: PassageSource, ids: set[str]) -> dict[str, Passage]:
    """The passages with these ids; without a store all of the file is read."""
    if isinstance(source, StoredSource):
        return source.find(ids)
    return {str(passage.id): passage for passage in source.read() if passage.id in ids}


class RetrievalValidation(Validation):
    """``eval/<name>/accuracy@20``, ``mrr@10`` and others over the whole corpus.

    The same bits for any number of ranks.
    """

    def __init__(
        self, options: RetrievalValidationSettings, *, precision: str = "fp32", chunk_size: int | None = None
    ) -> None:
        options.check("train.validation.")
        self.options = options
        self.name = options.set_name()
        self.evaluator = evaluator_of(options)
        self.judged_by = finest(self.names()) or self.names()[-1:]
        self._precision = precision
        self._chunk_size = chunk_size or CHUNK_ROWS
        self._corpus: CorpusTokens | None = None

    def names(self) -> list[str]:
        """The metrics by their full names."""
        return [f"eval/{self.name}/{kind}" for kind in self.evaluator.names(validated_names())]

    def content(self) -> dict[str, Any]:
        files = flat_values(self.options, (CONTENT,))
        return flat_values(self.options, (IDENTITY,)) | {
            key: shared_content(list(map(Path, listed(named)))) for key, named in files.items()
        }

    def __call__(self, model: BiEncoder) -> Metrics:
        return self._measured(model)

    def at_start(self, model: BiEncoder) -> Metrics:
        """Beside the model BM25, and the hybrid of both with the usual weight; not for large corpora."""
        if is_large := self.corpus_of(model).num_passages > _MOST_INDEXED:
            logger.info(
                "%s: more than %d passages, so BM25 is not measured beside the start",
                self.name,
                _MOST_INDEXED,
            )
        return self._measured(model, with_others=not is_large)

    def _measured(self, model: BiEncoder, *, with_others: bool = False) -> Metrics:
        corpus = self.corpus_of(model)
        questions = self.evaluator.questions
        depth = min(NUM_DOCS, corpus.num_passages)
        asked = QuerySet(len(questions), lambda rows: self._tokens(model, rows), depth)
        hits, seconds = search_corpus(model, corpus, asked, precision=self._precision)
        kinds = self.evaluator.names(validated_names())
        ways = ("", "bm25/", "hybrid/") if with_others else ("",)
        means = torch.zeros(len(ways), len(kinds), dtype=torch.float64)

        def judge() -> None:
            rankings = [to_rankings(hits.result())]
            if with_others:
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
        logger.info(
            "%s: %d passages encoded in %.1f s, searched for %d questions in %.1f s",
            self.name,
            corpus.num_passages,
            seconds.encoding,
            asked.count,
            seconds.searching,
        )
        names = [f"eval/{self.name}/{way}{kind}" for way in ways for kind in kinds]
        return dict(zip(names, sum_over_ranks(means).flatten().tolist(), strict=True))

    def _tokens(self, model: BiEncoder, rows: range) -> TokenBatch:
        texts = [self.evaluator.questions[row].text for row in rows]
        prefix = model.tensorizer.text.agreed_prefix(
            self.options.query_prefix,
            model.tensorizer.text.question_prompt(self.options.prompt),
            key="query_prefix",
        )
        return TokenBatch.from_lists(
            model.tensorizer.question_tokens(texts, prompt=self.options.prompt, prefix=prefix)
        )

    def corpus_of(self, model: BiEncoder) -> CorpusTokens:
        """The corpus, counted and checked when it is first asked for; all ranks call it together.

        Raises:
            InputError: it has a bad row or a repeated id, or holds no passage that is judged relevant.
        """
        if self._corpus is None:
            source = PassageSource(
                Path(self.options.corpus), self.name, passage_prefix=self.options.passage_prefix
            )
            counted = [0]

            def count() -> None:
                stored = with_store(source)  # made by rank 0; the others then find it in the cache
                counted[0] = stored.count_unique()
                if relevant := self.evaluator.relevant():
                    first = next(stored.read()).id
                    found = found_in(stored, relevant)
                    self.evaluator.require_relevant(
                        found, f"the corpus begins with {first!r}", file=source.file
                    )

            on_main(count)
            source = with_store(source)
            source = source.agreed(model.tensorizer.text)
            self._corpus = CorpusTokens(
                source, from_main(counted[0]), model.tensorizer, chunk_size=self._chunk_size
            )
        return self._corpus
