"""A wrong argument of the trainer is answered in one sentence that says what it is called here, or what was
expected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dpr import BiEncoder, BiEncoderTrainer, Callback, ConfigError
from dpr.formats.training_sets import open_training_set, write_training_set
from dpr.training.settings import LossSettings, TrainingSettings
from tests.helpers.tiny import make_samples, tiny_model


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("arguments")
    write_training_set(folder / "train.jsonl", make_samples(8))
    model: BiEncoder = tiny_model(folder / "encoder", dtype=torch.float32)
    return {
        "model": model,
        "train_sets": [open_training_set(folder / "train.jsonl", name="train")],
        "output_dir": folder / "run",
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epochs": 3}, "there is no setting epochs; did you mean num_train_epochs?"),
        ({"lr": 1e-5}, "there is no setting lr; did you mean learning_rate?"),
        ({"device": "cuda"}, "there is no setting device; did you mean model=model.to(device)?"),
        ({"eval_steps": 10}, "there is no setting eval_steps; did you mean eval_every_steps?"),
        ({"per_device_train_batch_size": 8}, "did you mean batch_size?"),
        ({"eval_dataset": []}, "there is no setting eval_dataset; did you mean dev_sets?"),
        ({"batchsize": 8}, "there is no setting batchsize; did you mean batch_size"),
        ({"symmetric_weight": 0.5}, "it is one of loss: loss=LossSettings(symmetric_weight=...)"),
        ({"zzz": 1}, "there is no setting zzz"),
        (
            {"metrics": [len]},
            "metrics is of type list; give functions of (scores, labels) by their names: {'mrr': mrr}",
        ),
        ({"metrics": {"mrr": "my_metrics:mrr"}}, "metrics is of type dict; give functions"),
        (
            {"callbacks": [print]},
            "callbacks holds what is of type builtin_function_or_method; give a list of objects",
        ),
        ({"callbacks": [Callback]}, "callbacks holds what is the class Callback, not an object of it"),
        ({"callbacks": print}, "callbacks holds what is of type builtin_function_or_method; give a list"),
        (
            {"callbacks": Callback()},
            "callbacks holds what is of type Callback; give a list of objects of subclasses of dpr.Callback",
        ),
        ({"output_dir": None}, "output_dir is of type NoneType; give the folder of the run"),
        ({"train_sets": []}, "train_sets is empty; give a file, a list of dictionaries, or a data set"),
        (
            {"train_sets": [("train.jsonl", {"query_prefix": "q"})]},
            "the options of a data set are of type dict; give (data, dpr.DataSetSettings(",
        ),
        ({"sampling": {"mixed": True}}, "train.sampling={'mixed': True} is not SamplingSettings"),
        (
            {"validations": ["dev.json"]},
            "validations holds what is of type str; give a list of objects of subclasses of dpr.Validation",
        ),
        ({"loss": "nll"}, "loss is of type str; give an object of a class that implements dpr.Loss"),
        (
            {"model": "bert-base-uncased"},
            "model is of type str; give a BiEncoder, e.g. BiEncoder.load('bert-base-uncased')",
        ),
        (
            {"settings": TrainingSettings(loss=LossSettings(temperature=0.05))},
            (
                "loss.temperature=0.05, but the model's is 1.0; make the model with"
                " options=dpr.TowerOptions(temperature=0.05)"
            ),
        ),
        (
            {"settings": TrainingSettings(loss=LossSettings(learn_temperature=True))},
            "loss.learn_temperature=True, but the model's is False",
        ),
        (
            {"settings": {"batch_size": 8}},
            "settings is of type dict; give TrainingSettings, or settings by name",
        ),
    ],
)
def test_a_wrong_argument_is_one_sentence(parts: dict[str, Any], given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        BiEncoderTrainer(**{**parts, **given})
    assert message in str(error.value) and "\n" not in str(error.value)
    assert not Path(parts["output_dir"]).exists()
