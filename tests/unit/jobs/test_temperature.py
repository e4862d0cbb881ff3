"""The temperature belongs to the model: evaluation and further training use the one it was trained with."""

from pathlib import Path
from typing import Any

import pytest

from dpr import BiEncoder, EncoderSettings
from dpr.jobs.train import build_model, run
from dpr.training.command_settings import TrainCommand
from dpr.training.make_loss import settle_temperature
from tests.helpers.tiny import training_folder

WARNED = "was trained with"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_folder(tmp_path_factory.mktemp("temperature"), train=24, dev=9)


def config_of(folder: Path, **loss: Any) -> TrainCommand:
    """Evaluation only, of whatever model is named."""
    config = TrainCommand(device="cpu", dev_datasets=[str(folder / "dev.json")])
    config.encoder.pretrained_model_cfg, config.encoder.pretrained = str(folder / "encoder"), False
    config.encoder.sequence_length, config.train.num_workers, config.train.dev_batch_size = 24, 0, 9
    for name, value in loss.items():
        setattr(config.loss, name, value)
    return config


def test_what_was_never_trained_has_no_temperature(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = EncoderSettings(sequence_length=24)
    untrained = BiEncoder.from_pretrained(str(folder / "encoder"), settings, pretrained=False)
    untrained.save(tmp_path / "untrained")
    evaluated(folder, tmp_path / "untrained", temperature=0.05)
    assert WARNED not in caplog.text
    assert BiEncoder.load(tmp_path / "untrained").stored_temperature is None


def train(folder: Path, out: Path, *, epochs: int = 1, stop: int = 0, **loss: Any) -> float | None:
    config = config_of(folder, temperature=0.25, **loss)
    config.train_datasets, config.output_dir = [str(folder / "train.json")], str(out)
    config.train.batch_size, config.train.learning_rate, config.train.warmup_steps = 8, 0.05, 0
    config.train.num_train_epochs, config.train.stop_at_epoch = epochs, stop
    return run(config)


@pytest.fixture(scope="module")
def trained(folder: Path) -> dict[str, tuple[Path, float]]:
    """The run of each kind of temperature, and the last validation of its training."""
    runs = {}
    for name in ("fixed", "learned"):
        value = train(folder, folder / name, learn_temperature=name == "learned")
        assert value is not None
        runs[name] = folder / name, value
    return runs


def evaluated(folder: Path, model: Path, **loss: Any) -> float:
    config = config_of(folder, **loss)
    config.model_file = str(model)
    value = run(config)
    assert value is not None
    return value


@pytest.mark.parametrize("kind", ["fixed", "learned"])
def test_evaluation_uses_the_temperature_of_training(
    folder: Path, trained: dict[str, tuple[Path, float]], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    model, value = trained[kind]
    assert evaluated(folder, model) == value, "to the last bit"
    assert WARNED not in caplog.text
    assert abs(evaluated(folder, model, temperature=1.0) - value) > 1e-3


@pytest.mark.parametrize(
    ("kind", "stated", "is_told"), [("fixed", 1.0, True), ("learned", 1.0, True), ("fixed", 0.25, False)]
)
def test_a_stated_temperature_that_differs_is_used_and_told(
    folder: Path,
    trained: dict[str, tuple[Path, float]],
    kind: str,
    stated: float,
    is_told: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = config_of(folder, temperature=stated)
    config.model_file = str(trained[kind][0])
    model = build_model(config)
    settle_temperature(model, config)
    assert float(model.temperature) == stated
    assert (WARNED in caplog.text) == is_told


@pytest.mark.parametrize("learn", [False, True])
@pytest.mark.parametrize("kind", ["fixed", "learned"])
def test_training_on_starts_from_the_temperature_of_the_model(
    folder: Path, trained: dict[str, tuple[Path, float]], kind: str, learn: bool
) -> None:
    config = config_of(folder, learn_temperature=learn)
    config.model_file = str(trained[kind][0])
    model = build_model(config)
    assert (model.log_temperature is not None) == learn
    assert model.stored_temperature is not None
    assert float(model.temperature) == pytest.approx(model.stored_temperature, rel=1e-6)
    assert (model.stored_temperature == 0.25) == (kind == "fixed"), "learning moved it"
