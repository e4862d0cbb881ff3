"""Settings of a training run: the nodes ``train`` and ``loss`` of the configuration, and the settings that
the trainer takes from Python."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from typing import Any

from dpr.core.compute_settings import PRECISIONS
from dpr.core.errors import ConfigError
from dpr.core.other_names import hint, translated, written_here
from dpr.core.settings import (
    IDENTITY,
    MODEL,
    NO_EFFECT,
    START,
    UPDATES,
    WARNED,
    Settings,
    setting,
    store_name,
    suggestion,
)
from dpr.data.settings import Augmentation, SamplingSettings
from dpr.losses.settings import ObjectiveSettings
from dpr.models.settings import TemperatureSettings

WARMUP_SHARE = 0.1
_ARGUMENTS = ("train_sets", "dev_sets", "settings", "model")  # of BiEncoderTrainer


@dataclass
class LossSettings(ObjectiveSettings, TemperatureSettings):
    """The objective: its terms, candidates and temperature (docs/numerics.md)."""

    name: Any = setting("nll", choices=("nll",), or_class=True, on_resume=IDENTITY)
    """nll: the weighted terms of this section, by default the negative log-likelihood of the positive in its
    global batch; or user-defined: module:Class, {use: module:Class, argument: value}."""
    candidates: str | None = setting(None, choices=("distinct", "dpr"), on_resume=IDENTITY)
    """distinct: a passage counts once per global batch and other known positives are masked; dpr: every slot
    counts as often as it appears. Absent = distinct, or dpr with compat=dpr."""

    def check_together(self, prefix: str) -> None:
        if self.name != "nll" and (changed := self.changed()):
            key, value = next(iter(changed.items()))
            raise ConfigError(
                f"{prefix}{key}={value} and a user-defined {prefix}name are mutually exclusive; leave one of"
                " them out"
            )
        self.check_objective(prefix)


@dataclass
class NegativeSettings(Settings):
    """Negatives that the data give a question, in training and in the validation by NLL."""

    hard_negatives: int = setting(1, unit="passages", least=0, on_resume=IDENTITY)
    """Hard negatives drawn for each question from those in the data."""
    other_negatives: int = setting(0, unit="passages", least=0, on_resume=IDENTITY)
    """Negatives drawn for each question from the data's second list (negative_ctxs)."""


@dataclass
class BatchSettings(Settings):
    """Composition of global batches, loading of batches, and length of a run."""

    batch_size: int = setting(32, unit="questions", least=1, on_resume=WARNED)
    """Questions per step and rank."""
    global_batch_size: int = setting(0, unit="questions", least=0, on_resume=IDENTITY)
    """Questions per global batch over all ranks; 0 = batch_size x the number of ranks. Kept when a run is
    resumed on another number of ranks."""
    gradient_accumulation_steps: int = setting(1, unit="global batches", least=1, on_resume=IDENTITY)
    """Global batches per optimizer step. Does not add negatives to a question."""
    num_workers: int = setting(1, unit="processes", least=0, on_resume=NO_EFFECT)
    """Processes per rank that read, tokenise and collate ahead of the model; 0 = in the training process."""
    augment: Augmentation = field(default_factory=Augmentation)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    num_train_epochs: int = setting(3, unit="epochs", least=1, on_resume=WARNED)
    """Passes over the training data."""
    max_steps: int = setting(0, unit="steps", least=0, on_resume=WARNED)
    """Maximum number of optimizer steps; 0 = only num_train_epochs limits the run."""
    stop_at_epoch: int = setting(0, unit="epochs", least=0, on_resume=START)
    """Stop after this epoch of the full schedule; the same command without it continues. 0 = at the end."""


