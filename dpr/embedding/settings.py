"""Settings of ``dpr embed`` / ``generate_embeddings.py``. Key names are DPR's where DPR has the setting."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from dpr.core.compute_settings import ClusterSettings, CudaSettings, ForwardSettings
from dpr.core.errors import ConfigError
from dpr.core.settings import Settings, require_set, setting
from dpr.models.settings import EncoderSettings, GivenTextSettings


@dataclass
class PassageSourceConfig(Settings):
    """Options of one passage collection (an entry of ``ctx_sources``)."""

    file: str | None = setting(None, path="input")
    """TSV (id, text, title) or BEIR's corpus.jsonl, plain or .gz."""
    id_col: int = setting(0, least=0)
    """Column of the id in a TSV, counted from 0."""
    text_col: int = setting(1, least=0)
    """Column of the text."""
    title_col: int = 2
    """Column of the title; without this column, there are no titles."""
    id_prefix: str | None = None
    """Prefix of every passage id."""
    normalize: bool = False
    """Clean passage texts (newlines, quotes) as DPR's normalize does; must be as in training."""
    passage_prefix: str | None = None
    """Text put before every passage when it is embedded; must be as in training
    (datasets.<name>.passage_prefix). A prompt stored in the model (encoder.passage_prompt) is put there in
    any case."""
    source: str | None = None
    """Address where the collection is published; named in the error if the file is missing."""


@dataclass
class CheckpointEncoderConfig(GivenTextSettings):
    """Settings that checkpoint files of the original DPR, or folders of other libraries, do not state.
    Checkpoints of dpr state them."""

    pretrained_model_cfg: str | None = setting(None, path="input")
    """Folder or name whose config and tokenizer belong to the file, in place of the name stored in it; or the
    base model of adapters."""
    pooling: str = "cls"
    """Pooling of a folder that states none: cls, mean or last. A checkpoint with a user-defined pooling is
    loaded only if module:Class names the same class here, since a file may not choose the code that runs."""

    sequence_length: int | None = setting(None, unit="tokens", least=3)
    """Longest sequence in tokens, special tokens included; absent = as the model states, else 256."""

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments of ``BiEncoder.load`` that these settings stand for."""
        given = {"pooling": self.pooling, "sequence_length": self.sequence_length}
        return {
            "pretrained_model_cfg": self.pretrained_model_cfg,
            "settings": EncoderSettings.from_mapping(given, "encoder."),
            "text": self,
        }


@dataclass
class ModelSettings(Settings):
    """The model that a command opens."""

    model_file: str | None = setting(None, also=("model",), path="input")
    """Model: a checkpoint folder, a run folder (its best checkpoint), a folder of sentence-transformers,
    Hugging Face or peft, or a checkpoint file of the original DPR."""
    encoder: CheckpointEncoderConfig = field(default_factory=CheckpointEncoderConfig)


@dataclass
class VectorModelSettings(ModelSettings):
    """The model that makes the vectors, and the number of dimensions to keep."""

    dimensions: int = setting(0, unit="dimensions", least=0)
    """Cut vectors to this many leading dimensions, for models trained with loss.dimensions; 0 = all
    dimensions of the model."""


@dataclass
class CorpusCatalogue(Settings):
    """Passage collections by name."""

    ctx_sources: dict[str, Any] = setting(dict, entries=PassageSourceConfig)
    """Catalogue: name -> options of a passage collection (file, id_prefix, ...)."""


@dataclass
class EmbedConfig(CorpusCatalogue, ForwardSettings, CudaSettings, VectorModelSettings):
    """Encodes a corpus and writes its vectors to the folder ``<out_file>_<shard_id>``."""

    FIRST: ClassVar[str] = """\
model_file ctx_src out_file shard_id num_shards out_dtype precision batch_tokens device
encoder.pretrained_model_cfg
"""
    EXAMPLES: ClassVar[str] = """\
dpr embed model_file=runs/first ctx_src=corpus.tsv out_file=runs/first/vectors
"""
    ctx_src: str | None = setting(None, also=("corpus",), path="input")
    """A key of ``ctx_sources``, or the path of a corpus: TSV, CSV, JSON lines or Parquet."""
    out_file: str | None = setting(None, also=("out",), path="beginning")
    """Output folder; ``_<shard_id>`` is added to its name."""
    encoder_type: str = setting("ctx", choices=("ctx", "question"))
    """Tower that embeds the passages: ctx, or question."""
    shard_id: int = setting(0, least=0)
    """Number of the shard that this run embeds, counted from 0."""
    num_shards: int = setting(1, unit="shards", least=1)
    """Number of shards, of ceil(N / num_shards) consecutive passages each, for independent runs. The ranks of
    one torchrun share a shard; the workers of a cluster embed all shards, each one at a time."""
    batch_size: int = setting(0, unit="passages", least=0)
    """Maximum number of passages in one forward pass; 0 = as many as batch_tokens allows."""
    chunk_size: int = setting(8192, unit="passages", least=1)
    """Passages that are read, encoded and stored at a time; an interrupted run repeats at most one chunk per
    rank."""
    out_dtype: str = setting("float32", choices=("float32", "float16", "int8"))
    """float32, or smaller: float16 (1/2) or int8 (1/4). docs/file_formats.md has the loss of quality."""
    attention: str = setting("sdpa", choices=("sdpa", "varlen"))
    """sdpa, or varlen: torch's kernel for sequences end to end, on CUDA with precision=bf16 or fp16; sdpa
    everywhere else."""
    cluster: ClusterSettings = field(default_factory=ClusterSettings)

    def check_together(self, prefix: str) -> None:
        require_set(
            self, {"model_file": "runs/first", "ctx_src": "corpus.tsv", "out_file": "runs/first/vectors"}
        )
        if self.attention == "varlen" and self.precision == "fp32":
            raise ConfigError(
                "attention=varlen needs precision=bf16 or fp16, its kernel has no other; or leave it out"
            )
        if self.shard_id >= self.num_shards:
            raise ConfigError(
                f"shard_id={self.shard_id} does not exist with num_shards={self.num_shards}; shards are"
                " counted from 0"
            )
        if self.shard_id and self.cluster.kind != "none":
            raise ConfigError(
                f"shard_id={self.shard_id} and cluster=ray are mutually exclusive; a cluster embeds all"
                " shards"
            )
