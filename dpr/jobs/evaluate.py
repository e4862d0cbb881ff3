"""Suite settings -> test sets -> rankings, metrics and a table; or the TREC run of any program -> metrics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from dpr.core.distributed import resolve_device
from dpr.core.errors import ConfigError, InputError
from dpr.core.hashes import text_sha256
from dpr.core.logs import get_logger
from dpr.core.machine import launched
from dpr.core.records import Question
from dpr.data.words import WORDS_VERSION
from dpr.embedding.job import embed_shard, shard_metadata
from dpr.embedding.settings import EmbedConfig
from dpr.embedding.source import PassageSource
from dpr.evaluation.comparison import paired_values
from dpr.evaluation.evaluator import Evaluator, first_hits, without_own_ids
from dpr.evaluation.ranking_metrics import format_table, heading_of, headline_names, shown_names, text_table
from dpr.evaluation.significance import SHOWN, TOO_FEW, Estimate, estimate, mean_of
from dpr.formats.corpora import require_word
from dpr.formats.metrics_files import RESULTS, MetricsFile, read_metrics
from dpr.formats.question_sets import read_qrels, read_questions, require_judged, write_qrels
from dpr.formats.results import read_trec_run, write_trec_run
from dpr.formats.vector_shards import VectorShard, open_shards
from dpr.indexer.exact import ExactIndex
from dpr.indexer.ranking import Ranking
from dpr.integrations.mteb import task_sets
from dpr.jobs.indexes import index_choice, open_text_index
from dpr.models.biencoder import BiEncoder
from dpr.models.settings import EncoderSettings
from dpr.preparation.new_encoder import EncoderShape, new_encoder
from dpr.retrieval.passages import find_passages
from dpr.retrieval.retrievers import (
    DenseRetriever,
    Fusion,
    LexicalRetriever,
    QuestionForm,
    warn_of_unknown_words,
)
from dpr.retrieval.search_folder import FILE, SearchSettings
from dpr.retrieval.settings import IndexerConfig
from dpr.retrieval.suite_settings import STATIC, EvaluateConfig
from dpr.retrieval.suites import CACHE, TestSet, read_suite
from dpr.storage.checksums import content_sha256
from dpr.storage.durable import durable_file, durable_folder, write_json
from dpr.storage.outputs import output, require_writable

logger = get_logger(__name__)

TABLE, MTEB = "results.md", "mteb:"
_PLACE_OF_ROWS = ("corpus", "shard_id", "num_shards", "first_row", "end_row", "chunk_size")
"""What metadata of vectors say beside what decides them."""
MEAN, LESS_BM25 = "mean", " - BM25"
STATIC_WIDTH, STATIC_TOKENS = 1024, 512
Figures = dict[str, dict[str, dict[str, Estimate]]]
"""By set, system and metric."""


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
    suite = str(config.suite)
    if suite.startswith(MTEB):
        sets = task_sets(suite.removeprefix(MTEB).split(","), cache / "mteb")
    else:
        sets = read_suite(suite, split=config.split, cache=cache, data=config.data, suites=config.suites)

    # A run that has been searched says which model, hybrid and vectors it is searched with.
    stored = None
    if config.run and (Path(config.run) / FILE).is_file():
        stored = SearchSettings.read(Path(config.run))
        if stored.model_file and config.model_file == config.run:
            config = replace(config, model_file=stored.model_file)
    fusion = Fusion()
    if config.hybrid_weight is not None:
        fusion = Fusion(weight=config.hybrid_weight)
    elif stored and stored.hybrid_weight is not None and stored.hybrid == "linear":
        normalisation, depth = stored.hybrid_normalisation, stored.hybrid_depth
        fusion = Fusion(weight=stored.hybrid_weight, normalisation=normalisation, depth=depth)
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
                vectors = stored.encoded_ctx_files if stored else []
                _evaluate_set(config, test_set, out / test_set.name, cache, model, fusion, vectors, made_of)

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
    for name in ("systems", "n_docs", "trec_runs"):
        made_of[name] = getattr(config, name)
    if config.needs_model:
        made_of["precision"] = config.precision
    for name in ("prompt", "query_prefix", "passage_prefix", "skip_same_id"):
        made_of[name] = getattr(test_set.options, name)
    if "hybrid" in config.systems:
        made_of["hybrid_weight"] = fusion.weight
        if fusion != Fusion(weight=fusion.weight):
            made_of |= asdict(fusion)
    if STATIC in config.systems:
        made_of[STATIC] = [STATIC_WIDTH, STATIC_TOKENS, config.precision]
    if "bm25" in config.systems or "hybrid" in config.systems:
        made_of |= {**asdict(config.bm25), "words": WORDS_VERSION}
    return made_of


def _evaluate_set(
    config: EvaluateConfig,
    test_set: TestSet,
    target: Path,
    cache: Path,
    model: BiEncoder | None,
    fusion: Fusion,
    vectors: list[str],
    made_of: Mapping[str, Any],
) -> None:
    """Writes the folder of a set; ``vectors`` are those that the run is searched with."""
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
    if config.trec_runs:  # not when all is searched
        passage_ids = (str(passage.id) for passage in source.read())
        for key in chain((question.id for question in questions), passage_ids):
            require_word(key, target / "qrels.txt", hint="trec_runs=false writes no TREC files")

    form = QuestionForm(prompt=options.prompt, query_prefix=options.query_prefix)
    asked = [form.asked(question.text) for question in questions]
    is_hybrid = "hybrid" in config.systems
    depth = max(config.n_docs, fusion.depth) if is_hybrid else config.n_docs
    rankings: dict[str, list[Ranking]] = {}
    for system in ("bm25", "dense", STATIC):
        if system not in config.systems and (system == STATIC or not is_hybrid):
            continue
        retriever: LexicalRetriever | DenseRetriever
        if system == "bm25":
            choice = index_choice(IndexerConfig(kind="bm25", **asdict(config.bm25)))
            folder = _cached(cache, f"{test_set.name}-bm25", [content_sha256(source.file), choice.facts()])
            retriever = LexicalRetriever(open_text_index(choice, [source], str(folder)))
        elif system == "dense":
            assert model is not None
            retriever = _dense(config, cache, model, source, form, vectors)
        else:
            plain = PassageSource(source.file, source.name)
            retriever = _dense(
                config, cache, _untrained(config, cache, plain), plain, QuestionForm(), vectors
            )
        warn_of_unknown_words(retriever, asked, str(test_set.queries))
        found = retriever.retrieve(asked, depth + options.skip_same_id)
        rankings[system] = without_own_ids(questions, found, depth) if options.skip_same_id else found
    if is_hybrid:
        rankings["hybrid"] = fusion.fuse(rankings["dense"], rankings["bm25"], config.n_docs)
    rankings = {system: [hits[: config.n_docs] for hits in rankings[system]] for system in config.systems}

    evaluator = Evaluator(questions, qrels, "string" if qrels is None else None, config.n_docs)
    wanted = evaluator.relevant()
    for listed in rankings.values():
        wanted |= first_hits(listed, evaluator.example_rows()) | evaluator.possibly_own(listed)
        if qrels is None:
            wanted |= {key for ranking in listed for key, _ in ranking}
    passages = find_passages([source], wanted)
    own = "skip_same_id: true in the set's entry leaves out hits with a question's own id"
    evaluator.check(rankings[config.systems[-1]], passages, own=own)

    texts = [form.text(question.text) for question in questions]
    metadata = {"kind": "evaluation", "made_of": made_of}
    with durable_folder(target, overwrite=config.overwrite, metadata=metadata) as folder:
        for system, listed in rankings.items():
            facts: dict[str, Any] = {"question_set": test_set.name}
            facts["indexer"] = "bm25" if system == "bm25" else "exact"
            if system == "hybrid":
                facts |= {"hybrid": "linear", "hybrid_weight": fusion.weight}
            judged = evaluator.evaluate(listed, passages)
            file = folder / f"{system}.json"
            evaluator.write_report(file, facts, texts, listed, judged, passages=passages)
            if config.trec_runs:
                by_id = {question.id: hits for question, hits in zip(questions, listed, strict=True)}
                write_trec_run(folder / f"{system}.run", by_id, system)
        if config.trec_runs and qrels is not None:
            write_qrels(folder / "qrels.txt", qrels)


def _dense(
    config: EvaluateConfig,
    cache: Path,
    model: BiEncoder,
    source: PassageSource,
    form: QuestionForm,
    vectors: list[str],
) -> DenseRetriever:
    """The corpus's vectors by this model are those of the run, if embedding this corpus would give the same; else
    they are embedded once, wherever ``cache_dir`` is named, and a killed command continues."""
    agreed = source.agreed(model.tensorizer.text)
    start = _cached(cache, source.name, [model.fingerprint, agreed.identity(), config.precision])
    embedding = EmbedConfig(out_file=str(start), precision=config.precision, batch_tokens=config.batch_tokens)
    wanted = {**shard_metadata(model, agreed, embedding, range(0)), "dtype": "float32"}
    shards: list[VectorShard] = []
    with suppress(InputError):  # damaged, or gone: the corpus is embedded
        shards = open_shards(vectors) if vectors else []
    facts = [name for name in wanted if name not in _PLACE_OF_ROWS]
    if not shards or any(shard.metadata.get(name) != wanted[name] for shard in shards for name in facts):
        embed_shard(model, source, embedding)
        shards = open_shards([f"{start}_0"])
    index = ExactIndex(shards, device=model.device)
    return DenseRetriever(model, index, form=form, batch_size=config.batch_size)


def _untrained(config: EvaluateConfig, cache: Path, source: PassageSource) -> BiEncoder:
    """An encoder that learned nothing but the corpus's vocabulary and how rare its tokens are; random rows, the
    same every time."""
    folder = _cached(cache, f"{source.name}-static", [content_sha256(source.file), STATIC_WIDTH])
    new_encoder(folder, source.file, shape=EncoderShape(num_layers=0, hidden_size=STATIC_WIDTH))
    settings = EncoderSettings(pooling="idf_sqrt", normalize=True, shared=True, sequence_length=STATIC_TOKENS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return BiEncoder.from_pretrained(str(folder), settings).to(resolve_device(config.device_or_cpu))


def _cached(cache: Path, name: str, facts: Any) -> Path:
    return cache / f"{name}-{text_sha256(json.dumps(facts, sort_keys=True))[:16]}"


def _evaluate_run_file(config: EvaluateConfig) -> float | None:
    """The metrics of a run over all judged questions; one that is not in the run counts as 0, as with
    trec_eval's option -c."""
    if config.metrics_file:
        require_writable(config.metrics_file)
    qrels = read_qrels(str(config.qrels))
    run = read_trec_run(str(config.run_file), as_trec_eval=True)
    require_judged(list(run), qrels, file=str(config.qrels), of=str(config.run_file))
    rankings = [run.get(key, []) for key in qrels]
    num_docs = max(config.n_docs, *map(len, rankings))
    evaluator = Evaluator([Question(key, key) for key in qrels], qrels, num_docs=num_docs)
    evaluator.check(rankings)
    judged = evaluator.evaluate(rankings)
    name = Path(str(config.qrels)).name.partition(".")[0]
    if config.metrics_file:
        facts = {"question_set": name, "indexer": "run file"}
        evaluator.write_report(Path(config.metrics_file), facts, list(qrels), rankings, judged, note={})
    columns = {key: key for key in [*shown_names(), "map"]}
    print(f"{name}, {len(judged.judged_ids)} questions")
    print(format_table({Path(str(config.run_file)).name: judged.metrics}, columns))
    return judged.metrics.get("ndcg@10")


