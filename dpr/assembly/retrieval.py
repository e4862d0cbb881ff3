"""Retrieval settings -> objects -> rankings, results and figures."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dpr.assembly.indexes import build_retriever, index_choice
from dpr.assembly.sources import QuestionSet, resolve_passage_sources, resolve_question_set
from dpr.core.distributed import resolve_device
from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import get_logger
from dpr.core.records import Passage, Question
from dpr.embedding.source import PassageSource
from dpr.evaluation.report.examples import NUM_EXAMPLES, NUM_HITS, example_of, spread
from dpr.evaluation.reports import format_table
from dpr.formats.durable import write_json
from dpr.formats.outputs import require_writable
from dpr.formats.question_sets import Qrels, read_qrels
from dpr.formats.results import write_results, write_trec_run
from dpr.indexer.ranking import Ranking
from dpr.retrieval.judging import Judged, judge_by_answers, judge_by_qrels, relevant_ids, to_results
from dpr.retrieval.passages import require_passages
from dpr.retrieval.retrievers import Fusion, HybridRetriever, QuestionForm, Retriever
from dpr.retrieval.search_folder import SearchSettings
from dpr.retrieval.settings import RetrievalConfig
from dpr.retrieval.tuning import weight_values

logger = get_logger(__name__)


@dataclass(frozen=True)
class _Inputs:
    """What a run reads, resolved and checked before the first model is loaded."""

    question_set: QuestionSet
    questions: list[Question]
    sources: list[PassageSource]
    qrels: Qrels | None
    answer_match: str | None


def run(config: RetrievalConfig) -> float | None:
    """Retrieves, judges and writes what was asked for. Returns the first of mrr@10 and accuracy at the deepest cut-off that there is."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("retrieval runs in one process; start it without torchrun (a GPU is used when there is one)")
    for file in (config.out_file, config.trec_run_file, config.metrics_file):
        if file:
            require_writable(file)
    for folder in (config.search_folder, config.index_path, config.bm25_index_path):
        if folder:
            require_writable(folder, folder=True)
    inputs = _read_inputs(config)
    device = resolve_device("cpu" if config.no_cuda else config.device)
    form = _question_form(config, inputs.question_set)
    retriever = build_retriever(config, inputs.sources, form=form, device=device)
    texts = [form.text(question.text) for question in inputs.questions]
    start = time.monotonic()
    rankings, weight = _retrieve(config, inputs, retriever, texts)
    logger.info("%d questions searched in %.1f s", len(texts), time.monotonic() - start)
    shown = _example_rows(inputs) if config.metrics_file else []
    first_hits = {passage for row in shown for passage, _ in rankings[row][:NUM_HITS]}
    passages = _look_up(inputs, rankings, with_texts=bool((config.out_file and config.out_texts) or inputs.answer_match), also=first_hits)
    judged = _judge(config, inputs, rankings, passages)
    for line in judged.notes:
        logger.info(line)
    if config.out_file:
        results = to_results(inputs.questions, texts, rankings, (passages or {}) if config.out_texts else None, judged.matched)
        write_results(config.out_file, results, with_texts=config.out_texts)
        logger.info("results written to %s", config.out_file)
    if config.trec_run_file:
        run_by_id = {question.id: ranking for question, ranking in zip(inputs.questions, rankings, strict=True)}
        write_trec_run(config.trec_run_file, run_by_id)
        logger.info("run written to %s", config.trec_run_file)
    if config.metrics_file:
        examples = [_example(inputs, texts, rankings, passages, judged, row) for row in shown] if passages else []
        write_json(Path(config.metrics_file), _report(config, inputs, judged, weight, examples), note={})
    if config.search_folder:
        _search_settings(config, inputs.sources, form, weight).write(Path(config.search_folder))
    if judged.metrics:
        print(_table(config, inputs, judged.metrics))
    return next((judged.metrics[name] for name in ("mrr@10", *reversed(judged.metrics)) if name in judged.metrics), None)


