"""The training loop, from batches to updates. Everything periodic is left to callbacks."""

from __future__ import annotations

import math
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.profiler import record_function

from dpr.core import lost_ranks
from dpr.core.batch import BiEncoderBatch
from dpr.core.distributed import Ranks, current_ranks, from_main, on_main
from dpr.core.errors import StopRequested
from dpr.core.logs import configure_by_default, get_logger
from dpr.core.other_names import missing, refuse
from dpr.core.seeding import seed_torch
from dpr.core.stopping import describe
from dpr.data.loader import batch_loader
from dpr.data.order import DROPOUT
from dpr.data.training_data import OpenedSets
from dpr.evaluation.ranking_metrics import finest, is_baseline
from dpr.formats.run_folders import checkpoint_name, seal_run
from dpr.losses.protocol import Loss, LossResult
from dpr.models.encoder import checkpoint_activations
from dpr.models.properties import mention_bf16
from dpr.models.towers import Towers
from dpr.storage.durable import write_json
from dpr.training.checkpointing import CheckpointFolder, StateOfRun
from dpr.training.compute import clip_gradients, data_parallel, freeze_unneeded, shard
from dpr.training.grad_cache import CachedStep
from dpr.training.identity import RunIdentity, check_identity, run_identity, stored_value
from dpr.training.metrics import TrainingMetrics
from dpr.training.optimizer import learning_rate_factor, make_optimizer, set_learning_rate
from dpr.training.plan import log_summary, make_plan, require_teacher_scores
from dpr.training.run import Callback, Run, RunProgress
from dpr.training.settings import TrainingSettings, TrainNode
from dpr.training.step import DirectStep, Step
from dpr.training.stopping import FiniteCheck, StopAgreement
from dpr.training.validations.protocol import (
    Metrics,
    Validation,
    broken_guard,
    guard_limits,
    higher_is_better,
    run_validations,
)

logger = get_logger(__name__)

LARGE_LOSS = 1e6
"""Loss above which a warning is logged. float32 resolves a larger loss to a tenth at best, which is more than
a step gains."""


