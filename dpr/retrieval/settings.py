"""Settings of ``dpr retrieve`` / ``dense_retriever.py``. Key names are DPR's where DPR has the setting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from dpr.core.compute_settings import CudaSettings, ForwardSettings
from dpr.core.errors import ConfigError
from dpr.core.settings import Settings, listed, require_set, setting
from dpr.embedding.settings import CorpusCatalogue, ModelSettings, VectorModelSettings
from dpr.indexer.settings import (
    KINDS,
    Bm25Settings,
    FactorySettings,
    GraphSettings,
    require_known,
)

SEARCH_MODES = ("dense", "bm25", "hybrid")
"""Ways to search for one question: by vectors, by words, or by both."""
_OF_VECTORS = (
    "encoded_ctx_files",
    "model_file",
    "batch_size",
    "encoder_path",
    "index_path",
    "encoder",
)


@dataclass
class _IndexKind(Settings):
    """Index over the passages."""

    kind: str = "exact"
    """exact (reads blocks from disk); approximate: hnsw32 (a graph, fast), ivf (8 bits per number, fast),
    small (4 bits per number), faiss (any index that indexer.factory names); flat, hnsw, hnsw_sq (DPR's, by
    faiss); bm25 (words, no model); or a user-defined subclass of dpr.indexer.registry.Index, module:Class."""
    options: dict[str, Any] = field(default_factory=dict)
    """Settings of a user-defined class."""


@dataclass
class IndexerConfig(Bm25Settings, FactorySettings, GraphSettings, _IndexKind):
    """Index over the passages, with its settings."""

    def unused(self) -> Iterator[str]:
        used = ["options"]
        if self.kind in KINDS:
            used = [item.name for item in fields(KINDS[self.kind].settings)]
        yield from (item.name for item in fields(self) if item.name not in ("kind", "k1", "b", *used))

    def check_together(self, prefix: str = "") -> None:
        super().check_together(prefix)
        require_known(self.kind)


@dataclass
class QuestionSetConfig(Settings):
    """Options of one question set (an entry of ``datasets``)."""

    file: str | None = setting(None, path="input")
    """CSV/TSV (question, answers), JSON lines, or BEIR's queries.jsonl, plain or .gz."""
    question_col: int = setting(0, least=0)
    """Column of the question in a CSV, counted from 0."""
    answers_col: int = 1
    """Column of the answers; -1 = none."""
    id_col: int = -1
    """Column of the id; -1 = none, row numbers are the ids."""
    question_attr: str = "question"
    """Key of the question in JSON lines."""
    answers_attr: str = "answers"
    """Key of the answers."""
    id_attr: str = "id"
    """Key of the id."""
    prompt: str | None = None
    """Name of the model's prompt (encoder.prompts) before these questions; absent = encoder.query_prompt."""
    special_query_token: str | None = None
    """Token before every question, followed by a space."""
    query_prefix: str | None = None
    """Text before every question, e.g. "query: "; must be the same as in training. It follows
    special_query_token, if any."""
    query_special_suffix: str | None = None
    """Text appended to questions that do not end with it."""
    selector: int | str | None = setting(None, least=0)
    """Position at which the question vector is read: absent = first token; an integer = that position; a
    string = first occurrence of that token."""
    data_range_start: int = -1
    """First question to take, counted from 0; negative = all."""
    data_size: int = -1
    """Number of questions to take, beginning at data_range_start; negative = all."""
    source: str | None = None
    """Address at which the set is published, for the error message if the file is missing."""


@dataclass
class RankingSettings(Settings):
    """Length of the rankings."""

    n_docs: int = setting(100, unit="passages", least=1)
    """Passages per question."""


