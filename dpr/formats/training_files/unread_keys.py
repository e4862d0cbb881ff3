"""Keys of records that are not read but look like a misspelt name, or like something that matters."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_SCORES = re.compile(r"(.*_)?(scores?|labels?|similarity|relevance|margin)")
_SIDES = (re.compile(r"hard_?neg(ative)?s?(_|\d|$)"), re.compile(r"neg(ative)?s?(_|\d|$)"), re.compile(r"pos(itive)?s?(_|\d|$)"))


@dataclass(frozen=True, slots=True)
class KnownKeys:
    """What a format reads: keys by name, and others by a pattern."""

    names: tuple[str, ...]
    others: re.Pattern[str] = re.compile("(?!)")


class UnreadKeys:
    """Collects warnings about keys that a reader does not know, each key once."""

    def __init__(self) -> None:
        self.warnings: dict[str, str] = {}
        """One sentence per key."""
        self._seen: set[str] = set()

    def look(self, keys: Iterable[str], known: KnownKeys, *, file: Path, line: int) -> None:
        """Compares the keys of one record with those that its format reads."""
        for key in {*keys} - self._seen:
            self._seen.add(key)
            if key in known.names or known.others.fullmatch(key):
                continue
            if near := _near(key.lower(), known.names):
                self.warn(key, f"did you mean {near}?", file=file, line=line)
            elif _SCORES.fullmatch(key.lower()):
                self.warn(key, "each passage has its own teacher's score (docs/training_data.md)", file=file, line=line)

    def warn(self, key: str, why: str, *, file: Path, line: int | None = None) -> None:
        """Adds a warning about a key, if there is none yet."""
        self.warnings.setdefault(key, f"{file}{'' if line is None else f':{line}'}: the key {key!a} is not read; {why}")


def _near(key: str, known: Sequence[str]) -> str:
    """The known name that a key resembles, or "". ``question_id`` is a name in its own right, not a misspelt ``question``."""
    for side in _SIDES:
        names = [name for name in known if side.match(name)]
        if names and side.match(key) and not _SCORES.fullmatch(key) and not key.endswith(("id", "ids")):
            return difflib.get_close_matches(key, names, n=1, cutoff=0.0)[0]
    (near,) = difflib.get_close_matches(key, known, n=1, cutoff=0.8) or [""]
    return "" if near and key.startswith(f"{near}_") else near
