"""Callbacks see all moments of a run in order, keep their state over a restart, and stop all ranks."""

from pathlib import Path
from typing import Any

import pytest

from dpr.core.errors import CheckpointError, ConfigError
from dpr.training.bi_encoder_trainer import BiEncoderTrainer
from dpr.training.callbacks import Callback
from dpr.training.callbacks.early_stopping import EarlyStopping
from dpr.training.validations.protocol import Metrics
from tests.helpers.processes import run_on_ranks
from tests.helpers.tiny import ListSource, encoder_folder, make_samples
from tests.helpers.training import tiny_trainer

MOMENTS = [name for name in vars(Callback) if name.startswith("on_")]


class Diary(Callback):
    """Writes down every moment with the step, and remembers over restarts how many steps it saw."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self.steps_seen = 0
        for moment in MOMENTS:
            setattr(self, moment, self._noting(moment))

    def _noting(self, moment: str) -> Any:
        def note(trainer: BiEncoderTrainer, *_: Any) -> None:
            self.entries.append(f"{moment.removeprefix('on_')} {trainer.progress.step}")
            self.steps_seen += moment == "on_step_end"

        return note

    def state_dict(self) -> dict[str, Any]:
        return {"steps_seen": self.steps_seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps_seen = state["steps_seen"]


class StopAt(Callback):
    def __init__(self, step: int, *, on_rank: int = 0) -> None:
        self.step, self.on_rank = step, on_rank

    def on_step_end(self, trainer: BiEncoderTrainer) -> None:
        if trainer.progress.step == self.step and trainer.ranks.rank == self.on_rank:
            trainer.request_stop("for a test")


def test_every_moment_comes_in_its_place(tmp_path: Path) -> None:
    diary = Diary()
    tiny_trainer(tmp_path, diary, max_steps=4).train()  # an epoch has 3 steps
    moments = "global_batch {0},before_optimizer_step {0},after_optimizer_step {0},step_end {1},log {1}"
    step = moments.split(",")
    steps = [[entry.format(number, number + 1) for entry in step] for number in range(4)]
    saved = [f"{moment} {number}" for number in (3, 4) for moment in ("validate_end", "save")]
    assert diary.entries == [
        *("train_begin 0", "epoch_begin 0", *steps[0], *steps[1], *steps[2], "epoch_end 3", *saved[:2]),
        *("epoch_begin 3", *steps[3], *saved[2:], "train_end 4"),
    ]


def test_a_resumed_run_hands_callbacks_their_state_of_the_checkpoints_step(tmp_path: Path) -> None:
    tiny_trainer(tmp_path, Diary(), max_steps=4, save_every_steps=2, eval_per_epoch=0).train()
    first, second = Diary(), Diary()
    job = tiny_trainer(tmp_path, first, second)
    job.resume()
    assert (job.progress.step, first.steps_seen, second.steps_seen) == (4, 4, 0)
    job.train()
    again = [Diary(), Diary()]
    assert tiny_trainer(tmp_path, *again).resume().step == 6
    assert [diary.steps_seen for diary in again] == [6, 2]


def test_an_error_is_passed_to_callbacks_and_raised(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Callback):
        def on_step_end(self, trainer: BiEncoderTrainer) -> None:
            raise RuntimeError("broken on purpose")

        def on_exception(self, trainer: BiEncoderTrainer, error: BaseException) -> None:
            raise ValueError("and again")

    diary = Diary()
    with pytest.raises(RuntimeError, match="broken on purpose"):
        tiny_trainer(tmp_path, Failing(), diary).train()
    assert diary.entries[-1] == "exception 1"
    assert "train_end 1" not in diary.entries
    assert "and again" in caplog.text


def stopped_by_the_second(folder: Path) -> int:
    job = tiny_trainer(folder, StopAt(3, on_rank=1), global_batch_size=8)
    job.train()
    return job.progress.step


def test_one_rank_stops_all_at_the_same_step(tmp_path: Path) -> None:
    encoder_folder(tmp_path / "encoder")
    assert run_on_ranks(stopped_by_the_second, 2, tmp_path) == [3, 3]


@pytest.mark.parametrize("name", ["MetricsFile", "ValidateAndSave"])
def test_each_default_callback_can_be_left_out(tmp_path: Path, name: str) -> None:
    everything = tiny_trainer(tmp_path, max_steps=3).callbacks
    kept = [each for each in everything if type(each).__name__ != name]
    job = tiny_trainer(tmp_path, *kept, max_steps=3, defaults=False)
    job.train()
    assert job.progress.step == 3
    assert name not in [type(callback).__name__ for callback in job.callbacks]
    there = {path.name for path in (tmp_path / "run").iterdir()} - {"metrics.json"}
    missing = {"MetricsFile": {"metrics.jsonl"}, "ValidateAndSave": {"run.json", "dpr_biencoder.step3"}}
    everything = {"metrics.jsonl", "run.json", "dpr_biencoder.step3"}
    assert there == everything - missing.get(name, set())


def test_callbacks_that_are_given_are_added_to_the_usual_ones_or_are_all(tmp_path: Path) -> None:
    mine = Diary()
    names = [type(callback).__name__ for callback in tiny_trainer(tmp_path, mine).callbacks]
    assert names[names.index("Diary") + 1] == "LogEvery" and names[-1] == "ValidateAndSave"
    assert tiny_trainer(tmp_path, mine, defaults=False).callbacks == [mine]


def test_making_a_trainer_touches_no_file(tmp_path: Path) -> None:
    tiny_trainer(tmp_path, max_steps=3).train()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    tiny_trainer(tmp_path)
    tiny_trainer(tmp_path, name="another")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


class Seen:
    """A trainer as far as early stopping looks at it."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.validations: list[object] = []

    def request_stop(self, reason: str) -> None:
        self.reasons.append(reason)

    def best_by(self, metrics: Metrics) -> tuple[str, bool]:
        return next(iter(metrics)), False


