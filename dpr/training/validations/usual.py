"""The validations that every run with dev sets has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dpr.training.settings import TrainingSettings
from dpr.training.validations.average_rank import AverageRankValidation
from dpr.training.validations.dev_sets import DevSet, QuestionMetric
from dpr.training.validations.nll import NllValidation
from dpr.training.validations.protocol import Validation


def usual_validations(
    dev_sets: Sequence[DevSet], settings: TrainingSettings, metrics: Mapping[str, QuestionMetric] | None = None, *, candidates: str = ""
) -> list[Validation]:
    """The average rank and the NLL. Nothing without dev sets."""
    kinds = (AverageRankValidation, NllValidation) if dev_sets else ()
    return [kind(dev_sets, settings, candidates=candidates, metrics=metrics) for kind in kinds]
