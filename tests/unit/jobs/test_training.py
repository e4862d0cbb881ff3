"""Every setting of a run is read by the job that it belongs to; names and paths before any data."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from dpr.core.errors import DprError
from dpr.formats.training_files.dpr import write_training_set
from dpr.jobs import train
from dpr.training.command_settings import TrainCommand
from dpr.training.settings import TrainNode
from tests.architecture.source_files import package_sources
from tests.helpers.tiny import encoder_folder, make_samples


@pytest.mark.parametrize("kind", [TrainNode, TrainCommand])
def test_every_setting_of_training_is_read_somewhere(kind: type) -> None:
    texts = "".join(
        re.sub(r'"""(?s:.*?)"""', "", source.text) for source in package_sources() if source.room != "cli"
    )
    unread = [item.name for item in fields(kind) if not re.search(rf"\.{item.name}\b", texts)]
    assert not unread


def config_of(folder: Path, **values: Any) -> TrainCommand:
    config = TrainCommand(
        device="cpu", train_datasets=[str(folder / "train.json")], dev_datasets=[str(folder / "dev.json")]
    )
    config.output_dir, config.encoder.pretrained_model_cfg = str(folder / "run"), str(folder / "encoder")
    config.encoder.pretrained, config.encoder.sequence_length, config.train.num_workers = False, 24, 0
    for key, value in values.items():
        *path, name = key.split("__")
        part: Any = config
        for section in path:
            part = getattr(part, section)
        setattr(part, name, value)
    config.check()
    return config


RETRIEVAL = {"kind": "retrieval", "corpus": "missing.tsv", "questions": "missing.jsonl"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"output_dir": "{folder}/train.json/run"}, r"cannot be written \(.*train.json is not a folder\)"),
        ({"train__callbacks": ["json:nothing"]}, "train.callbacks=json:nothing: json has no nothing"),
        (
            {"train__best_metric": "eval/acc"},
            "train.best_metric=eval/acc is not a metric of any validation.*choose one of eval/nll_loss",
        ),
        ({"loss__dimensions": [8, 4096]}, "loss.dimensions names 4096"),
        ({"loss__name": "json:JSONDecoder"}, "loss.name=json:JSONDecoder"),
        ({"loss__guide": ["nowhere_*"]}, "nowhere_"),
        ({"train__validation": [RETRIEVAL]}, r"train.validation\[0\].corpus=missing.tsv is not a file"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_names_and_paths_are_checked_before_data_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], message: str
) -> None:
    encoder_folder(tmp_path / "encoder")
    for name in ("train.json", "dev.json"):
        write_training_set(tmp_path / name, make_samples(4))
    monkeypatch.setattr(train, "open_sets", lambda *_: pytest.fail("data were read"))
    values = {
        key: value.format(folder=tmp_path) if isinstance(value, str) else value
        for key, value in values.items()
    }
    with pytest.raises(DprError, match=message):
        train.run(config_of(tmp_path, **values))