@dataclass
class RetrievalConfig(RankingSettings, CorpusCatalogue, CudaSettings, ModelSettings):
    """Finds passages for a set of questions and evaluates the rankings."""

    FIRST: ClassVar[str] = """\
model_file qa_dataset ctx_datasets encoded_ctx_files out_file qrels match n_docs
indexer.kind hybrid
"""
    EXAMPLES: ClassVar[str] = """\
dpr retrieve model_file=runs/first qa_dataset=test.csv ctx_datasets=corpus.tsv encoded_ctx_files=[runs/first/vectors_*]
dpr retrieve indexer=bm25 qa_dataset=queries.jsonl qrels=qrels.tsv ctx_datasets=corpus.jsonl
"""
    qa_dataset: str | None = setting(None, also=("questions",), path="input")
    """Name of an entry of ``datasets``, or path of a question file."""
    ctx_datasets: Any = setting(None, also=("corpus",), path="input")
    """Passages that were embedded: names of ``ctx_sources`` or paths of corpora."""
    ctx_datatsets: Any = setting(None, path="input")
    """DPR's spelling of ctx_datasets."""
    encoded_ctx_files: Any = setting(None, also=("vectors",), path="input")
    """Vectors of the passages: folders, globs, or a list of them, e.g.
    encoded_ctx_files=[runs/first/vectors_*]. Embedding files of the original DPR are read too."""
    out_file: str | None = setting(None, also=("out",), path="output")
    """DPR's results JSON to write: questions with their hits. Compressed if the name ends in .gz."""
    trec_run_file: str | None = setting(None, path="output")
    """TREC run file to write."""
    metrics_file: str | None = setting(None, path="output")
    """JSON file for the metrics, overall and per question, and the ranks of relevant passages."""
    search_folder: str | None = setting(None, path="folder")
    """Run folder to write search.json into, so that ``dpr search <folder> "text"`` searches the same way."""
    match: str = setting("auto", choices=("auto", "string", "regex", "qrels", "none"))
    """Test of relevance: string or regex (an answer in its text, by DPR's rules), qrels, or none;
    auto = qrels if given, else string if there are answers."""
    qrels: str | None = setting(None, path="input")
    """Relevance judgements, BEIR's TSV or TREC's four columns."""
    skip_same_id: bool = False
    """Leave out hits whose id is the question's, for sets whose questions are passages of the corpus
    (ArguAna, Quora)."""
    batch_size: int = setting(128, unit="questions", least=1)
    """Questions encoded at a time."""
    encoder_path: str | None = setting(None, choices=("question_model", "ctx_model"))
    """Tower that encodes the questions: question_model (when absent) or ctx_model."""
    index_path: str | None = setting(None, path="folder")
    """Folder of a faiss index, which is loaded if it exists, else built and saved."""
    bm25_index_path: str | None = setting(None, path="folder")
    """Folder of a BM25 index, which is loaded if it exists, else built and saved."""
    hybrid: str = setting("none", choices=("none", "linear"))
    """none, or linear: fuses the dense ranking with BM25's, by a weighted sum of normalised scores."""
    hybrid_weight: float | None = setting(None, least=0, most=1)
    """Share of the dense side in the hybrid, 0 to 1. Absent = 0.4, which costs little if the model is poor.
    For a model better than BM25, use 0.5 to 0.6, or tune_hybrid_weight on a dev set."""
    hybrid_depth: int = setting(100, unit="passages", least=1)
    """Passages taken from each side; n_docs if that is larger."""
    tune_hybrid_weight: bool = False
    """Try the weights 0, 0.05, ... 1 on these questions and use the best; only for a dev set. The metrics
    file states the chosen weight."""
    tune_metric: str = "mrr@10"
    """Metric that the best weight maximises; with answers instead of qrels, an accuracy such as accuracy@20.
    """
    indexer: IndexerConfig = field(default_factory=IndexerConfig)
    datasets: dict[str, Any] = setting(dict, entries=QuestionSetConfig)
    """Catalogue: name -> options of a question set (file, special_query_token, ...)."""

    def unused(self) -> Iterator[str]:
        kind = self.indexer.kind
        if kind == "bm25":
            yield from _OF_VECTORS
        elif self.hybrid == "none":
            yield from ("bm25_index_path", "indexer.k1", "indexer.b")
        if kind == "exact":
            yield "index_path"
        if self.hybrid == "none":
            yield from ("hybrid_depth", "hybrid_weight", "tune_hybrid_weight")
        elif self.tune_hybrid_weight:
            yield "hybrid_weight"
        if not self.tune_hybrid_weight or self.hybrid == "none":
            yield "tune_metric"

    def passage_names(self) -> list[str]:
        """Returns ``ctx_datasets`` as a list."""
        return _names(
            "ctx_datasets", self.ctx_datasets if self.ctx_datasets is not None else self.ctx_datatsets
        )

    def vector_patterns(self) -> list[str]:
        """Returns ``encoded_ctx_files`` as a list."""
        return _names("encoded_ctx_files", self.encoded_ctx_files)

    def check_together(self, prefix: str) -> None:
        require_set(self, {"qa_dataset": "questions.jsonl"})
        if self.ctx_datatsets is not None and self.ctx_datasets is not None:
            raise ConfigError("ctx_datatsets and ctx_datasets are the same setting; give one of them")
        kind = self.indexer.kind
        if kind in KINDS and kind != "bm25":  # a user-defined class says itself what it reads
            if not self.model_file:
                raise ConfigError(
                    "model_file is not set, e.g. model_file=runs/first; without a model use indexer=bm25"
                )
            if not self.vector_patterns() and (kind == "exact" or not self.index_path):
                raise ConfigError(
                    "encoded_ctx_files is not set, e.g. encoded_ctx_files=[runs/first/vectors_*]"
                )
        by_answers = self.match in ("string", "regex")
        needs_texts = kind == "bm25" or self.hybrid != "none" or self.out_file or by_answers
        if needs_texts and not self.passage_names():
            message = "BM25, hybrid, out_file and match=string need the texts"
            raise ConfigError(f"ctx_datasets is not set; {message}, e.g. ctx_datasets=[corpus.tsv]")
        if self.match == "qrels" and not self.qrels:
            raise ConfigError("match=qrels needs qrels=<file>")
        if self.match == "none" and self.qrels:
            raise ConfigError(
                f"match=none and qrels={self.qrels} are mutually exclusive; leave one of them out"
            )
        if self.tune_hybrid_weight and self.match == "none":
            raise ConfigError("tune_hybrid_weight=true needs answers or qrels, not match=none")


