"""Settings of ``dpr export`` and ``dpr merge``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from dpr.core.compute_settings import DeviceSettings
from dpr.core.errors import ConfigError
from dpr.core.settings import listed, require_set, setting
from dpr.embedding.settings import CheckpointEncoderConfig, CorpusCatalogue, VectorModelSettings

MODEL_FORMATS = {
    "sentence-transformers": "dpr.export.sentence_transformers:FORMAT",
    "hf-dpr": "dpr.export.hf_dpr:FORMAT",
    "onnx": "dpr.export.onnx:FORMAT",
}
"""Modules that write folders for other libraries, by format; each has a ``Format``."""
STORES = ("lancedb", "pgvector")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_COLUMN = re.compile(rf"({_NAME.pattern})(?::(text|int|float|bool))?")
_OWN_COLUMNS = ("id", "vector", "title", "text")


@dataclass
class StoreSettings(CorpusCatalogue):
    """Contents of a vector store."""

    vectors: Any = setting(None, also=("encoded_ctx_files",), path="input")
    """For a vector store: folders of vectors, globs, or a list of them, e.g. vectors=runs/first/vectors_*.
    For to=vectors: the original's embedding files; it is not checked that ``model_file`` made them."""
    ctx_datasets: Any = setting(None, also=("corpus",), path="input")
    """For a vector store: the passages that were embedded, whose titles and texts are stored too: names of
    ``ctx_sources`` or paths. Absent = only ids and vectors."""
    metadata: Any = None
    """For a vector store: fields of the passages (JSON lines or Parquet) that become columns, name or
    name:kind with kind text, int, float or bool, e.g. metadata=[url,year:int]. Absent = none."""
    table: str = "passages"
    """For a vector store: table to fill."""

    def vector_patterns(self) -> list[str]:
        """Returns ``vectors`` as a list."""
        return list(map(str, listed(self.vectors)))

    def passage_names(self) -> list[str]:
        """Returns ``ctx_datasets`` as a list."""
        return list(map(str, listed(self.ctx_datasets)))

    def metadata_kinds(self) -> dict[str, str]:
        """Returns the kinds of the metadata columns by name.

        Raises:
            ConfigError: a kind or a name is not allowed.
        """
        kinds: dict[str, str] = {}
        for item in map(str, listed(self.metadata)):
            column = _COLUMN.fullmatch(item)
            if column is None or column[1] in (*_OWN_COLUMNS, *kinds):
                raise ConfigError(
                    f"metadata: {item!r} is no column, expected name or name:kind, each name once; a name has"
                    f" letters, digits and _, and is none of {', '.join(_OWN_COLUMNS)}; a kind is text, int,"
                    " float or bool"
                )
            kinds[column[1]] = column[2] or "text"
        return kinds


