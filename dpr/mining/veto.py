"""A cross-encoder's say: the candidates of many questions, scored together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from dpr.core.records import Passage
from dpr.mining.negatives import Candidate, Choosing, Mined


class PairScorer(Protocol):
    """A model that reads a question and a passage together."""

    @property
    def fingerprint(self) -> str:
        """Changes with whatever changes its scores."""
        ...

    def score(self, pairs: Sequence[tuple[str, Passage]]) -> list[float]:
        """The probability that the passage is relevant to the question, for each pair."""
        ...


def finish_together(choices: Iterable[tuple[str, Choosing]], scorer: PairScorer | None) -> list[Mined]:
    """Lets all questions, given with their choices, come to an end. Each waits for one candidate at a time, and those are scored together:
    no more pairs than are needed, in batches as large as there are questions."""
    running = list(enumerate(choices))
    mined: dict[int, Mined] = {}
    scores: list[float] | None = None
    while running:
        waiting: list[tuple[int, tuple[str, Choosing]]] = []
        pending: list[tuple[str, Passage]] = []
        for place, (number, (question, choosing)) in enumerate(running):
            try:
                candidate: Candidate = next(choosing) if scores is None else choosing.send(scores[place])
            except StopIteration as end:
                mined[number] = end.value
                continue
            waiting.append((number, (question, choosing)))
            pending.append((question, candidate.passage))
        running = waiting
        if pending and scorer is None:
            raise ValueError("veto_above needs a cross-encoder")
        scores = scorer.score(pending) if pending and scorer is not None else []
    return [mined[number] for number in sorted(mined)]
