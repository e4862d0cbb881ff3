"""The validations that every run with dev sets has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpr.training.settings import TrainingSettings
from dpr.training.validations.average_rank import AverageRankValidation
from dpr.training.validations.dev_sets import DevSet, QuestionMetric, ValidationSettings
from dpr.training.validations.nll import NllValidation
from dpr.training.validations.protocol import Validation


def usual_validations(
    dev_sets: Sequence[DevSet],
    settings: TrainingSettings,
    metrics: Mapping[str, QuestionMetric] | None = None,
    *,
    candidates: str = "",
    in_training: bool = True,
) -> list[Validation]:
    """NLL until epoch ``val_av_rank_start_epoch``, from then on the average rank; outside training both. Nothing without dev sets.

    ``candidates`` is the rule of the loss, where that is not the one of the settings.
    """
    if not dev_sets:
        return []
    train, first = settings.train, settings.val_av_rank_start_epoch if in_training else 0
    shared: dict[str, Any] = {
        "settings": ValidationSettings(
            pool_size=train.dev_batch_size,
            average_rank_hard_negatives=train.val_av_rank_hard_neg,
            average_rank_other_negatives=train.val_av_rank_other_neg,
            average_rank_passages_per_forward=train.val_av_rank_bsz,
            average_rank_max_questions=train.val_av_rank_max_qs,
            as_dpr=settings.as_dpr,
            metrics=metrics or {},
        ),
        "candidates": candidates or settings.candidates(),
        "precision": train.precision,
    }
    nll = NllValidation(
        dev_sets,
        hard_negatives=train.hard_negatives,
        other_negatives=train.other_negatives,
        until_epoch=first if in_training else None,
        **shared,
    )
    return [nll] if first is None else [AverageRankValidation(dev_sets, from_epoch=first, **shared), nll]
