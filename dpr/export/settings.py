"""Settings of ``dpr export`` and ``dpr push``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dpr.core.errors import ConfigError
from dpr.core.settings import Settings, listed, require_set, setting
from dpr.embedding.settings import CheckpointEncoderConfig
from dpr.export.store_settings import STORES, StoreSettings

MODEL_FORMATS = {
    "sentence-transformers": "dpr.export.sentence_transformers",
    "transformers": "dpr.export.transformers_folders",
    "hf-dpr": "dpr.export.hf_dpr",
    "onnx": "dpr.export.onnx_folder",
    "pyserini": "dpr.export.pyserini",
}
"""Folders that other libraries load: name -> the module whose ``FORMAT`` writes it."""


@dataclass
class ExportConfig(StoreSettings):
    """Writes a model, or vectors, in another format."""

    to: str = setting("dpr", choices=("dpr", "model", "peft", "vectors", *MODEL_FORMATS, *STORES))
    """dpr: a checkpoint file that the original DPR loads; model: a folder with the whole model, adapters merged; peft: its adapters, each
    in a folder as peft writes it; vectors: folders of vectors from the original's embedding files; sentence-transformers, transformers and
    hf-dpr (its DPRQuestionEncoder and DPRContextEncoder): folders that these load, compared with the model's own vectors; onnx: graphs
    that onnxruntime serves without torch; pyserini: an encoder of questions for its dense search; lancedb, pgvector, parquet, faiss,
    qdrant-jsonl and milvus-parquet: a vector store filled with ``vectors`` and their passages."""
    model_file: str | None = None
    """Checkpoint folder, run folder (its best checkpoint is taken), or a checkpoint file of the original DPR."""
    out_file: str | None = None
    """File or folder to write, which must not exist; for vectors the beginning of the folders' names, to which ``_<n>`` is added; for
    pgvector the address of the database, e.g. postgresql://user@host/database."""
    out: str | None = None
    """Short for out_file."""
    check_texts: str | None = None
    """File of texts, one a line, perhaps with a title and a tab before it: encoded by the other library too, besides texts on which two
    libraries usually differ. For folders that other libraries load."""
    dimensions: int = setting(0, unit="dimensions", least=0)
    """Cut vectors to their first so many numbers, for models trained with loss.dimensions; 0 = as the model has them."""
    precisions: list[str] | None = setting(None, choices=("fp16", "int8"))
    """For to=onnx: further graphs with numbers of 16 bits or weights of 8; the log and serving.json say how many of the ten best passages
    stay the same, on check_texts or on made-up texts."""
    onnx: bool = False
    """For to=sentence-transformers: also the transformer's states as onnx/model.onnx, where programs that serve such folders look."""
    license: str | None = None
    """The licence that the model card (README.md) of a folder names, as hubs call it: apache-2.0, cc-by-4.0; absent = none is named."""
    results: list[str] | None = None
    """For the model card: metrics files of dpr retrieve (metrics_file=...) whose metrics it shows."""
    encoded_ctx_files: Any = None
    """For vectors: the original's embedding files, paths or globs. That ``model_file`` made them is your word."""
    allow_other_vectors: bool = False
    """Write a model too that gives other vectors there, since it was trained without the original's [SEP] at the end of the window."""
    encoder: CheckpointEncoderConfig = field(default_factory=CheckpointEncoderConfig)

    def check_together(self, prefix: str) -> None:
        if self.out is not None and self.out_file not in (None, self.out):
            raise ConfigError(f"out={self.out} and out_file={self.out_file} are mutually exclusive; leave one of them out")
        self.out_file = self.out_file or self.out
        self.check_store(self.to)
        needed = {"out_file": "store"} if self.to in STORES else {"model_file": "runs/first", "out_file": "runs/first.cp"}
        require_set(self, needed)
        if self.to in STORES and self.model_file:
            raise ConfigError(
                f"model_file={self.model_file} is not for to={self.to}, which takes vectors that dpr embed wrote; leave it out"
            )
        if (self.to == "vectors") != bool(self.patterns()):
            raise ConfigError("encoded_ctx_files belongs to to=vectors, e.g. to=vectors encoded_ctx_files=[wiki_passages_*]")
        for key in ("check_texts", "license", "results"):
            if getattr(self, key) is not None and self.to not in MODEL_FORMATS:
                raise ConfigError(f"{key} belongs to to={', '.join(MODEL_FORMATS)}, not to={self.to}; leave it out")
        if self.precisions and self.to != "onnx":
            raise ConfigError(f"precisions belongs to to=onnx, not to={self.to}; leave it out")
        if self.onnx and self.to != "sentence-transformers":
            raise ConfigError(f"onnx=true belongs to to=sentence-transformers, not to={self.to}; to=onnx writes graphs alone")
        if self.dimensions and self.to not in ("model", *MODEL_FORMATS):
            raise ConfigError(f"dimensions={self.dimensions} cuts a model's vectors, and to={self.to} has no place for that; leave it out")

    def patterns(self) -> list[str]:
        """``encoded_ctx_files`` as a list."""
        return list(map(str, listed(self.encoded_ctx_files)))


@dataclass
class PushConfig(Settings):
    """Uploads a folder that ``dpr export`` wrote to the Hugging Face hub, with the login of that machine (``hf auth login``)."""

    folder: str | None = None
    """The folder. Only files that it was written with are uploaded, as they were written; README.md may have been edited since."""
    repo: str | None = None
    """The repository, user/name, made where it is absent; absent = list the files and upload nothing."""
    private: bool = True
    """Only you see a repository that is made; one that exists stays as it is."""
    message: str = setting("A model exported by dpr")
    """The message of the commit."""

    def check_together(self, prefix: str) -> None:
        require_set(self, {"folder": "exported/first", "message": '"First version"'})
