"""With train.ema_decay, the mean of the weights is measured and saved; training is as without it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dpr.core.distributed import barrier
from dpr.formats import checkpoints
from dpr.models.biencoder import BiEncoder, TowerOptions
from dpr.training.run import Run
from tests.helpers.processes import run_on_ranks
from tests.helpers.tiny import ListSource, make_samples, static_folder, tiny_model
from tests.helpers.training import StopAfter, assert_near, assert_same_bits, make_trainer

DECAY, STEPS, STOP_AT = 0.8, 10, 4


class Watcher(StopAfter):
    """Remembers the weights after every update, and stops after one of them."""

    def __init__(self, step: int = 0) -> None:
        super().__init__(step)
        self.seen: list[dict[str, Tensor]] = []

    def on_step_end(self, run: Run) -> None:
        super().on_step_end(run)
        self.seen.append({name: tensor.clone() for name, tensor in run.model.weights().items()})


def train(
    folder: Path, out: Path, *, stop_after: int = 0, ema_decay: float = DECAY, **options: Any
) -> tuple[Watcher, BiEncoder]:
    """A run that resumes what it finds in ``out``; what it saw, and the model that it left."""
    towers = TowerOptions(learn_temperature=True, temperature=0.5)
    model = tiny_model(folder, options=towers, pooling="mean", normalize=True)
    options |= {"global_batch_size": 12, "learning_rate": 1e-2, "eval_every_steps": 2, "keep_last": 0}
    watcher = Watcher(stop_after)
    train_sets, dev = [ListSource(make_samples(60))], [ListSource(make_samples(10, seed=1), "dev")]
    make_trainer(model, train_sets, dev, out, watcher, ema_decay=ema_decay, **options).train()
    return watcher, model


def stored(run: Path, step: int = STEPS) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights and optimizer state of a checkpoint."""
    folder = run / f"dpr_biencoder.step{step}"
    return checkpoints.read_tensors(folder, checkpoints.MODEL_FILE), checkpoints.read_tensors(
        folder, checkpoints.OPTIMIZER_FILE
    )


def on_ranks(folder: Path, runs: Path) -> None:
    train(folder, runs / "2")
    train(folder, runs / "sharded", sharding="fsdp2", stop_after=STOP_AT)
    train(folder, runs / "sharded", sharding="fsdp2")
    barrier()


@pytest.fixture(scope="module", params=["transformer", "static"])
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The encoder, and runs of one process: whole, stopped and resumed, and without averages."""
    folder, runs = tmp_path_factory.mktemp("model") / "encoder", tmp_path_factory.mktemp("runs")
    if request.param == "static":
        static_folder(folder)
    train(folder, runs / "half", stop_after=STOP_AT)
    train(folder, runs / "half")
    train(folder, runs / "plain", ema_decay=0.0)
    return folder, runs


def test_it_is_the_mean_that_is_written_down_by_hand(runs: tuple[Path, Path]) -> None:
    folder, out = runs
    watcher, model = train(folder, out / "one")
    weights, state = stored(out / "one")
    assert weights.keys() == watcher.seen[-1].keys() and len(watcher.seen) == STEPS
    start = tiny_model(
        folder, options=TowerOptions(learn_temperature=True, temperature=0.5), pooling="mean", normalize=True
    ).weights()
    for name, mean in weights.items():
        # A row of a table that learns by rows counts the updates that changed it.
        by_rows = state[f"step/{name}"].dim() == 1
        expected, total, before = (
            torch.zeros_like(mean),
            torch.zeros(len(mean) if by_rows else 1, dtype=torch.float64),
            start[name],
        )
        for after in (each[name] for each in watcher.seen):
            is_new = (after != before).any(1) if by_rows else torch.ones(1, dtype=torch.bool)
            kept, rest = 1 - (1 - DECAY) * is_new.double(), (-1, 1) if by_rows else ()
            expected = kept.view(rest) * expected + is_new.double().view(rest) * after
            total, before = kept * total + is_new, after
        expected = torch.where(
            (total > 0).view(rest), expected / total.clamp(min=0.1).view(rest), start[name]
        )
        torch.testing.assert_close(mean, expected, rtol=0, atol=1e-12, msg=name)
        assert torch.equal(state[f"twin/{name}"], watcher.seen[-1][name])
    assert not torch.equal(mean, watcher.seen[-1][name])
    assert all(torch.equal(model.weights()[name], tensor) for name, tensor in weights.items()), (
        "the run leaves the mean in the model"
    )


def test_what_is_trained_does_not_depend_on_it(runs: tuple[Path, Path]) -> None:
    _, out = runs
    (_, averaged), (plain, without) = stored(out / "half"), stored(out / "plain")
    assert all(torch.equal(averaged[f"twin/{name}"], tensor) for name, tensor in plain.items())
    assert without.keys() == {name for name in averaged if not name.startswith("twin/")}
    assert all(torch.equal(averaged[name], tensor) for name, tensor in without.items())


def test_a_resumed_run_has_the_same_bits(runs: tuple[Path, Path]) -> None:
    folder, out = runs
    train(folder, out / "one")
    for found, expected in zip(stored(out / "half"), stored(out / "one"), strict=True):
        assert_same_bits(found, expected)
    assert (out / "half" / "metrics.json").read_text() == (out / "one" / "metrics.json").read_text()


def test_what_is_measured_is_what_is_saved(runs: tuple[Path, Path]) -> None:
    _, out = runs
    measured = {
        which: json.loads((out / which / "metrics.json").read_text())["eval/nll_loss"]
        for which in ("half", "plain")
    }
    model = BiEncoder.load(out / "half" / f"dpr_biencoder.step{STEPS}")  # in float32
    dev = [ListSource(make_samples(10, seed=1), "dev")]
    trainer = make_trainer(model, [ListSource(make_samples(60))], dev, out / "other")
    assert trainer.validate()["eval/nll_loss"] == pytest.approx(measured["half"], abs=1e-6)
    assert measured["half"] != pytest.approx(measured["plain"], abs=5e-6)


@pytest.mark.parametrize("runs", ["transformer"], indirect=True)
def test_it_can_be_switched_off_and_on_while_a_run_goes_on(runs: tuple[Path, Path], tmp_path: Path) -> None:
    folder, out = runs
    for name, first in (("off", DECAY), ("on", 0.0)):
        train(folder, tmp_path / name, stop_after=STOP_AT, ema_decay=first)
        train(folder, tmp_path / name, ema_decay=0.0 if first else DECAY)
    plain = stored(out / "plain")
    for found, expected in zip(stored(tmp_path / "off"), plain, strict=True):
        assert_same_bits(found, expected)
    assert all(torch.equal(stored(tmp_path / "on")[1][f"twin/{key}"], each) for key, each in plain[0].items())


def test_the_mean_is_the_same_on_any_ranks_and_sharded_and_resumed(tmp_path: Path) -> None:
    folder, out = tmp_path / "encoder", tmp_path / "runs"
    train(folder, out / "1")
    run_on_ranks(on_ranks, 2, folder, out)
    expected = stored(out / "1")
    for name in ("2", "sharded"):
        for found, other in zip(stored(out / name), expected, strict=True):
            assert_near(found, other, 1e-9, name)
    shutil.rmtree(out)
