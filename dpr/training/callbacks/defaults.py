"""The callbacks of every run: validation and checkpoints, log lines, the progress bar, ``metrics.jsonl`` and
the report page. A log line also has figures that the loss does not show, on the vectors of the global batch.
Optional ones: early stopping, returning to the best weights."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize
from tqdm import tqdm

from dpr.core.batch import BiEncoderBatch
from dpr.core.compute_settings import dtype_of
from dpr.core.distributed import sum_over_ranks
from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import duration, get_logger, shows_bars
from dpr.evaluation.report import write_report
from dpr.formats import checkpoints
from dpr.formats.run_folders import METRICS_LINES, metrics_lines, metrics_problems
from dpr.losses.candidates import MASKED_SCORE, score_matrix
from dpr.losses.protocol import Pool
from dpr.storage.durable import append_jsonl, durable_file
from dpr.training.callbacks.verdict import Verdict
from dpr.training.metrics import Metrics, each_once, matrix_peak, peak_memory_gb
from dpr.training.run import Callback, Run
from dpr.training.settings import BiEncoderTrainConfig, Periods, TrainSettings

logger = get_logger(__name__)

OF_QUESTIONS = ("positive_similarity", "negative_similarity", "margin", "temperature", "candidates")
SAMPLE = 64
COLLAPSED = 3.0


class PoolMetrics(Callback):
    """Callback that adds metrics ``pool/...`` of the global batch to the log line, from the first global
    batch of its step. It warns when the vectors have collapsed.

    They are measured on at most ``SAMPLE`` questions, each in its whole global batch, and on at most
    ``SAMPLE`` passages, evenly spaced over all ranks. So they do not depend on the number of ranks if the
    loss gathers the passages. A collapse is an effective rank below ``COLLAPSED`` and below a quarter of the
    highest before. docs/training.md, "The log line", explains each metric.
    """

    def __init__(self, log_every: int | None) -> None:
        self.log_every = log_every
        self._step = 0
        self._of_questions = torch.zeros(0)
        self._cosines = torch.zeros(0)
        self._highest_rank = 0.0
        self._has_warned = False

    def needs_pool(self, run: Run) -> bool:
        step = run.progress.step + 1
        return self._step != step and (step == 1 or is_logged(step, self.log_every, run.last_step))

    def on_pool(self, run: Run, questions: Tensor, pool: Pool, batch: BiEncoderBatch) -> None:
        if not self.needs_pool(run):
            return
        self._step = run.progress.step + 1

        # OF_QUESTIONS of the sampled questions, (R, 5); NaN if a question has no negative.
        stride = -(-len(questions) * run.ranks.world_size // SAMPLE)
        rows = torch.arange(-run.ranks.rank * len(questions) % stride, len(questions), stride)
        rows = rows.to(questions.device)
        target = pool.candidates.target[rows]
        candidates = pool.candidates._replace(target=target, masked=pool.candidates.masked[rows])
        scores = candidates.mask_(score_matrix(questions[rows], pool.contexts))
        positive = scores.gather(1, target[:, None])[:, 0]
        others = scores.scatter(1, target[:, None], MASKED_SCORE)
        others = others.where(others > MASKED_SCORE, torch.nan)
        self._of_questions = torch.stack(
            [
                positive,
                others.nanmean(1),
                positive - others.nan_to_num(-torch.inf).amax(1),
                pool.temperature.like(positive).expand(len(rows)),
                1 + (~others.isnan()).sum(1),
            ],
            dim=1,
        )

        # Cosines of the sampled passages with each other, (n, n), in fp32 at least; 0 for passages that an
        # earlier slot holds.
        stride = -(-len(pool.contexts) // SAMPLE)
        passages = pool.contexts[::stride]
        passages = normalize(passages.to(torch.promote_types(passages.dtype, torch.float32)), dim=1)
        passages = passages * pool.candidates.counts[::stride, None]
        self._cosines = passages @ passages.T

    def on_step_end(self, run: Run) -> None:
        if run.progress.step == 1:  # reference for a collapse
            self._highest_rank = max(0.0, effective_rank(self._cosines.cpu()))

    def on_log(self, run: Run, metrics: Metrics) -> None:
        if self._step != run.progress.step:
            return
        rank = effective_rank(self._cosines.cpu())
        values = self._of_questions.double().cpu()
        sums = torch.cat([values.nansum(0), torch.tensor([rank], dtype=torch.float64).nan_to_num()])
        counts = torch.cat([(~values.isnan()).sum(0), torch.tensor([rank == rank])])
        sums, counts = sum_over_ranks(torch.stack([sums, counts.double()])).unbind()
        for name, value, count in zip((*OF_QUESTIONS, "effective_rank"), sums, counts, strict=True):
            if count:
                metrics[f"pool/{name}"] = float(value / count)
        self._highest_rank = max(self._highest_rank, rank)  # in this order a NaN is not larger
        if rank < min(COLLAPSED, self._highest_rank / 4) and not self._has_warned and run.ranks.is_main:
            self._has_warned = True
            logger.warning(
                "step %d: the vectors have collapsed: the effective rank of the passages is %.1f, before"
                " %.1f; start anew with a lower rate, as train.learning_rate=%g",
                self._step,
                rank,
                self._highest_rank,
                run.settings.train.learning_rate / 10,
            )

    def state_dict(self) -> dict[str, Any]:
        return {"highest_rank": self._highest_rank}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._highest_rank = float(state["highest_rank"])


def is_logged(step: int, every: int | None, last_step: int) -> bool:
    """Returns whether a log line follows update ``step`` (counted from 1)."""
    if every is None:  # a short run gets a curve, too
        every = max(1, min(100, last_step // 20))
    return every > 0 and (step % every == 0 or step == last_step)


def effective_rank(cosines: Tensor) -> float:
    """Returns the exponential of the entropy of the vectors' singular values (Roy and Vetterli, 2007), from
    their cosines; NaN for fewer than two vectors."""
    counts = cosines.diagonal() > 0.5
    noise = torch.finfo(cosines.dtype).eps * len(cosines) ** 2
    cosines = cosines[counts][:, counts].double()
    if len(cosines) < 2:
        return torch.nan
    strengths = torch.threshold(torch.linalg.eigvalsh(cosines), noise, 0.0).sqrt()
    return float(torch.special.entr(strengths / strengths.sum()).sum().exp())


REPORT_EVERY_S = 60.0


class ReportPage(Callback):
    """Callback that writes ``report.html`` in the run's folder at the end, and at checkpoints, at most once a
    minute, since its charts take seconds. On rank 0.

    If the page cannot be written, a warning is logged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._written = time.monotonic()

    def on_save(self, run: Run, folder: Path) -> None:
        if time.monotonic() - self._written >= REPORT_EVERY_S:
            self.on_train_end(run)
            self._written = time.monotonic()

    def on_train_end(self, run: Run) -> None:
        if run.ranks.is_main:
            try:
                write_report(self.folder, defaults=asdict(BiEncoderTrainConfig()))
            except Exception as error:  # no reason to lose a run
                logger.warning("report.html is not written: %s", error)


