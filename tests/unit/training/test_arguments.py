"""A wrong argument of the trainer is answered in one sentence that names the right one."""

from pathlib import Path
from typing import Any

import pytest
import torch

from dpr import BiEncoder, BiEncoderTrainer, Callback, ConfigError, TowerOptions
from dpr.formats.training_files.dpr import write_training_set
from dpr.formats.training_sets import open_training_set
from tests.helpers.tiny import make_samples, tiny_model


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("arguments")
    write_training_set(folder / "train.jsonl", make_samples(8))
    model: BiEncoder = tiny_model(folder / "encoder", dtype=torch.float32)
    train_sets = [open_training_set(folder / "train.jsonl", name="train")]
    return {"model": model, "train_sets": train_sets, "output_dir": folder / "run"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lr": 1e-5}, "there is no setting lr; did you mean learning_rate?"),
        ({"device": "cuda"}, "there is no setting device; did you mean model=model.to(device)?"),
        ({"batchsize": 8}, "there is no setting batchsize; did you mean batch_size"),
        ({"train_dataset": []}, "there is no setting train_dataset; did you mean train_sets?"),
        ({"early_stopping_patience": 2}, "callbacks=[dpr.EarlyStopping(patience=3)]"),
        ({"symmetric_weight": -1}, "loss.symmetric_weight=-1 is out of range"),
        ({"learn_temperature": True}, "make the model with options=dpr.TowerOptions(learn_temperature=True)"),
        ({"callbacks": [Callback]}, "is of type type; give an object of a subclass of dpr.Callback"),
        ({"output_dir": None}, "output_dir is of type NoneType; give the folder of the run"),
        ({"train_sets": []}, "train_sets is empty; give a file, a list of dictionaries, or a data set"),
        ({"loss": "nll"}, "loss is of type str; give an object of a class that implements dpr.Loss"),
        ({"model": "bert-base-uncased"}, "give a BiEncoder, e.g. BiEncoder.load('bert-base-uncased')"),
        ({"settings": {"batch_size": 8}}, "settings is of type dict; give TrainingSettings"),
    ],
)
def test_a_wrong_argument_is_one_sentence(parts: dict[str, Any], given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        BiEncoderTrainer(**{**parts, **given})
    assert message in str(error.value) and "\n" not in str(error.value)
    assert not Path(parts["output_dir"]).exists()


def test_all_unknown_arguments_are_named_at_once(parts: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as error:
        BiEncoderTrainer(**parts, args=1, train_dataset=[], lora_r=8, lr=1e-5)
    lines = str(error.value).split("\n")
    assert [line.partition(";")[0].partition(":")[0] for line in lines] == [
        f"there is no setting {name}" for name in ("args", "lora_r", "lr", "train_dataset")
    ]
    assert 'EncoderSettings(adapter="lora", lora_rank=16)' in lines[1] and "learning_rate" in lines[2]


def test_settings_of_the_loss_are_given_by_name(parts: dict[str, Any]) -> None:
    model = parts["model"]
    trainer = BiEncoderTrainer(**parts, batch_size=4, temperature=0.05, dimensions=[16, 8])
    assert float(model.temperature) == pytest.approx(0.05)
    assert trainer.settings.loss.dimensions == [16, 8]
    with pytest.raises(TypeError, match=r"train\(\) has no argument 'resume_from_checkpoint'"):
        trainer.train(resume_from_checkpoint=True)
    with pytest.raises(AttributeError, match=r"no attribute 'save_model': trainer.model.save\(folder\)"):
        trainer.save_model("folder")

    folder = Path(parts["output_dir"]).parent / "encoder"
    options = TowerOptions(temperature=0.1, learn_temperature=True)
    learning = tiny_model(folder, dtype=torch.float32, options=options)
    with pytest.raises(ConfigError, match=r"temperature=0\.05, but the model learns its own from 0\.1"):
        BiEncoderTrainer(**parts | {"model": learning}, batch_size=4, temperature=0.05)