def stops_after(callback: EarlyStopping, values: list[float], name: str = "eval/nll_loss") -> int | None:
    trainer: Any = Seen()
    for number, value in enumerate(values, 1):
        callback.on_validate_end(trainer, {name: value})
        if trainer.reasons:
            return number
    return None


@pytest.mark.parametrize(
    ("options", "values", "stop"),
    [
        ({"patience": 2}, [3.0, 2.0, 2.5, 2.0], 4),
        ({"patience": 2}, [3.0, 3.1, 2.9, 3.0, 2.8], None),
        ({"patience": 1, "min_delta": 0.5}, [3.0, 2.7], 2),
        ({"patience": 2, "min_delta": 0.5}, [3.0, 2.7, 2.4, 2.3, 2.0], 5),
        ({"patience": 1}, [float("nan")], 1),
    ],
)
def test_when_it_stops(options: dict[str, Any], values: list[float], stop: int | None) -> None:
    assert stops_after(EarlyStopping(**options), values) == stop


def test_another_metric_starts_over() -> None:
    callback = EarlyStopping(patience=2)
    assert stops_after(callback, [1.0, 2.0]) is None
    assert stops_after(callback, [50.0, 49.0, 49.5], name="eval/avg_rank") is None
    assert stops_after(callback, [49.5], name="eval/avg_rank") == 1


def test_a_metric_that_is_not_there_is_a_warning_and_does_not_count(caplog: pytest.LogCaptureFixture) -> None:
    trainer: Any = Seen()
    trainer.best_by = lambda metrics: ("eval/mrr", True)
    callback = EarlyStopping(patience=1)
    for value in (1.0, 2.0, 3.0):
        callback.on_validate_end(trainer, {"eval/nll_loss": value})
    assert trainer.reasons == [] and "no eval/mrr" in caplog.text


def test_its_memory_is_that_of_the_checkpoint() -> None:
    first = EarlyStopping(patience=2)
    assert stops_after(first, [1.0, 2.0]) is None
    second = EarlyStopping(patience=2)
    second.load_state_dict(first.state_dict())
    assert stops_after(second, [1.5]) == 1


def trainer(folder: Path, *callbacks: Callback, name: str = "run", **options: Any) -> BiEncoderTrainer:
    dev_sets = [ListSource(make_samples(5, seed=1), "dev"), ListSource(make_samples(4, seed=2), "other")]
    options.setdefault("learning_rate", 1e-2)
    return tiny_trainer(folder, *callbacks, name=name, dev_sets=dev_sets, **options)


def stopped_run(folder: Path, **options: Any) -> int:
    options |= {"eval_every_steps": 1, "global_batch_size": 8}
    job = trainer(folder, EarlyStopping(patience=1, min_delta=100.0), **options)
    job.train()
    return job.progress.step


def test_a_run_that_was_stopped_stays_stopped(tmp_path: Path) -> None:
    encoder_folder(tmp_path / "encoder")
    assert run_on_ranks(stopped_run, 2, tmp_path) == [2, 2]
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert run_on_ranks(stopped_run, 2, tmp_path) == [2, 2]
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
    with pytest.raises(CheckpointError, match=r"train\.learning_rate was 0\.01, is now 0\.02"):
        stopped_run(tmp_path, learning_rate=0.02)


def test_a_best_metric_that_is_none_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"eval/typo is not a metric .*eval/dev/nll_loss"):
        trainer(tmp_path, best_metric="eval/typo").train()