def _read_inputs(config: RetrievalConfig) -> _Inputs:
    question_set = resolve_question_set(str(config.qa_dataset), config.datasets)
    sources = resolve_passage_sources(config.passage_names(), config.ctx_sources)
    questions = question_set.read()
    qrels = read_qrels(config.qrels) if config.qrels else None
    if qrels is not None and not any(question.id in qrels for question in questions):
        example = f"a question's id is {questions[0].id!r}, a judged one's {next(iter(qrels))!r}"
        found = f"no question of {question_set.file} has judgements: {example}"
        raise InputError(found, file=config.qrels, hint="a CSV has ids only with datasets.<name>.id_col; JSON lines keep them")
    answer_match = config.match if config.match in ("string", "regex") else None
    has_answers = any(question.answers for question in questions)
    if answer_match is not None and not has_answers:
        raise InputError(
            f"match={answer_match}, but no question has answers", file=question_set.file, hint="give qrels=<file>, or match=none"
        )
    if config.match == "auto" and sources and has_answers:
        answer_match = "string"
    if config.match == "auto" and answer_match is None and qrels is None:
        missing = "ctx_datasets=[<corpus>] gives the texts to look for answers in" if has_answers else "qrels=<file> gives judgements"
        logger.warning("nothing to measure by: %s", missing)
    return _Inputs(question_set, questions, sources, qrels, answer_match)


def _question_form(config: RetrievalConfig, question_set: QuestionSet) -> QuestionForm:
    options = question_set.options
    return QuestionForm(
        prefix=options.special_query_token,
        query_prefix=options.query_prefix,
        suffix=options.query_special_suffix,
        selector=options.selector,
        encoder_type="ctx" if config.encoder_path == "ctx_model" else "question",
    )


def _retrieve(config: RetrievalConfig, inputs: _Inputs, retriever: Retriever, texts: list[str]) -> tuple[list[Ranking], float | None]:
    """Rankings, and the weight of a linear hybrid."""
    if not isinstance(retriever, HybridRetriever):
        return retriever.retrieve(texts, config.n_docs), None
    dense, lexical = retriever.retrieve_sides(texts, config.n_docs)
    fusion = retriever.fusion
    why = "as set"
    if config.tune_hybrid_weight:
        fusion = replace(fusion, weight=_tune(config, inputs, fusion, dense, lexical))
        why = f"the best {config.tune_metric} on these questions"
    elif config.hybrid_weight is None:
        why = "the default for two sides of unknown quality; tune_hybrid_weight=true chooses one on a dev set"
    if fusion.method == "linear":
        logger.info("hybrid_weight=%g, the dense side's share: %s", fusion.weight, why)
    return fusion.fuse(dense, lexical, config.n_docs), fusion.weight if fusion.method == "linear" else None


def _tune(config: RetrievalConfig, inputs: _Inputs, fusion: Fusion, dense: list[Ranking], lexical: list[Ranking]) -> float:
    """The weight with the best ``tune_metric``; of equal ones the smallest."""
    values = weight_values(
        inputs.questions,
        dense,
        lexical,
        metric=config.tune_metric,
        k=config.n_docs,
        normalisation=fusion.normalisation,
        qrels=inputs.qrels,
        answer_match=inputs.answer_match,
        passages=(_look_up(inputs, [*dense, *lexical], with_texts=True) or {}) if inputs.answer_match else {},
        workers=config.validation_workers,
    )
    logger.info("hybrid_weight: %s", ", ".join(f"{weight:g} {value:.3f}" for weight, value in values.items()))
    return max(values, key=lambda weight: (values[weight], -weight))


def _look_up(inputs: _Inputs, rankings: Sequence[Ranking], *, with_texts: bool, also: Collection[str] = ()) -> dict[str, Passage] | None:
    """What the corpus has of the retrieved passages (all of them must be there), of those judged relevant and of ``also``, in one pass."""
    hits = {passage for ranking in rankings for passage, _ in ranking} if with_texts else set()
    others = relevant_ids(inputs.qrels or {}).union(also)
    if not inputs.sources or not (hits or others):
        return None
    return require_passages(inputs.sources, hits, also=others)


