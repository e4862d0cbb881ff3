"""The loop: when things are due, what a checkpoint restores, and how wrong settings and arguments are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import TrainingArguments

from dpr.core.batch import BiEncoderBatch
from dpr.core.errors import CheckpointError, ConfigError
from dpr.core.records import Passage, TrainingSample
from dpr.formats import run_folders
from dpr.formats.training_files.dpr import write_training_set
from dpr.formats.training_sets import open_training_set
from dpr.losses.candidates import score_matrix
from dpr.losses.protocol import GlobalBatch, Loss, LossResult
from dpr.models.biencoder import BiEncoder, TowerOptions
from dpr.training.bi_encoder_trainer import BiEncoderTrainer
from dpr.training.callbacks import Callback
from dpr.training.callbacks.saving import ValidateAndSave
from dpr.training.run import RunProgress
from dpr.training.settings import Periods
from dpr.training.validations.protocol import Metrics
from tests.helpers.tiny import ListSource, make_samples, tiny_model
from tests.helpers.training import Calling, make_trainer


def trainer(
    folder: Path, *callbacks: Callback, name: str = "run", dev: bool = True, dropout: float = 0.0, **more: Any
) -> BiEncoderTrainer:
    model = tiny_model(folder / "encoder", dtype=torch.float32, dropout=dropout)
    devs = [ListSource(make_samples(9, seed=1), "dev")] if dev else []
    train_sets = more.pop("train_sets", [ListSource(make_samples(40))])
    more.setdefault("learning_rate", 1e-3)
    more.setdefault("eval_at_start", False)
    return make_trainer(model, train_sets, devs, folder / name, *callbacks, **more)


def test_a_validation_comes_at_the_end_of_an_epoch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="dpr"):
        best = trainer(tmp_path).train()
    assert [line["epoch"] for line in lines_of(tmp_path / "run", "train/loss")] == [0] * 5 + [1] * 5
    assert [line["epoch"] for line in lines_of(tmp_path / "run", "eval/nll_loss")] == [0, 1]
    assert "epoch 0 step 5/10" in caplog.text and "epoch 1 step 10/10" in caplog.text
    final = json.loads((tmp_path / "run" / "metrics.json").read_text())
    values = [line["eval/nll_loss"] for line in lines_of(tmp_path / "run", "eval/nll_loss")]
    assert final["best_value"] == best == min(values)


@pytest.mark.parametrize(
    ("options", "due"),
    [
        ({"eval_per_epoch": 1}, [10, 20]),
        ({"eval_per_epoch": 2}, [5, 10, 15, 20]),
        ({"eval_per_epoch": 3}, [4, 8, 10, 14, 18, 20]),
        ({"eval_per_epoch": 0}, []),
        ({"eval_every_steps": 7}, [7, 14]),
    ],
)
def test_when_a_validation_is_due(options: dict[str, int], due: list[int]) -> None:
    callback = ValidateAndSave(Periods(**options))
    assert [step for step in range(1, 21) if callback.due_at(step, 100, 10)[0]] == due


def test_average_rank_takes_over_and_the_best_starts_afresh(tmp_path: Path) -> None:
    job = trainer(tmp_path, val_av_rank_start_epoch=1)
    job.train()
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["best_metric"] == "eval/avg_rank"
    assert metrics["best_value"] == metrics["eval/avg_rank"] > 0
    assert job.progress.is_improved_by("eval/avg_rank", 0.0)
    assert not RunProgress(best_metric="a", best_value=0.0).is_improved_by("a", 0.0)


def test_old_checkpoints_go_but_the_best_stays(tmp_path: Path) -> None:
    job = trainer(tmp_path, keep_last=2, eval_every_steps=1, dev=True)
    job.train()
    folders = run_folders.checkpoint_folders(tmp_path / "run")
    kept = [int(folder.name.rpartition("step")[2]) for folder in folders]
    best = int(str(job.progress.best_checkpoint).rpartition("step")[2])
    assert kept == sorted({10, 9, best}, reverse=True)
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["last_checkpoint"] == "dpr_biencoder.step10"
    places = (tmp_path / "run", tmp_path / "run" / run["best_checkpoint"])
    assert len({BiEncoder.load(place).fingerprint for place in places}) == 1


def test_run_json_follows_where_a_save_was_killed_between_the_two(tmp_path: Path) -> None:
    trainer(tmp_path, eval_every_steps=5, dev=True).train()
    file = tmp_path / "run" / "run.json"
    text = file.read_text()
    step = "dpr_biencoder.step5"
    before = json.dumps({**json.loads(text), "last_checkpoint": step, "best_checkpoint": step})
    for left in (before, before[:30]):
        file.write_text(left)
        trainer(tmp_path, eval_every_steps=5, dev=True).train()
        assert file.read_text() == text
    file.write_text(json.dumps({**json.loads(text), "stopped_at_step": 10}))
    trainer(tmp_path, eval_every_steps=5, dev=True).train()
    assert "stopped_at_step" in json.loads(file.read_text()), "what is there already stays"


def test_a_folder_that_holds_a_run_is_refused_for_a_fresh_one(tmp_path: Path) -> None:
    trainer(tmp_path, max_steps=2).train()
    with pytest.raises(ConfigError, match="holds a run already"):
        trainer(tmp_path, resume="fresh").train()


def noting(logs: list[Metrics]) -> Callback:
    """Adds what is logged, with the step, to ``logs``."""
    return Calling("on_log", lambda run, metrics: logs.append({**metrics, "step": run.progress.step}))


def test_half_precision_trains(tmp_path: Path) -> None:
    losses: dict[str, list[float]] = {}
    for precision in ("bf16", "fp32"):
        logs: list[Metrics] = []
        settings = {"learning_rate": 1e-2, "dev": False, "num_train_epochs": 4, "train_sets": [learnable()]}
        trainer(tmp_path, noting(logs), name=precision, precision=precision, **settings).train()
        losses[precision] = [log["train/loss"] for log in logs]
    assert losses["bf16"][-1] < losses["bf16"][0] - 0.1
    assert losses["bf16"][0] == pytest.approx(losses["fp32"][0], rel=0.05)
    assert losses["bf16"] != losses["fp32"]


def learnable() -> ListSource:
    """Each question stands word for word in its passage."""
    samples = [TrainingSample(sample.question, (Passage(sample.question),)) for sample in make_samples(40)]
    return ListSource(samples)


def test_a_folder_that_cannot_be_written_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(CheckpointError, match="output_dir"):
        trainer(tmp_path).train()


def lines_of(folder: Path, key: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if key in line]


def test_a_best_metric_may_be_missing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    name = "eval/in_batch_acc"
    options = {"best_metric": name, "val_av_rank_start_epoch": 2}
    job = trainer(tmp_path, num_train_epochs=4, max_steps=15, **options)
    job.train()
    values = {line["step"]: line[name] for line in lines_of(tmp_path / "run", name)}
    assert len(values) in (1, 2)
    best = max(values, key=values.__getitem__)
    assert (job.progress.best_metric, job.progress.best_value) == (name, values[best])
    assert job.progress.best_checkpoint == f"dpr_biencoder.step{best}"
    assert caplog.text.count(f"train.best_metric={name} is not a metric of") == 1
    again = trainer(tmp_path, num_train_epochs=4, **options)
    again.train()
    assert again.progress.step == 20
    assert (tmp_path / "run" / "dpr_biencoder.step20").is_dir()


def test_a_period_of_0_is_off(tmp_path: Path) -> None:
    job = trainer(tmp_path, max_steps=6, log_batch_step=0, eval_per_epoch=0)
    job.train()
    assert job.progress.step == 6
    assert not lines_of(tmp_path / "run", "train/loss")
    assert [line["step"] for line in lines_of(tmp_path / "run", "eval/nll_loss")] == [6]


@pytest.mark.parametrize(("temperature", "is_warned"), [(1.0, True), (None, False), (0.2, False)])
def test_a_temperature_that_keeps_the_loss_high_is_warned_of(
    tmp_path: Path, temperature: float | None, is_warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    options = TowerOptions() if temperature is None else TowerOptions(temperature=temperature)
    model = tiny_model(tmp_path / "encoder", options=options, normalize=True)
    make_trainer(model, [ListSource(make_samples(16))], [], tmp_path / "run", max_steps=1).train()
    assert ("loss.temperature=1: similarities" in caplog.text) == is_warned


def test_few_negatives_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for batch_size in (4, 2):
        assert "which teach little" not in caplog.text
        trainer(tmp_path, name=f"run-{batch_size}", max_steps=1, batch_size=batch_size).train()
    assert "which teach little" in caplog.text


@pytest.mark.parametrize(
    ("normalize", "settings", "value"),
    [(True, {}, 0.05), (False, {}, 1.0), (True, {"temperature": 0.3}, 0.3), (True, {"compat": "dpr"}, 1.0)],
)
def test_the_temperature_that_nobody_has_set(
    tmp_path: Path, normalize: bool, settings: dict[str, Any], value: float, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_model(tmp_path / "encoder", normalize=normalize)
    with caplog.at_level("INFO"):
        make_trainer(model, [ListSource(make_samples(16))], [], tmp_path / "run", **settings)
    assert float(model.temperature) == value
    assert ("loss.temperature is not set: it is 0.05" in caplog.text) == (value == 0.05)


def test_a_resumed_run_keeps_the_temperature_that_nobody_sets_now(tmp_path: Path) -> None:
    def made(**settings: Any) -> BiEncoderTrainer:
        model = tiny_model(tmp_path / "encoder", normalize=True)
        return make_trainer(model, [ListSource(make_samples(16))], [], tmp_path / "run", **settings)

    made(temperature=1.0, max_steps=1).train()
    again = made(max_steps=2)
    again.train()
    assert (again.progress.step, float(again.model.temperature)) == (2, 1.0)


class Summed(Loss):
    """Takes masked scores for scores."""

    def __call__(self, questions: Tensor, global_batch: GlobalBatch, batch: BiEncoderBatch) -> LossResult:
        scores = global_batch.candidates.mask_(score_matrix(questions, global_batch.contexts))
        return LossResult(-scores.mean(1), scores[:, 0] > 0)


@pytest.mark.parametrize("loss", [Summed(), None])
def test_masked_scores_in_a_sum(tmp_path: Path, loss: Loss | None, caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_model(tmp_path / "encoder")
    samples = [TrainingSample("ba", (Passage(word),)) for word in ("be", "bi", "bo", "bu") * 4]
    sets = [ListSource(samples)]
    make_trainer(model, sets, [], tmp_path / "run", loss=loss, max_steps=3, log_batch_step=1).train()
    assert caplog.text.count("must not add up masked scores") == (loss is not None)


def test_questions_of_dev_and_train_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpr.training.bi_encoder_trainer._HASHES_AT_ONCE", 5)
    model = tiny_model(tmp_path / "encoder")
    rows = [{"question": one.question, "positive": one.positives[0].text} for one in make_samples(16)]
    dev = [{**rows[0], "question": rows[0]["question"].upper()}, {"question": "ba ce", "positive": "be"}]
    make_trainer(model, rows, dev, tmp_path / "run")
    assert "1 of the 2 dev questions are also training questions" in caplog.text


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
        ({"lr": 1e-5}, "there is no setting lr; write learning_rate=1e-05"),
        ({"device": "cuda"}, "there is no setting device; write model=model.to(device)"),
        ({"batchsize": 8}, "there is no setting batchsize; did you mean batch_size"),
        ({"train_dataset": []}, "there is no setting train_dataset; write train_sets=..."),
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


def test_arguments_of_transformers_are_translated(parts: dict[str, Any]) -> None:
    given = TrainingArguments(
        "out",
        per_device_train_batch_size=16,
        warmup_steps=0.1,
        adam_epsilon=1e-6,
        bf16=True,
        use_cpu=True,
        tf32=False,
        adam_beta2=0.98,
        load_best_model_at_end=True,
        eval_strategy="steps",
        metric_for_best_model="eval_loss",
    )
    for options in ({"args": given}, {"train_sets": given}):
        with pytest.raises(ConfigError) as error:
            BiEncoderTrainer(**parts | options)
        message = str(error.value)
        for line in (
            "output_dir='out'",
            "batch_size=16",
            "adam_eps=1e-06",
            "precision='bf16'",
            "learning_rate=5e-05",
        ):
            assert line in message
        assert "warmup_steps: absent = a tenth" in message and "use_cpu: model.to('cpu')" in message
        assert "adam_betas='(0.9, 0.98)'" in message and "metric_for_best_model: leave it out" in message
        assert "seed" not in message and "best_metric='eval_loss'" not in message


def test_settings_of_the_loss_are_given_by_name(parts: dict[str, Any]) -> None:
    model = parts["model"]
    trainer = BiEncoderTrainer(**parts, batch_size=4, temperature=0.05, dimensions=[16, 8])
    assert float(model.temperature) == pytest.approx(0.05)
    assert trainer.settings.loss.dimensions == [16, 8]
    with pytest.raises(TypeError, match="'resume_from_checkpoint': train\\(\\) resumes the run"):
        trainer.train(resume_from_checkpoint="folder")
    with pytest.raises(ConfigError, match="no setting resume_from_checkpoint: train\\(\\) resumes the run"):
        BiEncoderTrainer(**parts, resume_from_checkpoint=True)
    with pytest.raises(AttributeError, match=r"no attribute 'save_model': trainer.model.save\(folder\)"):
        trainer.save_model("folder")

    folder = Path(parts["output_dir"]).parent / "encoder"
    options = TowerOptions(temperature=0.1, learn_temperature=True)
    learning = tiny_model(folder, dtype=torch.float32, options=options)
    with pytest.raises(ConfigError, match=r"temperature=0\.05, but the model learns its own from 0\.1"):
        BiEncoderTrainer(**parts | {"model": learning}, batch_size=4, temperature=0.05)
