"""Settings of ``dpr evaluate``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from dpr.core.compute_settings import CudaSettings, ForwardSettings
from dpr.core.errors import ConfigError
from dpr.core.settings import Settings, require_set, setting
from dpr.embedding.settings import CheckpointEncoderConfig
from dpr.indexer.settings import Bm25Settings

SYSTEMS = ("bm25", "dense", "hybrid")


@dataclass
class SuiteSetConfig(Settings):
    """One test set of a suite, as its YAML lists it. Relative paths are taken from the folder of the YAML."""

    folder: str | None = setting(None, path="input")
    """Folder in BEIR's layout: corpus.jsonl, queries.jsonl and qrels/<split>.tsv, plain or .gz."""
    corpus: str | None = setting(None, path="input")
    """Passages, in place of the folder's: TSV, JSON lines or Parquet."""
    queries: str | None = setting(None, path="input")
    """Questions, in place of the folder's: JSON lines."""
    qrels: str | None = setting(None, path="input")
    """Judgements, in place of the folder's: BEIR's TSV or TREC's four columns."""
    file: str | None = setting(None, path="input")
    """In place of these: a file in any format of training data, or a pattern that one file matches. Its
    passages are the corpus."""
    columns: dict[str, str] = field(default_factory=dict)
    """Names of the file's columns by role: question, positive, negative, title, answers, label."""
    source: str | None = None
    """Where it is published and under which licence. A set that is not there is then left out with a warning
    that says so."""
    split: str | None = None
    """Which qrels/<split>.tsv of the folder; absent = the setting split."""
    prompt: str | None = None
    """Name of the model's prompt (encoder.prompts) that is put before these questions; absent =
    encoder.query_prompt."""
    query_prefix: str | None = None
    """Put before every question as it is, for a model that stores no prompts."""
    passage_prefix: str | None = None
    """Put before every passage as it is, for a model that stores no prompts."""
    skip_same_id: bool = False
    """Leave out hits whose id is the question's, for sets whose questions are passages of the corpus
    (ArguAna, Quora)."""


@dataclass
class SuiteSettings(ForwardSettings, CudaSettings):
    """How the test sets of a suite are evaluated."""

    model_file: str | None = setting(None, path="input")
    """Checkpoint folder, run folder (its best checkpoint is taken), Hugging Face or sentence-transformers
    folder, or a checkpoint file of the original DPR."""
    output_dir: str | None = setting(None, path="folder")
    """Where results.json, results.md and a folder for each test set are written. The same command again
    keeps sets that are complete."""
    systems: list[str] = setting(list, choices=SYSTEMS)
    """What is evaluated: bm25, dense (the model), hybrid (both, by weighted scores); none = all, and without
    a model bm25."""
    split: str = "test"
    """Which qrels/<split>.tsv of a folder."""
    n_docs: int = setting(100, unit="passages", least=1)
    """Passages per question."""
    dimensions: int = setting(0, unit="dimensions", least=0)
    """Cut vectors to their first so many numbers, for models trained with loss.dimensions; 0 = as the model
    has them."""
    hybrid_weight: float | None = setting(None, least=0, most=1)
    """Share of the dense side in the hybrid, 0 to 1, one that was not chosen on these test sets; absent =
    that of the run's search.json, else 0.4."""
    cache_dir: str | None = setting(None, path="folder")
    """Folder for vectors and BM25 indexes, used again by every evaluation of the same model or corpus that
    names it; absent = output_dir/cache."""
    overwrite: bool = False
    """Replace results of a test set that were made of something else: another model, changed data, other
    settings."""
    bm25: Bm25Settings = setting(Bm25Settings)
    encoder: CheckpointEncoderConfig = setting(CheckpointEncoderConfig)


@dataclass
class EvaluateConfig(SuiteSettings):
    """Evaluates a model, BM25 and their hybrid on the test sets of a suite, or a TREC run file of any
    program."""

    run: str | None = setting(None, path="input")
    """A finished run: stands for model_file, and results and vectors are kept in its folder evaluation unless
    output_dir is set."""
    set: str | None = setting(None, path="input")
    """Short for suite: a folder or a file to evaluate on. Corpus, questions and judgements are found in
    it."""
    suite: str | None = setting(None, path="input")
    """A folder in BEIR's layout, a folder of such folders, or a YAML that lists test sets with prompts and
    splits. Also a folder that dpr prepare made of documents, or a file in any format of training data,
    whose passages are then the corpus. Or the name of one of suites, such as known."""
    data: str | None = setting(None, path="input")
    """Folder that a suite's relative paths are taken from; absent = that of its YAML."""
    suites: dict[str, Any] = field(default_factory=dict)
    """The catalogue: name -> the sets of a suite, as a YAML lists them."""
    run_file: str | None = setting(None, path="input")
    """In place of suite: a TREC run to evaluate by the judgements in qrels, in the order and with the metrics
    of trec_eval."""
    qrels: str | None = setting(None, path="input")
    """Judgements of run_file: BEIR's TSV or TREC's four columns."""
    metrics_file: str | None = setting(None, path="output")
    """Metrics file to write for run_file, as dpr retrieve writes it."""

    def unused(self) -> Iterator[str]:
        if self.suite is None and self.set is None:
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
        """Those that are named, else all that are possible."""
        return self.systems or (list(SYSTEMS) if self.model_file or self.run else ["bm25"])

    @property
    def needs_model(self) -> bool:
        """Whether a bi-encoder takes part."""
        return "dense" in self.chosen_systems or "hybrid" in self.chosen_systems

    @property
    def needs_words(self) -> bool:
        """Whether BM25 takes part."""
        return "bm25" in self.chosen_systems or "hybrid" in self.chosen_systems

    def check_together(self, prefix: str) -> None:
        if self.set is not None:
            if self.suite not in (None, self.set):
                raise ConfigError("set is short for suite; leave one of them out")
            self.suite = self.set
        if (self.suite is None) == (self.run_file is None):
            found = "set (suite) and run_file are mutually exclusive"
            if self.suite is None:
                found = "neither set nor run_file is set"
            raise ConfigError(
                f"{found}; e.g. run=runs/first set=data/scifact, or run_file=bm25.run qrels=qrels.txt"
            )
        if self.run_file is not None:
            if self.run is not None:
                raise ConfigError(
                    "run and run_file are mutually exclusive; run is a folder that was trained, run_file a"
                    " TREC run"
                )
            require_set(self, {"qrels": "qrels/test.tsv"})
            return
        if self.suite in self.suites and not Path(str(self.suite)).exists():
            require_set(self, {"data": "data/collections"})
        self.systems = self.chosen_systems
        if len(set(self.systems)) != len(self.systems):
            raise ConfigError(f"systems={self.systems} names one twice")
        if self.run is not None:
            self.output_dir = self.output_dir or str(Path(self.run) / "evaluation")
        require_set(self, {"output_dir": "runs/first/suite"})
        if self.needs_model:
            self.model_file = self.model_file or self.run
            require_set(self, {"model_file": "runs/first"})
