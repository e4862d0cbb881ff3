"""Retrieval settings -> objects -> rankings, results and metrics."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

from dpr.core.distributed import resolve_device
from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import get_logger
from dpr.core.machine import launched
from dpr.core.records import Passage
from dpr.evaluation.ranking_metrics import format_table
from dpr.formats.corpora import require_word
from dpr.formats.question_sets import read_qrels, require_judged
from dpr.formats.results import write_results, write_trec_run
from dpr.formats.text_input import matching_paths
from dpr.formats.vector_shards import open_shards
from dpr.indexer.ranking import Ranking, decode_ids
from dpr.jobs.indexes import build_retriever, cluster_folder, index_choice
from dpr.jobs.sources import resolve_passage_sources, resolve_question_set
from dpr.models.settings import GivenTextSettings
from dpr.retrieval.judging import (
    Judged,
    example_rows,
    first_hits,
    judge_by_answers,
    judge_by_qrels,
    possibly_own,
    relevant_ids,
    to_results,
    warn_of_own_passages,
    weight_values,
    without_own_ids,
    write_report,
)
from dpr.retrieval.passages import require_passages
from dpr.retrieval.retrievers import (
    DenseRetriever,
    Fusion,
    HybridRetriever,
    QuestionForm,
    Retriever,
    warn_of_unknown_words,
)
from dpr.retrieval.search_folder import SearchSettings
from dpr.retrieval.settings import QuestionSetConfig, RetrievalConfig
from dpr.storage.durable import remove_folder
from dpr.storage.outputs import require_writable

logger = get_logger(__name__)


def run(config: RetrievalConfig) -> float | None:
    """Retrieves, judges and writes what was asked for. Returns the first of mrr@10 and accuracy at the
    deepest cut-off that there is."""
    if launched("WORLD_SIZE") > 1:
        raise ConfigError(
            "retrieval runs in one process; start it without torchrun (a GPU is used when there is one)"
        )
    for file in filter(None, (config.out_file, config.trec_run_file, config.metrics_file)):
        require_writable(file)
    for folder in filter(None, (config.search_folder, config.index_path, config.bm25_index_path)):
        require_writable(folder, folder=True)
    job = _Retrieval(config)
    if config.trec_run_file:
        job.require_words(config.trec_run_file)
    device = resolve_device(config.device_or_cpu)
    retriever = build_retriever(config, job.sources, form=job.form, device=device, questions=job.asked)
    warn_of_unknown_words(retriever, job.asked, str(job.question_set.file))
    start = time.monotonic()
    rankings, weight = job.retrieve(retriever)
    logger.info("%d questions searched in %.1f s", len(job.texts), time.monotonic() - start)
    shown = example_rows(job.questions, job.qrels) if config.metrics_file else []
    with_texts = bool((config.out_file and config.out_texts) or job.answer_match)
    beside = possibly_own(job.questions, rankings)
    passages = job.look_up(rankings, with_texts=with_texts, also=first_hits(rankings, shown), beside=beside)
    setting = "skip_same_id=true leaves out hits with a question's own id"
    warn_of_own_passages(job.questions, rankings, passages or {}, job.qrels, setting=setting)
    judged = job.judge(rankings, passages)
    for line in judged.notes:
        logger.info(line)
    if config.out_file:
        results = to_results(
            job.questions, job.texts, rankings, (passages or {}) if config.out_texts else None, judged.matched
        )
        write_results(config.out_file, results, with_texts=config.out_texts)
        logger.info("results written to %s", config.out_file)
    if config.trec_run_file:
        write_trec_run(
            config.trec_run_file,
            {question.id: ranking for question, ranking in zip(job.questions, rankings, strict=True)},
        )
        logger.info("run written to %s", config.trec_run_file)
    if config.metrics_file:
        asked: dict[str, Any] = {"questions": job.questions, "texts": job.texts, "rankings": rankings}
        measured: dict[str, Any] = {
            "judged": judged,
            "num_docs": config.n_docs,
            "rows": shown,
            "passages": passages,
        }
        write_report(
            Path(config.metrics_file),
            job.facts(weight) | index_facts(retriever),
            **asked,
            **measured,
            note={},
        )
    if config.search_folder:
        job.search_settings(weight).write(Path(config.search_folder))
    if config.cluster.kind != "none":  # not before: a killed run finds there what was searched
        remove_folder(cluster_folder(config))
    if judged.metrics:
        print(job.table(judged.metrics))
    return next(
        (judged.metrics[name] for name in ("mrr@10", *reversed(judged.metrics)) if name in judged.metrics),
        None,
    )


def index_facts(retriever: Retriever) -> dict[str, Any]:
    """What was measured of an approximate index, for the metrics file."""
    dense = retriever.dense if isinstance(retriever, HybridRetriever) else retriever
    index = dense.index if isinstance(dense, DenseRetriever) else None
    if index is None or not index.is_saved:
        return {}
    return {
        "index": {
            "recall": index.recall and index.recall.as_dict(),
            "breadth": {index.breadth_setting: index.breadth} if index.breadth_setting else {},
        }
    }


def question_form(options: QuestionSetConfig, encoder_path: str | None) -> QuestionForm:
    """How the questions of a set are presented to the model."""
    return QuestionForm(
        prefix=options.special_query_token,
        query_prefix=options.query_prefix,
        prompt=options.prompt,
        suffix=options.query_special_suffix,
        selector=options.selector,
        encoder_type="ctx" if encoder_path == "ctx_model" else "question",
    )


class _Retrieval:
    """The inputs of a run, resolved and checked before the first model is loaded, and what is made of
    them."""

    def __init__(self, config: RetrievalConfig) -> None:
        self.config = config
        self.question_set = resolve_question_set(str(config.qa_dataset), config.datasets)
        self.sources = resolve_passage_sources(config.passage_names(), config.ctx_sources)
        self.questions = self.question_set.read()
        self.qrels = read_qrels(config.qrels) if config.qrels else None
        if self.qrels is not None:
            asked = [question.id for question in self.questions]
            require_judged(asked, self.qrels, file=str(config.qrels), of=str(self.question_set.file))
        self.answer_match = self._answer_match()
        self.form = question_form(self.question_set.options, config.encoder_path)
        self.texts = [self.form.text(question.text) for question in self.questions]
        self.asked = [self.form.asked(question.text) for question in self.questions]
        self.tried_weights: dict[str, float] = {}
        """``tune_metric`` by weight, where the weight was chosen."""

    def _answer_match(self) -> str | None:
        match, has_answers = self.config.match, any(question.answers for question in self.questions)
        if match in ("string", "regex"):
            if not has_answers:
                message, hint = (
                    f"match={match}, but no question has answers",
                    "give qrels=<file>, or match=none",
                )
                raise InputError(message, file=self.question_set.file, hint=hint)
            return match
        if match == "auto" and self.sources and has_answers:
            return "string"
        if match == "auto" and self.qrels is None:
            missing = (
                "ctx_datasets=[<corpus>] gives the texts to look for answers in"
                if has_answers
                else "qrels=<file> gives judgements"
            )
            logger.warning("there is nothing to compute metrics from: %s", missing)
        return None

    def require_words(self, trec_run_file: str) -> None:
        """Raises InputError where a TREC run cannot hold the id of a question, or of a passage that is known
        before the search."""
        passages: Iterable[str] = (str(passage.id) for source in self.sources for passage in source.read())
        patterns = self.config.vector_patterns()
        if not self.sources and all(
            path.is_dir() for pattern in patterns for path in matching_paths(pattern)
        ):
            shards = open_shards(patterns, verify=False) if patterns else []
            passages = (key for shard in shards for ids in shard.id_chunks() for key in decode_ids(ids))
        for key in chain((question.id for question in self.questions), passages):
            require_word(key, Path(trec_run_file), hint="leave trec_run_file out; out_file holds any id")

    def retrieve(self, retriever: Retriever) -> tuple[list[Ranking], float | None]:
        """Rankings, and the weight of a linear hybrid."""
        config = self.config
        num_docs = config.n_docs + config.skip_same_id
        if not isinstance(retriever, HybridRetriever):
            rankings = retriever.retrieve(self.asked, num_docs)
            return (
                without_own_ids(self.questions, rankings, config.n_docs) if config.skip_same_id else rankings
            ), None
        dense, lexical = retriever.retrieve_sides(self.asked, num_docs)
        if config.skip_same_id:
            depth = max(config.n_docs, config.hybrid_depth)
            dense, lexical = (without_own_ids(self.questions, side, depth) for side in (dense, lexical))
        fusion = retriever.fusion
        why = "as set"
        if config.tune_hybrid_weight:
            fusion = replace(fusion, weight=self._tune(fusion, dense, lexical))
            why = f"the best {config.tune_metric} on these questions"
        elif config.hybrid_weight is None:
            why = (
                "the default for two sides of unknown quality; tune_hybrid_weight=true chooses one on a"
                " dev set"
            )
        if fusion.method == "linear":
            logger.info("hybrid_weight=%g, the dense side's share: %s", fusion.weight, why)
        return fusion.fuse(dense, lexical, config.n_docs), (
            fusion.weight if fusion.method == "linear" else None
        )

    def _tune(self, fusion: Fusion, dense: list[Ranking], lexical: list[Ranking]) -> float:
        """The weight with the best ``tune_metric``; of equal ones the smallest."""
        values = weight_values(
            self.questions,
            dense,
            lexical,
            metric=self.config.tune_metric,
            k=self.config.n_docs,
            normalisation=fusion.normalisation,
            qrels=self.qrels,
            answer_match=self.answer_match,
            passages=(self.look_up([*dense, *lexical], with_texts=True) or {}) if self.answer_match else {},
            workers=self.config.validation_workers,
        )
        self.tried_weights = {f"{weight:g}": value for weight, value in values.items()}
        logger.info(
            "hybrid_weight: %s", ", ".join(f"{weight:g} {value:.3f}" for weight, value in values.items())
        )
        return max(values, key=lambda weight: (values[weight], -weight))

    def look_up(
        self,
        rankings: Sequence[Ranking],
        *,
        with_texts: bool,
        also: Collection[str] = (),
        beside: Collection[str] = (),
    ) -> dict[str, Passage] | None:
        """The retrieved passages (all must be in the corpus), those judged relevant and ``also``, read in one
        pass over the corpus, and those ``beside`` where there is such a pass."""
        hits = {passage for ranking in rankings for passage, _ in ranking} if with_texts else set()
        others = relevant_ids(self.qrels or {}).union(also)
        if not self.sources or not (hits or others):
            return None
        return require_passages(self.sources, hits, also=others.union(beside))

    def judge(self, rankings: Sequence[Ranking], passages: dict[str, Passage] | None) -> Judged:
        config, by_answers = self.config, Judged()
        if self.answer_match is not None:
            by_answers = judge_by_answers(
                self.questions,
                rankings,
                passages or {},
                kind=self.answer_match,
                num_docs=config.n_docs,
                workers=config.validation_workers,
            )
        if self.qrels is None:
            return by_answers
        by_qrels = judge_by_qrels(
            self.questions, rankings, self.qrels, num_docs=config.n_docs, corpus_ids=passages
        )
        if self.answer_match is None:
            return by_qrels
        # Metrics by judgements keep the plain names, those by answers get a prefix; has_answer in the results
        # is about answers.
        metrics = by_qrels.metrics | {f"answer_{name}": value for name, value in by_answers.metrics.items()}
        values = by_qrels.values | {f"answer_{name}": listed for name, listed in by_answers.values.items()}
        return replace(by_qrels, matched=by_answers.matched, metrics=metrics, values=values)

    def facts(self, weight: float | None) -> dict[str, Any]:
        """How the questions were answered, for the metrics file."""
        config = self.config
        return {
            "question_set": self.question_set.name,
            "indexer": config.indexer.kind,
            "hybrid": config.hybrid,
            "hybrid_weight": weight,
            **({"tried_weights": self.tried_weights} if self.tried_weights else {}),
        }

    def search_settings(self, weight: float | None) -> SearchSettings:
        config, name = self.config, self.config.encoder.pretrained_model_cfg
        reads_texts = index_choice(config.indexer).index_class.reads == "texts"
        is_kept = reads_texts or config.index_path is not None
        return SearchSettings(
            model_file=None if reads_texts else config.model_file,
            encoded_ctx_files=config.vector_patterns(),
            passages=self.sources,
            # An index that was not saved would be built again for every question.
            indexer=asdict(config.indexer) | ({} if is_kept else {"kind": "exact", "options": {}}),
            index_path=config.index_path,
            bm25_index_path=config.bm25_index_path,
            hybrid=config.hybrid,
            hybrid_weight=weight,
            hybrid_normalisation=config.hybrid_normalisation,
            hybrid_depth=config.hybrid_depth,
            form=self.form,
            # A folder by its absolute path, so that it is found from anywhere.
            pretrained_model_cfg=str(Path(name).resolve()) if name and Path(name).is_dir() else name,
            dimensions=config.dimensions,
            text=config.encoder.part(GivenTextSettings),
        )

    def table(self, metrics: dict[str, float]) -> str:
        label = self.config.indexer.kind if self.config.hybrid == "none" else f"{self.config.hybrid} hybrid"
        shown = [f"accuracy@{k}" for k in (1, 5, 20, 100)] + ["mrr@10", "ndcg@10", "recall@100"]
        columns = {name: name for name in shown if name in metrics} or {name: name for name in metrics}
        return f"{self.question_set.name}, {len(self.questions)} questions\n" + format_table(
            {label: metrics}, columns
        )
