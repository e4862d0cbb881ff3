"""Suite settings -> test sets -> rankings, metrics, a table and a page; or the TREC run of any program ->
metrics."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
from dpr.evaluation.ranking_metrics import format_table, text_table
from dpr.evaluation.report.page import Report
from dpr.evaluation.report.reading import read_retrieval
from dpr.evaluation.report.write import write_page
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
from dpr.retrieval.judging import (
    example_rows,
    first_hits,
    judge_by_answers,
    judge_by_qrels,
    possibly_own,
    relevant_ids,
    warn_of_own_passages,
    without_own_ids,
    write_report,
)
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

PAGE, TABLE, MTEB = "results.html", "results.md", "mteb:"
_PLACE_OF_ROWS = ("corpus", "shard_id", "num_shards", "first_row", "end_row", "chunk_size")
"""What metadata of vectors say beside what decides them."""
_OPTIONS = ("prompt", "query_prefix", "passage_prefix", "skip_same_id")
COLUMNS = {"ndcg@10": "nDCG@10", "recall@100": "recall@100", "mrr@10": "MRR@10"}
ANSWER_COLUMNS = ("accuracy@20", "accuracy@100", "accuracy@1")
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
    if config.model_file == config.run and (stored := _stored_search(config)):
        config = replace(config, model_file=stored.model_file or config.model_file)
    out = Path(str(config.output_dir))
    require_writable(out, folder=True)
    cache = Path(config.cache_dir) if config.cache_dir else out / CACHE
    tasks = str(config.suite).removeprefix(MTEB).split(",") if str(config.suite).startswith(MTEB) else []
    where: dict[str, Any] = {
        "split": config.split,
        "cache": cache,
        "data": config.data,
        "suites": config.suites,
    }
    sets = task_sets(tasks, cache / "mteb") if tasks else read_suite(str(config.suite), **where)
    job = _Suite(config, out, cache)
    for number, test_set in enumerate(sets, 1):
        logger.info("%s, test set %d of %d", test_set.name, number, len(sets))
        job.evaluate(test_set)
    files = {
        test_set.name: {system: out / test_set.name / f"{system}.json" for system in config.systems}
        for test_set in sets
    }
    runs = {
        name: {system: read_metrics(file) for system, file in systems.items()}
        for name, systems in files.items()
    }
    figures = figures_of(runs)
    facts = {
        "model_file": config.model_file,
        "model_fingerprint": job.fingerprint,
        "n_docs": config.n_docs,
        "sets": list(files),
    }
    write_json(out / RESULTS, {**facts, "systems": config.systems, "figures": as_records(figures)}, note={})
    retrievals = [
        read_retrieval(system, file) for systems in files.values() for system, file in systems.items()
    ]
    heading = "Test sets: mean over questions, with its 95 % interval"
    write_page(
        out / PAGE,
        Report(str(config.model_file or "BM25"), retrievals=retrievals, table=(heading, rows_of(figures))),
    )
    with durable_file(out / TABLE, note={}) as file:
        head, *body = rows_of(figures)
        file.writelines(
            f"| {' | '.join(line)} |\n" for line in (head, ["---", *["---:"] * (len(head) - 1)], *body)
        )
    print(text_table(rows_of(figures)))
    logger.info("%s, %s and %s written", out / RESULTS, out / PAGE, out / TABLE)
    last = figures[MEAN if len(sets) > 1 else sets[0].name].get(config.systems[-1], {})
    return next((one.mean for one in last.values()), None)


class _Suite:
    """The model and what all sets have in common."""

    def __init__(self, config: EvaluateConfig, out: Path, cache: Path) -> None:
        self.config, self.out, self.cache = config, out, cache
        self.fusion = _fusion(config)
        self.device = resolve_device(config.device_or_cpu)
        self.model: BiEncoder | None = None
        if config.needs_model:
            self.model = BiEncoder.load(
                str(config.model_file), device=self.device, **config.encoder.arguments()
            )
            self.model.keep_dimensions(config.dimensions)
        self.fingerprint = None if self.model is None else self.model.fingerprint

    def evaluate(self, test_set: TestSet) -> None:
        """Writes the folder of a set, unless it is complete and made of the same."""
        config, made_of, target = self.config, self._made_of(test_set), self.out / test_set.name
        with output(target, made_of, overwrite=config.overwrite) as is_needed:
            if not is_needed:
                return
            qrels = None if test_set.qrels is None else read_qrels(test_set.qrels)
            asked = read_questions(test_set.queries)
            questions = [
                question
                for question in asked
                if (question.answers if qrels is None else question.id in qrels)
            ]
            if qrels is not None:
                require_judged(
                    [question.id for question in asked],
                    qrels,
                    file=str(test_set.qrels),
                    of=str(test_set.queries),
                )
            source = PassageSource(
                test_set.corpus, test_set.name, passage_prefix=test_set.options.passage_prefix or ""
            )
            form = QuestionForm(prompt=test_set.options.prompt, query_prefix=test_set.options.query_prefix)
            if config.trec_runs:  # not when all is searched
                for key in chain(
                    (question.id for question in questions), (str(passage.id) for passage in source.read())
                ):
                    require_word(key, target / "qrels.txt", hint="trec_runs=false writes no TREC files")
            rankings = self._rankings(test_set, source, form, questions)
            rows = example_rows(questions, qrels)
            shown = set().union(*(first_hits(ranking, rows) for ranking in rankings.values()))
            read = (
                [{key for hits in ranking for key, _ in hits} for ranking in rankings.values()]
                if qrels is None
                else [relevant_ids(qrels)]
            )
            own = (possibly_own(questions, ranking) for ranking in rankings.values())
            passages = find_passages([source], shown.union(*read, *own))
            setting = "skip_same_id: true in the set's entry leaves out hits with a question's own id"
            warn_of_own_passages(questions, rankings[config.systems[-1]], passages, qrels, setting=setting)
            asking: dict[str, Any] = {
                "questions": questions,
                "texts": [form.text(question.text) for question in questions],
            }
            with durable_folder(
                target, overwrite=config.overwrite, metadata={"kind": "evaluation", "made_of": made_of}
            ) as folder:
                for system, ranking in rankings.items():
                    if qrels is None:
                        judged = judge_by_answers(
                            questions, ranking, passages, kind="string", num_docs=config.n_docs
                        )
                    else:
                        judged = judge_by_qrels(
                            questions, ranking, qrels, num_docs=config.n_docs, corpus_ids=passages
                        )
                    facts: dict[str, Any] = {
                        "question_set": test_set.name,
                        "indexer": "bm25" if system == "bm25" else "exact",
                    }
                    facts |= (
                        {"hybrid": "linear", "hybrid_weight": self.fusion.weight}
                        if system == "hybrid"
                        else {}
                    )
                    measured: dict[str, Any] = {
                        "rankings": ranking,
                        "judged": judged,
                        "rows": rows,
                        "passages": passages,
                    }
                    write_report(
                        folder / f"{system}.json", facts, **asking, **measured, num_docs=config.n_docs
                    )
                    if config.trec_runs:
                        write_trec_run(
                            folder / f"{system}.run",
                            dict(zip((question.id for question in questions), ranking)),
                            system,
                        )
                if config.trec_runs and qrels is not None:
                    write_qrels(folder / "qrels.txt", qrels)

    def _made_of(self, test_set: TestSet) -> dict[str, Any]:
        """What decides the results of a set."""
        config = self.config
        paths = {part: getattr(test_set, part) for part in ("corpus", "queries", "qrels")}
        files = {part: content_sha256(path)[:32] for part, path in paths.items() if path is not None}
        names = ("systems", "n_docs", "trec_runs", *(["precision"] * config.needs_model))
        facts = {name: getattr(config, name) for name in names} | {
            name: getattr(test_set.options, name) for name in _OPTIONS
        }
        if "hybrid" in config.systems:
            fusion = self.fusion
            facts |= {
                "hybrid_weight": fusion.weight,
                **({} if fusion == Fusion(weight=fusion.weight) else asdict(fusion)),
            }
        facts |= {STATIC: [STATIC_WIDTH, STATIC_TOKENS, config.precision]} if STATIC in config.systems else {}
        bm25 = (
            {} if {*config.systems} <= {"dense", STATIC} else {**asdict(config.bm25), "words": WORDS_VERSION}
        )
        return {"model": self.fingerprint, **files, **facts, **bm25}

    def _rankings(
        self, test_set: TestSet, source: PassageSource, form: QuestionForm, questions: Sequence[Question]
    ) -> dict[str, Any]:
        """The ranking of every question by each system."""
        config, texts = self.config, [form.asked(question.text) for question in questions]
        fusion = self.fusion
        k = max(config.n_docs, fusion.depth) if "hybrid" in config.systems else config.n_docs
        sides: dict[str, list[Ranking]] = {}
        for system, open_side in (("bm25", self._lexical), ("dense", self._dense), (STATIC, self._static)):
            if system in config.systems or ("hybrid" in config.systems and system != STATIC):
                side = open_side(test_set, source, form)
                warn_of_unknown_words(side, texts, str(test_set.queries))
                rankings = side.retrieve(texts, k + test_set.options.skip_same_id)
                sides[system] = (
                    without_own_ids(questions, rankings, k) if test_set.options.skip_same_id else rankings
                )
        if "hybrid" in config.systems:
            sides["hybrid"] = fusion.fuse(sides["dense"], sides["bm25"], config.n_docs)
        return {system: [hits[: config.n_docs] for hits in sides[system]] for system in config.systems}

    def _lexical(self, test_set: TestSet, source: PassageSource, form: QuestionForm) -> LexicalRetriever:
        choice = index_choice(IndexerConfig(kind="bm25", **asdict(self.config.bm25)))
        folder = self._cached(f"{test_set.name}-bm25", [content_sha256(source.file), choice.facts()])
        return LexicalRetriever(open_text_index(choice, [source], str(folder)))

    def _static(self, test_set: TestSet, source: PassageSource, form: QuestionForm) -> DenseRetriever:
        """An encoder that learned nothing but the corpus's vocabulary and how rare its tokens are; random
        rows, the same every time."""
        folder = self._cached(f"{test_set.name}-static", [content_sha256(source.file), STATIC_WIDTH])
        new_encoder(folder, source.file, shape=EncoderShape(num_layers=0, hidden_size=STATIC_WIDTH))
        settings = EncoderSettings(
            pooling="idf_sqrt", normalize=True, shared=True, sequence_length=STATIC_TOKENS
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = BiEncoder.from_pretrained(str(folder), settings).to(self.device)
        return self._dense(test_set, PassageSource(source.file, source.name), QuestionForm(), model)

    def _dense(
        self, test_set: TestSet, source: PassageSource, form: QuestionForm, given: BiEncoder | None = None
    ) -> DenseRetriever:
        """The corpus's vectors by this model are embedded once, wherever ``cache_dir`` is named; a killed run
        continues."""
        model, config = given or self.model, self.config
        assert model is not None
        agreed = source.agreed(model.tensorizer.text)
        start = self._cached(test_set.name, [model.fingerprint, agreed.identity(), config.precision])
        embedding = EmbedConfig(
            out_file=str(start), precision=config.precision, batch_tokens=config.batch_tokens
        )
        if not (shards := self._vectors_of_run(shard_metadata(model, agreed, embedding, range(0)))):
            embed_shard(model, source, embedding)
            shards = open_shards([f"{start}_0"])
        return DenseRetriever(
            model, ExactIndex(shards, device=self.device), form=form, batch_size=config.batch_size
        )

    def _vectors_of_run(self, wanted: Mapping[str, Any]) -> list[VectorShard]:
        """The vectors that the run is searched with, if embedding this corpus would give the same."""
        stored = _stored_search(self.config)
        with suppress(InputError):  # damaged, or gone: the corpus is embedded
            shards = open_shards(stored.encoded_ctx_files) if stored and stored.encoded_ctx_files else []
            same = {name: value for name, value in wanted.items() if name not in _PLACE_OF_ROWS} | {
                "dtype": "float32"
            }
            if all(shard.metadata.get(name) == value for shard in shards for name, value in same.items()):
                return shards
        return []

    def _cached(self, name: str, facts: Any) -> Path:
        return self.cache / f"{name}-{text_sha256(json.dumps(facts, sort_keys=True))[:16]}"


def _stored_search(config: EvaluateConfig) -> SearchSettings | None:
    return (
        SearchSettings.read(Path(config.run)) if config.run and (Path(config.run) / FILE).is_file() else None
    )


def _fusion(config: EvaluateConfig) -> Fusion:
    """As the run is searched, unless the settings say otherwise."""
    if config.hybrid_weight is not None:
        return Fusion(weight=config.hybrid_weight)
    stored = _stored_search(config)
    if stored is None or stored.hybrid_weight is None or stored.hybrid != "linear":
        return Fusion()
    return Fusion(
        weight=stored.hybrid_weight, normalisation=stored.hybrid_normalisation, depth=stored.hybrid_depth
    )


def _evaluate_run_file(config: EvaluateConfig) -> float | None:
    """The metrics of a run over all judged questions; one that is not in the run counts as 0, as with
    trec_eval's option -c."""
    if config.metrics_file:
        require_writable(config.metrics_file)
    qrels, run = read_qrels(str(config.qrels)), read_trec_run(str(config.run_file), as_trec_eval=True)
    require_judged(list(run), qrels, file=str(config.qrels), of=str(config.run_file))
    questions = [Question(key, key) for key in qrels]
    rankings = [run.get(key, []) for key in qrels]
    num_docs = max(config.n_docs, *map(len, rankings))
    judged = judge_by_qrels(questions, rankings, qrels, num_docs=num_docs)
    for line in judged.notes:
        logger.info(line)
    name = Path(str(config.qrels)).name.partition(".")[0]
    if config.metrics_file:
        facts: Mapping[str, Any] = {"question_set": name, "indexer": "run file"}
        asked: dict[str, Any] = {"questions": questions, "texts": list(qrels), "rankings": rankings}
        write_report(Path(config.metrics_file), facts, **asked, judged=judged, num_docs=num_docs, note={})
    columns = {key: key for key in ("accuracy@1", "accuracy@20", "recall@100", "mrr@10", "ndcg@10", "map")}
    print(
        f"{name}, {len(judged.rows)}"
        f" questions\n{format_table({Path(str(config.run_file)).name: judged.metrics}, columns)}"
    )
    return judged.metrics.get("ndcg@10")


