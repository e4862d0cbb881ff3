"""The training job: batches in, updates out, with everything periodic left to callbacks."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from dpr.core.batch import BiEncoderBatch
from dpr.core.distributed import Ranks, current_ranks, on_main
from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.core.seeding import seed_torch
from dpr.data.collator import Augmentation, Collator, SetOptions
from dpr.data.loader import PoolOrder, SampleSource, cut_into_pools, pool_loader
from dpr.data.order import DROPOUT
from dpr.formats import checkpoints
from dpr.formats.durable import write_json
from dpr.losses.nll import BiEncoderNllLoss
from dpr.models.biencoder import BiEncoder
from dpr.training.callbacks import Callback, LogEvery, MetricsFile, ProgressLine, ReportPage, ValidateAndSave
from dpr.training.metrics import Metrics, TrainingMetrics
from dpr.training.optimizer import (
    OptimizerSettings,
    Schedule,
    make_optimizer,
    optimizer_tensors,
    restore_optimizer,
    set_learning_rate,
)
from dpr.training.run_state import CheckpointFolder, Progress, RunIdentity, environment_facts
from dpr.training.step import DirectStep
from dpr.training.validation import DevSet, ValidationSettings, Validator

logger = get_logger(__name__)


class BiEncoderTrainer:
    """Trains a bi-encoder on one or several data sets, alone or as one of several ranks.

    ``train_sets`` and ``dev_sets`` are what ``open_training_set`` returns, or pairs of that and ``SetOptions``. ``batch_size`` is questions
    per rank; the pool whose contexts are each other's negatives is ``global_batch_size`` (by default batch_size x ranks). A run found in
    ``output_dir`` is continued unless ``resume="fresh"``. Call ``train()``.

    Raises:
        ConfigError: settings that contradict each other or the data.
        CheckpointError: ``output_dir`` holds a different run, or only damaged checkpoints.
    """

    def __init__(
        self,
        model: BiEncoder,
        train_sets: Sequence[SampleSource | tuple[SampleSource, SetOptions]],
        dev_sets: Sequence[SampleSource | tuple[SampleSource, SetOptions]] = (),
        *,
        output_dir: str | Path,
        batch_size: int = 16,
        global_batch_size: int = 0,
        gradient_accumulation_steps: int = 1,
        num_train_epochs: int = 1,
        max_steps: int = 0,
        hard_negatives: int = 1,
        other_negatives: int = 0,
        sampling_rates: Sequence[float] | None = None,
        local_shards: bool = False,
        augmentation: Augmentation | None = None,
        loss: BiEncoderNllLoss | None = None,
        optimizer: OptimizerSettings | None = None,
        schedule: Schedule | None = None,
        validation: ValidationSettings | None = None,
        val_av_rank_start_epoch: int = 30,
        eval_per_epoch: int = 1,
        eval_every_steps: int = 0,
        save_every_steps: int = 0,
        keep_last: int = 3,
        log_every_steps: int = 100,
        precision: str = "fp32",
        num_workers: int = 1,
        prefetch_batches: int = 4,
        seed: int = 12345,
        callbacks: Sequence[Callback] = (),
        checkpoint_name: str = "dpr_biencoder",
        resume: str = "auto",
        ignore_checkpoint_offset: bool = False,
        ignore_checkpoint_optimizer: bool = False,
        ignore_checkpoint_lr: bool = False,
        config: dict[str, Any] | None = None,
    ) -> None:
        self.ranks: Ranks = current_ranks()
        self.device, self.model, self.seed = model.device, model, seed
        self.output_dir, self.config = Path(output_dir), config or {}
        self.accumulation, self.val_av_rank_start_epoch = gradient_accumulation_steps, val_av_rank_start_epoch
        self._num_workers, self._prefetch_batches = num_workers, prefetch_batches
        trains, devs = [_with_options(item) for item in train_sets], [_with_options(item) for item in dev_sets]

        self.checkpoints = CheckpointFolder(self.output_dir, checkpoint_name, keep_last=keep_last)
        resumed, stored = self._existing_run(resume)
        self.pool_size = global_batch_size or _stored_pool_size(stored) or batch_size * self.ranks.world_size

        augmentation = augmentation or Augmentation()
        collator = Collator(model.tensorizer, num_hard=hard_negatives, num_other=other_negatives, seed=seed, augmentation=augmentation)
        self.dataset = cut_into_pools(
            trains,
            collator,
            global_batch_size=self.pool_size,
            ranks=self.ranks,
            seed=seed,
            sampling_rates=sampling_rates,
            local_shards=local_shards,
        )
        self.steps_per_epoch = self._steps_per_epoch()
        self.total_steps = min(num_train_epochs * self.steps_per_epoch, max_steps or sys.maxsize)

        self.loss = loss or BiEncoderNllLoss()
        self.step = DirectStep(self._parallel(model), self.loss, ranks=self.ranks, device=self.device, precision=precision)
        self.optimizer_settings, self.schedule = optimizer or OptimizerSettings(), schedule or Schedule()
        self.optimizer = make_optimizer(model, self.optimizer_settings)
        self.metrics = TrainingMetrics(self.device, packed=(model.question_model.is_packed, model.ctx_model.is_packed))
        self.validator = Validator(
            model,
            self.loss,
            [DevSet(source.name, source, options) for source, options in devs],
            hard_negatives=hard_negatives,
            other_negatives=other_negatives,
            settings=validation,
            ranks=self.ranks,
            precision=precision,
        )
        self.callbacks: list[Callback] = [
            LogEvery(log_every_steps),
            ProgressLine(),
            MetricsFile(self.output_dir / "metrics.jsonl"),
            ValidateAndSave(eval_per_epoch=eval_per_epoch, eval_every_steps=eval_every_steps, save_every_steps=save_every_steps),
            ReportPage(self.output_dir),
            *callbacks,
        ]
        self.identity = self._identity(augmentation, precision, local_shards)
        self.progress = Progress()
        self.learning_rate, self.grad_norm = 0.0, torch.zeros(())
        if resumed is not None and stored is not None:
            self._resume(
                resumed,
                stored,
                force=resume == "force",
                keep_offset=not ignore_checkpoint_offset,
                keep_optimizer=not ignore_checkpoint_optimizer,
                keep_schedule=not ignore_checkpoint_lr,
            )

    def train(self) -> float | None:
        """Runs to the end; returns the best validation value (lower is better), None without dev sets. A finished run returns at once."""
        self._describe()
        self.emit("on_train_begin")
        batches = self.micro_batches()
        self.model.train()
        while self.progress.step < self.total_steps:
            for number in range(self.accumulation):
                self.forward_backward(next(batches), number)
            self.update()
            self.progress.step += 1
            self.emit("on_step_end")
        self.emit("on_train_end")
        on_main(lambda: write_json(self.output_dir / "metrics.json", self.progress.summary()))
        return self.progress.best_value

    def micro_batches(self) -> Iterator[BiEncoderBatch]:
        """This rank's batches from the current step on, made ahead by worker processes."""
        order = PoolOrder(
            epoch=self.epoch,
            pool=(self.progress.step % self.steps_per_epoch) * self.accumulation,
            num_epochs=-(-self.total_steps // self.steps_per_epoch),
            pools_per_epoch=self.steps_per_epoch * self.accumulation,
        )
        return iter(
            pool_loader(
                self.dataset,
                order,
                num_workers=self._num_workers,
                prefetch_batches=self._prefetch_batches,
                pin_memory=self.device.type == "cuda",
            )
        )

    def forward_backward(self, batch: BiEncoderBatch, number: int) -> None:
        """Adds the gradient of micro-batch ``number`` of the coming update; dropout depends on (seed, step, number, rank) alone."""
        seed_torch(DROPOUT, self.seed, self.progress.step, number, self.ranks.rank)
        result = self.step(batch, num_pools=self.accumulation, is_last=number == self.accumulation - 1)
        self.metrics.add(result, batch)

    def update(self) -> None:
        """One optimizer step: unscale, clip once, set the learning rate, update, clear."""
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        self.step.scaler.unscale_(self.optimizer)
        limit = self.optimizer_settings.max_grad_norm
        self.grad_norm = torch.nn.utils.clip_grad_norm_(parameters, limit or float("inf"))
        start = self.progress.schedule_start
        self.learning_rate = self.optimizer_settings.learning_rate * self.schedule.factor(
            self.progress.step - start, self.total_steps - start
        )
        set_learning_rate(self.optimizer, self.learning_rate)
        self.step.scaler.step(self.optimizer)
        self.step.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    @property
    def epoch(self) -> int:
        """The epoch of the coming update; at the end, the last one."""
        return min(self.progress.step, self.total_steps - 1) // self.steps_per_epoch

    def validate(self) -> Metrics:
        """Validates by NLL or, from ``val_av_rank_start_epoch`` on, by average rank; remembers the best. Nothing without dev sets."""
        if not self.validator.dev_sets:
            return {}
        epoch = (self.progress.step - 1) // self.steps_per_epoch
        by_rank = epoch >= self.val_av_rank_start_epoch
        metrics = self.validator.average_rank() if by_rank else self.validator.nll()
        name = "eval/avg_rank" if by_rank else "eval/nll_loss"
        if self.progress.is_improved_by(name, metrics[name]):
            self.progress.best_metric, self.progress.best_value = name, metrics[name]
            self.progress.best_checkpoint = f"{self.checkpoints.name}.step{self.progress.step}"
        self.progress.last_metrics = metrics
        self.emit("on_validate_end", metrics)
        return metrics

    def save(self) -> Path:
        """Writes a checkpoint; returns its folder."""

        def write(folder: Path) -> None:
            self.model.write_to(folder)
            checkpoints.write_tensors(folder, checkpoints.OPTIMIZER_FILE, optimizer_tensors(self.model, self.optimizer))
            checkpoints.write_json_file(folder, "scaler.json", self.step.scaler.state_dict())

        folder = self.checkpoints.save(self.progress, write, self.identity, self.config)
        self.emit("on_save", folder)
        return folder

    def emit(self, moment: str, *arguments: Any) -> None:
        """Calls one moment of every callback, in order."""
        for callback in self.callbacks:
            getattr(callback, moment)(self, *arguments)

    def _existing_run(self, resume: str) -> tuple[Path | None, tuple[Progress, dict[str, Any]] | None]:
        self.checkpoints.prepare()
        folder = self.checkpoints.newest()
        if folder is not None and resume == "fresh":
            raise ConfigError(f"{self.output_dir} holds a run already; choose a new output_dir, or resume=auto to continue it")
        return folder, None if folder is None else CheckpointFolder.read_state(folder)

    def _steps_per_epoch(self) -> int:
        pools = self.dataset.iterator.pools_per_epoch
        if pools < self.accumulation:
            raise ConfigError(f"train.gradient_accumulation_steps={self.accumulation} is more than an epoch's {pools} pools; lower it")
        return pools // self.accumulation

    def _identity(self, augmentation: Augmentation, precision: str, local_shards: bool) -> RunIdentity:
        return RunIdentity(
            fixed={
                "seed": self.seed,
                "train_datasets": [source.fingerprint for source in self.dataset.sources],
                "datasets": [asdict(options) for options in self.dataset.options],
                "train_sampling_rates": list(self.dataset.iterator.pools_of_set),
                "train.global_batch_size": self.pool_size,
                "train.gradient_accumulation_steps": self.accumulation,
                "train.hard_negatives": self.dataset.collator.num_hard,
                "train.other_negatives": self.dataset.collator.num_other,
                "train.augment": asdict(augmentation),
                "local_shards_dataloader": self.ranks.world_size if local_shards else 0,
                "loss.candidates": self.loss.candidates,
                "loss.temperature": self.model.options.temperature,
                "encoder": {**self.model.settings.as_dict(), "fix_ctx_encoder": self.model.options.fix_ctx_encoder},
            },
            free={
                "train.max_steps": self.total_steps,
                "train.precision": precision,
                "train.learning_rate": self.optimizer_settings.learning_rate,
                "train.weight_decay": self.optimizer_settings.weight_decay,
                "train.max_grad_norm": self.optimizer_settings.max_grad_norm,
                "train.warmup_steps": self.schedule.warmup_steps,
                "train.lr_schedule": self.schedule.kind,
                **environment_facts(self.ranks.world_size, self.device),
            },
        )

    def _parallel(self, model: BiEncoder) -> torch.nn.Module:
        if self.ranks.world_size == 1:
            return model
        device_ids = [self.device.index] if self.device.type == "cuda" else None
        # Buffers (position numbers) are equal everywhere; torch 2.13 renamed the switch that leaves them alone.
        renamed = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
        leave_buffers: dict[str, Any] = {"forward_sync_buffers" if renamed else "broadcast_buffers": False}
        return DistributedDataParallel(model, device_ids=device_ids, gradient_as_bucket_view=True, **leave_buffers)

    def _resume(
        self,
        folder: Path,
        stored: tuple[Progress, dict[str, Any]],
        *,
        force: bool,
        keep_offset: bool,
        keep_optimizer: bool,
        keep_schedule: bool,
    ) -> None:
        progress, identity = stored
        self.identity.check(identity, source=folder, force=force)
        self.model.load_weights(checkpoints.read_tensors(folder, checkpoints.MODEL_FILE), source=folder)
        if keep_optimizer:
            restore_optimizer(self.model, self.optimizer, checkpoints.read_tensors(folder, checkpoints.OPTIMIZER_FILE))
            self.step.scaler.load_state_dict(checkpoints.read_json(folder / "scaler.json"))
        if not keep_schedule:
            progress.schedule_start = progress.step
        if not keep_offset:
            progress = Progress()
        self.progress = progress
        logger.info("resuming from %s at step %d", folder, progress.step)

    def _describe(self) -> None:
        if self.schedule.warmup_steps >= self.total_steps:
            logger.warning(
                "train.warmup_steps=%d is not below the %d steps of the run, so the full learning rate is never reached",
                self.schedule.warmup_steps,
                self.total_steps,
            )
        width = 1 + self.dataset.collator.num_hard + self.dataset.collator.num_other
        logger.info(
            "pool: %d questions (%d ranks), %d contexts, so %d negatives per question of which %d are its own; %d steps per epoch, "
            "%d in all, %d pools per step",
            self.pool_size,
            self.ranks.world_size,
            self.pool_size * width,
            self.pool_size * width - 1,
            width - 1,
            self.steps_per_epoch,
            self.total_steps,
            self.accumulation,
        )


def _with_options(item: SampleSource | tuple[SampleSource, SetOptions]) -> tuple[SampleSource, SetOptions]:
    return item if isinstance(item, tuple) else (item, SetOptions(namespace=item.name))


def _stored_pool_size(stored: tuple[Progress, dict[str, Any]] | None) -> int:
    return 0 if stored is None else int(stored[1].get("fixed", {}).get("train.global_batch_size", 0))
