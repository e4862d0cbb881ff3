"""Columns of questions and passages that look swapped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import mean, median

from dpr.data.words import written_spans

_ASKS = re.compile(
    r"^\W*(who|whom|whose|what|which|when|where|why|how|is|are|was|were|do|does|did|can|could|should|would|has|have"
    r"|wer|wie|wo|wann|warum|welche[mnrs]?|qui|que|quand|quel(le)?s?|o\u00f9|comment|pourquoi|qu\u00e9|qui\u00e9n"
    r"|c\u00f3mo|cu\u00e1ndo|d\u00f3nde|cu\u00e1l|hoe|wat|waar|come|quando|dove|perch\u00e9|chi)\b"
    r"|[?\uff1f\u061f]\s*$",
    re.IGNORECASE,
)
"""A text that begins with a question word or ends with a question mark."""


def look_swapped(questions: Sequence[str], passages: Sequence[str]) -> str:
    """Returns a sentence about it if the columns of questions and passages look swapped; else an empty text.

    They look swapped if questions are longer and passages ask more often, or if questions are eight times as
    long and mostly do not ask.
    """
    sides = (questions, passages)
    long, short = (median(len(written_spans(text)) for text in side) for side in sides)
    asked, asking = (mean(bool(_ASKS.search(text)) for text in side) for side in sides)
    if (long > short and asking > asked + 0.3) or (long > 8 * short and asked < 0.5):
        return f"questions and passages look swapped ({long:g} and {short:g} words in the median)"
    return ""
