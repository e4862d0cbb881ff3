"""The training job: batches in, updates out, with everything periodic left to callbacks."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.profiler import record_function

from dpr.core import lost_ranks
from dpr.core.batch import BiEncoderBatch
from dpr.core.distributed import Ranks, current_ranks, on_main
from dpr.core.logs import configure_by_default, get_logger
from dpr.core.seeding import seed_torch
from dpr.data.collator import SetOptions
from dpr.data.loader import PoolOrder, SampleSource, pool_loader
from dpr.data.order import DROPOUT
from dpr.formats.durable import write_json
from dpr.losses.nll import BiEncoderNllLoss
from dpr.losses.protocol import Loss
from dpr.models.biencoder import BiEncoder
from dpr.training.arithmetic import set_up_arithmetic
from dpr.training.callbacks.log_every import LogEvery
from dpr.training.callbacks.metrics_file import MetricsFile
from dpr.training.callbacks.progress_line import ProgressLine
from dpr.training.callbacks.protocol import Callback
from dpr.training.callbacks.report_page import ReportPage
from dpr.training.callbacks.run_summary import RunSummary
from dpr.training.callbacks.sanity_check import SanityCheck
from dpr.training.callbacks.spike_monitor import SpikeMonitor
from dpr.training.callbacks.validate_and_save import ValidateAndSave
from dpr.training.checkpointing import find_stored_run, restore_state, run_identity, with_lineage, write_state
from dpr.training.choose_step import make_step
from dpr.training.finite_guard import FiniteGuard
from dpr.training.metrics import Metrics, TrainingMetrics
from dpr.training.optimizer import Schedule, make_optimizer, set_learning_rate
from dpr.training.pools import make_dataset, steps_per_epoch
from dpr.training.run_state import CheckpointFolder, Progress
from dpr.training.settings import TrainingSettings
from dpr.training.step import StepResult
from dpr.training.stopping import StopAgreement
from dpr.training.trial import freeze_unneeded
from dpr.training.validations.dev_sets import DevSet, QuestionMetric
from dpr.training.validations.protocol import Validation, run_validations
from dpr.training.validations.usual import usual_validations

logger = get_logger(__name__)


class BiEncoderTrainer:
    """Trains a bi-encoder on one or several ranks.

    ``train_sets`` and ``dev_sets`` are what ``open_training_set`` returns, or pairs of that and ``SetOptions``. ``settings`` are those of
    ``dpr train``; each can also be given by its name alone, as ``batch_size=16`` or ``seed=1``. A run found in ``output_dir`` is resumed
    unless they say otherwise. ``config`` is what checkpoints keep for people to read, by default the settings. Call ``train()``.

    Raises:
        ConfigError: settings that are out of range, mutually exclusive, or do not fit the data.
        CheckpointError: ``output_dir`` holds a different run, or only damaged checkpoints.
    """

    def __init__(
        self,
        model: BiEncoder,
        train_sets: Sequence[SampleSource | tuple[SampleSource, SetOptions]],
        dev_sets: Sequence[SampleSource | tuple[SampleSource, SetOptions]] = (),
        *,
        output_dir: str | Path,
        settings: TrainingSettings | None = None,
        loss: Loss | None = None,
        validations: Sequence[Validation] = (),
        metrics: Mapping[str, QuestionMetric] | None = None,
        callbacks: Sequence[Callback] = (),
        config: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.settings = settings = TrainingSettings.of(settings, **options)
        settings.check()
        train = settings.train
        self.ranks: Ranks = current_ranks()
        self.device, self.model, self.output_dir = model.device, model, Path(output_dir)
        self.config = asdict(settings) if config is None else config
        self._warned_of_best = False
        self.checkpoints = CheckpointFolder(self.output_dir, settings.checkpoint_file_name, keep_last=train.keep_last)
        stored = find_stored_run(self.checkpoints, settings)

        self.pool_size = train.global_batch_size or (stored.pool_size if stored else 0) or train.batch_size * self.ranks.world_size
        self.accumulation = train.gradient_accumulation_steps
        trains = [_with_options(item) for item in train_sets]
        self.dataset = make_dataset(trains, model.tensorizer, settings, pool_size=self.pool_size, ranks=self.ranks)
        self.steps_per_epoch = steps_per_epoch(self.dataset, train)
        self.total_steps = min(train.num_train_epochs * self.steps_per_epoch, train.max_steps or sys.maxsize)
        self.last_step = min(self.total_steps, train.stop_at_epoch * self.steps_per_epoch or sys.maxsize)
        """Where this start ends; ``total_steps`` is what the schedule is over."""

        freeze_unneeded(model)
        set_up_arithmetic(train, model)
        self.loss = loss or BiEncoderNllLoss(candidates=settings.candidates())
        self.step = make_step(model, self.loss, train, ranks=self.ranks, device=self.device)
        self.schedule = Schedule(settings.lr_schedule(), train.warmup(self.total_steps), train.min_lr_ratio)
        self.max_grad_norm = settings.gradient_limit(self.ranks.world_size)
        self.optimizer = make_optimizer(model, train)
        self.learning_rate, self.grad_norm = 0.0, torch.zeros(())
        self.results: list[StepResult] = []
        """Of the micro-batches of the current update, on this rank."""
        self.guard = FiniteGuard(self.device, most_in_row=train.most_skipped_steps, has_loss_scale=train.precision == "fp16")
        self.metrics = TrainingMetrics(model)
        sets = [DevSet(source.name, source, options) for source, options in map(_with_options, dev_sets)]
        self.validations = [*usual_validations(sets, settings, metrics, candidates=self.loss.candidates), *validations]
        self.callbacks = self._in_order(callbacks)
        self.saved_step = -1
        """The step of the last checkpoint that this process wrote."""
        self._stopping = StopAgreement()
        self.is_stopping = False
        """Whether the ranks have agreed to end the run before its last step."""
        self.identity = run_identity(self)
        if train.stop_at_epoch or settings.continued_run():
            self.identity = with_lineage(self.identity, self.dataset.sources)
        self.progress = Progress() if stored is None else restore_state(self, stored, settings)
        self.epoch = max(self.progress.step - 1, 0) // self.steps_per_epoch
        """The epoch under way, from its ``on_epoch_begin`` to the next: that of the last update until an epoch begins."""

    def train(self) -> float | None:
        """Runs to the end; returns the best validation value, None without dev sets. A finished run returns at once."""
        configure_by_default(rank=self.ranks.rank)
        try:
            with (
                lost_ranks.named(lambda: f"at step {self.progress.step + 1}"),
                self._stopping.signals,
                closing(self.micro_batches()) as batches,
            ):
                self._run(batches)
                on_main(lambda: write_json(self.output_dir / "metrics.json", self.progress.summary()))
        except BaseException as error:
            for callback in self.callbacks:
                try:
                    callback.on_exception(self, error)
                except Exception as second:
                    logger.warning("%s failed over an error that it was told of: %s", type(callback).__name__, second)
            raise
        finally:
            self.checkpoints.release()
        return self.progress.best_value

    def _run(self, batches: Iterator[BiEncoderBatch]) -> None:
        self.emit("on_train_begin")
        self.agrees_to_stop()  # a run that early stopping ended stays ended
        self.model.train()
        while self.progress.step < self.last_step and not self.is_stopping:
            self.epoch = self.progress.step // self.steps_per_epoch
            self.emit("on_epoch_begin")
            end = min((self.epoch + 1) * self.steps_per_epoch, self.last_step)
            while self.progress.step < end and not self.is_stopping:
                self.results = [self.forward_backward(_next(batches), number) for number in range(self.accumulation)]
                with record_function("dpr/update"):
                    self.update()
                self.progress.step += 1
                self.guard.stop_if_hopeless(self.progress.step)
                self.emit("on_step_end")
            if self.is_epoch_over:
                self.emit("on_epoch_end")
        self._stopping.end_if_signalled(self)
        self.emit("on_train_end")

    def micro_batches(self) -> Generator[BiEncoderBatch, None, None]:
        """This rank's batches from the current step on, made ahead by worker processes, which end when the generator is closed."""
        order = PoolOrder(
            epoch=self.progress.step // self.steps_per_epoch,
            pool=(self.progress.step % self.steps_per_epoch) * self.accumulation,
            num_epochs=-(-self.last_step // self.steps_per_epoch),
            pools_per_epoch=self.steps_per_epoch * self.accumulation,
            repeat_first=self.settings.train.overfit_batches > 0,
        )
        yield from pool_loader(
            self.dataset,
            order,
            num_workers=self.settings.train.num_workers,
            prefetch_batches=self.settings.train.prefetch_batches,
            pin_memory=self.device.type == "cuda",
        )

    def forward_backward(self, batch: BiEncoderBatch, number: int) -> StepResult:
        """Adds the gradient of micro-batch ``number`` of the coming update; dropout depends on (seed, step, number, rank) alone."""
        seed_torch(DROPOUT, self.settings.seed, self.progress.step, number, self.ranks.rank)
        result = self.step(batch, num_pools=self.accumulation, is_last=number == self.accumulation - 1)
        self.metrics.add(result, batch)
        return result

    def update(self) -> None:
        """One optimizer step: unscale, clip once, set the learning rate, update, clear."""
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        self.step.scaler.unscale_(self.optimizer)
        self.grad_norm = torch.nn.utils.clip_grad_norm_(parameters, self.max_grad_norm or float("inf"))
        self.guard.check(self.optimizer, self.grad_norm)
        start = self.progress.schedule_start
        self.learning_rate = self.settings.train.learning_rate * self.schedule.factor(self.progress.step - start, self.total_steps - start)
        set_learning_rate(self.optimizer, self.learning_rate)
        self.emit("on_before_optimizer_step")
        self.step.scaler.step(self.optimizer)
        self.step.scaler.update()
        self.emit("on_after_optimizer_step")
        self.optimizer.zero_grad(set_to_none=True)

    @property
    def is_epoch_over(self) -> bool:
        """Whether the last update was the last of its epoch."""
        return self.progress.step % self.steps_per_epoch == 0

    def validate(self) -> Metrics:
        """Runs the validations that are due in this epoch, then chooses the best. Nothing where none is."""
        due = [validation for validation in self.validations if validation.is_due(self.epoch)]
        if not due:
            return {}
        metrics = run_validations(due, self.model)
        self._choose_best(metrics)
        self.progress.last_metrics = metrics
        self.emit("on_validate_end", metrics)
        return metrics

    def coming_validations(self) -> list[Validation]:
        """Those that are due in some epoch of this start."""
        epochs = range(-(-self.last_step // self.steps_per_epoch))
        return [validation for validation in self.validations if any(map(validation.is_due, epochs))]

    def _choose_best(self, metrics: Metrics) -> None:
        """Notes whether this validation is the best so far. One without the metric that decides keeps the best as it was."""
        name, highest = self.best_by(metrics)
        if name in metrics and self.progress.is_improved_by(name, metrics[name], highest=highest):
            self.progress.best_metric, self.progress.best_value = name, metrics[name]
            self.progress.best_checkpoint = f"{self.checkpoints.name}.step{self.progress.step}"
        if name not in metrics and not self._warned_of_best:
            self._warned_of_best = True
            logger.warning(
                "train.best_metric=%s is not a metric of the validation at step %d; the best checkpoint stays as it was. Choose one of %s",
                name,
                self.progress.step,
                ", ".join(metrics),
            )

    def best_by(self, metrics: Metrics) -> tuple[str, bool]:
        """The figure by which the best checkpoint is chosen, and whether more is better."""
        if self.settings.train.best_metric is not None:
            return self.settings.train.best_metric, self.settings.train.best_is_highest
        return ("eval/avg_rank" if "eval/avg_rank" in metrics else "eval/nll_loss"), False

    def save(self) -> Path | None:
        """Writes a checkpoint; returns its folder, or None when the disk refused it."""
        folder = self.checkpoints.save(self.progress, lambda target: write_state(self, target), self.identity, self.config)
        if folder is not None:
            self.saved_step = self.progress.step
            self.emit("on_save", folder)
        return folder

    def request_stop(self, reason: str) -> None:
        """Ends the run after the current update, with a checkpoint. The request of one rank is enough: all stop at the same step."""
        self._stopping.request(reason)

    def agrees_to_stop(self) -> bool:
        """Whether any rank was asked to stop, by a signal or a callback; all ranks must call it at the same point."""
        self.is_stopping = self._stopping.reached(self)
        return self.is_stopping

    def emit(self, moment: str, *arguments: Any) -> None:
        """Calls one moment of every callback, in order."""
        for callback in self.callbacks:
            getattr(callback, moment)(self, *arguments)

    def _in_order(self, own: Sequence[Callback]) -> list[Callback]:
        """The callbacks that every run has, with the caller's ``own`` at their place."""
        # The order matters: who adds to the figures or looks at them, then who collects them and writes them down, last who saves it all.
        return [
            RunSummary(),
            SanityCheck(self.settings.train.sanity_validation),
            SpikeMonitor(),
            ReportPage(self.output_dir),
            *own,
            LogEvery(self.settings.train.log_batch_step),
            ProgressLine(),
            MetricsFile(self.output_dir / "metrics.jsonl"),
            ValidateAndSave(self.settings.train),
        ]


def _next(batches: Iterator[BiEncoderBatch]) -> BiEncoderBatch:
    with record_function("dpr/data"):
        return next(batches)


def _with_options(item: SampleSource | tuple[SampleSource, SetOptions]) -> tuple[SampleSource, SetOptions]:
    return item if isinstance(item, tuple) else (item, SetOptions(namespace=item.name))
