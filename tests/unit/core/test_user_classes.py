"""A class named by import path is checked against its contract; what is wrong is one ConfigError."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from dpr.core.errors import ConfigError
from dpr.core.user_classes import create_object, load_class

MODULE = """
class Whole:
    width = 3
    def __init__(self, *, size=1):
        self.size = size
    def __call__(self, value):
        return value
    def gather(self):
        return self.size

class Half:
    def __call__(self, value):
        return value

class Silent:
    def gather(self):
        return 1

class Raises(Whole):
    def __init__(self):
        raise RuntimeError("no luck")

whole = Whole()
"""


class Slot(Protocol):
    width: int

    def __call__(self, value: int) -> int: ...

    def gather(self) -> int: ...

    def _internal(self) -> None: ...


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("slot_module.py").write_text(MODULE)
    Path("broken_module.py").write_text("def half(:\n")
    yield
    sys.modules.pop("slot_module", None)


def test_a_class_that_has_the_methods_of_the_protocol_is_taken() -> None:
    assert load_class("slot_module:Whole", Slot, setting="loss.name").__name__ == "Whole"
    made: Any = create_object({"use": "slot_module:Whole", "size": 4}, Slot, setting="loss.name")
    assert made.gather() == 4
    assert create_object("slot_module:Whole", Slot, setting="loss.name").gather() == 1


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("slot_module:Half", r"loss.name=slot_module:Half does not implement .*Slot: it has no gather"),
        ("slot_module:Silent", "it has no __call__"),
        ("slot_module:whole", "is not a class, expected one that implements .*Slot"),
        ({"use": "slot_module:Whole", "sise": 4}, "argument 'sise'.*; arguments given: sise"),
        (["slot_module:Whole"], "has no import path"),
        ({"class": "slot_module:Whole"}, "has no import path"),
        ("slot_module.Whole", "is not an import path; write module:name"),
        ("no_module:Whole", "importing no_module raised ModuleNotFoundError.*in the working directory"),
        ("broken_module:Whole", "importing broken_module raised SyntaxError"),
        ("slot_module:Whale", "has no Whale; did you mean Whole"),
        ("slot_module:Raises", "raised RuntimeError: no luck"),
    ],
)
def test_what_does_not_fit_the_slot_is_refused_in_one_line(entry: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        create_object(entry, Slot, setting="loss.name")
    assert "\n" not in str(caught.value)
