"""Validation by retrieval: the metrics of ``dpr retrieve`` over the whole corpus, or their estimates, with
the present model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dpr.core.batch import TokenBatch
from dpr.core.distributed import current_ranks, from_main, on_main, sum_over_ranks
from dpr.core.errors import InputError
from dpr.core.logs import get_logger
from dpr.core.records import Passage, Question
from dpr.core.seeding import generator_for
from dpr.core.settings import CONTENT, IDENTITY, flat_values, listed
from dpr.embedding.corpus_tokens import CHUNK_ROWS, CorpusTokens
from dpr.embedding.source import PassageSource, StoredSource, with_store
from dpr.evaluation.answer_match import match_hits, warn_of_empty_answers
from dpr.evaluation.ranking_metrics import evaluate_questions
from dpr.formats.corpora import write_passages
from dpr.formats.metrics_files import finest
from dpr.formats.question_sets import read_qrels, read_questions, require_judged
from dpr.indexer.bm25 import Bm25Index
from dpr.indexer.fusion import fuse_linear
from dpr.indexer.ranking import Ranking, SearchResult, to_rankings
from dpr.indexer.registry import Texts
from dpr.indexer.settings import DEFAULT_WEIGHT
from dpr.models.biencoder import BiEncoder
from dpr.storage.checksums import cache_root, content_sha256, shared_content
from dpr.storage.durable import durable_folder, read_manifest
from dpr.storage.outputs import cache_key, ensure_built
from dpr.training.metrics import Metrics
from dpr.training.validations.corpus_pass import CorpusPass, QuerySet
from dpr.training.validations.protocol import Validation
from dpr.training.validations.retrieval_settings import RetrievalValidationSettings

logger = get_logger(__name__)

_PASSAGES = "passages.jsonl"
_DRAWN = 97  # keeps these random numbers apart from others
_BESIDE = ("bm25/", "hybrid/")
_MOST_INDEXED = 300_000  # in a minute or two, while other ranks wait
_CUTOFFS = (1, 5, 10, 20, 100)
_SHOWN = {"accuracy": (1, 5, 20, 100), "recall": (20, 100), "mrr": (10,), "ndcg": (10,)}


@dataclass(frozen=True)
class JudgedQuestions:
    """The questions of a set, with what tells a right passage: judgements, answers, or both."""

    questions: Sequence[Question]
    qrels: dict[str, dict[str, int]]
    answer_match: str | None
    cutoffs: tuple[int, ...]

    @classmethod
    def read(cls, options: RetrievalValidationSettings) -> JudgedQuestions:
        """Reads the files; questions that nothing is known about are left out.

        Raises:
            InputError: a row is bad, or no question has a relevant passage or an answer.
        """
        questions = read_questions(options.questions)
        qrels = read_qrels(options.qrels) if options.qrels else {}
        if options.qrels:
            require_judged(
                [question.id for question in questions], qrels, file=options.qrels, of=str(options.questions)
            )
        relevant = {
            key: grades for key, grades in qrels.items() if any(grade > 0 for grade in grades.values())
        }
        match = "string" if options.match == "auto" and not options.qrels else options.match
        by_answers = match if match in ("string", "regex") else None
        kept = [
            question for question in questions if question.id in relevant or (by_answers and question.answers)
        ]
        if not kept or (by_answers and not any(question.answers for question in kept)):
            missing = "has answers" if by_answers else f"has a passage judged relevant in {options.qrels}"
            raise InputError(
                f"no question {missing}",
                file=options.questions,
                hint="question ids and judgements must belong together",
            )
        if by_answers:
            warn_of_empty_answers(kept)
        cutoffs = tuple(k for k in _CUTOFFS if k <= options.n_docs) or (options.n_docs,)
        asked = {question.id for question in kept}
        return cls(
            kept, {key: grades for key, grades in relevant.items() if key in asked}, by_answers, cutoffs
        )

    @property
    def answer_prefix(self) -> str:
        """Before the metrics by answers: those by judgements keep the plain names."""
        return "answer_" if self.qrels else ""

    def names(self) -> list[str]:
        """The metrics, without the set's name."""
        by_qrels = (
            [f"{kind}@{k}" for kind, listed in _SHOWN.items() for k in listed if k in self.cutoffs]
            if self.qrels
            else []
        )
        by_answers = (
            [f"{self.answer_prefix}accuracy@{k}" for k in _SHOWN["accuracy"] if k in self.cutoffs]
            if self.answer_match
            else []
        )
        return by_qrels + by_answers

    def values(self, rankings: Sequence[Ranking], source: PassageSource) -> dict[str, list[float]]:
        """By metric, the values of the questions that it is taken over."""
        by_metric: dict[str, list[float]] = {}
        if self.qrels:
            run = {question.id: ranking for question, ranking in zip(self.questions, rankings, strict=True)}
            each = list(evaluate_questions(run, self.qrels, self.cutoffs).values())
            by_metric = {name: [values[name] for values in each] for name in each[0]}
        if self.answer_match:
            pairs = [
                (question.answers, ranking)
                for question, ranking in zip(self.questions, rankings, strict=True)
                if question.answers
            ]
            hits = [[key for key, _ in ranking] for _, ranking in pairs]
            texts = {
                key: passage.text
                for key, passage in found_in(source, {key for ids in hits for key in ids}).items()
            }
            matched = match_hits([answers for answers, _ in pairs], hits, texts, kind=self.answer_match)
            for k in self.cutoffs:
                by_metric[f"{self.answer_prefix}accuracy@{k}"] = [float(any(flags[:k])) for flags in matched]
        return by_metric


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
    """``eval/<name>/accuracy@20``, ``mrr@10`` and others over the whole corpus, or over a sample of it, among
    which they are optimistic.

    The same bits for any number of ranks.
    """

    def __init__(
        self, options: RetrievalValidationSettings, *, precision: str = "fp32", chunk_size: int | None = None
    ) -> None:
        options.check("train.validation.")
        self.options, self.name, self.every, self.guard = (
            options,
            options.set_name(),
            options.every,
            options.guard,
        )
        self.judged = JudgedQuestions.read(options)
        self.judged_by = finest(self.names()) or self.names()[-1:]
        self._precision, self._chunk_size = precision, chunk_size or CHUNK_ROWS
        self._corpus: CorpusTokens | None = None

    def names(self) -> list[str]:
        """The metrics by their full names."""
        return [f"eval/{self.name}/{kind}" for kind in self.judged.names()]

    def higher_is_better(self, name: str) -> bool | None:
        return True if name.startswith(f"eval/{self.name}/") else None

    def content(self) -> dict[str, Any]:
        files = flat_values(self.options, (CONTENT,))
        return flat_values(self.options, (IDENTITY,)) | {
            key: shared_content(list(map(Path, listed(named)))) for key, named in files.items()
        }

    def __call__(self, model: BiEncoder) -> Metrics:
        return self._measured(model)

    def trial(self, model: BiEncoder, num_pools: int) -> Metrics:
        """Over the first chunk of the corpus for each rank."""
        return self._measured(model, num_chunks=current_ranks().world_size, is_trial=True)

    def at_start(self, model: BiEncoder) -> Metrics:
        """Beside the model BM25, and the hybrid of both with the usual weight; not for large corpora."""
        if is_large := self.corpus_of(model).num_passages > _MOST_INDEXED:
            logger.info(
                "%s: more than %d passages, so BM25 is not measured beside the start",
                self.name,
                _MOST_INDEXED,
            )
        return self._measured(model, ways=("",) if is_large else ("", *_BESIDE))

    def num_texts(self, model: BiEncoder) -> int:
        return self.corpus_of(model).num_passages + len(self.judged.questions)

    def _measured(
        self,
        model: BiEncoder,
        *,
        num_chunks: int | None = None,
        is_trial: bool = False,
        ways: Sequence[str] = ("",),
    ) -> Metrics:
        corpus = self.corpus_of(model)
        passes = CorpusPass(model, corpus, precision=self._precision)
        depth = min(self.options.n_docs, corpus.num_passages)
        asked = QuerySet(len(self.judged.questions), lambda rows: self._tokens(model, rows), depth)
        hits = passes.run(asked, num_chunks=num_chunks)
        names = [way + kind for way in ways for kind in self.judged.names()]
        values = torch.zeros(len(names), dtype=torch.float64)

        def judge() -> None:
            rankings = {"": to_rankings(hits.result())}
            if len(ways) > 1:
                rankings |= zip(_BESIDE, self._beside(rankings[""], corpus.source), strict=True)
            metrics = {
                way + kind: value
                for way in ways
                for kind, value in self._judge(rankings[way], corpus.source, way).items()
            }
            values[:] = torch.tensor([metrics[name] for name in names], dtype=torch.float64)

        on_main(judge)
        if not is_trial:
            encoding, searching = passes.seconds.encoding, passes.seconds.searching
            logger.info(
                "%s: %d passages encoded in %.1f s, searched for %d questions in %.1f s (%.1f %% of it)",
                *(self.name, corpus.num_passages, encoding, asked.count, searching),
                100 * searching / max(encoding, 1e-9),
            )
        return dict(
            zip((f"eval/{self.name}/{name}" for name in names), sum_over_ranks(values).tolist(), strict=True)
        )

    def _beside(self, dense: Sequence[Ranking], source: PassageSource) -> tuple[list[Ranking], list[Ranking]]:
        """What BM25 finds, and the hybrid."""
        lexical = to_rankings(lexical_search(source, self.judged.questions, self.options.n_docs))
        return lexical, fuse_linear(dense, lexical, weight=DEFAULT_WEIGHT, k=self.options.n_docs)

    def _judge(self, rankings: Sequence[Ranking], source: PassageSource, way: str) -> Metrics:
        each = self.judged.values(rankings, source)
        self.values = {
            **self.values,
            **{f"eval/{self.name}/{way}{kind}": listed for kind, listed in each.items()},
        }
        return {kind: sum(listed) / len(listed) for kind, listed in each.items()}

    def _tokens(self, model: BiEncoder, rows: range) -> TokenBatch:
        texts = [self.judged.questions[row].text for row in rows]
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
                self._check_judgements(stored)

            on_main(count)
            source = with_store(source)
            if self.options.sample:
                source, counted[0] = self._sampled(source, from_main(counted[0]))
            source = source.agreed(model.tensorizer.text)
            self._corpus = CorpusTokens(
                source, from_main(counted[0]), model.tensorizer, chunk_size=self._chunk_size
            )
        return self._corpus

    def _sampled(self, source: PassageSource, num_passages: int) -> tuple[PassageSource, int]:
        """The passages judged relevant and those drawn from the others, as a corpus of its own in the cache,
        and how many there are; rank 0 writes it, and all ranks call this together."""
        options = self.options
        relevant = {
            key for grades in self.judged.qrels.values() for key, grade in grades.items() if grade > 0
        }
        parts = [content_sha256(source.file), options.sample, options.seed]
        folder = (
            cache_root(None)
            / f"sample-{cache_key([Path(options.questions), Path(str(options.qrels))], parts)}"
        )

        def build(target: Path) -> None:
            num_others = num_passages - sum(passage.id in relevant for passage in source.read())
            size = min(options.sample, num_others)
            drawn = set(
                generator_for(_DRAWN, options.seed)
                .choice(num_others, size, replace=False, shuffle=False)
                .tolist()
            )
            number = itertools.count()
            kept = (passage for passage in source.read() if passage.id in relevant or next(number) in drawn)
            metadata: dict[str, Any] = {"kind": "sample", "cache": target.name}
            with durable_folder(target, overwrite=True, metadata=metadata) as temporary:
                metadata["passages"] = write_passages(temporary / _PASSAGES, kept)

        on_main(lambda: ensure_built(folder, build))
        size = read_manifest(folder)["metadata"]["passages"]
        if current_ranks().is_main:
            message = (
                "%s: %d of %d passages are searched, all relevant ones among them: its metrics are"
                " optimistic; sample=0 searches all"
            )
            logger.warning(message, self.name, size, num_passages)
        return PassageSource(folder / _PASSAGES, source.name, passage_prefix=source.passage_prefix), size

    def _check_judgements(self, source: PassageSource) -> None:
        """Judgements of other passages than those of the corpus would give 0 for every metric, which is not a
        measurement."""
        wanted = {key for grades in self.judged.qrels.values() for key, grade in grades.items() if grade > 0}
        if not wanted:
            return
        missing = wanted - found_in(source, wanted).keys()
        if len(missing) == len(wanted):
            first = next(source.read())
            found = (
                f"none of the {len(wanted)} passages judged relevant is in it: one is {min(wanted)!r}, its"
                f" first id is {first.id!r}"
            )
            raise InputError(found, file=source.file, hint="judgements and corpus must use the same ids")
        if missing:
            logger.warning(
                "%s: %d of %d relevant passages are not in the corpus and cannot be found",
                self.name,
                len(missing),
                len(wanted),
            )
