"""A trainer for tests that takes settings by their names alone; what it computed and what it left."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpr.core.batch import BiEncoderBatch, TokenBatch
from dpr.core.distributed import current_ranks, full_tensor, sum_over_ranks
from dpr.data.collator import Collator
from dpr.data.loader import data_row
from dpr.data.settings import DataSetSettings
from dpr.formats import checkpoints, run_folders
from dpr.jobs.train import build_model, open_sets
from dpr.models.biencoder import BiEncoder
from dpr.models.encoder import Encoder
from dpr.training.bi_encoder_trainer import BiEncoderTrainer
from dpr.training.callbacks import Callback
from dpr.training.callbacks.metrics_file import ReportPage
from dpr.training.command_settings import TrainCommand
from dpr.training.data_sets import resolve_training_files
from dpr.training.run import Run
from dpr.training.step import Step
from dpr.training.validations.protocol import Metrics
from tests.helpers.needs import put
from tests.helpers.tiny import ListSource, make_samples, tiny_model

Tensors = dict[str, Tensor]
DEFAULTS: dict[str, Any] = {
    "batch_size": 8,
    "num_train_epochs": 2,
    "log_batch_step": 1,
    "num_workers": 0,
    "warmup_steps": 0,
}


def make_trainer(
    model: BiEncoder,
    train_sets: Sequence[Any],
    dev_sets: Sequence[Any],
    output_dir: Path,
    *callbacks: Callback,
    report: bool = False,
    **options: Any,
) -> BiEncoderTrainer:
    """``options`` are arguments of the trainer, or settings by their names; the report page is left out by default."""
    trainer = BiEncoderTrainer(
        model, train_sets, dev_sets, output_dir=output_dir, callbacks=callbacks, **{**DEFAULTS, **options}
    )
    if not report:
        trainer.callbacks = [each for each in trainer.callbacks if not isinstance(each, ReportPage)]
    return trainer


def tiny_trainer(
    folder: Path, *callbacks: Callback, name: str = "run", dev_sets: Sequence[Any] = (), **options: Any
) -> BiEncoderTrainer:
    """A trainer of ``folder``/encoder in ``folder``/``name``, with 24 training rows and 5 for validation."""
    model = tiny_model(folder / "encoder", dtype=torch.float32)
    sets = [ListSource(make_samples(24))], dev_sets or [ListSource(make_samples(5, seed=1), "dev")]
    return make_trainer(model, *sets, folder / name, *callbacks, **options)


def trainer_of(config: TrainCommand, model: BiEncoder, train_sets: Any, dev_sets: Any) -> BiEncoderTrainer:
    """The trainer that the settings of the command describe."""
    return BiEncoderTrainer(model, train_sets, dev_sets, output_dir=str(config.output_dir), settings=config)


def small_command(folder: Path, **changes: Any) -> TrainCommand:
    """The settings of a small run in ``folder``/run, of its encoder and train.json; ``changes`` by dotted keys."""
    given = {
        "output_dir": str(folder / "run"),
        "device": "cpu",
        "seed": 3,
        "train_datasets": [str(folder / "train.json")],
        "encoder.pretrained_model_cfg": str(folder / "encoder"),
        "encoder.pretrained": False,
        "encoder.sequence_length": 24,
        "train.batch_size": 4,
        "train.num_workers": 0,
    }
    config = TrainCommand()
    for key, value in (given | changes).items():
        put(config, key, value)
    config.check()
    return config


def command_trainer(config: TrainCommand) -> BiEncoderTrainer:
    """The trainer that ``dpr train`` makes of its settings, without the report page."""
    train = resolve_training_files(config.train_datasets, config.datasets)
    dev = resolve_training_files(config.dev_datasets, config.datasets)
    sets = open_sets(train, config, config.loss_scale_factors), open_sets(dev, config)
    trainer = trainer_of(config, build_model(config), *sets)
    trainer.callbacks = [each for each in trainer.callbacks if not isinstance(each, ReportPage)]
    return trainer


def batch_for(model: BiEncoder, size: int = 8) -> BiEncoderBatch:
    """This rank's batch of ``size`` questions, with two hard negatives and another one each."""
    ranks = current_ranks()
    source = ListSource(make_samples(size * ranks.world_size))
    rows = range(size * ranks.rank, size * (ranks.rank + 1))
    return Collator(model.tensorizer, num_hard=2, num_other=1)(
        [data_row(source, row, DataSetSettings()) for row in rows]
    )


class Calling(Callback):
    """Calls a function at one moment of a run, as ``on_log``."""

    def __init__(self, moment: str, function: Callable[..., Any]) -> None:
        setattr(self, moment, function)


class Curve(Callback):
    """Losses, and norms of the gradient."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.norms: list[float] = []

    def on_log(self, run: Run, metrics: Metrics) -> None:
        self.losses.append(metrics["train/loss"])
        self.norms.append(metrics["optim/grad_norm"])


class StopAfter(Callback):
    """Ends a run after a step, as early stopping does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, run: Run) -> None:
        if run.progress.step == self.step:
            run.request_stop("for a test")


class KilledAt(Callback):
    """Ends the process's part of a run without any of the ceremony of a stop."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_before_optimizer_step(self, run: Run) -> None:
        if run.progress.step + 1 == self.step:
            raise KeyboardInterrupt


def gradients(model: torch.nn.Module) -> Tensors:
    return {
        name: full_tensor(parameter.grad).to_dense().clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def encoded(tower: Encoder, batch: TokenBatch) -> Tensors:
    """Vectors of a batch, and the gradients of a sum in which every number has a weight of its own."""
    tower.zero_grad()
    vectors = tower(batch)
    weights = torch.linspace(-1, 1, vectors.numel(), dtype=vectors.dtype).view(vectors.shape)
    (vectors * weights).sum().backward()
    return {"vectors": vectors.detach(), **gradients(tower)}


def taken(step: Step, model: BiEncoder, batches: Sequence[BiEncoderBatch]) -> Tensors:
    """Loss, number correct and gradient of one optimizer step, as every rank of a group sees them."""
    loss, correct, questions = (torch.zeros((), dtype=torch.float64) for _ in range(3))
    for number, batch in enumerate(batches, 1):
        result = step(batch, num_batches=len(batches), is_last=number == len(batches))
        loss, correct, questions = loss + result.loss, correct + result.num_correct, questions + len(batch)
    sums = {"loss": sum_over_ranks(loss) / sum_over_ranks(questions), "correct": sum_over_ranks(correct)}
    return {**sums, **gradients(model)}


def newest(run: Path) -> Path:
    """The last checkpoint of a run."""
    return run_folders.checkpoint_folders(run)[0]


def stored(run: Path) -> Tensors:
    """Weights and optimizer state of its last checkpoint."""
    weights = checkpoints.read_tensors(newest(run), checkpoints.MODEL_FILE)
    return weights | checkpoints.read_tensors(newest(run), checkpoints.OPTIMIZER_FILE)


def assert_same_bits(found: Tensors, expected: Tensors) -> None:
    assert found.keys() == expected.keys()
    assert not [name for name, tensor in expected.items() if not torch.equal(found[name], tensor)]


def assert_near(found: Tensors, expected: Tensors, tolerance: float, where: str = "") -> None:
    assert found.keys() == expected.keys(), where
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=tolerance, msg=f"{name} {where}")
