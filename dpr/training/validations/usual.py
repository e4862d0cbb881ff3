"""The validations that every run with dev sets has."""

from __future__ import annotations

from collections.abc import Sequence

from dpr.training.validations.average_rank import AverageRankValidation
from dpr.training.validations.dev_sets import DevSet, ValidationSettings
from dpr.training.validations.nll import NllValidation
from dpr.training.validations.protocol import Validation


def usual_validations(
    dev_sets: Sequence[DevSet],
    *,
    settings: ValidationSettings | None = None,
    hard_negatives: int = 1,
    other_negatives: int = 0,
    average_rank_from: int | None = 0,
    candidates: str = "distinct",
    precision: str = "fp32",
) -> list[Validation]:
    """NLL until epoch ``average_rank_from``, from then on the average rank; None takes both always. Nothing without dev sets."""
    if not dev_sets:
        return []
    nll = NllValidation(
        dev_sets,
        hard_negatives=hard_negatives,
        other_negatives=other_negatives,
        until_epoch=average_rank_from,
        settings=settings,
        candidates=candidates,
        precision=precision,
    )
    rank = AverageRankValidation(dev_sets, from_epoch=average_rank_from or 0, settings=settings, candidates=candidates, precision=precision)
    return [rank, nll]
