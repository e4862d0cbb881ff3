"""What configuration may name by import path, and how a wrong path is told."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpr.assembly.user_classes import user_callbacks, user_data, user_metrics
from dpr.core.errors import ConfigError
from dpr.training.callbacks import FunctionCallback

MODULE = """
from dpr.core.records import Passage, TrainingSample
from dpr.data.training_data import TrainingData
from dpr.training.callbacks import Callback

class Mine(Callback):
    def __init__(self, size=1):
        self.size = size

class Stranger:
    pass

def look(trainer):
    pass

def mrr(scores, labels):
    return scores

def alone():
    pass

class Raises(Callback):
    def __init__(self):
        raise RuntimeError("no luck")

in_batch_acc = mrr
number = 3

class Half(TrainingData):
    def __init__(self, files):
        pass
    def __len__(self):
        return 1

class Data(TrainingData):
    def __init__(self, files):
        self.files = files
    def __len__(self):
        return 2 * len(self.files)
    def __getitem__(self, row):
        return TrainingSample("same", (Passage(f"text {row}"),))
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("user_module.py").write_text(MODULE)
    Path("broken_module.py").write_text("def half(:\n")
    yield
    sys.modules.pop("user_module", None)


def test_classes_and_functions_become_callbacks_in_order() -> None:
    mine, again, function = user_callbacks(
        ["user_module:Mine", {"use": "user_module:Mine", "size": 5}, {"use": "user_module:look", "every": 2}],
    )
    assert (mine.size, again.size) == (1, 5)  # type: ignore[attr-defined]
    assert isinstance(function, FunctionCallback)
    assert function.state_key == "look"
    assert user_callbacks(None) == []
    assert len(user_callbacks("user_module:Mine")) == 1


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("user_module.Mine", "is not an import path; write module:name"),
        ("no_such_module:Mine", "no_such_module cannot be imported"),
        ("user_module:Mime", "has no Mime; did you mean Mine"),
        ("user_module:Stranger", "not a subclass of dpr.training.callbacks.Callback"),
        ("user_module:number", "neither a class nor a function"),
        ({"use": "user_module:Mine", "sice": 5}, "unexpected keyword argument 'sice'"),
        ({"use": "user_module:look", "when": "lunch"}, "when=lunch is not a moment"),
        ("os:system", "os:system does not accept the trainer"),
        ("builtins:len", "does not accept the trainer"),
        ("user_module:alone", "does not accept the trainer"),
        ("user_module:Raises", "raised RuntimeError: no luck"),
        ("broken_module:Mine", "importing broken_module raised SyntaxError"),
        (3, "has no import path"),
        ({"class": "user_module:Mine"}, "has no import path"),
    ],
)
def test_a_wrong_callback_is_told_by_what_is_wrong(entry: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        user_callbacks([entry])


def test_metrics_are_functions_with_names_of_their_own() -> None:
    assert list(user_metrics(["user_module:mrr"])) == ["mrr"]
    for path, message in [
        ("user_module:Stranger", "not a function"),
        ("user_module:in_batch_acc", "the metric in_batch_acc exists already"),
    ]:
        with pytest.raises(ConfigError, match=message):
            user_metrics([path])


def test_a_data_set_class_gets_its_files_and_has_what_training_asks_for() -> None:
    data = user_data("user_module:Data", [Path("a")], name="mine")
    assert (data.name, len(data)) == ("mine", 2)
    assert [passage.text for passage in data.known_positives(0)] == ["text 0", "text 1"]
    assert data.fingerprint == user_data("user_module:Data", [Path("b")], name="other").fingerprint
    assert data.fingerprint != user_data("user_module:Data", [Path("a"), Path("b")], name="mine").fingerprint
    with pytest.raises(ConfigError, match="has no rows"):
        user_data("user_module:Data", [], name="mine")
    with pytest.raises(ConfigError, match=r"not a subclass of dpr\.data\.training_data\.TrainingData"):
        user_data("user_module:Mine", [], name="mine")
    with pytest.raises(ConfigError, match="reader=user_module:Half: it leaves __getitem__ undefined"):
        user_data("user_module:Half", [], name="mine")