def _names(key: str, value: Any) -> list[str]:
    items = listed(value)
    for item in items:
        if not isinstance(item, str) or not item:
            raise ConfigError(f"{key}: {item!r} is not a name or path")
    return items


SYSTEMS = ("bm25", "dense", "hybrid")


@dataclass
class SuiteSetConfig(Settings):
    """One test set of a suite, as its YAML lists it. Relative paths start from the folder of the YAML."""

    folder: str | None = setting(None, path="input")
    """Folder in BEIR's layout: corpus.jsonl (or .tsv, .parquet), queries.jsonl (or .csv) and qrels/<split>.tsv (or
    .txt, .qrels), plain or .gz."""
    file: str | None = setting(None, path="input")
    """In place of a folder: a file in any format of training data, or a pattern that matches one file. Its
    passages are the corpus."""
    columns: dict[str, str] = field(default_factory=dict)
    """Names of the file's columns by role: question, positive, negative, title, answers, label."""
    source: str | None = None
    """Address at which the set is published, and its licence. If the set is missing, it is left out with a
    warning that states them."""
    split: str | None = None
    """Name of qrels/<split>.tsv in the folder; absent = the setting split."""
    prompt: str | None = None
    """Name of the model's prompt (encoder.prompts) before these questions; absent = encoder.query_prompt."""
    query_prefix: str | None = None
    """Text before every question as it is, for a model that stores no prompts."""
    passage_prefix: str | None = None
    """Text before every passage as it is, for a model that stores no prompts."""
    skip_same_id: bool = False
    """Leave out hits whose id is the question's, for sets whose questions are passages of the corpus
    (ArguAna, Quora)."""


@dataclass
class SuiteSettings(RankingSettings, ForwardSettings, CudaSettings, VectorModelSettings):
    """Settings of the evaluation of a suite's test sets."""

    output_dir: str | None = setting(None, also=("out",), path="folder")
    """Folder of results.json, results.md and a folder for each test set. The same command keeps complete sets
    when it runs again."""
    systems: list[str] = setting(list, choices=SYSTEMS)
    """Systems to evaluate: bm25, dense (the model), hybrid (both, by weighted scores); none = all, or bm25 if
    there is no model."""
    split: str = "test"
    """Name of qrels/<split>.tsv in a folder."""
    hybrid_weight: float | None = setting(None, least=0, most=1)
    """Share of the dense side in the hybrid, 0 to 1; do not choose it on these test sets. Absent = that of
    the run's search.json, else 0.4."""
    cache_dir: str | None = setting(None, path="folder")
    """Folder for vectors and BM25 indexes, reused by every evaluation of the same model or corpus that names
    it; absent = output_dir/cache."""
    overwrite: bool = False
    """Replace results of a test set that come from another model, changed data or other settings."""
    bm25: Bm25Settings = field(default_factory=Bm25Settings)


