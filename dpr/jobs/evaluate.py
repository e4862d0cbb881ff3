"""Suite settings -> test sets -> rankings, metrics and a table; or the TREC run of any program -> metrics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dpr.core.distributed import resolve_device
from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import get_logger
from dpr.core.machine import launched
from dpr.core.records import Question, text_sha256
from dpr.data.words import WORDS_VERSION
from dpr.embedding.job import embed_shard
from dpr.embedding.settings import EmbedConfig
from dpr.embedding.source import PassageSource
from dpr.evaluation.comparison import MEAN, as_records, figures_of, rows_of
from dpr.evaluation.evaluator import Evaluator, without_own_ids
from dpr.evaluation.ranking_metrics import format_table, shown_names, text_table
from dpr.formats.question_sets import read_qrels, read_questions, require_judged, write_qrels
from dpr.formats.results import RESULTS, read_metrics, read_trec_run, write_trec_run
from dpr.formats.vector_shards import open_shards
from dpr.indexer.exact import ExactIndex
from dpr.indexer.ranking import Ranking
from dpr.jobs.indexes import index_choice, open_text_index
from dpr.jobs.retrieve import texts_of
from dpr.models.biencoder import BiEncoder
from dpr.retrieval.retrievers import (
    DenseRetriever,
    Fusion,
    LexicalRetriever,
    QuestionForm,
    warn_of_unknown_words,
)
from dpr.retrieval.search_folder import FILE, SearchSettings
from dpr.retrieval.settings import EvaluateConfig, IndexerConfig
from dpr.retrieval.suites import CACHE, TestSet, read_suite
from dpr.storage.checksums import content_sha256
from dpr.storage.durable import durable_file, durable_folder, write_json
from dpr.storage.outputs import output, require_writable

logger = get_logger(__name__)

TABLE = "results.md"


def run(config: EvaluateConfig) -> float | None:
    """Evaluates what is not evaluated yet, and writes the results of all sets. Returns the mean nDCG@10 of
    the last system."""
    if launched("WORLD_SIZE") > 1:
        raise ConfigError(
            "evaluation runs in one process; start it without torchrun (a GPU is used when there is one)"
        )
    if config.run_file is not None:
        return _evaluate_run_file(config)
    out = Path(str(config.output_dir))
    require_writable(out, folder=True)
    cache = Path(config.cache_dir) if config.cache_dir else out / CACHE
    sets = read_suite(
        str(config.set), split=config.split, cache=cache, data=config.data, suites=config.suites
    )

    # A run that has been searched says which model and hybrid it is searched with.
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
        made_of = _made_of(config, test_set, model, fusion)
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
    with durable_file(out / TABLE, note={}) as file:
        for line in (head, ["---", *["---:"] * (len(head) - 1)], *body):
            file.write(f"| {' | '.join(line)} |\n")
    print(text_table([head, *body]))
    logger.info("%s and %s written", out / RESULTS, out / TABLE)
    last = figures[MEAN if len(sets) > 1 else sets[0].name].get(config.systems[-1], {})
    return next((one.mean for one in last.values()), None)


def _made_of(
    config: EvaluateConfig, test_set: TestSet, model: BiEncoder | None, fusion: Fusion
) -> dict[str, Any]:
    """What decides the results of a set."""
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
    return made_of


def _evaluate_set(
    config: EvaluateConfig,
    test_set: TestSet,
    target: Path,
    cache: Path,
    model: BiEncoder | None,
    fusion: Fusion,
    made_of: Mapping[str, Any],
) -> None:
    """Writes the folder of a set."""
    options = test_set.options
    qrels = None if test_set.qrels is None else read_qrels(test_set.qrels)
    questions = read_questions(test_set.queries)
    if qrels is None:
        questions = [question for question in questions if question.answers]
    else:
        ids = [question.id for question in questions]
        require_judged(ids, qrels, file=str(test_set.qrels), of=str(test_set.queries))
        questions = [question for question in questions if question.id in qrels]
    source = PassageSource(test_set.corpus, test_set.name, passage_prefix=options.passage_prefix or "")

    # Both sides are searched once; the hybrid is made of what they found.
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

    evaluator = Evaluator(questions, qrels, "string" if qrels is None else None, config.n_docs)
    passages = texts_of(evaluator, rankings.values(), [source])
    own = "skip_same_id: true in the set's entry leaves out hits with a question's own id"
    evaluator.check(rankings[config.systems[-1]], passages, own=own)
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
    return cache / f"{name}-{text_sha256(json.dumps(metadata, sort_keys=True))[:16]}"


def _evaluate_run_file(config: EvaluateConfig) -> float | None:
    """The metrics of a run over all judged questions; one that is not in the run counts as 0, as with
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
    return judged.metrics.get("ndcg@10")
