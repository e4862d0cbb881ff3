"""What a setting states of itself: unit, bounds, choices, and what a changed value means for a resumed
run."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import Field, dataclass
from typing import Any

from dpr.core.errors import ConfigError

IDENTITY, WARNED, START, CONTENT, MODEL, NO_EFFECT = (
    "identity",
    "warned",
    "start",
    "content",
    "model",
    "no effect",
)
"""What a changed value means for a resumed run, ``setting(on_resume=...)``:

identity   it decides the batches or the objective; the change is refused
warned     it decides something else about the result; the change is accepted with a warning
start      it is read only when a run starts
content    it names files, whose content is compared instead of their names
model      it names a model, whose files' content is compared instead of their names
no effect  it decides where, how fast and how closely monitored a run is, but not its result
"""
ROLES = (IDENTITY, WARNED, START, CONTENT, MODEL, NO_EFFECT)


def setting(default: Any, *, entries: type | None = None, **rule: Any) -> Any:
    """A field of a settings dataclass with the ``Rule`` that the keywords state; a class or a function as
    ``default`` makes the default.

    ``entries``: of a catalogue, the dataclass of an entry's options.
    """
    assert rule.get("on_resume", "") in ("", *ROLES), rule
    given = {"default_factory": default} if callable(default) else {"default": default}
    return dataclasses.field(metadata={"setting": Rule(**rule), "entries": entries}, **given)


@dataclass(frozen=True, slots=True)
class Rule:
    """What is allowed for a setting. Bounds hold for a number, or for each number of a list."""

    unit: str = ""
    """What a number counts or measures."""
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    """``above`` and ``below`` exclude the bound itself."""
    choices: Sequence[str] = ()
    or_class: bool = False
    """Besides ``choices``, the import path of a user-defined class, ``module:Class``, is allowed."""
    on_resume: str = ""
    """One of the roles above."""
    also: Sequence[str] = ()
    """Other names of the setting on a command line."""
    operand: str = ""
    """It stands alone on a command line, in the order of the fields: FILE; "[LABEL=]FILE" where an ``=`` may
    be part of it, "TEXT" for any words. A list takes all that are left."""
    takes_words: bool = False
    """``--key a b`` takes all words up to the next setting, not one alone; for lists."""
    path: str = ""
    """What it names, if paths: ``input`` (read), ``output`` (a file or folder, written whole), ``folder`` (to
    which files are added), or ``beginning`` (of the names of outputs)."""

    @property
    def range(self) -> str:
        """The bounds in words; nothing where there are none."""
        if self.above is not None:
            return f"above {self.above:g}" + ("" if self.most is None else f" and at most {self.most:g}")
        if self.least is None:
            return ""
        upper = "" if self.most is None else f"{self.most:g}]"
        upper = upper if self.below is None else f"{self.below:g})"
        return f"in [{self.least:g}, {upper}" if upper else f"at least {self.least:g}"

    def check(self, key: str, value: Any) -> None:
        """Raises ConfigError with the key, the value and what is allowed."""
        for item in value if isinstance(value, list | tuple) else [value]:
            if self.choices and item not in self.choices and not (self.or_class and ":" in str(item)):
                raise ConfigError(
                    f"{key}={item} is not known; choose one of {', '.join(self.choices)}"
                    + self.or_class * ", or module:Class"
                )
            if self.range and isinstance(item, int | float) and not self._holds(item):
                raise ConfigError(f"{key}={item} is out of range; it must be {self.range}")

    def _holds(self, value: float) -> bool:
        return (
            abs(value)
            <= sys.float_info.max  # neither NaN, nor infinity, nor a whole number beyond every float
            and (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )


def rule_of(item: Field[Any]) -> Rule:
    """The rule of a field; an empty one for a field that was not made by ``setting``."""
    return item.metadata.get("setting", Rule())


def listed(value: Any) -> list[Any]:
    """The value of a setting that takes one item or a list of them; none for null."""
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]
