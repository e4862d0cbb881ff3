"""``dpr evaluate``: metrics and a table of test sets, or of the TREC run of any program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

from dpr.core.distributed import resolve_device
from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import get_logger
from dpr.core.machine import launched
from dpr.core.records import Question, json_sha256
from dpr.data.text import QuestionForm
from dpr.data.words import WORDS_VERSION
from dpr.embedding.job import embed_shard
from dpr.embedding.settings import EmbedConfig
from dpr.embedding.source import PassageSource
from dpr.evaluation.comparison import as_records, figures_of, rows_of
from dpr.evaluation.evaluator import Evaluator
from dpr.evaluation.ranking_metrics import (
    format_table,
    shown_names,
    text_table,
)
from dpr.formats.metrics_files import RESULTS, read_metrics
from dpr.formats.question_sets import read_qrels, read_questions, require_judged, write_qrels
from dpr.formats.results import read_trec_run, write_trec_run
from dpr.formats.vector_shards import open_shards
from dpr.indexer.exact import ExactIndex
from dpr.indexer.ranking import ids_in
from dpr.indexer.registry import IndexChoice
from dpr.jobs.retrieve import require_relevant
from dpr.models.biencoder import BiEncoder
from dpr.models.properties import mention_bf16
from dpr.retrieval.dense import DenseSide
from dpr.retrieval.passages import require_passages
from dpr.retrieval.rankings import facts_of, rankings_of
from dpr.retrieval.search_json import SEARCH_JSON, SearchSettings
from dpr.retrieval.settings import EvaluateConfig
from dpr.retrieval.sides import Fusion, Side, WordSide, open_text_index
from dpr.retrieval.suites import CACHE, TestSet, read_suite
from dpr.storage.checksums import content_sha256
from dpr.storage.durable import durable_file, durable_folder, write_json
from dpr.storage.outputs import output, require_writable

logger = get_logger(__name__)

TABLE = "results.md"


def run(config: EvaluateConfig) -> None:
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
    if config.run and (Path(config.run) / SEARCH_JSON).is_file():
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
        made_of: dict[str, Any] = {
            "model": model and model.fingerprint,
            "systems": config.systems,
            "n_docs": config.n_docs,
        }
        for part in ("corpus", "queries", "qrels"):
            if (file := getattr(test_set, part)) is not None:
                made_of[part] = content_sha256(file)[:32]
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
    questions = read_questions(test_set.queries)
    qrels = None
    if test_set.qrels is None:
        questions = [question for question in questions if question.answers]
    else:
        qrels = read_qrels(test_set.qrels)
        ids = [question.id for question in questions]
        require_judged(ids, qrels, file=test_set.qrels, of=str(test_set.queries))
        questions = [question for question in questions if question.id in qrels]
    evaluator = Evaluator(questions, qrels, "string" if qrels is None else None, config.n_docs)
    source = PassageSource(test_set.corpus, test_set.name, passage_prefix=options.passage_prefix or "")
    require_relevant(evaluator, [source])

    form = QuestionForm(prompt=options.prompt, query_prefix=options.query_prefix)
    queries = [form.query_text(question.text) for question in questions]
    sides: dict[str, Side] = {}
    if config.needs_words:
        choice = IndexChoice("bm25", config.bm25)
        name = _cached(f"{test_set.name}-bm25", [content_sha256(source.file), choice.metadata()])
        sides["bm25"] = WordSide(open_text_index(choice, [source], str(cache / name)))
    if model is not None:
        agreed = source.agreed(model.tensorizer.text)
        name = _cached(source.name, [model.fingerprint, agreed.identity(), config.precision])
        embedding = EmbedConfig(
            out_file=str(cache / name), precision=config.precision, batch_tokens=config.batch_tokens
        )
        mention_bf16(model.ctx_model.backbone, model.device, config.precision, key="precision")
        report = embed_shard(model, source, embedding)
        index = ExactIndex(open_shards([report.folder]), device=model.device)
        dense = sides["dense"] = DenseSide(model, index, form=form)
        dense.warn_of_unknown_words(queries, str(test_set.queries))
    rankings = rankings_of(
        config.systems,
        sides,
        questions,
        queries,
        fusion=fusion,
        k=config.n_docs,
        skip_same_id=options.skip_same_id,
    )

    needed = chain.from_iterable(rankings.values()) if evaluator.answer_match else ()
    passages = require_passages([source], ids_in(needed))
    own = "skip_same_id: true in the set's entry leaves out hits with a question's own id"
    evaluator.check(rankings[config.systems[-1]], own=own)
    texts = [form.text(question.text) for question in questions]
    manifest = {"kind": "evaluation", "made_of": made_of}
    with durable_folder(target, overwrite=config.overwrite, metadata=manifest) as folder:
        for system, listed in rankings.items():
            judged = evaluator.evaluate(listed, passages)
            facts = facts_of(system, test_set.name, fusion)
            evaluator.write_report(folder / f"{system}.json", facts, texts, judged)
        try:
            for system, listed in rankings.items():
                write_trec_run(folder / f"{system}.run", evaluator.by_id(listed), system)
            if qrels is not None:
                write_qrels(folder / "qrels.txt", qrels)
        except InputError as error:
            logger.warning("%s: not all TREC files are written: %s", test_set.name, error.found)


def _cached(name: str, made_of: Any) -> str:
    return f"{name}-{json_sha256(made_of)[:16]}"


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
        evaluator.write_report(Path(config.metrics_file), metadata, list(qrels), judged, note={})
    columns = {key: key for key in [*shown_names(), "map"]}
    print(f"{name}, {len(judged.judged_ids)} questions")
    print(format_table({Path(str(config.run_file)).name: judged.metrics}, columns))