@dataclass
class OptimizerSettings(Settings):
    """AdamW and its learning-rate schedule."""

    learning_rate: float = setting(2e-5, least=0, on_resume=UPDATES)
    """Highest learning rate, reached at the end of the warm-up."""
    embedding_lr_factor: float = setting(1.0, least=0, on_resume=UPDATES)
    """Factor of the learning rate of the token embedding table; above 1 helps models trained from scratch."""
    lr_schedule: str = setting("linear", choices=("linear", "cosine", "constant", "dpr"), on_resume=UPDATES)
    """linear, cosine or constant, each after the warm-up; dpr = linear from 0 at the first update, never
    below 1e-7 of the rate."""
    warmup_steps: int | None = setting(None, unit="steps", least=0, on_resume=UPDATES)
    """Optimizer steps over which the learning rate rises to its full value; absent = a tenth of the run's
    steps."""
    weight_decay: float = setting(0.0, least=0, on_resume=UPDATES)
    """AdamW's weight decay, not applied to biases and normalisation weights."""
    adam_eps: float = setting(1e-8, least=1e-30, on_resume=UPDATES)
    """AdamW's epsilon, added to the root of the mean squared gradient. One that float32 rounds to 0 would
    make NaN of weights whose gradient is 0."""
    adam_betas: str = setting("(0.9, 0.999)", on_resume=UPDATES)
    """AdamW's betas, a string as in DPR: two numbers in brackets."""
    max_grad_norm: float = setting(1.0, least=0, on_resume=UPDATES)
    """Norm to which the gradient of an optimizer step is scaled down; 0 = no clipping."""
    ema_decay: float = setting(0.0, least=0, below=1, on_resume=UPDATES)
    """Decay per update of an exponential moving average (EMA) of the weights, which is validated and saved
    instead of them (0.999: about the last thousand updates); 0 = no EMA. Training itself uses the weights
    (docs/training.md)."""

    def betas(self) -> tuple[float, float]:
        """Returns ``adam_betas`` as two numbers."""
        parts = self.adam_betas.strip().strip("()[]").split(",")
        try:
            first, second = (float(part) for part in parts)
        except ValueError:
            raise ConfigError(
                f'train.adam_betas={self.adam_betas!r} is not two numbers, expected "(0.9, 0.999)"'
            ) from None
        if not (0 <= first < 1 and 0 <= second < 1):
            raise ConfigError(f"train.adam_betas={self.adam_betas!r} is out of range; both must be in [0, 1)")
        return first, second

    def warmup(self, total_steps: int) -> int:
        """Returns the number of warm-up steps in a run of ``total_steps``."""
        if self.warmup_steps is not None:
            return self.warmup_steps
        return round(WARMUP_SHARE * total_steps)


@dataclass
class ComputeSettings(Settings):
    """Memory and reproducibility of the computation."""

    gradient_checkpointing: bool = setting(False, on_resume=WARNED)
    """Recompute activations in the backward pass instead of keeping them: less memory, a third more time, the
    same gradients."""
    deterministic: bool = setting(False, on_resume=WARNED)
    """Refuse operations whose result may differ between runs on the same device; slower on a GPU."""
    grad_cache_tokens: int = setting(0, unit="tokens", least=0, on_resume=WARNED)
    """Gradient caching: keep the graphs of at most this many tokens and encode the rest twice, for global
    batches of any size with the same gradient; 0 = off."""
    sharding: str = setting("none", choices=("none", "fsdp2"), on_resume=WARNED)
    """fsdp2: each process has a part of the weights, gradients and optimizer state, and a layer's weights are
    joined while it computes. For models that do not fit into one GPU with their optimizer. none: each process
    has all of them."""


@dataclass
class EarlyStoppingSettings(Settings):
    """Early end of a run that no longer improves."""

    patience: int = setting(0, unit="validations", least=0, on_resume=WARNED)
    """Validations in a row without an improvement after which the run ends; 0 = never."""