@dataclass
class EvaluateConfig(SuiteSettings):
    """Evaluates a model, BM25 and their hybrid on the test sets of a suite, or a TREC run file of any
    program."""

    FIRST: ClassVar[str] = """\
run model_file set split systems output_dir n_docs run_file qrels metrics_file
"""
    EXAMPLES: ClassVar[str] = """\
dpr evaluate run=runs/first set=beir/scifact
dpr evaluate run_file=bm25.trec qrels=qrels/test.tsv
"""
    run: str | None = setting(None, path="input")
    """A finished run, in place of model_file. Results and vectors are kept in its folder evaluation unless
    output_dir is set."""
    set: str | None = setting(None, also=("suite",), path="input")
    """A folder in BEIR's layout, a folder of such folders, or a YAML that lists test sets with prompts and
    splits. Also a folder that dpr prepare made from documents; a file of training data in any format, whose
    passages are then the corpus; or a name in suites, such as known."""
    data: str | None = setting(None, path="input")
    """Folder from which a suite's relative paths start; absent = that of its YAML."""
    suites: dict[str, Any] = field(default_factory=dict)
    """Catalogue: name -> the sets of a suite, as a YAML lists them."""
    run_file: str | None = setting(None, path="input")
    """In place of set: a TREC run to evaluate by the judgements in qrels, in the order and with the metrics
    of trec_eval."""
    qrels: str | None = setting(None, path="input")
    """Judgements of run_file: BEIR's TSV or TREC's four columns."""
    metrics_file: str | None = setting(None, path="output")
    """Metrics file to write for run_file, as dpr retrieve writes it."""

    def unused(self) -> Iterator[str]:
        if self.set is None:
            yield from (item.name for item in fields(SuiteSettings))
            yield "data"
        if self.run_file is None:
            yield from ("qrels", "metrics_file")
        if not self.needs_model:
            yield from ("model_file", "dimensions", "encoder", "batch_tokens", "precision")
        if "hybrid" not in self.chosen_systems:
            yield "hybrid_weight"
        if not self.needs_words:
            yield "bm25"

    @property
    def chosen_systems(self) -> list[str]:
        """Returns the systems that are named, else all that are possible."""
        return self.systems or (list(SYSTEMS) if self.model_file or self.run else ["bm25"])

    @property
    def needs_model(self) -> bool:
        """True if a bi-encoder takes part."""
        return {*self.chosen_systems} != {"bm25"}

    @property
    def needs_words(self) -> bool:
        """True if BM25 takes part."""
        return {*self.chosen_systems} != {"dense"}

    def check_together(self, prefix: str) -> None:
        if (self.set is None) == (self.run_file is None):
            found = "set (suite) and run_file are mutually exclusive"
            if self.set is None:
                found = "neither set nor run_file is set"
            raise ConfigError(
                f"{found}; e.g. run=runs/first set=data/scifact, or run_file=bm25.run qrels=qrels.txt"
            )
        if self.run_file is not None:
            if self.run is not None:
                raise ConfigError(
                    "run and run_file are mutually exclusive; run is the folder of a training run,"
                    " run_file a TREC run"
                )
            require_set(self, {"qrels": "qrels/test.tsv"})
            return
        if self.set in self.suites and not Path(str(self.set)).exists():
            require_set(self, {"data": "data/collections"})
        self.systems = self.chosen_systems
        if len(set(self.systems)) != len(self.systems):
            raise ConfigError(f"systems={self.systems} names a system twice")
        if self.run is not None:
            self.output_dir = self.output_dir or str(Path(self.run) / "evaluation")
        require_set(self, {"output_dir": "runs/first/suite"})
        if self.needs_model:
            self.model_file = self.model_file or self.run
            require_set(self, {"model_file": "runs/first"})
