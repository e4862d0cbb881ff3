"""What a mistyped word may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggestion(word: str, choices: Iterable[str], *, also: Iterable[str] = (), otherwise: str = "") -> str:
    """``; did you mean a, b?`` with the choices most similar to ``word``, as a whole or by the part after the last dot, then ``also``.

    ``otherwise`` takes its place where there are none.
    """
    whole, leaf = difflib.SequenceMatcher(b=word.lower()), difflib.SequenceMatcher(b=word.lower().rpartition(".")[2])

    def similarity(choice: str) -> float:
        whole.set_seq1(choice.lower())
        leaf.set_seq1(choice.lower().rpartition(".")[2])
        return max(whole.ratio(), leaf.ratio() * 0.95)

    scored = sorted(((similarity(choice), choice) for choice in choices), key=lambda pair: (-pair[0], pair[1]))
    found = [choice for score, choice in scored[:3] if score >= 0.6] + list(also)
    return f"; did you mean {', '.join(found)}?" if found else otherwise
