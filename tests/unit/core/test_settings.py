"""Settings say of themselves what they may be, and a check names the key, the value and what is allowed."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from dpr.core.errors import ConfigError
from dpr.core.settings import (
    IDENTITY,
    NO_EFFECT,
    WARNED,
    Settings,
    check_type,
    drop_unused,
    flat_values,
    sections,
    setting,
    settings,
    unused_keys,
)


@dataclass
class Inner(Settings):
    """A section."""

    share: float = setting(0.5, least=0, most=1, on_resume=WARNED)
    """How much."""
    kind: str = setting("a", choices=("a", "b"), on_resume=IDENTITY)


@dataclass
class Outer(Settings):
    """The root."""

    count: int = setting(1, unit="steps", least=1, on_resume=NO_EFFECT)
    """How many."""
    rate: float = setting(0.1, above=0)
    dropout: float | None = setting(None, least=0, below=1)
    epochs: list[int] | None = setting(None, least=0)
    where: int | str | None = None
    inner: Inner = field(default_factory=Inner)

    def check_together(self, prefix: str) -> None:
        if self.count > 5 and self.inner.kind == "b":
            raise ConfigError(f"{prefix}count={self.count} and {prefix}inner.kind=b are mutually exclusive")


@dataclass
class Where(Settings):
    """A mix-in."""

    device: str | None = None
    """Which."""
    speed: int = 0


@dataclass
class Writing(Where):
    writer: str | None = None
    speed: int = 0
    inner: Inner = field(default_factory=Inner)

    def unused(self) -> Iterator[str]:
        if self.writer is None:
            yield from ("device", "inner")


@dataclass
class Command(Writing):
    overwrite: bool = False


def test_what_does_nothing_is_known_and_set_to_its_default() -> None:
    command = Command(device="cpu", speed=1, inner=Inner(kind="b"))
    assert unused_keys(command) == ["device", "inner.share", "inner.kind"]
    assert drop_unused(command) == ["device", "inner.kind"]
    assert command == Command(speed=1)
    assert unused_keys(Command(writer="quick", device="cpu")) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 0}, "count=0 is out of range; it must be at least 1"),
        ({"rate": 0.0}, "rate=0.0 is out of range; it must be above 0"),
        ({"rate": float("nan")}, "rate=nan is out of range; it must be above 0"),
        ({"rate": float("inf")}, "rate=inf is out of range; it must be above 0"),
        ({"dropout": 1.0}, r"dropout=1.0 is out of range; it must be in [0, 1)"),
        ({"epochs": [1, -1]}, "epochs=-1 is out of range; it must be at least 0"),
        ({"inner": Inner(share=2)}, "inner.share=2 is out of range; it must be in [0, 1]"),
        ({"inner": Inner(kind="c")}, "inner.kind=c is not known; choose one of a, b"),
        ({"count": "3"}, "count='3' is not a whole number"),
        ({"count": True}, "count=True is not a whole number"),
        ({"count": None}, "count=None is not a whole number"),
        ({"where": 1.5}, "where=1.5 is not a whole number or a text"),
        ({"count": 6, "inner": Inner(kind="b")}, "count=6 and inner.kind=b are mutually exclusive"),
    ],
)
def test_a_check_names_the_key_the_value_and_what_is_allowed(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Outer(**changes).check()
    assert str(error.value) == message


def test_what_is_allowed_passes() -> None:
    Outer().check()
    Outer(count=3, rate=1, dropout=0.0, epochs=[0, 2], where="[CLS]", inner=Inner(1.0, "b")).check()


def test_settings_are_made_of_a_mapping_in_which_none_is_the_default() -> None:
    assert Outer.from_mapping({"count": 3, "rate": None, "epochs": [0]}, "train.") == Outer(
        count=3, epochs=[0]
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cuont": 3}, "unknown setting train.cuont; did you mean count?"),
        ({"nothing": 3}, "unknown setting train.nothing; it has count, rate, dropout, epochs, where, inner"),
        ({"count": 0}, "train.count=0 is out of range"),
    ],
)
def test_a_mapping_with_what_is_no_setting_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        Outer.from_mapping(given, "train.")


def test_settings_are_listed_with_their_words_and_rules() -> None:
    entries = {entry.key: entry for entry in settings(Outer)}
    assert list(entries) == ["count", "rate", "dropout", "epochs", "where", "inner.share", "inner.kind"]
    assert (entries["inner.share"].doc, entries["count"].rule.unit) == ("How much.", "steps")
    assert sections(Outer) == {"": Outer, "inner": Inner}


def test_values_are_found_by_what_a_change_means() -> None:
    assert flat_values(Outer(), (IDENTITY, WARNED)) == {"inner.share": 0.5, "inner.kind": "a"}
    assert flat_values(Outer(), (NO_EFFECT,)) == {"count": 1}


@pytest.mark.parametrize(
    ("value", "hint"),
    [([1], list[int]), ((1, 2), list[int] | None), ({}, dict[str, Any]), (1, float), ("x", Any)],
)
def test_types_that_are_taken(value: Any, hint: Any) -> None:
    check_type("key", value, hint)