class LogEvery(Callback):
    """Callback that collects the training metrics of all ranks every ``every_steps`` steps and passes them to
    the ``on_log`` of every callback. 0 stands for never, None for the period of ``is_logged``."""

    def __init__(self, every_steps: int | None) -> None:
        self.every_steps = every_steps
        self._peak = 0.0
        self._start = (0.0, 0)

    def on_train_begin(self, run: Run) -> None:
        if run.progress.step < run.last_step:
            self._peak = matrix_peak(run.device, dtype_of(run.settings.train.precision))
        self._start = (time.perf_counter(), run.progress.step)

    def on_step_end(self, run: Run) -> None:
        step = run.progress.step
        if not is_logged(step, self.every_steps, run.last_step):
            return
        metrics = run.take_metrics(peak=self._peak)
        metrics["perf/mem_gb"] = peak_memory_gb(run.device)
        since, first = self._start
        metrics["perf/eta_s"] = (time.perf_counter() - since) / max(step - first, 1) * (run.last_step - step)
        run.emit("on_log", metrics)


class ProgressLine(Callback):
    """A progress bar on a terminal and in a notebook, log lines elsewhere. On rank 0."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None

    def on_train_begin(self, run: Run) -> None:
        if run.ranks.is_main and shows_bars(sys.stderr):
            self._bar = tqdm(total=run.last_step, initial=run.progress.step, unit="step", dynamic_ncols=True)

    def on_step_end(self, run: Run) -> None:
        if self._bar is not None:
            self._bar.update()

    def on_log(self, run: Run, metrics: Metrics) -> None:
        accuracy = f"acc {metrics['train/in_batch_acc']:.3f}  " if "train/in_batch_acc" in metrics else ""
        text = (
            f"loss {metrics['train/loss']:.4f}  {accuracy}lr {metrics['optim/lr']:.2e}  "
            f"grad {metrics['optim/grad_norm']:.2f}  {metrics['perf/questions_per_s']:.0f} questions/s  "
            f"{metrics['perf/tokens_per_s']:.0f} tokens/s  padding {metrics['perf/padding_share']:.0%}  "
            f"peak share {metrics['perf/mfu']:.0%}  memory {metrics['perf/mem_gb']:.1f} GiB"
        )
        if self._bar is not None:
            self._bar.set_postfix_str(text)
        elif run.ranks.is_main:
            logger.info(
                "epoch %d step %d/%d  %s  left %s",
                run.epoch,
                run.progress.step,
                run.last_step,
                text,
                duration(metrics["perf/eta_s"]),
                extra={"step": run.progress.step},
            )

    def on_validate_end(self, run: Run, metrics: Metrics) -> None:
        logger.info(
            "step %d  %s",
            run.progress.step,
            "  ".join(f"{name} {value:.4f}" for name, value in each_once(metrics).items()),
        )

    def on_save(self, run: Run, folder: Path) -> None:
        logger.info("saved %s", folder)

    def on_train_end(self, run: Run) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def on_exception(self, run: Run, error: BaseException) -> None:
        self.on_train_end(run)


class MetricsFile(Callback):
    """Callback that appends all logged and validation metrics to ``metrics.jsonl`` in the run's folder. On
    rank 0.

    A resumed run drops the lines of steps that it repeats, so every step is there once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_begin(self, run: Run) -> None:
        if not run.ranks.is_main:
            return
        for problem in metrics_problems(self.path.parent) or []:
            logger.warning("%s %s; it is used as it is", self.path, problem)
        if self.path.exists():
            last = run.progress.step or -1
            try:
                with durable_file(self.path) as file:
                    file.writelines(
                        f"{line}\n" for line in metrics_lines(self.path) if _step_of(line) <= last
                    )
            except (OSError, InputError) as error:
                logger.warning(
                    "%s keeps the lines of steps that are repeated: %s",
                    self.path,
                    getattr(error, "strerror", None) or error,
                )
        if not run.progress.step and run.progress.start_metrics:
            self.on_log(run, run.progress.start_metrics)

    def on_log(self, run: Run, metrics: Metrics) -> None:
        if not run.ranks.is_main:
            return
        try:
            append_jsonl(self.path, {"step": run.progress.step, "epoch": run.epoch, **metrics})
        except OSError as error:  # no reason to lose a run
            logger.warning(
                "metrics of step %d are missing in %s: %s",
                run.progress.step,
                self.path,
                error.strerror or error,
            )

    def on_validate_end(self, run: Run, metrics: Metrics) -> None:
        self.on_log(run, metrics)


