"""The validations of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dpr.training.settings import TrainingSettings
from dpr.training.user_classes import user_metrics, user_validations
from dpr.training.validations.average_rank import AverageRankValidation
from dpr.training.validations.dev_sets import DevSet, NllValidation
from dpr.training.validations.protocol import QuestionMetric, Validation


def usual_validations(
    dev_sets: Sequence[DevSet], settings: TrainingSettings, metrics: Mapping[str, QuestionMetric] | None = None, *, candidates: str = ""
) -> list[Validation]:
    """The average rank and the NLL over the dev sets, if there are any, and those that ``train.validation`` names.

    ``metrics`` are added to those that ``train.metrics`` names.
    """
    metrics = user_metrics(settings.train.metrics, metrics)
    kinds = (AverageRankValidation, NllValidation) if dev_sets else ()
    usual = [kind(dev_sets, settings, candidates=candidates, metrics=metrics) for kind in kinds]
    return [*usual, *user_validations(settings.train.validation)]