def figures_of(sets: Mapping[str, Mapping[str, MetricsFile]]) -> Figures:
    """The headline metrics of every set and system, the first of them also less BM25's, question by question,
    and where there are several sets their means under the name ``mean``."""
    figures: Figures = {}
    for name, runs in sets.items():
        figures[name] = {}
        for label, run in runs.items():
            estimates = figures[name][label] = {}
            for metric in headline_names(run.metrics):
                values = run.each.judged(metric) if run.each and metric in run.each.values else {}
                if values:
                    estimates[metric] = estimate(list(values.values()))
            words = runs.get("bm25")
            first = next(iter(estimates), "")
            if label != "bm25" and words and words.each and run.each and first in words.each.values:
                pairs = paired_values(words.each, run.each, first, label=label, against="bm25")
                gains = [ours - theirs for theirs, ours in zip(*pairs, strict=True)]
                estimates[first + LESS_BM25] = estimate(gains)
    if len(sets) > 1:
        means: dict[str, dict[str, Estimate]] = {}
        for label, estimates in next(iter(figures.values())).items():
            for metric in estimates:
                parts = [systems[label][metric] for systems in figures.values() if metric in systems[label]]
                if len(parts) == len(sets):
                    means.setdefault(label, {})[metric] = mean_of(parts)
        figures[MEAN] = means
    return figures