@dataclass
class ExportConfig(StoreSettings, VectorModelSettings):
    """Writes a model, or vectors, in another format."""

    EXAMPLES: ClassVar[str] = """\
dpr export model=runs/first to=sentence-transformers out=exported/first
dpr export model=runs/first to=onnx out=exported/onnx
dpr export model=runs/first to=lancedb vectors=runs/first/vectors_* corpus=corpus.tsv out=exported/store
"""
    to: str = setting("dpr", choices=("dpr", "model", "peft", "vectors", *MODEL_FORMATS, *STORES))
    """dpr: a checkpoint file that the original DPR loads; model: a folder with the whole model, adapters
    merged; peft: its adapters, each in a folder as peft writes it; vectors: folders of vectors from the
    original's embedding files; sentence-transformers, and hf-dpr (DPRQuestionEncoder and DPRContextEncoder of
    transformers): folders that these load, compared with the model's own vectors; onnx: graphs that
    onnxruntime serves without torch; lancedb, pgvector: a vector store filled with ``vectors`` and their passages."""
    out: str | None = setting(None, also=("out_file",), path="output")
    """File or folder to write, which must not exist. For vectors: the beginning of the folders' names, to
    which ``_<n>`` is added. For pgvector: the address of the database, e.g.
    postgresql://user@host/database."""
    allow_other_vectors: bool = False
    """Write a model even if it gives other vectors there, because it was trained without the original's [SEP]
    at the end of the window."""

    def unused(self) -> Iterator[str]:
        if self.to in STORES:
            yield from ("model_file", "encoder")
        else:
            yield from (
                item.name for item in fields(StoreSettings) if self.to != "vectors" or item.name != "vectors"
            )
        if self.to not in (*MODEL_FORMATS, "model"):
            yield "dimensions"
        if self.to != "dpr":
            yield "allow_other_vectors"

    def check_together(self, prefix: str) -> None:
        if self.to in STORES:
            require_set(self, {"vectors": "runs/first/vectors_*", "out": "store"})
            if self.metadata_kinds() and not self.passage_names():
                raise ConfigError(
                    "ctx_datasets is not set; metadata is read from the passages, e.g."
                    " ctx_datasets=[corpus.jsonl]"
                )
            if not _NAME.fullmatch(self.table):
                raise ConfigError(
                    f"table={self.table!r} is not a name of letters, digits and _, e.g. table=passages"
                )
        else:
            require_set(self, {"model_file": "runs/first", "out": "runs/first.cp"})
        if self.to == "vectors":
            require_set(self, {"vectors": "[wiki_passages_*]"})


@dataclass
class MergeConfig(DeviceSettings):
    """Averages the weights of a tuned model with those of its base model, or of several models. The best
    candidate is chosen by a search with dev questions in their corpus."""

    EXAMPLES: ClassVar[str] = """\
dpr merge base=models/base tuned=runs/first out=models/merged set=data/dev
dpr merge base=models/base tuned=runs/first out=models/merged weights=0.5
dpr merge tuned=runs/first/dpr_biencoder.step800,runs/first/dpr_biencoder.step1000 out=models/merged
"""
    base: str | None = setting(None, path="input")
    """Base model, from which the tuned models were trained: a folder or file as for model_file of other
    commands. Absent = the mean of the tuned models alone."""
    tuned: list[str] = setting(list, takes_words=True, path="input")
    """Tuned model, or several models to average."""
    out: str | None = setting(None, path="output")
    """Model folder to write, which every command takes as model_file. merge.json in it states its sources,
    and the metric of each candidate."""
    weights: list[float] = setting(lambda: [step / 10 for step in range(11)], least=0, most=1)
    """Weights of the tuned model to try: 0 = the base model, 1 = the tuned model."""
    set: str | None = setting(None, path="input")
    """Dev data for the comparison, as in dpr evaluate: a folder in BEIR's layout, a folder of such, a YAML
    that lists them, or a file of training data. Several sets are averaged."""
    split: str = "dev"
    """Name of qrels/<split>.tsv in a folder."""
    metric: str = "ndcg@10"
    """Metric of the comparison: ndcg@10, mrr@10, recall@100, accuracy@1 and others of the table of dpr evaluate."""
    encoder: CheckpointEncoderConfig = field(default_factory=CheckpointEncoderConfig)

    def unused(self) -> Iterator[str]:
        if self.base is None:
            yield from ("weights", "set")
        if self.base is None or self.set is None:
            yield from ("split", "metric")

    def check_together(self, prefix: str) -> None:
        require_set(self, {"tuned": "runs/first", "out": "models/merged"})
        if self.base is None and len(self.tuned) < 2:
            raise ConfigError(
                "base is not set, and tuned names one model; set base=<the model that it was tuned from>, or"
                " name several"
            )
        if not self.weights:
            raise ConfigError("weights is empty, e.g. weights=0.5")
        if self.base is not None and self.set is None and len(self.weights) > 1:
            raise ConfigError(
                f"set is not set, but one of {len(self.weights)} weights has to be chosen; e.g."
                " set=data/dev, or weights=0.5"
            )
