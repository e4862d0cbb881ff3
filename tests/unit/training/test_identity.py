"""A run is resumed only with what decides its result: files by content, settings by the role that they declare."""

import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dpr import BiEncoder
from dpr.core.errors import CheckpointError
from dpr.core.records import TrainingSample
from dpr.core.settings import IDENTITY, ROLES, UPDATES, WARNED, Setting, flat_values, settings
from dpr.export.folders import export_folder
from dpr.formats.training_files.dpr import write_training_set
from dpr.training.bi_encoder_trainer import BiEncoderTrainer
from dpr.training.callbacks import Callback
from dpr.training.command_settings import TrainCommand
from dpr.training.run import RunProgress
from dpr.training.settings import TrainingSettings, TrainNode
from tests.helpers.tiny import encoder_folder, make_samples, tiny_model
from tests.helpers.training import command_trainer, small_command
from tests.unit.training.test_retrieval_validation import entry as retrieval_entry
from tests.unit.training.test_retrieval_validation import write_retrieval_set

BEST = "so the best checkpoint is chosen"
SETTINGS = settings(TrainCommand)
CHANGED: dict[str, Any] = {
    "compat": "dpr",
    "train_sampling_rates": [2.0],
    "loss_scale_factors": [2.0],
    "loss.name": {"use": "dpr.losses.nll:BiEncoderNllLoss", "max_scores": 1000},
    "loss.candidates": "dpr",
    "loss.terms": {"use": "dpr.losses.nll:BiEncoderNllLoss", "weight": 0.5},
    "loss.temperature": 0.5,
    "train.callbacks": f"{__name__}:ACallback",
    "train.sampling.temperature": 2.0,
    "train.gradient_accumulation_steps": 3,
    "train.precision": "bf16",
    "encoder.pooling": "mean",
    "encoder.sequence_length": 20,
    "encoder.query_prompt": "ba ",
}
IN_EFFECT = {"loss_scale_factors": "datasets", "compat": "encoder.dpr_trailing_sep"}
"""Settings of which what they lead to is compared, by its name."""


class ACallback(Callback):
    pass


