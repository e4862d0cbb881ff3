"""What a run that is resumed must share with its checkpoint: everything that decides a result, files by their
content."""

from __future__ import annotations

import json
import logging
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from dpr import BiEncoder
from dpr.core.errors import CheckpointError
from dpr.export.folders import export_folder
from dpr.formats.training_files.dpr import write_training_set
from dpr.jobs.train import build_model, open_sets
from dpr.models.settings import TowerSettings
from dpr.training.bi_encoder_trainer import BiEncoderTrainer
from dpr.training.callbacks.metrics_file import ReportPage
from dpr.training.command_settings import TrainCommand
from dpr.training.data_sets import resolve_training_files
from dpr.training.settings import LossSettings, TrainingSettings, TrainNode
from tests.helpers.tiny import encoder_folder, make_samples, sentence, tiny_model
from tests.helpers.training import trainer_of

FILES = ("corpus.tsv", "questions.jsonl", "qrels.tsv")
BEST = "best checkpoint is chosen again"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = random.Random(5)
    encoder_folder(tmp_path / "encoder", num_hidden_layers=1)
    texts = [sentence(rng, 8) for _ in range(40)]
    (tmp_path / "corpus.tsv").write_text(
        "id\ttext\ttitle\n" + "".join(f"p{row}\t{text}\t\n" for row, text in enumerate(texts))
    )
    (tmp_path / "questions.jsonl").write_text(
        "".join(json.dumps({"id": f"q{row}", "question": texts[row]}) + "\n" for row in range(8))
    )
    (tmp_path / "qrels.tsv").write_text(
        "query-id\tcorpus-id\tscore\n" + "".join(f"q{row}\tp{row}\t1\n" for row in range(8))
    )
    write_training_set(tmp_path / "train.json", make_samples(12))
    write_training_set(tmp_path / "dev.json", make_samples(6, seed=2))
    return tmp_path


def job(
    folder: Path,
    *,
    resume: str = "auto",
    max_steps: int = 2,
    loss: LossSettings | None = None,
    encoder: str = "encoder",
    **validation: Any,
) -> BiEncoderTrainer:
    files = {
        key: str(folder / name) for key, name in zip(("corpus", "questions", "qrels"), FILES, strict=True)
    }
    entry = {"kind": "retrieval", **files, **validation}
    config = TrainCommand(
        output_dir=str(folder / "run"),
        device="cpu",
        resume=resume,
        loss=loss or LossSettings(),
        train=TrainNode(
            batch_size=4,
            max_steps=max_steps,
            eval_every_steps=1,
            num_workers=0,
            token_store="off",
            validation=[entry],
        ),
        encoder=TowerSettings(
            pretrained_model_cfg=str(folder / encoder), pretrained=False, sequence_length=24
        ),
    )
    config.check()
    sets, dev_sets = (
        open_sets(resolve_training_files([str(folder / name)], {}), config)
        for name in ("train.json", "dev.json")
    )
    trainer = trainer_of(config, build_model(config), sets, dev_sets)
    trainer.callbacks = [each for each in trainer.callbacks if not isinstance(each, ReportPage)]
    return trainer