class Trainer(Run):
    """Trainer of a bi-encoder on one or several ranks. To callbacks it is a ``Run``, which documents the
    methods that callbacks may call. Call ``train()``.

    It refers to no particular callback or validation: nothing is logged, validated or saved unless a callback
    does it. ``BiEncoderTrainer`` assembles them from settings. ``train_sets`` and ``dev_sets`` are open.
    ``validations`` have the dev sets already; here they tell a resumed run whether its metrics can be
    compared. ``config`` is stored in checkpoints for information.

    Raises:
        ConfigError: settings that do not fit the data.
    """

    epoch = 0
    saved_step = -1
    learning_rate = 0.0
    identity: RunIdentity | None = None
    is_stopping = False
    _is_open = False
    _warned_of_best = False
    _warned_of_loss = False

    def __init__(
        self,
        model: Towers,
        train_sets: OpenedSets,
        dev_sets: OpenedSets,
        *,
        output_dir: Path,
        settings: TrainingSettings,
        loss: Loss,
        validations: Sequence[Validation] = (),
        callbacks: Sequence[Callback] = (),
        config: dict[str, Any] | None = None,
    ) -> None:
        train = settings.train
        self.model = model
        self.output_dir = output_dir
        self.settings = settings
        self.loss = loss
        self.validations = list(validations)
        self.callbacks = list(callbacks)
        self.config = asdict(settings) if config is None else config
        self.device = model.device
        self.ranks = current_ranks()
        self.checkpoints = CheckpointFolder(output_dir, keep_last=train.keep_last)
        self._dev_sets = dev_sets

        sources = [source for source, _ in train_sets]
        require_teacher_scores(sources, settings)
        # Global batches have the size of the run found in the folder, if any, unless it is set.
        stored_size = int(stored_value(output_dir, settings, "train.global_batch_size"))
        global_batch_size = train.global_batch_size or stored_size or train.batch_size * self.ranks.world_size
        self.plan = make_plan(
            train_sets, model.tensorizer, settings, global_batch_size=global_batch_size, ranks=self.ranks
        )
        self.steps_per_epoch = self.plan.steps_per_epoch
        self.total_steps = self.plan.total_steps
        self.last_step = self.plan.last_step

        mention_bf16(model.ctx_model.backbone, self.device, train.precision, key="train.precision")
        freeze_unneeded(model, precision=train.precision)
        if train.deterministic:
            # cuBLAS reads it on first use.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
            torch.backends.cudnn.benchmark = False
        if train.gradient_checkpointing:
            checkpoint_activations(model.trained_towers())
        self.training_step = make_step(model, loss, train, ranks=self.ranks, device=self.device)
        self.training_step.on_global_batch = partial(self.emit, "on_global_batch")
        self.optimizer = make_optimizer(model, train)
        self.finite_check = FiniteCheck(self.device, has_loss_scale=train.precision == "fp16")

        self.progress = RunProgress()
        self.metrics = TrainingMetrics(model, [source.name for source in sources])
        self.grad_norm = torch.zeros(())
        self.results: list[LossResult] = []
        self._better: dict[str, Any] = {}
        self._stopping = StopAgreement()

    def train(self, **others: Any) -> float | None:
        """Runs to the end. Returns the best validation value, or None if there is none. A finished run
        returns at once.

        Raises:
            CheckpointError: ``output_dir`` holds a different run, or only damaged checkpoints, or another
                process writes there.
            ConfigError: ``resume`` does not fit the content of ``output_dir``.
            StopRequested: a signal ended the run before its last step.
            DivergedError: the gradient was NaN or infinite in too many updates in a row.
        """
        if others.get("resume_from_checkpoint") is True:  # as ever
            del others["resume_from_checkpoint"]
        refuse(others, "train()")
        configure_by_default(rank=self.ranks.rank)
        try:
            self.resume()
            log_summary(self.plan, self.settings, self.model, num_ranks=self.ranks.world_size)
            with (
                lost_ranks.named(lambda: f"at step {self.progress.step + 1}"),
                self._stopping.signals,
                closing(self.micro_batches()) as batches,
            ):
                self._run(batches)
                on_main(lambda: write_json(self.output_dir / "metrics.json", self.progress.summary()))
                on_main(lambda: seal_run(self.output_dir))
        except BaseException as error:
            for callback in self.callbacks:
                try:
                    callback.on_exception(self, error)
                except Exception as second:
                    logger.warning("%s failed while handling an error: %s", type(callback).__name__, second)
            raise
        finally:
            self.checkpoints.lock.release()
            self._is_open = False
        return self.progress.best_value

    if not TYPE_CHECKING:  # type checkers would accept any name
        __getattr__ = missing

    def resume(self) -> RunProgress:
        """Takes the lock of ``output_dir`` and restores the run found there, if any. ``train`` begins with it
        and raises the same errors."""
        if self._is_open:
            return self.progress
        self.checkpoints.prepare()
        self._is_open = True
        stored = self.checkpoints.stored_run(fresh=self.settings.resume == "fresh")
        self.identity = run_identity(
            *(self.settings, self.model, self.loss, self.ranks),
            of_batches=self.plan.identity(),
            total_steps=self.total_steps,
            dev_sets=self._dev_sets,
            validations=self.validations,
            callbacks=self.callbacks,
            output_dir=self.output_dir,
        )
        if stored is not None:
            check_identity(self.identity, stored, self.settings)
            progress = stored.progress
            with self.optimizer.averaged():
                self._state.read(stored.folder)
            logger.info(
                "%s %s at step %d of %d",
                "already finished:" if progress.step >= self.last_step else "resuming from",
                stored.folder,
                progress.step,
                self.last_step,
            )
            best = progress.best_checkpoint
            if best and not from_main((self.output_dir / best).is_dir()):
                logger.warning(
                    "%s: the best checkpoint %s is missing; it is chosen again", self.output_dir, best
                )
                progress.forget_best()
            self.progress = progress
            self.saved_step = progress.step
        self.epoch = max(self.progress.step - 1, 0) // self.steps_per_epoch
        return self.progress

    def _run(self, batches: Iterator[BiEncoderBatch]) -> None:
        self.emit("on_train_begin")
        self.metrics.begin(self.progress.unlogged)
        self.finite_check.begin(self.progress.skipped)
        # All ranks agree on whether to stop. They do so here, where every rank passes, and nowhere else.
        # a run that early stopping ended stays ended
        self.is_stopping = self._stopping.reached(self.progress.step)
        self.model.train()
        while not self._is_over():
            self.epoch = self.progress.step // self.steps_per_epoch
            self.emit("on_epoch_begin")
            while not self._is_over() and self.progress.step // self.steps_per_epoch == self.epoch:
                self.results = []
                for number in range(self.plan.accumulation):
                    with record_function("dpr/data"):
                        batch = next(batches)
                    self.results.append(self.forward_backward(batch, number))
                with record_function("dpr/update"):
                    self.update()
                self.progress.step += 1
                self.finite_check.stop_if_hopeless(self.progress.step)
                self.emit("on_step_end")
                if self.progress.step % self.steps_per_epoch == 0:
                    self.emit("on_epoch_end")
                self.is_stopping = self._stopping.reached(self.progress.step)
        if self.is_stopping and self.saved_step != self.progress.step:
            self.save()
        if self._stopping.signal and self.progress.step < self.last_step:
            asked = describe(self._stopping.signal)
            step = self.progress.step
            if self.saved_step == step:
                self.checkpoints.note_stop(step)
                raise StopRequested(
                    f"{asked}; saved at step {step} of {self.last_step}. Rerun the same command to resume"
                )
            raise StopRequested(
                f"{asked}; step {step} could not be saved, earlier checkpoints are intact",
                exit_code=128 + self._stopping.signal,
            )
        self.checkpoints.require_saved(self.progress.step)
        self.optimizer.swap()
        self.emit("on_train_end")

    def _is_over(self) -> bool:
        return self.is_stopping or self.progress.step >= self.last_step

    def micro_batches(self) -> Generator[BiEncoderBatch, None, None]:
        """Yields this rank's batches from the current step. Worker processes make them, and end when the
        generator is closed."""
        train = self.settings.train
        yield from batch_loader(
            self.plan.dataset,
            self.plan.order_from(self.progress.step),
            num_workers=train.num_workers,
            pin_memory=self.device.type == "cuda",
        )

    def forward_backward(self, batch: BiEncoderBatch, number: int) -> LossResult:
        """Adds the gradient of micro-batch ``number`` of the coming update. Dropout depends on (seed, step,
        number, rank) alone."""
        seed_torch(DROPOUT, self.settings.seed, self.progress.step, number, self.ranks.rank)
        if not self.loss.reads_passages and not any(
            callback.needs_global_batch(self) for callback in self.callbacks
        ):
            batch = batch.with_one_context()
        result = self.training_step(
            batch, num_batches=self.plan.accumulation, is_last=number == self.plan.accumulation - 1
        )
        self.metrics.add(result, batch)
        return result

    def update(self) -> None:
        """Does one optimizer step: unscale, clip once, set the learning rate, update, clear."""
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        self.training_step.scaler.unscale_(self.optimizer)
        self.grad_norm = clip_gradients(
            parameters, self.settings.gradient_limit(self.ranks.world_size) or float("inf")
        )
        self.finite_check.check(self.optimizer, self.grad_norm)
        train = self.settings.train
        self.learning_rate = train.learning_rate * learning_rate_factor(
            self.settings.lr_schedule(),
            self.progress.step,
            total_steps=self.total_steps,
            warmup_steps=train.warmup(self.total_steps),
        )
        set_learning_rate(self.optimizer, self.learning_rate)
        self.emit("on_before_optimizer_step")
        self.training_step.scaler.step(self.optimizer)
        self.training_step.scaler.update()
        self.emit("on_after_optimizer_step")
        self.optimizer.zero_grad(set_to_none=True)

    def num_texts(self) -> int:
        return self.plan.num_texts()

    def take_metrics(self, *, matrix_speed: float = 0.0) -> Metrics:
        metrics = self.metrics.take(matrix_speed=matrix_speed)
        loss = metrics.get("train/loss", 0.0)
        if abs(loss) > LARGE_LOSS and not self._warned_of_loss:
            self._warned_of_loss = True
            logger.warning(
                "step %d: the loss is %.1e; a user-defined loss must not add up masked scores"
                " (docs/extending.md), any other has diverged: lower train.learning_rate",
                self.progress.step,
                loss,
            )
        if not self.loss.reads_passages:
            metrics = {name: value for name, value in metrics.items() if not name.endswith("/in_batch_acc")}
        metrics |= {"optim/lr": self.learning_rate, "optim/grad_norm": float(self.grad_norm)}
        if self.training_step.scaler.is_enabled():
            metrics["optim/loss_scale"] = (
                self.training_step.scaler.get_scale()
            )  # it falls where steps are skipped
        metrics["train/skipped_steps"] = float(self.finite_check.num_skipped)
        return metrics

    def validate(self) -> Metrics:
        due = [each for each in self.validations if each.is_due(self.epoch)]
        if not due:
            return {}
        with self.optimizer.averaged():
            metrics = run_validations(due, self.model)
        name, highest = self.best_by(metrics)
        limits = guard_limits(self.validations, self.progress.start_metrics)
        broken = broken_guard(self.validations, limits, metrics)
        is_improved = name in metrics and self.progress.is_improved_by(name, metrics[name], highest=highest)
        if is_improved and broken is not None:
            logger.warning(
                "step %d cannot be the best checkpoint: the guard of %s requires %.4f, but the step has %.4f",
                self.progress.step,
                broken,
                limits[broken],
                metrics.get(broken, math.nan),
            )
        elif is_improved:
            folder = checkpoint_name(self.progress.step)
            self._better = {"best_metric": name, "best_value": metrics[name], "best_checkpoint": folder}
            if self.saved_step == self.progress.step:  # a callback has saved this step already
                self._commit_best()
        if name not in metrics and not self._warned_of_best:
            self._warned_of_best = True
            logger.warning(
                "train.best_metric=%s is not a metric of the validation at step %d; the best checkpoint stays"
                " as it was. Choose one of %s",
                *(name, self.progress.step, ", ".join(metrics)),
            )
        self.progress.last_metrics = metrics
        self.emit("on_validate_end", metrics)
        return metrics

    def best_by(self, metrics: Metrics) -> tuple[str, bool]:
        default = "eval/avg_rank" if "eval/avg_rank" in metrics else "eval/nll_loss"
        searched = finest([name for name in metrics if not is_baseline(name)])
        if default not in metrics and searched:  # without dev sets, use the first search of a corpus
            default = searched[0]
        name = self.settings.train.best_metric or default
        return name, higher_is_better(self.validations, name)

    def save(self) -> Path | None:
        assert self.identity is not None, "only train() saves"
        # The best checkpoint must exist: a step that the disk refused cannot be it, and nothing is removed in
        # its favour.
        if self._better.get("best_checkpoint") != checkpoint_name(self.progress.step):
            self._better = {}  # of a step that was not saved
        progress = replace(
            self.progress,
            **self._better,
            unlogged=self.metrics.settled(),
            skipped=self.finite_check.num_skipped,
        )
        with self.optimizer.averaged():
            write = self._state.collect()
            folder = self.checkpoints.save(progress, write, asdict(self.identity), self.config)
        if folder is not None:
            self.saved_step = self.progress.step
            self._commit_best()
            self.emit("on_save", folder)
        return folder

    def _commit_best(self) -> None:
        self.progress = replace(self.progress, **self._better)
        self._better = {}

    @property
    def _state(self) -> StateOfRun:
        return StateOfRun(self.model, self.optimizer, self.training_step.scaler, self.callbacks)

    def request_stop(self, reason: str) -> None:
        self._stopping.request(reason)

    def emit(self, moment: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, moment)(self, *arguments)


def make_step(model: Towers, loss: Loss, settings: TrainNode, *, ranks: Ranks, device: torch.device) -> Step:
    """Returns the step that the settings ask for: the whole batch at once, or chunk by chunk. If they ask for
    it, the model is sharded."""
    cached = None
    if settings.grad_cache_tokens:
        cached = CachedStep(  # it measures the whole model
            model,
            loss,
            max_tokens=settings.grad_cache_tokens,
            ranks=ranks,
            device=device,
            precision=settings.precision,
        )
    module: nn.Module = model
    if settings.sharding == "fsdp2":
        shard(model, ranks)
    elif cached is None:
        module = data_parallel(model, ranks, device, precision=settings.precision)
    return cached or DirectStep(module, loss, ranks=ranks, device=device, precision=settings.precision)