def other(entry: Setting) -> Any:
    """Another value than the default one."""
    if entry.key in CHANGED:
        return CHANGED[entry.key]
    value = flat_values(TrainCommand())[entry.key] if entry.rule.on_resume else entry.default
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value * 2 or 1
    return value / 2 if value else 0.25


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two steps."""
    folder = tmp_path_factory.mktemp("roles")
    encoder_folder(folder / "encoder")
    write_training_set(folder / "train.json", [with_teacher(sample) for sample in make_samples(12)])
    command_trainer(config_of(folder)).train()
    return folder


def with_teacher(sample: TrainingSample) -> TrainingSample:
    scored = tuple(replace(passage, teacher_score=1.0) for passage in sample.positives)
    return replace(sample, positives=scored)


def config_of(folder: Path, **changes: Any) -> TrainCommand:
    config = small_command(folder, **{"train.max_steps": 2, "train.token_store": "off", **changes})
    config.dev_datasets = changes.get("dev_datasets", config.train_datasets)
    return config


def start(config: TrainCommand) -> RunProgress:
    """Resumes the run, and leaves it again before an update."""
    job = command_trainer(config)
    try:
        return job.resume()
    finally:
        job.checkpoints.lock.release()


def test_every_setting_says_what_a_change_means() -> None:
    assert not [entry.key for entry in SETTINGS if entry.rule.on_resume not in ROLES]


SOME = (
    "seed loss_scale_factors train_sampling_rates compat train.hard_negatives "
    "train.gradient_accumulation_steps train.augment.crop_tokens train.sampling.temperature "
    "loss.name loss.candidates loss.temperature loss.terms loss.kl_weight encoder.pooling "
    "encoder.sequence_length encoder.query_prompt encoder.fix_ctx_encoder train.learning_rate "
    "train.precision train.max_steps train.callbacks train.ema_decay "
    "train.grad_cache_tokens encoder.dropout encoder.attention_dropout encoder.packed"
).split()
"""Of every way from a setting to the identity of a run, one or two."""
COMPARED = [
    entry for entry in SETTINGS if entry.key in SOME and entry.rule.on_resume in (IDENTITY, UPDATES, WARNED)
]


@pytest.mark.parametrize("entry", COMPARED, ids=lambda entry: entry.key)
def test_a_change_has_its_role(folder: Path, entry: Setting, caplog: pytest.LogCaptureFixture) -> None:
    config, named = config_of(folder, **{entry.key: other(entry)}), IN_EFFECT.get(entry.key, entry.key)
    if entry.rule.on_resume in (IDENTITY, UPDATES) or entry.key == "compat":  # the run is finished
        with pytest.raises(CheckpointError, match=rf"{named}\S* was ") as error:
            start(config)
        assert "resume=force" in str(error.value)
    else:
        assert start(config).step == 2
        assert f"resuming with {named} changed from" in caplog.text


@pytest.mark.parametrize("key", ["", "train.keep_last", "train.num_workers"])
def test_settings_without_effect_may_change(folder: Path, key: str, caplog: pytest.LogCaptureFixture) -> None:
    changes = {entry.key: other(entry) for entry in SETTINGS if entry.key == key}
    assert start(config_of(folder, **changes)).step == 2
    assert "changed" not in caplog.text


def test_a_finished_run_takes_more_steps(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = config_of(folder, **{"train.max_steps": 9})  # and so a longer warm-up
    config.train.adam_betas = "[0.9,0.999]"
    assert start(config).step == 2
    assert "train.warmup_steps changed from 0 to 1" in caplog.text and "adam_betas" not in caplog.text
    config.train.adam_betas = "[0.8,0.9]"
    with pytest.raises(CheckpointError, match=r"different run: train.adam_betas was"):
        start(config)
    config.train.adam_betas, config.train.warmup_steps = "[0.9,0.999]", 3
    with pytest.raises(CheckpointError, match=r"different run: train.warmup_steps was 0, is now 3"):
        start(config)


def test_a_changed_rate_is_told(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    changes = {"output_dir": str(tmp_path / "run"), "train.max_steps": 4, "train.stop_at_epoch": 1}
    config = config_of(folder, **changes)
    command_trainer(config).train()
    config.train.learning_rate = 0.5
    assert start(config).step == 3
    assert "resuming with train.learning_rate changed from" in caplog.text


def test_other_words_and_dev_data(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    moved = shutil.copytree(folder, tmp_path / "moved")
    config = config_of(moved)
    assert start(config).step == 2
    assert "dev_datasets" not in caplog.text
    write_training_set(moved / "dev.json", make_samples(4, seed=5))
    assert start(config_of(moved, dev_datasets=[str(moved / "dev.json")])).step == 2
    assert "resuming with dev_datasets.content[0] changed from" in caplog.text
    words = (moved / "encoder" / "vocab.txt").read_text().split("\n")
    words[-3], words[-2] = words[-2], words[-3]
    (moved / "encoder" / "vocab.txt").write_text("\n".join(words))
    with pytest.raises(CheckpointError, match=r"encoder\.tokenizer was "):
        start(config)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Files of a run that no other test sees."""
    write_retrieval_set(tmp_path)
    write_training_set(tmp_path / "train.json", make_samples(12))
    write_training_set(tmp_path / "dev.json", make_samples(6, seed=2))
    return tmp_path


def job(
    folder: Path, *, encoder: str = "encoder", resume: str = "auto", **validation: Any
) -> BiEncoderTrainer:
    changes = {
        "resume": resume,
        "dev_datasets": [str(folder / "dev.json")],
        "train.eval_every_steps": 1,
        "train.validation": [retrieval_entry(folder, **validation)],
        "encoder.pretrained_model_cfg": str(folder / encoder),
    }
    return command_trainer(config_of(folder, **changes))


