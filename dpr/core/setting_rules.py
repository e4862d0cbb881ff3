"""What a setting states of itself: unit, bounds, choices, what a changed value means for a resumed run, what
it needs of other settings."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, fields
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
Conditions = str | tuple[str, ...]
TRAINING = ("train_datasets", "model_file=null")
"""What a setting requires that has no effect where a model is evaluated only."""
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
    requires: Conditions = ()
    """What other settings must be for this one to have an effect; one of them suffices. ``key=value|value``,
    where module:Class stands for every import path, or ``key``: it must be set. A key is looked for in the
    setting's section, then in those around it."""
    excludes: Conditions = ()
    """What other settings must not be, since this one then has no effect; written alike."""
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


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value of a settings object, with the rules that decide whether it has an effect: its own, its
    class's and its section's."""

    owner: Any
    name: str
    default: Any
    rules: tuple[Rule, ...]

    @property
    def value(self) -> Any:
        return getattr(self.owner, self.name)

    @property
    def is_set(self) -> bool:
        return bool(self.value) or (self.value is not None and self.default is None)


def why_idle(key: str, known: Mapping[str, Leaf]) -> str:
    """Why the setting ``key`` has no effect; empty if it has one. What a key that does not exist among
    ``known`` would say is not held against it: a job in Python may have no such setting."""
    shown = f"{key}={_shown(known[key].value)} has no effect with "
    for is_required, conditions in conditions_of(key, known):
        if is_required and all(condition.holds is False for condition in conditions):
            others = [
                condition for condition in conditions if condition.key != key and condition.values != ["null"]
            ]
            return (
                f"{shown}{' and '.join(each.now for each in others)}; set {' or '.join(map(str, others))}, or"
                f" leave {key} out"
            )
        if not is_required and (met := [condition for condition in conditions if condition.holds]):
            return (
                f"{shown}{met[0].now}; leave"
                f" {'one of them' if met[0].leaf and met[0].leaf.is_set else key} out"
            )
    return ""


def conditions_of(key: str, known: Mapping[str, Leaf]) -> list[tuple[bool, list[Condition]]]:
    """The rules of the setting ``key``: whether it requires one of the conditions, or excludes all of
    them."""
    conditions = []
    for rule in known[key].rules:
        for is_required, given in ((True, rule.requires), (False, rule.excludes)):
            if given:
                conditions.append(
                    (
                        is_required,
                        [
                            Condition(text, key, known)
                            for text in ((given,) if isinstance(given, str) else given)
                        ],
                    )
                )
    return conditions


class Condition:
    """``key=value|value`` or ``key``, stated by the setting ``asker``."""

    def __init__(self, text: str, asker: str, known: Mapping[str, Leaf]) -> None:
        name, _, values = text.partition("=")
        around = asker.split(".")[:-1]
        places = [".".join([*around[:depth], name]) for depth in range(len(around), -1, -1)]
        self.key = next((key for key in places if key in known), "")
        self.leaf, self.values = known.get(self.key), values.split("|") if values else []

    @property
    def holds(self) -> bool | None:
        """None where there is no such setting."""
        if self.leaf is None:
            return None
        if not self.values:
            return self.leaf.is_set
        entries = [
            value.get("use") if isinstance(value, Mapping) else value for value in listed(self.leaf.value)
        ]
        shown = list(map(_shown, entries)) or ["null"]
        return any(
            value in self.values or ("module:Class" in self.values and ":" in value) for value in shown
        )

    @property
    def now(self) -> str:
        return f"{self.key}={_shown(self.leaf and self.leaf.value)}"

    def __str__(self) -> str:
        """As one sets it."""
        if self.values or self.leaf is None:
            return f"{self.key}={' or '.join(self.values)}"
        unit = rule_of(next(item for item in fields(self.leaf.owner) if item.name == self.leaf.name)).unit
        return f"{self.key}=" + ("true" if self.leaf.default is False else f"<{unit}>" if unit else "...")


def _shown(value: Any) -> str:
    """As one writes it on the command line."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
