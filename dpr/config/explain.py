"""Settings of ``dpr explain``: those of the training run, and which of its steps."""

from __future__ import annotations

from dataclasses import dataclass

from dpr.config.training import BiEncoderTrainConfig
from dpr.core.errors import ConfigError
from dpr.core.settings import NO_EFFECT, setting


@dataclass
class ExplainConfig(BiEncoderTrainConfig):
    """Prints what one step of a training run is made of: rows, passages drawn, what is masked, tokens. Give the settings of the run."""

    step: int = setting(1, least=1, on_resume=NO_EFFECT)
    """The optimizer step, counted from 1 as in the log."""
    questions: int = setting(3, unit="questions", least=0, on_resume=NO_EFFECT)
    """Questions shown of each pool; 0 = all."""

    def check_together(self, prefix: str) -> None:
        super().check_together(prefix)
        if self.train_datasets is None:
            raise ConfigError("train_datasets is not set; give the command line of the training run, and step=N")
