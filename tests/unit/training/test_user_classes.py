"""What settings may name by import path, and how a wrong path is reported."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dpr.core.errors import ConfigError
from dpr.training.bi_encoder_trainer import extensions_of
from dpr.training.callbacks import Callback
from dpr.training.callbacks.early_stopping import EarlyStopping
from dpr.training.data_sets import user_data
from dpr.training.settings import EarlyStoppingSettings, LossSettings, TrainingSettings, TrainNode
from tests.helpers.tiny import ListSource, make_samples, tiny_model
from tests.helpers.training import make_trainer

MODULE = """
from dpr.core.records import Passage, TrainingSample
from dpr.data.training_data import TrainingData
from dpr.losses.nll import BiEncoderNllLoss
from dpr.training.callbacks import Callback
from dpr.training.validations.protocol import Validation

class Doubled(BiEncoderNllLoss):
    def __call__(self, *arguments):
        result = super().__call__(*arguments)
        return result._replace(losses=2 * result.losses)

class Constant(Validation):
    def __call__(self, model):
        return {"eval/one": 1.0}

class Mine(Callback):
    def __init__(self, size=1):
        self.size = size

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


def user_callbacks(entries: Any) -> Any:
    return extensions_of(TrainingSettings.of(None, callbacks=entries), [])[0]


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("user_module.py").write_text(MODULE)
    yield
    sys.modules.pop("user_module", None)


def test_classes_become_callbacks_in_order() -> None:
    mine, again = user_callbacks(["user_module:Mine", {"use": "user_module:Mine", "size": 5}])
    assert (mine.size, again.size) == (1, 5)  # type: ignore[attr-defined]
    assert user_callbacks(None) == []
    assert len(user_callbacks("user_module:Mine")) == 1


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
    with pytest.raises(ConfigError, match=r"reader=user_module:Half raised TypeError: .*abstract method"):
        user_data("user_module:Half", [], name="mine")


def test_a_trainer_built_from_python_honours_what_its_settings_name(tmp_path: Path) -> None:
    train = TrainNode(callbacks={"use": "user_module:Mine", "size": 5}, best_metric="eval/one")
    train.validation = "user_module:Constant"
    train.early_stopping = EarlyStoppingSettings(patience=2)
    settings = TrainingSettings(train=train, loss=LossSettings(name="user_module:Doubled"))
    sets = [ListSource(make_samples(8))], [ListSource(make_samples(4, seed=1), "dev")]
    given = Callback()
    model = tiny_model(tmp_path / "encoder", dtype=torch.float32)
    trainer = make_trainer(model, *sets, tmp_path / "run", given, settings=settings)
    names = [type(callback).__name__ for callback in trainer.callbacks]
    added = names[names.index("GlobalBatchMetrics") + 1 : names.index("LogEvery")]
    assert added == ["Mine", "Callback", "EarlyStopping"]
    assert next(vars(each) for each in trainer.callbacks if type(each).__name__ == "Mine") == {"size": 5}
    trainer.train()
    assert type(trainer.loss).__name__ == "Doubled"
    assert trainer.progress.last_metrics["eval/one"] == 1.0
    stopping = next(each for each in trainer.callbacks if isinstance(each, EarlyStopping))
    assert (stopping.patience, stopping.state_dict()["watched"]) == (2, "eval/one")