def rows_of(figures: Figures) -> list[list[str]]:
    """A table's lines of cells, headings first."""
    names = [metric for systems in figures.values() for one in systems.values() for metric in one]
    columns = sorted(dict.fromkeys(names), key=lambda metric: metric.endswith(LESS_BM25))
    head = [""]
    for metric in columns:
        kind = metric.removesuffix(LESS_BM25)
        head.append(heading_of(kind) + metric[len(kind) :])
    lines = [head]
    for name, systems in figures.items():
        for label, one in systems.items():
            cells = [_text(one[metric], metric) if metric in one else "-" for metric in columns]
            lines.append([f"{name}, {label}", *cells])
    return lines


def _text(one: Estimate, metric: str) -> str:
    sign = "+" if metric.endswith(LESS_BM25) else ""
    if sign and one.outcome == TOO_FEW:
        return f"{one.mean:{sign}{SHOWN}} [{TOO_FEW} to tell]"
    return f"{one.mean:{sign}{SHOWN}} [{one.low:{sign}{SHOWN}}, {one.high:{sign}{SHOWN}}]"


def as_records(figures: Figures) -> dict[str, Any]:
    """For JSON: mean, low and high of every metric, by set and system."""
    return {
        name: {
            label: {
                metric: {"mean": part.mean, "low": part.low, "high": part.high}
                for metric, part in one.items()
            }
            for label, one in systems.items()
        }
        for name, systems in figures.items()
    }
