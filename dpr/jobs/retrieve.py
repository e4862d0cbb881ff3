"""``dpr retrieve``: rankings, results and metrics of a set of questions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dpr.core.distributed import resolve_device
from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import counted, get_logger
from dpr.core.machine import launched
from dpr.data.text import QuestionForm
from dpr.embedding.source import PassageSource
from dpr.evaluation.evaluator import Evaluator, without_own_ids
from dpr.evaluation.ranking_metrics import (
    format_table,
    shown_names,
)
from dpr.formats.question_sets import read_qrels, require_judged
from dpr.formats.results import write_results, write_trec_run
from dpr.indexer.ranking import fuse_linear, ids_in
from dpr.indexer.settings import DEFAULT_WEIGHT
from dpr.models.settings import GivenTextSettings
from dpr.models.sources import local_model
from dpr.retrieval.dense import open_dense
from dpr.retrieval.passages import find_passages, require_passages
from dpr.retrieval.search_json import SearchSettings
from dpr.retrieval.settings import RetrievalConfig
from dpr.retrieval.sides import Side, open_words, reads_texts
from dpr.retrieval.sources import resolve_passage_sources, resolve_question_set
from dpr.storage.outputs import require_writable

logger = get_logger(__name__)

WEIGHTS = tuple(step / 20 for step in range(21))


def run(config: RetrievalConfig) -> None:
    """Retrieves, compares with the judgements, and writes the outputs that the settings name."""
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
    # How answers are matched, if the metrics need them.
    answer_match = config.match if config.match in ("string", "regex") else None
    has_answers = any(question.answers for question in questions)
    if answer_match and not has_answers:
        hint = "give qrels=<file>, or match=none"
        raise InputError(
            f"match={answer_match}, but no question has answers", file=question_set.file, hint=hint
        )
    if config.match == "auto" and sources and has_answers:
        answer_match = "string"
    elif config.match == "auto" and qrels is None:
        missing = "qrels=<file> gives judgements"
        if has_answers:
            missing = "ctx_datasets=[<corpus>] gives the texts to look for answers in"
        logger.warning("there is nothing to compute metrics from: %s", missing)
    evaluator = Evaluator(questions, qrels, answer_match, config.n_docs)
    require_relevant(evaluator, sources)
    options = question_set.options
    form = QuestionForm(
        prefix=options.special_query_token,
        query_prefix=options.query_prefix,
        prompt=options.prompt,
        suffix=options.query_special_suffix,
        selector=options.selector,
        encoder_type="ctx" if config.encoder_path == "ctx_model" else "question",
    )
    texts = [form.text(question.text) for question in questions]
    queries = [form.query_text(question.text) for question in questions]

    reads_words = reads_texts(config.indexer.kind)
    if reads_words and config.hybrid != "none":
        raise ConfigError(
            f"hybrid={config.hybrid} adds BM25 to a dense indexer; indexer={config.indexer.kind} searches texts"
            " itself"
        )
    sides: dict[str, Side] = {}
    dense = None
    device = resolve_device(config.device_or_cpu)
    if not reads_words:
        dense = sides["dense"] = open_dense(config, sources, form=form, device=device, questions=queries)
    if reads_words or config.hybrid != "none":
        sides["bm25"] = open_words(config.indexer, sources, config.bm25_index_path, config.index_path)
    if dense is not None:
        dense.warn_of_unknown_words(queries, str(question_set.file))

    start = time.monotonic()
    tried_weights: dict[float, float] = {}
    weight = None
    # Hits with a question's own id are left out before the fusion.
    most = config.n_docs if len(sides) == 1 else max(config.n_docs, config.hybrid_depth)
    depth = max(most, config.n_docs + config.skip_same_id)
    found = {}
    for name, side in sides.items():
        found[name] = side.retrieve(queries, depth)
        if config.skip_same_id:
            found[name] = without_own_ids(questions, found[name], most)
    if len(sides) == 1:
        (rankings,) = found.values()
    else:
        weight = DEFAULT_WEIGHT if config.hybrid_weight is None else config.hybrid_weight
        why = "as set"
        if config.tune_hybrid_weight:
            if config.tune_metric not in (names := evaluator.names()):
                raise ConfigError(
                    f"tune_metric={config.tune_metric} is not measured here; choose one of"
                    f" {', '.join(names) or 'none'}"
                )
            hits = ids_in(found["dense"] + found["bm25"]) if answer_match else set()
            matched = require_passages(sources, hits)
            for weight in counted(WEIGHTS, "choosing the weight", unit="weights"):
                fused = fuse_linear(found["dense"], found["bm25"], weight=weight, k=config.n_docs)
                tried_weights[weight] = evaluator.evaluate(fused, matched).metrics[config.tune_metric]
            shown = ", ".join(f"{weight:g}: {value:.3f}" for weight, value in tried_weights.items())
            logger.info("%s by hybrid_weight: %s", config.tune_metric, shown)
            weight = max(tried_weights, key=lambda weight: (tried_weights[weight], -weight))
            why = f"best {config.tune_metric} on these questions"
        elif config.hybrid_weight is None:
            why = "the default; tune_hybrid_weight=true chooses it on dev questions"
        logger.info("hybrid_weight=%g, the share of the dense scores: %s", weight, why)
        rankings = fuse_linear(found["dense"], found["bm25"], weight=weight, k=config.n_docs)
    logger.info("%d questions searched in %.1f s", len(questions), time.monotonic() - start)

    passages = None
    if sources and (config.out_file or answer_match):
        passages = require_passages(sources, ids_in(rankings))
    evaluator.check(rankings, own="skip_same_id=true leaves out hits with a question's own id")
    judged = evaluator.evaluate(rankings, passages)

    if config.out_file:
        write_results(config.out_file, evaluator.results(texts, rankings, passages or {}, judged))
        logger.info("results written to %s", config.out_file)
    if config.metrics_file:
        metadata: dict[str, Any] = {
            "question_set": question_set.name,
            "indexer": config.indexer.kind,
            "hybrid": config.hybrid,
            "hybrid_weight": weight,
        }
        if dense is not None and dense.index.is_saved:  # measured if it is approximate
            recall = dense.index.recall and asdict(dense.index.recall)
            metadata["index"] = {"recall": recall, "breadth": dense.index.breadth}
        if tried_weights:
            metadata["tried_weights"] = {f"{weight:g}": value for weight, value in tried_weights.items()}
        evaluator.write_report(Path(config.metrics_file), metadata, texts, judged, note={})
    if config.search_folder:
        # Settings that search the same way. An index that was not saved would be built again for every
        # question.
        is_kept = reads_words or config.index_path is not None
        backbone = config.encoder.pretrained_model_cfg
        search = SearchSettings(
            model_file=None if reads_words else str(local_model(str(config.model_file))),
            encoded_ctx_files=config.vector_patterns(),
            passages=sources,
            indexer=config.indexer if is_kept else replace(config.indexer, kind="exact", options={}),
            index_path=config.index_path,
            bm25_index_path=config.bm25_index_path,
            hybrid=config.hybrid,
            hybrid_weight=weight,
            hybrid_depth=config.hybrid_depth,
            form=form,
            # A folder by its absolute path, so that it is found from anywhere.
            pretrained_model_cfg=str(Path(backbone).resolve())
            if backbone and Path(backbone).is_dir()
            else backbone,
            sequence_length=config.encoder.sequence_length,
            text=config.encoder.part(GivenTextSettings),
        )
        search.write(Path(config.search_folder))
    if config.trec_run_file:  # last, because it cannot hold every id
        write_trec_run(config.trec_run_file, evaluator.by_id(rankings))
        logger.info("run written to %s", config.trec_run_file)

    metrics = judged.metrics
    if metrics:
        label = config.indexer.kind if config.hybrid == "none" else "linear hybrid"
        names = [name for name in shown_names() if name in metrics] or list(metrics)
        print(f"{question_set.name}, {len(questions)} questions")
        print(format_table({label: metrics}, {name: name for name in names}))


def require_relevant(evaluator: Evaluator, sources: Sequence[PassageSource]) -> None:
    """Raises InputError, before anything is embedded or searched, if the corpus contains no passage that is
    judged relevant; warns if some are missing."""
    if sources and (first := next(sources[0].read(), None)):
        found = find_passages(sources, evaluator.relevant())
        evaluator.require_relevant(found, f"the corpus begins with {first.id!r}", file=sources[0].file)