def test_a_changed_file_or_setting_of_a_validation_is_told_and_its_best_forgotten(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job(folder).train()
    (folder / "copy.tsv").write_bytes((folder / "corpus.tsv").read_bytes())
    with caplog.at_level(logging.WARNING, "dpr"):
        assert job(folder, corpus=str(folder / "copy.tsv")).resume().best_checkpoint is not None
        assert BEST not in caplog.text
        assert job(folder, sample=1).resume().best_checkpoint is None
        for name, told in (("qrels.tsv", "train.validation.content"), ("dev.json", "dev_datasets")):
            content = (folder / name).read_bytes()
            caplog.clear()
            if name == "dev.json":
                write_training_set(folder / name, make_samples(7, seed=3))
            else:
                (folder / name).write_bytes(content + b"q1\tp30\t1\n")
            assert job(folder).resume().best_checkpoint is None
            assert BEST in caplog.text and told in caplog.text
            (folder / name).write_bytes(content)
    write_training_set(folder / "train.json", make_samples(12, seed=9))
    with pytest.raises(CheckpointError, match=r"different run: train_datasets\[0\] was \S+, is now \S+"):
        job(folder).resume()


@pytest.mark.parametrize("first", ["Python", "the command"])
def test_python_and_the_command_resume_each_others_runs(folder: Path, first: str) -> None:
    def from_python(max_steps: int) -> BiEncoderTrainer:
        given = job(folder, max_steps=max_steps)
        settings = TrainingSettings(train=given.settings.train, loss=given.settings.loss)
        files = (str(folder / "train.json"), str(folder / "dev.json"))
        return BiEncoderTrainer(given.model, *files, output_dir=folder / "run", settings=settings)

    if first == "Python":
        from_python(2).train()
        assert job(folder, max_steps=4).resume().step == 2
    else:
        job(folder).train()
        assert from_python(4).resume().step == 2


ENCODER = {
    "config.json": (None, '"relu"', r"encoder_config\[0\]\.hidden_act was None, is now relu \(and 2 more\)"),
    "model.safetensors": (
        "1",
        "2",
        r"encoder\.pretrained_model_cfg\[model\.safetensors\] was \w+, is now \w+",
    ),
}


@pytest.mark.parametrize("name", ENCODER)
def test_another_content_of_the_encoders_folder_is_refused_wherever_it_lies(folder: Path, name: str) -> None:
    first, second, told = ENCODER[name]
    file = folder / "encoder" / name
    file.write_text(first or file.read_text())
    job(folder).train()
    shutil.move(folder / "encoder", folder / "moved")
    for decides_nothing in ("README.md", "LICENSE.txt", "results.json", "openvino/model.bin"):
        (folder / "moved" / decides_nothing).parent.mkdir(exist_ok=True)
        (folder / "moved" / decides_nothing).write_text("{}")
    assert job(folder, encoder="moved").resume().step == 2
    file = folder / "moved" / name
    file.write_text(file.read_text().replace(first or '"gelu"', second))
    with pytest.raises(CheckpointError, match=f"different run: {told}"):
        job(folder, encoder="moved").resume()
    assert job(folder, encoder="moved", resume="force").resume().step == 2


@pytest.mark.parametrize("out", ["run", "given/tuned"])
def test_the_training_of_a_given_model_resumes_whatever_its_settings_are(folder: Path, out: str) -> None:
    """The model's pooling, lengths and title are in effect, the settings' are the default ones. The run may lie in
    the model's folder."""
    pytest.importorskip("sentence_transformers")
    own: dict[str, Any] = {
        "pooling": "mean",
        "normalize": True,
        "shared": True,
        "title_template": "{title} {text}",
    }
    tiny_model(
        folder / "encoder", dtype=torch.float32, plain_apostrophes=False, question_length=12, **own
    ).save(folder / "made")
    export_folder(BiEncoder.load(folder / "made"), folder / "given", "sentence-transformers", source="made")

    def train(max_steps: int) -> None:
        config = TrainCommand(
            model_file=str(folder / "given"),
            train_datasets=[str(folder / "train.json")],
            output_dir=str(folder / out),
            device="cpu",
            train=TrainNode(batch_size=4, max_steps=max_steps, num_workers=0, token_store="off"),
        )
        sets = open_sets(resolve_training_files([str(folder / "train.json")], {}), config)
        trainer_of(config, build_model(config), sets, []).train()

    train(2)
    train(3)
    assert (folder / out / "dpr_biencoder.step3").is_dir()
    write_training_set(folder / "train.json", make_samples(12, seed=1))
    with pytest.raises(CheckpointError, match="different run: train_datasets"):
        train(4)
