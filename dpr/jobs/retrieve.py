"""Retrieval settings -> objects -> rankings, results and metrics."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dpr.core.distributed import resolve_device
from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import get_logger
from dpr.core.machine import launched
from dpr.core.records import Passage, Question
from dpr.embedding.source import PassageSource
from dpr.evaluation.evaluator import Evaluator, without_own_ids
from dpr.evaluation.ranking_metrics import Qrels, format_table, shown_names, values_of, with_relevant
from dpr.formats.question_sets import read_qrels, require_judged
from dpr.formats.results import write_results, write_trec_run
from dpr.indexer.ranking import Ranking, fuse_linear
from dpr.jobs.indexes import build_retriever, index_choice
from dpr.jobs.sources import QuestionSet, resolve_passage_sources, resolve_question_set
from dpr.models.settings import GivenTextSettings
from dpr.retrieval.passages import require_passages
from dpr.retrieval.retrievers import (
    DenseRetriever,
    HybridRetriever,
    QuestionForm,
    Retriever,
    warn_of_unknown_words,
)
from dpr.retrieval.search_folder import SearchSettings
from dpr.retrieval.settings import QuestionSetConfig, RetrievalConfig
from dpr.storage.outputs import require_writable

logger = get_logger(__name__)

WEIGHTS = tuple(step / 20 for step in range(21))


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

    # All inputs are resolved and checked before the first model is loaded.
    question_set = resolve_question_set(str(config.qa_dataset), config.datasets)
    sources = resolve_passage_sources(config.passage_names(), config.ctx_sources)
    questions = question_set.read()
    qrels = read_qrels(config.qrels) if config.qrels else None
    if qrels is not None:
        ids = [question.id for question in questions]
        require_judged(ids, qrels, file=str(config.qrels), of=str(question_set.file))
    answer_match = answers_by(config, question_set, questions, has_texts=bool(sources))
    evaluator = Evaluator(questions, qrels, answer_match, config.n_docs)
    form = question_form(question_set.options, config.encoder_path)
    texts = [form.text(question.text) for question in questions]
    queries = [form.query_text(question.text) for question in questions]

    device = resolve_device(config.device_or_cpu)
    retriever = build_retriever(config, sources, form=form, device=device, questions=queries)
    warn_of_unknown_words(retriever, queries, str(question_set.file))
    start = time.monotonic()
    tried_weights: dict[float, float] = {}
    weight = None
    depth = config.n_docs + config.skip_same_id
    if isinstance(retriever, HybridRetriever):
        dense, lexical = retriever.retrieve_sides(queries, depth)
        if config.skip_same_id:
            most = max(config.n_docs, config.hybrid_depth)
            dense = without_own_ids(questions, dense, most)
            lexical = without_own_ids(questions, lexical, most)
        fusion = retriever.fusion
        if config.tune_hybrid_weight:
            hits = hits_of([*dense, *lexical]) if answer_match else set()
            tried_weights = weight_values(
                evaluator,
                dense,
                lexical,
                metric=config.tune_metric,
                passages=require_passages(sources, hits),
            )
            shown = ", ".join(f"{weight:g} {value:.3f}" for weight, value in tried_weights.items())
            logger.info("hybrid_weight: %s", shown)
            best = max(tried_weights, key=lambda weight: (tried_weights[weight], -weight))
            fusion = replace(fusion, weight=best)
            why = f"the best {config.tune_metric} on these questions"
        elif config.hybrid_weight is None:
            why = "the default for two sides of unknown quality; tune_hybrid_weight=true chooses one on a dev set"
        else:
            why = "as set"
        weight = fusion.weight
        logger.info("hybrid_weight=%g, the dense side's share: %s", weight, why)
        rankings = fusion.fuse(dense, lexical, config.n_docs)
    else:
        rankings = retriever.retrieve(queries, depth)
        if config.skip_same_id:
            rankings = without_own_ids(questions, rankings, config.n_docs)
    logger.info("%d questions searched in %.1f s", len(questions), time.monotonic() - start)

    passages = None
    with_hits = bool(config.out_file) and config.out_texts
    if sources and (with_hits or answer_match or qrels):
        passages = texts_of(evaluator, [rankings], sources, with_hits=with_hits)
    evaluator.check(rankings, passages, own="skip_same_id=true leaves out hits with a question's own id")
    judged = evaluator.evaluate(rankings, passages)

    if config.out_file:
        shown_passages = (passages or {}) if config.out_texts else None
        results = evaluator.results(texts, rankings, shown_passages, judged)
        write_results(config.out_file, results, with_texts=config.out_texts)
        logger.info("results written to %s", config.out_file)
    if config.metrics_file:
        metadata = {
            "question_set": question_set.name,
            "indexer": config.indexer.kind,
            "hybrid": config.hybrid,
            "hybrid_weight": weight,
            **index_metadata(retriever),
        }
        if tried_weights:
            metadata["tried_weights"] = {f"{weight:g}": value for weight, value in tried_weights.items()}
        evaluator.write_report(Path(config.metrics_file), metadata, texts, rankings, judged, note={})
    if config.search_folder:
        search_settings(config, sources, form, weight).write(Path(config.search_folder))
    if config.trec_run_file:  # after the others, as it cannot hold every id
        run = {question.id: ranking for question, ranking in zip(questions, rankings, strict=True)}
        write_trec_run(config.trec_run_file, run)
        logger.info("run written to %s", config.trec_run_file)

    metrics = judged.metrics
    if metrics:
        label = config.indexer.kind if config.hybrid == "none" else "linear hybrid"
        names = [name for name in shown_names() if name in metrics] or list(metrics)
        print(f"{question_set.name}, {len(questions)} questions")
        print(format_table({label: metrics}, {name: name for name in names}))
    return next((metrics[name] for name in ("mrr@10", *reversed(metrics)) if name in metrics), None)


def weight_values(
    evaluator: Evaluator,
    dense: Sequence[Ranking],
    lexical: Sequence[Ranking],
    *,
    metric: str,
    passages: Mapping[str, Passage],
) -> dict[float, float]:
    """``metric`` of the fused rankings for each weight of a linear hybrid, the same bits as by fusing and
    evaluating each.

    Args:
        passages: with their texts, where answers are matched.

    Raises:
        ConfigError: the metric is not measured here.
    """
    if metric not in (names := evaluator.names()):
        raise ConfigError(
            f"tune_metric={metric} is not measured here; choose one of {', '.join(names) or 'none'}"
        )
    ids = [question.id for question in evaluator.questions]
    if evaluator.qrels is None or metric.startswith("answer_"):
        found = [list({**dict(ours), **dict(theirs)}) for ours, theirs in zip(dense, lexical, strict=True)]
        flags = evaluator.matched(found, passages)
        pairs = zip(found, flags, strict=True)
        grades: Qrels = {key: dict(zip(*pair, strict=True)) for key, pair in zip(ids, pairs, strict=True)}
    else:
        grades = with_relevant(evaluator.qrels)
    name = metric.removeprefix("answer_")
    values = {}
    for weight in WEIGHTS:
        fused = fuse_linear(dense, lexical, weight=weight, k=evaluator.num_docs)
        run = dict(zip(ids, fused, strict=True))
        each = values_of(run, grades, [name]).values()
        values[weight] = sum(of_question[name] for of_question in each) / max(len(each), 1)
    return values


def texts_of(
    evaluator: Evaluator,
    runs: Iterable[Sequence[Ranking]],
    sources: Sequence[PassageSource],
    *,
    with_hits: bool = False,
) -> dict[str, Passage]:
    """One pass over the corpus for the passages judged relevant, and, where answers are matched or ``with_hits``,
    for all hits."""
    needed: set[str] = set()
    also = evaluator.relevant()
    for rankings in runs:
        if with_hits or evaluator.answer_match:
            needed |= hits_of(rankings)
    return require_passages(sources, needed, also=also)


def hits_of(rankings: Sequence[Ranking]) -> set[str]:
    """All passages of the rankings."""
    return {passage for ranking in rankings for passage, _ in ranking}


def index_metadata(retriever: Retriever) -> dict[str, Any]:
    """What was measured of an approximate index, for the metrics file."""
    dense = retriever.dense if isinstance(retriever, HybridRetriever) else retriever
    index = dense.index if isinstance(dense, DenseRetriever) else None
    if index is None or not index.is_saved:
        return {}
    return {
        "index": {
            "recall": index.recall and asdict(index.recall),
            "breadth": index.breadth,
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


def answers_by(
    config: RetrievalConfig, question_set: QuestionSet, questions: Sequence[Question], *, has_texts: bool
) -> str | None:
    """How answers are matched; None where they are not looked at."""
    match = config.match
    has_answers = any(question.answers for question in questions)
    if match in ("string", "regex"):
        if not has_answers:
            hint = "give qrels=<file>, or match=none"
            raise InputError(f"match={match}, but no question has answers", file=question_set.file, hint=hint)
        return match
    if match == "auto" and has_texts and has_answers:
        return "string"
    if match == "auto" and config.qrels is None:
        missing = (
            "ctx_datasets=[<corpus>] gives the texts to look for answers in"
            if has_answers
            else "qrels=<file> gives judgements"
        )
        logger.warning("there is nothing to compute metrics from: %s", missing)
    return None


def search_settings(
    config: RetrievalConfig, sources: list[PassageSource], form: QuestionForm, weight: float | None
) -> SearchSettings:
    """How to search the same way, for ``search.json``."""
    name = config.encoder.pretrained_model_cfg
    reads_texts = index_choice(config.indexer).index_class.reads == "texts"
    is_kept = reads_texts or config.index_path is not None
    return SearchSettings(
        model_file=None if reads_texts else config.model_file,
        encoded_ctx_files=config.vector_patterns(),
        passages=sources,
        # An index that was not saved would be built again for every question.
        indexer=asdict(config.indexer) | ({} if is_kept else {"kind": "exact", "options": {}}),
        index_path=config.index_path,
        bm25_index_path=config.bm25_index_path,
        hybrid=config.hybrid,
        hybrid_weight=weight,
        hybrid_depth=config.hybrid_depth,
        form=form,
        # A folder by its absolute path, so that it is found from anywhere.
        pretrained_model_cfg=str(Path(name).resolve()) if name and Path(name).is_dir() else name,
        text=config.encoder.part(GivenTextSettings),
    )