def _example_rows(inputs: _Inputs) -> list[int]:
    """Questions for a report. They follow from questions and judgements alone, so that all runs over them show the same."""
    qrels = inputs.qrels
    rows = range(len(inputs.questions))
    return spread(
        (row for row in rows if qrels is None or any(grade > 0 for grade in qrels.get(inputs.questions[row].id, {}).values())), NUM_EXAMPLES
    )


def _example(
    inputs: _Inputs, texts: Sequence[str], rankings: Sequence[Ranking], passages: dict[str, Passage], judged: Judged, row: int
) -> dict[str, Any]:
    kept = [place for place, (passage, _) in enumerate(rankings[row][:NUM_HITS]) if passage in passages]
    right = None if judged.right is None else [[judged.right[row][place] for place in kept]]
    (result,) = to_results([inputs.questions[row]], [texts[row]], [[rankings[row][place] for place in kept]], passages, right)
    return replace(example_of(result), first_right_rank=judged.first_right_rank(row)).as_dict()


def _judge(
    config: RetrievalConfig,
    inputs: _Inputs,
    rankings: Sequence[Ranking],
    passages: dict[str, Passage] | None,
) -> Judged:
    by_answers = None
    if inputs.answer_match is not None:
        by_answers = judge_by_answers(
            inputs.questions,
            rankings,
            passages or {},
            kind=inputs.answer_match,
            num_docs=config.n_docs,
            workers=config.validation_workers,
        )
    if inputs.qrels is None:
        return by_answers or Judged()
    by_qrels = judge_by_qrels(inputs.questions, rankings, inputs.qrels, num_docs=config.n_docs, corpus_ids=passages)
    if by_answers is None:
        return by_qrels
    # Both: judgements own the plain names, answers in texts are told apart; has_answer in the results means what it says.
    metrics = by_qrels.metrics | {f"answer_{name}": value for name, value in by_answers.metrics.items()}
    return replace(by_qrels, matched=by_answers.matched, metrics=metrics, notes=by_answers.notes + by_qrels.notes)


def _report(
    config: RetrievalConfig, inputs: _Inputs, judged: Judged, weight: float | None, examples: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "examples": examples,
        "first_right_rank": judged.rank_counts(config.n_docs),
        "question_set": inputs.question_set.name,
        "num_questions": len(inputs.questions),
        "indexer": config.indexer.kind,
        "hybrid": config.hybrid,
        "hybrid_weight": weight,
        "n_docs": config.n_docs,
        "metrics": judged.metrics,
    }


def _search_settings(config: RetrievalConfig, sources: Sequence[PassageSource], form: QuestionForm, weight: float | None) -> SearchSettings:
    reads_texts = index_choice(config.indexer).index_class.reads == "texts"
    is_kept = reads_texts or config.index_path is not None
    return SearchSettings(
        model_file=None if reads_texts else config.model_file,
        encoded_ctx_files=config.vector_patterns(),
        passages=list(sources),
        # An index that was not saved would be built again for every question.
        indexer=asdict(config.indexer) | ({} if is_kept else {"kind": "exact", "options": {}}),
        index_path=config.index_path,
        bm25_index_path=config.bm25_index_path,
        hybrid=config.hybrid,
        hybrid_weight=weight,
        hybrid_normalisation=config.hybrid_normalisation,
        hybrid_depth=config.hybrid_depth,
        form=form,
        pretrained_model_cfg=_lasting_name(config.encoder.pretrained_model_cfg),
    )


def _lasting_name(name: str | None) -> str | None:
    """A folder's absolute path; a model's name as it is."""
    return str(Path(name).resolve()) if name and Path(name).is_dir() else name


def _table(config: RetrievalConfig, inputs: _Inputs, metrics: dict[str, float]) -> str:
    label = config.indexer.kind if config.hybrid == "none" else f"{config.hybrid} hybrid"
    shown = [f"accuracy@{k}" for k in (1, 5, 20, 100)] + ["mrr@10", "ndcg@10", "recall@100"]
    names = [name for name in shown if name in metrics] or list(metrics)
    return f"{inputs.question_set.name}, {len(inputs.questions)} questions\n" + format_table({label: metrics}, names)
