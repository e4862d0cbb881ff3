"""The validations of a run: those over dev sets, and those that ``train.validation`` names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dpr.core.settings import listed
from dpr.training.settings import TrainingSettings
from dpr.training.user_classes import user_metrics, user_validation
from dpr.training.validations.dev_sets import AverageRankValidation, DevSet, NllValidation
from dpr.training.validations.entries import is_built_in, read_entry
from dpr.training.validations.protocol import QuestionMetric, Validation
from dpr.training.validations.retrieval import RetrievalValidation


def usual_validations(
    dev_sets: Sequence[DevSet], settings: TrainingSettings, metrics: Mapping[str, QuestionMetric] | None = None, *, candidates: str = ""
) -> list[Validation]:
    """The average rank and the NLL over the dev sets, if there are any, and those that ``train.validation`` names.

    ``metrics`` are added to those that ``train.metrics`` names.

    Raises:
        ConfigError: an entry of ``train.validation`` cannot be used.
        InputError: a file that it names cannot be read.
    """
    metrics = user_metrics(settings.train.metrics, metrics)
    kinds = (AverageRankValidation, NllValidation) if dev_sets else ()
    usual: list[Validation] = [kind(dev_sets, settings, candidates=candidates, metrics=metrics) for kind in kinds]
    for number, entry in enumerate(listed(settings.train.validation)):
        if is_built_in(entry):
            usual.append(RetrievalValidation(read_entry(entry, number), precision=settings.train.precision))
        else:
            usual.append(user_validation(entry))
    return usual