def shown_metrics(run: MetricsFile) -> list[str]:
    """Those of ``COLUMNS``, of a run of fewer than ten passages at its deepest cut-off; without judgements
    those of ``ANSWER_COLUMNS``."""
    if not any(name.startswith("ndcg@") for name in run.metrics):
        return [metric for metric in ANSWER_COLUMNS if metric in run.metrics] or list(run.metrics)[-1:]
    if "ndcg@10" in run.metrics:
        return [metric for metric in COLUMNS if metric in run.metrics]
    deepest = max(int(name.partition("@")[2]) for name in run.metrics if name.startswith("ndcg@"))
    return [f"{kind}@{deepest}" for kind in ("ndcg", "recall", "mrr")]


def measured(run: MetricsFile, metric: str) -> Estimate | None:
    """The metric of a run over the judged questions; None where it was not measured."""
    values = {} if run.each is None or metric not in run.each.values else run.each.judged(metric)
    return estimate(list(values.values())) if values else None


def figures_of(sets: Mapping[str, Mapping[str, MetricsFile]]) -> Figures:
    """The shown metrics of every set and system, the first of them also less BM25's, question by question,
    and where there are several sets their means under the name ``mean``."""
    figures: Figures = {
        name: {
            label: {metric: one for metric in shown_metrics(run) if (one := measured(run, metric))}
            for label, run in runs.items()
        }
        for name, runs in sets.items()
    }
    for name, runs in sets.items():
        for label, run in runs.items():
            metric, words = next(iter(figures[name][label]), ""), runs.get("bm25")
            if label != "bm25" and words and words.each and run.each and metric in words.each.values:
                pairs = paired_values(words.each, run.each, metric, label=label, against="bm25")
                figures[name][label][metric + LESS_BM25] = estimate(
                    [second - first for first, second in zip(*pairs, strict=True)]
                )
    if len(sets) < 2:
        return figures
    means: dict[str, dict[str, Estimate]] = {}
    for label, first in next(iter(figures.values())).items():
        for metric in first:
            if all(metric in systems[label] for systems in figures.values()):
                means.setdefault(label, {})[metric] = mean_of(
                    [systems[label][metric] for systems in figures.values()]
                )
    return {**figures, MEAN: means}


def rows_of(figures: Figures) -> list[list[str]]:
    """A table's lines of cells, headings first."""
    columns = list(
        dict.fromkeys(metric for systems in figures.values() for one in systems.values() for metric in one)
    )
    columns.sort(key=lambda metric: metric.endswith(LESS_BM25))
    heads = (metric.removesuffix(LESS_BM25) for metric in columns)
    lines = [["", *(COLUMNS.get(head, head) + metric[len(head) :] for head, metric in zip(heads, columns))]]
    for name, systems in figures.items():
        for label, one in systems.items():
            cells = (
                _text(one[metric], is_difference=metric.endswith(LESS_BM25)) if metric in one else "-"
                for metric in columns
            )
            lines.append([f"{name}, {label}", *cells])
    return lines


def _text(one: Estimate, *, is_difference: bool) -> str:
    sign = "+" if is_difference else ""
    if is_difference and one.outcome == TOO_FEW:
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
