"""Which of a sample's passages enter a pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpr.core.records import Passage, TrainingSample
from dpr.formats.token_store import StoredPassage, StoredSample

AnyPassage = Passage | StoredPassage
"""A passage as text, or its tokens in a token store."""
AnySample = TrainingSample | StoredSample


class Selection(NamedTuple):
    """The passages of one question: the positive, other negatives, hard negatives; and further positives, which stand behind the first."""

    positive: AnyPassage
    other_negatives: tuple[AnyPassage, ...]
    hard_negatives: tuple[AnyPassage, ...]
    other_positives: tuple[AnyPassage, ...] = ()

    def in_slot_order(self) -> list[AnyPassage]:
        return [self.positive, *self.other_positives, *self.other_negatives, *self.hard_negatives]


def select_passages(
    sample: AnySample,
    *,
    num_hard: int,
    num_other: int,
    num_positives: int = 1,
    generator: np.random.Generator | None = None,
    shuffle_positives: bool = False,
    exclude_gold: bool = False,
) -> Selection:
    """Draws a question's passages; fewer than asked for when the sample has fewer.

    Without a ``generator`` (validation) the first ones in file order are taken. As in DPR, the other negatives stand in for hard ones
    when a sample has no hard negatives at all, and ``exclude_gold`` drops positives without a score unless none would remain.
    """
    positives: Sequence[AnyPassage] = sample.positives
    if exclude_gold:
        positives = [passage for passage in positives if passage.has_score] or positives
    place = 0
    if generator is not None and shuffle_positives and len(positives) > 1:
        place = int(generator.integers(len(positives)))
    others = _draw(sample.other_negatives, max(num_other, num_hard if not sample.hard_negatives else 0), generator)
    hard = _draw(sample.hard_negatives, num_hard, generator) if sample.hard_negatives else others[:num_hard]
    rest = tuple(passage for number, passage in enumerate(positives) if number != place)
    return Selection(positives[place], others[:num_other], hard, _draw(rest, num_positives - 1, generator))


def _draw(passages: tuple[AnyPassage, ...], count: int, generator: np.random.Generator | None) -> tuple[AnyPassage, ...]:
    if generator is None or not passages or count == 0:
        return passages[:count]
    return tuple(passages[int(index)] for index in generator.permutation(len(passages))[:count])
