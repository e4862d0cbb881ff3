"""Passages of a corpus and pseudo-questions from them, to which adaptation fits a layer or a table."""

from __future__ import annotations

import numpy as np

from dpr.core.errors import InputError
from dpr.core.logs import counted
from dpr.core.records import Passage
from dpr.core.seeding import generator_for
from dpr.data.order import PAIRS
from dpr.data.pairs import PseudoPairs

MOST_PASSAGES = 8192
_MOST_PER_PASSAGE = 8
"""Maximum number of pseudo-questions of a passage."""


def sample_texts(
    pairs: PseudoPairs, *, most_questions: int, seed: int
) -> tuple[list[Passage], list[str], list[int]]:
    """Returns at most ``MOST_PASSAGES`` passages, pseudo-questions from them, and the place of each
    pseudo-question's passage.

    Raises:
        InputError: the corpus has too few passages for pseudo-questions.
    """
    generator = generator_for(PAIRS, seed, 0, 0, 0)
    rows: list[int] = np.sort(generator.permutation(pairs.num_passages)[:MOST_PASSAGES]).tolist()
    passages: list[Passage] = []
    askable: list[int] = []
    for place, row in enumerate(counted(rows, "reading passages")):
        found = pairs.row(row)
        passages.append(found.passage)
        if pairs.is_usable(found):
            askable.append(place)
    if len(askable) < 2:
        raise InputError("has too few passages with words to learn from", file=pairs.file)

    # Every passage gives one question before any gives a second one.
    questions: list[str] = []
    sources: list[int] = []
    order = generator.permutation(askable)
    for number in range(min(most_questions, _MOST_PER_PASSAGE * len(askable))):
        number_of_passage, place = divmod(number, len(askable))
        source = int(order[place])
        drawn = pairs.drawn(rows[source], generator_for(PAIRS, seed, number_of_passage, 0, rows[source]))
        questions.append(drawn.question)
        sources.append(source)
    return passages, questions, sources