def test_another_validation_is_told_its_best_forgotten(own: Path, caplog: pytest.LogCaptureFixture) -> None:
    job(own).train()
    (own / "copy.tsv").write_bytes((own / "corpus.tsv").read_bytes())
    with caplog.at_level(logging.WARNING, "dpr"):
        assert job(own, corpus=str(own / "copy.tsv")).resume().best_checkpoint is not None
        assert BEST not in caplog.text
        assert job(own, sample=1).resume().best_checkpoint is None
        for name, told in (("qrels.tsv", "train.validation.content"), ("dev.json", "dev_datasets")):
            content = (own / name).read_bytes()
            caplog.clear()
            if name == "dev.json":
                write_training_set(own / name, make_samples(7, seed=3))
            else:
                (own / name).write_bytes(content.replace(b"\t1\n", b"\t2\n", 1))
            assert job(own).resume().best_checkpoint is None
            assert BEST in caplog.text and told in caplog.text
            (own / name).write_bytes(content)
    write_training_set(own / "train.json", make_samples(12, seed=9))
    with pytest.raises(CheckpointError, match=r"different run: train_datasets\[0\] was \S+, is now \S+"):
        job(own).resume()


@pytest.mark.parametrize("first", ["Python", "the command"])
def test_python_and_the_command_resume_each_others_runs(own: Path, first: str) -> None:
    def from_python() -> BiEncoderTrainer:
        given = job(own)
        wanted = given.settings
        settings = TrainingSettings(seed=wanted.seed, train=wanted.train, loss=wanted.loss)
        files = (str(own / "train.json"), str(own / "dev.json"))
        return BiEncoderTrainer(given.model, *files, output_dir=own / "run", settings=settings)

    if first == "Python":
        from_python().train()
        assert job(own).resume().step == 2
    else:
        job(own).train()
        assert from_python().resume().step == 2


ENCODER = {
    "config.json": (None, '"relu"', r"encoder_config\[0\]\.hidden_act was None, is now relu"),
    "model.safetensors": ("1", "2", r"pretrained_model_cfg\[model\.safetensors\] was \w+, is now \w+"),
}


@pytest.mark.parametrize("name", ENCODER)
def test_another_content_of_the_encoders_folder_is_refused_wherever_it_lies(own: Path, name: str) -> None:
    first, second, told = ENCODER[name]
    file = own / "encoder" / name
    file.write_text(first or file.read_text())
    job(own).train()
    shutil.move(own / "encoder", own / "moved")
    for decides_nothing in ("README.md", "LICENSE.txt", "results.json", "openvino/model.bin"):
        (own / "moved" / decides_nothing).parent.mkdir(exist_ok=True)
        (own / "moved" / decides_nothing).write_text("{}")
    assert job(own, encoder="moved").resume().step == 2
    file = own / "moved" / name
    file.write_text(file.read_text().replace(first or '"gelu"', second))
    with pytest.raises(CheckpointError, match=f"different run: .*{told}"):
        job(own, encoder="moved").resume()
    assert job(own, encoder="moved", resume="force").resume().step == 2


@pytest.mark.parametrize("out", ["run", "given/tuned"])
def test_the_training_of_a_given_model_resumes_whatever_its_settings_are(own: Path, out: str) -> None:
    """The model's own settings are in effect; the run may lie in the model's folder."""
    pytest.importorskip("sentence_transformers")
    stated: dict[str, Any] = {"normalize": True, "shared": True, "title_template": "{title} {text}"}
    stated |= {"pooling": "mean", "plain_apostrophes": False, "question_length": 12}
    tiny_model(own / "encoder", dtype=torch.float32, **stated).save(own / "made")
    export_folder(BiEncoder.load(own / "made"), own / "given", "sentence-transformers", source="made")

    def train(max_steps: int) -> None:
        train = TrainNode(batch_size=4, max_steps=max_steps, num_workers=0, token_store="off")
        config = TrainCommand(model_file=str(own / "given"), device="cpu", train=train)
        config.train_datasets, config.output_dir = [str(own / "train.json")], str(own / out)
        command_trainer(config).train()

    train(2)
    train(3)
    assert (own / out / "dpr_biencoder.step3").is_dir()
    write_training_set(own / "train.json", make_samples(12, seed=1))
    with pytest.raises(CheckpointError, match="different run: train_datasets"):
        train(4)