def _step_of(line: str | None) -> float:
    """Returns the step of a line. A line cut short by a kill, or too long, counts as a future one, so it is
    dropped."""
    try:
        return float(json.loads(line or "")["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf


class ValidateAndSave(Callback):
    """Callback that validates by epoch or by steps, and saves after each validation and at further steps.

    It comes after all other callbacks, so a checkpoint holds their state after its step.
    """

    def __init__(self, periods: Periods) -> None:
        self.periods = periods

    def on_train_begin(self, run: Run) -> None:
        if not run.progress.step and self.periods.keep == "better":
            run.save()

    def on_step_end(self, run: Run) -> None:
        if run.progress.step % run.steps_per_epoch:
            self.on_epoch_end(run)

    def on_epoch_end(self, run: Run) -> None:
        validates, saves = self.due_at(run.progress.step, run.last_step, run.steps_per_epoch)
        if validates:
            run.validate()
        if saves:
            run.save()

    def due_at(self, step: int, last_step: int, steps_per_epoch: int) -> tuple[bool, bool]:
        """Returns whether a validation and a checkpoint follow update ``step`` (counted from 1)."""
        periods = self.periods
        in_epoch = (step - 1) % steps_per_epoch + 1
        validates = step == last_step
        if periods.eval_every_steps:
            validates |= step % periods.eval_every_steps == 0
        elif periods.eval_per_epoch:
            every = math.ceil(steps_per_epoch / periods.eval_per_epoch)
            validates |= in_epoch == steps_per_epoch or in_epoch % every == 0
        every = periods.save_every_steps
        return validates, validates or (every > 0 and step % every == 0)


class EarlyStopping(Callback):
    """Callback that stops a run after ``patience`` validations in a row without an improvement. The metric is
    the one that chooses the best checkpoint. It has improved if it is better than its best value by more than
    ``min_delta``.

    Counting starts over when that metric changes to the average rank. Rerunning a stopped run does nothing.
    """

    def __init__(self, *, patience: int = 3, min_delta: float = 0.0) -> None:
        self.patience = patience
        self.min_delta = min_delta
        self._watched: str | None = None
        self._best: float | None = None
        self._bad = 0
        if patience < 1:
            raise ConfigError(f"patience={patience} is out of range; it must be at least 1")

    def on_train_begin(self, run: Run) -> None:
        self._stop_if_due(run)

    def on_validate_end(self, run: Run, metrics: Metrics) -> None:
        name, highest = run.best_by(metrics)
        if name not in metrics:
            logger.warning("early stopping: this validation has no %s, so it does not count", name)
            return
        if name != self._watched:
            self._watched = name
            self._best = None
            self._bad = 0
        self._bad += 1
        value = -metrics[name] if highest else metrics[name]
        if math.isfinite(value) and (self._best is None or value < self._best - self.min_delta):
            self._best = value
            self._bad = 0
        self._stop_if_due(run)

    def _stop_if_due(self, run: Run) -> None:
        if self._bad >= self.patience:
            run.request_stop(f"{self._watched} has not improved for {self._bad} validations")

    def state_dict(self) -> dict[str, Any]:
        is_stopped = self._bad >= self.patience
        return {"watched": self._watched, "best": self._best, "bad": self._bad, "stopped": is_stopped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._watched = state["watched"]
        self._best = state["best"]
        self._bad = int(state["bad"])


class LoadBest(Callback):
    """Callback that loads the weights of the best checkpoint into the model at the end of training."""

    def on_train_end(self, run: Run) -> None:
        if run.progress.best_checkpoint is not None:
            folder = run.output_dir / run.progress.best_checkpoint
            run.model.load_weights(checkpoints.read_tensors(folder, checkpoints.MODEL_FILE), source=folder)
            logger.info("the model is now that of %s", folder)


def default_callbacks(
    settings: TrainSettings, output_dir: Path, further: Sequence[Callback] = ()
) -> list[Callback]:
    """Returns the callbacks that log, validate and save, and those that settings switch on, with ``further``
    ones among them.

    The order matters: callbacks that add to the metrics come first, then those that collect and write them,
    and last the one that saves the state.
    """
    callbacks = [Verdict(), PoolMetrics(settings.log_batch_step), ReportPage(output_dir), *further]
    if patience := settings.early_stopping.patience:
        callbacks.append(EarlyStopping(patience=patience))
    return [
        *callbacks,
        LogEvery(settings.log_batch_step),
        ProgressLine(),
        MetricsFile(output_dir / METRICS_LINES),
        ValidateAndSave(settings),
    ]
