"""``dpr retrieve``: rankings, results and metrics of a set of questions; ``dpr evaluate``: metrics and a
table of test sets, or of the TREC run of any program."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dpr.core.distributed import resolve_device
from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import counted, get_logger
from dpr.core.machine import launched
from dpr.core.records import Passage, Question, json_sha256
from dpr.data.words import WORDS_VERSION
from dpr.embedding.job import embed_shard
from dpr.embedding.settings import EmbedConfig
from dpr.embedding.source import PassageSource
from dpr.evaluation.comparison import as_records, figures_of, rows_of
from dpr.evaluation.evaluator import Evaluator, without_own_ids
from dpr.evaluation.ranking_metrics import (
    format_table,
    shown_names,
    text_table,
)
from dpr.formats.question_sets import read_qrels, read_questions, require_judged, write_qrels
from dpr.formats.results import RESULTS, read_metrics, read_trec_run, write_results, write_trec_run
from dpr.formats.vector_shards import open_shards
from dpr.indexer.exact import ExactIndex
from dpr.indexer.ranking import Ranking, fuse_linear
from dpr.models.biencoder import BiEncoder
from dpr.models.properties import mention_bf16
from dpr.models.settings import GivenTextSettings
from dpr.models.sources import local_model
from dpr.retrieval.indexes import build_retriever, index_choice, open_text_index
from dpr.retrieval.passages import find_passages, require_passages
from dpr.retrieval.question_form import QuestionForm
from dpr.retrieval.search_folder import FILE, SearchSettings
from dpr.retrieval.settings import EvaluateConfig, IndexerConfig, RetrievalConfig
from dpr.retrieval.sides import (
    DenseRetriever,
    Fusion,
    HybridRetriever,
    LexicalRetriever,
    warn_of_unknown_words,
)
from dpr.retrieval.sources import resolve_passage_sources, resolve_question_set
from dpr.retrieval.suites import CACHE, TestSet, read_suite
from dpr.storage.checksums import content_sha256
from dpr.storage.durable import durable_file, durable_folder, write_json
from dpr.storage.outputs import output, require_writable

logger = get_logger(__name__)

WEIGHTS = tuple(step / 20 for step in range(21))
TABLE = "results.md"


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
    _require_relevant(evaluator, sources)
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
            hits = _ids([*dense, *lexical]) if answer_match else set()
            matched = require_passages(sources, hits)
            tried_weights = weight_values(
                evaluator, dense, lexical, metric=config.tune_metric, passages=matched
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
    if sources and (config.out_file or answer_match):
        passages = require_passages(sources, _ids(rankings))
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
        dense_side = retriever.dense if isinstance(retriever, HybridRetriever) else retriever
        index = dense_side.index if isinstance(dense_side, DenseRetriever) else None
        if index is not None and index.is_saved:  # measured if it is approximate
            recall = index.recall and asdict(index.recall)
            metadata["index"] = {"recall": recall, "breadth": index.breadth}
        if tried_weights:
            metadata["tried_weights"] = {f"{weight:g}": value for weight, value in tried_weights.items()}
        evaluator.write_report(Path(config.metrics_file), metadata, texts, rankings, judged, note={})
    if config.search_folder:
        # Settings that search the same way. An index that was not saved would be built again for every
        # question.
        reads_texts = index_choice(config.indexer).index_class.reads == "texts"
        is_kept = reads_texts or config.index_path is not None
        name = config.encoder.pretrained_model_cfg
        search = SearchSettings(
            model_file=None if reads_texts else str(local_model(str(config.model_file))),
            encoded_ctx_files=config.vector_patterns(),
            passages=sources,
            indexer=asdict(config.indexer) | ({} if is_kept else {"kind": "exact", "options": {}}),
            index_path=config.index_path,
            bm25_index_path=config.bm25_index_path,
            hybrid=config.hybrid,
            hybrid_weight=weight,
            hybrid_depth=config.hybrid_depth,
            form=form,
            # A folder by its absolute path, so that it is found from anywhere.
            pretrained_model_cfg=str(Path(name).resolve()) if name and Path(name).is_dir() else name,
            sequence_length=config.encoder.sequence_length,
            text=config.encoder.part(GivenTextSettings),
        )
        search.write(Path(config.search_folder))
    if config.trec_run_file:  # last, because it cannot hold every id
        run = {question.id: ranking for question, ranking in zip(questions, rankings, strict=True)}
        write_trec_run(config.trec_run_file, run)
        logger.info("run written to %s", config.trec_run_file)

    metrics = judged.metrics
    if metrics:
        label = config.indexer.kind if config.hybrid == "none" else "linear hybrid"
        names = [name for name in shown_names() if name in metrics] or list(metrics)
        print(f"{question_set.name}, {len(questions)} questions")
        print(format_table({label: metrics}, {name: name for name in names}))


def weight_values(
    evaluator: Evaluator,
    dense: Sequence[Ranking],
    lexical: Sequence[Ranking],
    *,
    metric: str,
    passages: Mapping[str, Passage],
) -> dict[float, float]:
    """Returns ``metric`` of the fused rankings for each weight of a linear hybrid.

    Args:
        passages: passages with their texts, if answers are matched.

    Raises:
        ConfigError: the metric is not measured here.
    """
    if metric not in (names := evaluator.names()):
        raise ConfigError(
            f"tune_metric={metric} is not measured here; choose one of {', '.join(names) or 'none'}"
        )
    values = {}
    for weight in counted(WEIGHTS, "choosing the weight", unit="weights"):
        fused = fuse_linear(dense, lexical, weight=weight, k=evaluator.num_docs)
        values[weight] = evaluator.evaluate(fused, passages).metrics[metric]
    return values


def _require_relevant(evaluator: Evaluator, sources: Sequence[PassageSource]) -> None:
    """Raises InputError, before anything is embedded or searched, if the corpus contains no passage that is
    judged relevant; warns if some are missing."""
    if sources and (first := next(sources[0].read(), None)):
        found = find_passages(sources, evaluator.relevant())
        evaluator.require_relevant(found, f"the corpus begins with {first.id!r}", file=sources[0].file)


def _ids(rankings: Sequence[Ranking]) -> set[str]:
    """Returns the ids of all passages in the rankings."""
    return {passage for ranking in rankings for passage, _ in ranking}


def evaluate(config: EvaluateConfig) -> None:
    """Evaluates the sets that are not evaluated yet, and writes the results of all."""
    if launched("WORLD_SIZE") > 1:
        raise ConfigError(
            "evaluation runs in one process; start it without torchrun (a GPU is used when there is one)"
        )
    if config.run_file is not None:
        _evaluate_run_file(config)
        return
    out = Path(str(config.output_dir))
    require_writable(out, folder=True)
    cache = Path(config.cache_dir) if config.cache_dir else out / CACHE
    sets = read_suite(
        str(config.set), split=config.split, cache=cache, data=config.data, suites=config.suites
    )

    # A run that has been searched states the model and hybrid of that search.
    fusion = Fusion()
    if config.run and (Path(config.run) / FILE).is_file():
        stored = SearchSettings.read(Path(config.run))
        if stored.model_file and config.model_file == config.run:
            config = replace(config, model_file=stored.model_file)
        if stored.hybrid == "linear" and stored.hybrid_weight is not None:
            fusion = Fusion(weight=stored.hybrid_weight, depth=stored.hybrid_depth)
    if config.hybrid_weight is not None:
        fusion = Fusion(weight=config.hybrid_weight)
    model = None
    if config.needs_model:
        device = resolve_device(config.device_or_cpu)
        model = BiEncoder.load(str(config.model_file), device=device, **config.encoder.arguments())
        model.keep_dimensions(config.dimensions)

    for number, test_set in enumerate(sets, 1):
        logger.info("%s, test set %d of %d", test_set.name, number, len(sets))
        made_of: dict[str, Any] = {"model": model and model.fingerprint}
        for part in ("corpus", "queries", "qrels"):
            if (file := getattr(test_set, part)) is not None:
                made_of[part] = content_sha256(file)[:32]
        for name in ("systems", "n_docs"):
            made_of[name] = getattr(config, name)
        for name in ("prompt", "query_prefix", "passage_prefix", "skip_same_id"):
            made_of[name] = getattr(test_set.options, name)
        if model is not None:
            made_of["precision"] = config.precision
        if "hybrid" in config.systems:
            made_of["hybrid"] = asdict(fusion)
        if config.needs_words:
            made_of |= {**asdict(config.bm25), "words": WORDS_VERSION}
        with output(out / test_set.name, made_of, overwrite=config.overwrite) as is_needed:
            if is_needed:
                _evaluate_set(config, test_set, out / test_set.name, cache, model, fusion, made_of)

    runs = {
        test_set.name: {
            system: read_metrics(out / test_set.name / f"{system}.json") for system in config.systems
        }
        for test_set in sets
    }
    figures = figures_of(runs)
    results = {
        "model_file": config.model_file,
        "model_fingerprint": model and model.fingerprint,
        "n_docs": config.n_docs,
        "sets": list(runs),
        "systems": config.systems,
        "figures": as_records(figures),
    }
    write_json(out / RESULTS, results, note={})
    head, *body = rows_of(figures)
    with durable_file(out / TABLE, note={}) as table:
        for line in (head, ["---", *["---:"] * (len(head) - 1)], *body):
            table.write(f"| {' | '.join(line)} |\n")
    print(text_table([head, *body]))
    logger.info("%s and %s written", out / RESULTS, out / TABLE)


def _evaluate_set(
    config: EvaluateConfig,
    test_set: TestSet,
    target: Path,
    cache: Path,
    model: BiEncoder | None,
    fusion: Fusion,
    made_of: Mapping[str, Any],
) -> None:
    """Writes the folder of a test set."""
    options = test_set.options
    qrels = None if test_set.qrels is None else read_qrels(test_set.qrels)
    questions = read_questions(test_set.queries)
    if qrels is None:
        questions = [question for question in questions if question.answers]
    else:
        ids = [question.id for question in questions]
        require_judged(ids, qrels, file=str(test_set.qrels), of=str(test_set.queries))
        questions = [question for question in questions if question.id in qrels]
    evaluator = Evaluator(questions, qrels, "string" if qrels is None else None, config.n_docs)
    source = PassageSource(test_set.corpus, test_set.name, passage_prefix=options.passage_prefix or "")
    _require_relevant(evaluator, [source])

    # Both sides are searched once; the hybrid is made of their results.
    form = QuestionForm(prompt=options.prompt, query_prefix=options.query_prefix)
    queries = [form.query_text(question.text) for question in questions]
    retrievers: dict[str, LexicalRetriever | DenseRetriever] = {}
    if config.needs_words:
        choice = index_choice(IndexerConfig(kind="bm25", **asdict(config.bm25)))
        folder = _cached(cache, f"{test_set.name}-bm25", [content_sha256(source.file), choice.metadata()])
        retrievers["bm25"] = LexicalRetriever(open_text_index(choice, [source], str(folder)))
    if model is not None:
        agreed = source.agreed(model.tensorizer.text)
        start = _cached(cache, source.name, [model.fingerprint, agreed.identity(), config.precision])
        embedding = EmbedConfig(
            out_file=str(start), precision=config.precision, batch_tokens=config.batch_tokens
        )
        mention_bf16(model.ctx_model.backbone, model.device, config.precision, key="precision")
        embed_shard(model, source, embedding)
        index = ExactIndex(open_shards([f"{start}_0"]), device=model.device)
        retrievers["dense"] = DenseRetriever(model, index, form=form)
        warn_of_unknown_words(retrievers["dense"], queries, str(test_set.queries))
    depth = max(config.n_docs, fusion.depth) if "hybrid" in config.systems else config.n_docs
    rankings: dict[str, list[Ranking]] = {}
    for system, retriever in retrievers.items():
        found = retriever.retrieve(queries, depth + options.skip_same_id)
        rankings[system] = without_own_ids(questions, found, depth) if options.skip_same_id else found
    if "hybrid" in config.systems:
        rankings["hybrid"] = fusion.fuse(rankings["dense"], rankings["bm25"], config.n_docs)
    rankings = {system: [hits[: config.n_docs] for hits in rankings[system]] for system in config.systems}

    needed = set()
    if evaluator.answer_match:
        needed = {passage for listed in rankings.values() for passage in _ids(listed)}
    passages = require_passages([source], needed)
    own = "skip_same_id: true in the set's entry leaves out hits with a question's own id"
    evaluator.check(rankings[config.systems[-1]], own=own)
    texts = [form.text(question.text) for question in questions]
    manifest = {"kind": "evaluation", "made_of": made_of}
    with durable_folder(target, overwrite=config.overwrite, metadata=manifest) as folder:
        for system, listed in rankings.items():
            metadata: dict[str, Any] = {"question_set": test_set.name}
            metadata["indexer"] = "bm25" if system == "bm25" else "exact"
            if system == "hybrid":
                metadata |= {"hybrid": "linear", "hybrid_weight": fusion.weight}
            judged = evaluator.evaluate(listed, passages)
            file = folder / f"{system}.json"
            evaluator.write_report(file, metadata, texts, listed, judged)
        try:
            for system, listed in rankings.items():
                by_id = {question.id: hits for question, hits in zip(questions, listed, strict=True)}
                write_trec_run(folder / f"{system}.run", by_id, system)
            if qrels is not None:
                write_qrels(folder / "qrels.txt", qrels)
        except InputError as error:
            logger.warning("%s: not all TREC files are written: %s", test_set.name, error.found)


def _cached(cache: Path, name: str, metadata: Any) -> Path:
    return cache / f"{name}-{json_sha256(metadata)[:16]}"


def _evaluate_run_file(config: EvaluateConfig) -> None:
    """Evaluates a run over all judged questions. A question that is not in the run counts as 0, as with
    trec_eval's option -c."""
    if config.metrics_file:
        require_writable(config.metrics_file)
    qrels = read_qrels(str(config.qrels))
    run = read_trec_run(str(config.run_file))
    require_judged(list(run), qrels, file=str(config.qrels), of=str(config.run_file))
    rankings = [run.get(key, []) for key in qrels]
    num_docs = max(config.n_docs, *map(len, rankings))
    evaluator = Evaluator([Question(key, key) for key in qrels], qrels, num_docs=num_docs)
    evaluator.check(rankings)
    judged = evaluator.evaluate(rankings)
    name = Path(str(config.qrels)).name.partition(".")[0]
    if config.metrics_file:
        metadata = {"question_set": name, "indexer": "run file"}
        evaluator.write_report(Path(config.metrics_file), metadata, list(qrels), rankings, judged, note={})
    columns = {key: key for key in [*shown_names(), "map"]}
    print(f"{name}, {len(judged.judged_ids)} questions")
    print(format_table({Path(str(config.run_file)).name: judged.metrics}, columns))