def is_logged(step: int, every: int | None, last_step: int) -> bool:
    """Returns whether a log line follows update ``step`` (counted from 1)."""
    if every is None:  # a short run gets a curve, too
        every = max(1, min(100, last_step // 20))
    return every > 0 and (step % every == 0 or step == last_step)


@dataclass
class Periods(Settings):
    """Periods of logging, validation and saving, and the choice of the best checkpoint."""

    log_batch_step: int | None = setting(None, unit="steps", least=0, on_resume=NO_EFFECT)
    """Optimizer steps between log lines; 0 = none, absent = 100, or fewer in a short run."""
    eval_per_epoch: int = setting(
        1,
        unit="validations",
        least=0,
        on_resume=WARNED,
    )
    """Validations per epoch; 0 = only those of eval_every_steps."""
    eval_every_steps: int = setting(0, unit="steps", least=0, on_resume=WARNED)
    """Optimizer steps between validations, instead of eval_per_epoch; 0 = per epoch."""
    eval_at_start: bool | None = setting(None, on_resume=NO_EFFECT)
    """Validate before the first step, and compare the best checkpoint with the base model at the end; absent
    = if the model has trained weights and this takes less than a fifth of the work of training."""
    best_metric: str | None = setting(None, on_resume=WARNED)
    """Metric by which the best checkpoint is chosen; absent = the NLL, or from val_av_rank_start_epoch on the
    average rank; without dev sets, nDCG@10 of the first validation of kind retrieval."""
    early_stopping: EarlyStoppingSettings = field(default_factory=EarlyStoppingSettings)
    keep: str = setting(
        "best",
        choices=("best", "better"),
        on_resume=WARNED,
    )
    """best: a finished run opens as its best checkpoint; better: as the base model, if no checkpoint is
    better."""
    callbacks: Any = setting(None, on_resume=WARNED)
    """User-defined callbacks: module:Class, {use: module:Class, argument: value}, or a list of them
    (docs/extending.md)."""
    save_every_steps: int = setting(0, unit="steps", least=0, on_resume=NO_EFFECT)
    """Optimizer steps between extra checkpoints; 0 = only after validations."""
    keep_last: int = setting(3, unit="checkpoints", least=0, on_resume=NO_EFFECT)
    """Newest checkpoints kept besides the best one; 0 = all."""

    def unused(self) -> Iterator[str]:
        yield from super().unused()
        if self.eval_per_epoch and self.eval_every_steps:
            yield "eval_per_epoch"


@dataclass
class DevSetSettings(Settings):
    """Validation over dev sets."""

    dev_batch_size: int = setting(64, unit="questions", least=1, on_resume=WARNED)
    """Questions per validation batch over all ranks."""
    val_av_rank_hard_neg: int = setting(30, unit="passages", least=0, on_resume=WARNED)
    """Hard negatives of each dev question among the passages of the average rank."""
    val_av_rank_other_neg: int = setting(30, unit="passages", least=0, on_resume=WARNED)
    """Other negatives of each dev question among the passages of the average rank."""
    val_av_rank_bsz: int = setting(128, unit="passages", least=1, on_resume=NO_EFFECT)
    """Passages, and then questions, per forward pass of validation on dev sets, for the NLL and the average
    rank."""
    val_av_rank_max_qs: int = setting(10000, unit="questions", least=1, on_resume=WARNED)
    """Dev questions used for the average rank, over all ranks."""


@dataclass
class TrainNode(DevSetSettings, Periods, ComputeSettings, OptimizerSettings, BatchSettings, NegativeSettings):
    """Optimisation, batches, validation and saving."""

    precision: str = setting("fp32", choices=tuple(PRECISIONS), on_resume=WARNED)
    """fp32, bf16 (autocast) or fp16 (autocast with loss scaling)."""
    validation: Any = setting(None, on_resume=WARNED, path="input")
    """Validations in addition to NLL and average rank, one or a list. {kind: retrieval, corpus: ...,
    questions: ..., qrels: ...} searches a whole corpus (docs/training.md). User-defined ones are
    module:Class, or {use: module:Class, argument: value} (docs/extending.md)."""
    token_store: str = setting("auto", on_resume=NO_EFFECT, path="folder")
    """Store of the tokens of training and dev sets, written once and memory-mapped. auto: in the cache
    folder, unless the run sees less than half of the rows or is a dry run; off: texts are tokenised for every
    batch; else: the folder to keep them in."""
    dry_run: bool = setting(False, on_resume=NO_EFFECT)
    """Estimate time, memory and disk space of the run from two steps and a validation, then exit; writes
    nothing into output_dir."""

    def check_together(self, prefix: str) -> None:
        self.betas()
        self.token_store = store_name(f"{prefix}token_store", self.token_store)
        if self.keep == "better" and self.eval_at_start is False:
            raise ConfigError(
                f"{prefix}keep=better and {prefix}eval_at_start=false are mutually exclusive: keep=better compares with"
                " the base model; leave one of them out"
            )


@dataclass
class TrainingSettings(Settings):
    """Settings of a trainer."""

    model_file: str | None = setting(None, also=("model",), on_resume=MODEL, path="input")
    """Model to fine-tune or evaluate: folder of a checkpoint, a run, a Hugging Face or sentence-transformers
    model, or a checkpoint file of the original DPR."""
    resume: str = setting("auto", choices=("auto", "fresh", "force"), on_resume=NO_EFFECT)
    """auto: continue the run found in output_dir; fresh: refuse a folder that contains a run; force: continue
    even if the data or their order have changed or, for a finished run, optimizer settings such as the
    learning rate."""
    compat: str | None = setting(None, choices=("dpr",), on_resume=WARNED)
    """dpr: loss, validation, schedule and clipping as the original computed them (docs/from_dpr.md); absent =
    this toolkit's rules."""
    seed: int = setting(12345, least=0, on_resume=IDENTITY)
    """Seed of the order of samples, of the drawn negatives, of dropout and of random weights."""
    train_sampling_rates: list[float] | None = setting(None, on_resume=IDENTITY)
    """One factor per train set, which multiplies its global batches per epoch; train.sampling has other
    ways."""
    val_av_rank_start_epoch: int | None = setting(
        None,
        unit="epochs",
        least=0,
        on_resume=WARNED,
    )
    """From this epoch (counted from 0), validation is the average rank; before it, the NLL. Absent = always
    the NLL."""
    train: TrainNode = field(default_factory=TrainNode)
    loss: LossSettings = field(default_factory=LossSettings)

    @classmethod
    def of(cls, base: TrainingSettings | None = None, **values: Any) -> TrainingSettings:
        """Returns ``base``, or the defaults, changed by ``values``. Their names are those of settings alone,
        including those of ``train`` and ``loss``.

        Raises:
            ConfigError: there is no such setting, or ``base`` is not of this class.
        """
        if not isinstance(base, cls | None):
            raise ConfigError(
                f"settings is of type {type(base).__name__}; give TrainingSettings, or settings by name:"
                " batch_size=16"
            )
        base = base or cls()
        own = {item.name for item in fields(base)}
        of_loss = {item.name for item in fields(base.loss)}
        known = {*own, *_ARGUMENTS, *of_loss, *(f"train.{item.name}" for item in fields(base.train))}
        problems = []
        for name in sorted(values.keys() - {key.removeprefix("train.") for key in known}):
            if hasattr(values[name], "per_device_train_batch_size"):
                problems.append(f"{name}: {translated(values[name], known)}")
                continue
            here = written_here(name, values[name], known)
            near = f"; write {here}"
            if not here:
                near = hint(name, values[name]) or suggestion(name, known).replace("train.", "")
            problems.append(f"there is no setting {name}{near}")
        if problems:
            raise ConfigError("\n".join(problems))
        settings = deepcopy(replace(base, **{name: values[name] for name in own & values.keys()}))
        for name in values.keys() - own:
            setattr(settings.loss if name in of_loss else settings.train, name, values[name])
        return settings

    @property
    def as_dpr(self) -> bool:
        return self.compat == "dpr"

    def candidates(self) -> str:
        """Returns ``loss.candidates``; if absent, the rule of ``compat``."""
        return self.loss.candidates or ("dpr" if self.as_dpr else "distinct")

    def lr_schedule(self) -> str:
        """Returns ``train.lr_schedule``, or the original's linear schedule under ``compat``."""
        return "dpr" if self.as_dpr else self.train.lr_schedule

    def gradient_limit(self, num_ranks: int) -> float:
        """Returns ``train.max_grad_norm`` for the exact gradient. The original clipped the gradient divided
        by the number of processes."""
        return self.train.max_grad_norm * (num_ranks if self.as_dpr else 1)

    def uses_average_rank(self, epoch: int) -> bool:
        """Returns whether a validation in ``epoch`` (counted from 0) computes the average rank."""
        return self.val_av_rank_start_epoch is not None and epoch >= self.val_av_rank_start_epoch

    def check_together(self, prefix: str) -> None:
        self.train.sampling.check_shares(self.train_sampling_rates)
