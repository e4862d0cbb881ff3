"""Terms of the objective: which there are, their weights and their parameters. They are part of the node ``loss`` of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from dpr.core.errors import ConfigError
from dpr.core.settings import IDENTITY, Settings, setting


@dataclass
class DistillationSettings(Settings):
    """Terms that compare a question's scores for its own passages with those of a teacher (teacher_score of the data)."""

    kl_weight: float = setting(0.0, least=0, on_resume=IDENTITY)
    """Weight of the KL divergence between the teacher's and the model's distributions over a question's own passages."""
    kl_temperature: float | None = setting(None, above=0, on_resume=IDENTITY)
    """Divides the model's scores in the KL divergence; absent = loss.temperature."""
    teacher_temperature: float = setting(1.0, above=0, on_resume=IDENTITY)
    """Divides the teacher's scores in the KL divergence."""
    margin_mse_weight: float = setting(0.0, least=0, on_resume=IDENTITY)
    """Weight of the squared difference of the model's and the teacher's margins: the positive's score minus another passage's."""
    margin_mse_scale: float = setting(1.0, above=0, on_resume=IDENTITY)
    """Multiplies the teacher's margins; the model's are those of its scores before loss.temperature."""


@dataclass
class ObjectiveSettings(DistillationSettings):
    """Terms of the objective and their weights (docs/numerics.md, section 1)."""

    nll_weight: float = setting(1.0, least=0, on_resume=IDENTITY)
    """Weight of the negative log likelihood of the positive."""

    @property
    def uses_teacher(self) -> bool:
        """Whether a term reads teacher scores."""
        return self.kl_weight > 0 or self.margin_mse_weight > 0

    def terms(self) -> dict[str, Any]:
        """The settings of the objective that differ from their defaults; none of them: the negative log likelihood alone."""
        default = ObjectiveSettings()
        values = ((item.name, getattr(self, item.name)) for item in fields(ObjectiveSettings))
        return {name: value for name, value in values if value != getattr(default, name)}

    def check_objective(self, prefix: str) -> None:
        """What the terms need of each other."""
        if not any((self.nll_weight, self.kl_weight, self.margin_mse_weight)):
            raise ConfigError(f"every term of the objective has weight 0; set {prefix}nll_weight, {prefix}kl_weight or another above 0")
