"""Settings of ``dpr explain``: those of the training run, and which of its steps."""

from __future__ import annotations

from dataclasses import dataclass

from dpr.config.checks import require_at_least
from dpr.config.training import BiEncoderTrainConfig
from dpr.core.errors import ConfigError


@dataclass
class ExplainConfig(BiEncoderTrainConfig):
    """Prints what one step of a training run is made of: rows, passages drawn, what is masked, tokens. Give the settings of the run."""

    step: int = 1
    """The optimizer step, counted from 1 as in the log."""
    questions: int = 3
    """Questions shown of each pool; 0 = all."""

    def check(self) -> None:
        super().check()
        require_at_least("step", self.step, 1)
        require_at_least("questions", self.questions, 0)
        if self.train_datasets is None:
            raise ConfigError("train_datasets is not set; give the command line of the training run, and step=N")
