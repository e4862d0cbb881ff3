"""Settings of ``dpr export``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dpr.core.errors import ConfigError
from dpr.core.settings import Settings, listed, require_set, setting
from dpr.embedding.settings import CheckpointEncoderConfig


@dataclass
class ExportConfig(Settings):
    """Writes a model, or vectors, in another format."""

    to: str = setting("dpr", choices=("dpr", "model", "peft", "vectors"))
    """dpr: a checkpoint file that the original DPR loads; model: a folder with the whole model, adapters merged; peft: its adapters, each
    in a folder as peft writes it; vectors: folders of vectors from the original's embedding files."""
    model_file: str | None = None
    """Checkpoint folder, run folder (its best checkpoint is taken), or a checkpoint file of the original DPR."""
    out_file: str | None = None
    """File or folder to write, which must not exist; for vectors the beginning of the folders' names, to which ``_<n>`` is added."""
    encoded_ctx_files: Any = None
    """For vectors: the original's embedding files, paths or globs. That ``model_file`` made them is your word."""
    allow_other_vectors: bool = False
    """Write a model too that gives other vectors there, since it was trained without the original's [SEP] at the end of the window."""
    encoder: CheckpointEncoderConfig = field(default_factory=CheckpointEncoderConfig)

    def check_together(self, prefix: str) -> None:
        require_set(self, {"model_file": "runs/first", "out_file": "runs/first.cp"})
        if (self.to == "vectors") != bool(self.patterns()):
            raise ConfigError("encoded_ctx_files belongs to to=vectors, e.g. to=vectors encoded_ctx_files=[wiki_passages_*]")

    def patterns(self) -> list[str]:
        """``encoded_ctx_files`` as a list."""
        return list(map(str, listed(self.encoded_ctx_files)))
