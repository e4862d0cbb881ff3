"""Settings of ``dpr train`` / ``train_dense_encoder.py``. Key names are DPR's where DPR has the setting.

The dataclasses are plain (not frozen) because Hydra has to be able to override them. ``check()`` is called once after composition.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dpr.config.checks import require_at_least, require_choice
from dpr.config.encoder import EncoderConfig
from dpr.config.training_parts import AugmentConfig, EarlyStoppingConfig, SamplingConfig, TrackingConfig
from dpr.core.errors import ConfigError


@dataclass
class LossConfig:
    """The contrastive loss (docs/numerics.md)."""

    name: Any = "nll"
    """nll, or your own: module:Class, or {use: module:Class, argument: value} (docs/training.md)."""
    candidates: str | None = None
    """distinct: a passage counts once per pool and other known positives are masked; dpr: every slot counts as often as it appears.
    Absent = distinct, or dpr with compat=dpr."""
    temperature: float | None = None
    """Scores are divided by it. 1 for dot products as DPR; about 0.05 for normalised vectors. Absent = that of model_file, else 1."""
    learn_temperature: bool = False
    """Start from ``temperature`` and learn its logarithm."""

    def check(self) -> None:
        if isinstance(self.name, str) and ":" not in self.name:
            require_choice("loss.name", self.name, ("nll", "module:Class"))
        if self.candidates is not None:
            require_choice("loss.candidates", self.candidates, ("distinct", "dpr"))
        if self.temperature is not None and self.temperature <= 0:
            raise ConfigError(f"loss.temperature={self.temperature} is out of range; it must be above 0")


@dataclass
class TrainConfig:
    """Optimisation, batches, validation and saving."""

    batch_size: int = 2
    """Questions per step and rank."""
    global_batch_size: int = 0
    """Questions per pool over all ranks; 0 = batch_size x ranks of the first start. Kept when a run is resumed on other ranks."""
    dev_batch_size: int = 4
    """Questions per validation pool over all ranks."""
    gradient_accumulation_steps: int = 1
    """Pools per optimizer step. Does not enlarge the pool of negatives."""
    num_train_epochs: int = 40
    max_steps: int = 0
    """Stop after this many optimizer steps, whatever the epochs; 0 = epochs decide."""
    stop_at_epoch: int = 0
    """End here, on the schedule of the whole run, to be gone on with (init=continue); 0 = at the end."""
    learning_rate: float = 1e-5
    embedding_lr_factor: float = 1.0
    """The token embedding table learns this many times faster; above 1 helps models trained from scratch."""
    lr_schedule: str = "linear"
    """linear, cosine or constant, each after the warm-up; dpr = linear from 0 at the first update, never below 1e-7 of the rate."""
    min_lr_ratio: float = 0.0
    """Floor of linear and cosine, as a share of learning_rate."""
    warmup_steps: int = 100
    """Optimizer steps over which the learning rate rises to its full value."""
    weight_decay: float = 0.0
    """Not applied to biases and normalisation weights."""
    adam_eps: float = 1e-8
    adam_betas: str = "(0.9, 0.999)"
    """A string, as in DPR: two numbers in brackets."""
    max_grad_norm: float = 1.0
    """The gradient of an optimizer step is scaled down to this norm; 0 = no clipping."""
    most_skipped_steps: int = 5
    """The run ends when the gradient is not a number in this many steps in a row; each such step is skipped, on all ranks alike."""
    hard_negatives: int = 1
    """Per question."""
    other_negatives: int = 0
    """Per question."""
    precision: str = "fp32"
    """fp32, bf16 (autocast) or fp16 (autocast with loss scaling)."""
    tf32: bool = False
    """Let a GPU round the factors of fp32 matrix products to 10 bits: faster, less exact."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them: less memory, a third more time, the same gradients."""
    compile: bool = False
    """Run the layers through torch.compile; where that does not work they are left as they are, with a warning."""
    deterministic: bool = False
    """Refuse operations whose result could differ from run to run on the same device; slower on a GPU."""
    grad_cache_tokens: int = 0
    """Hold the graphs of at most so many tokens at a time and encode the rest of a batch twice, so that pools of any size fit into
    memory with the same gradient; 0 = whole batches."""
    memory_budget_gb: float = 0.0
    """The same, with the number of tokens worked out for this many GiB per process; 0 = off."""
    log_batch_step: int = 100
    """Optimizer steps between log lines."""
    eval_per_epoch: int = 1
    """Validations per epoch; 0 = none but those of eval_every_steps."""
    eval_every_steps: int = 0
    """Validate every so many optimizer steps instead of per epoch; 0 = per epoch."""
    eval_epochs: list[int] | None = None
    """Validate at the end of these epochs only (counted from 0); absent = as the two before say."""
    sanity_validation: int = 2
    """Pools of each dev set that are validated before training, to see that it works; 0 = none."""
    metrics: list[str] | None = None
    """Your own validation figures: functions module:name of (scores, labels), as eval/<name> (docs/training.md)."""
    validation: Any = None
    """Your own validations, beside NLL and average rank: module:Class, or {use: module:Class, argument: value}, or a list of these."""
    best_metric: str | None = None
    """The figure by which the best checkpoint is chosen; absent = the average rank, or the NLL before val_av_rank_start_epoch."""
    best_is_highest: bool = False
    """More is better, for best_metric."""
    early_stopping: EarlyStoppingConfig = field(default_factory=EarlyStoppingConfig)
    load_best_at_end: bool = False
    """Put the best checkpoint's weights into the model when training ends, for callbacks and from Python; the files are the same."""
    callbacks: Any = None
    """Your own: module:Class or module:function, or {use: module:Class, argument: value}, or a list of these (docs/training.md)."""
    overfit_batches: int = 0
    """Train on the first so many pools only, over and over, to see that the model can learn at all; 0 = on everything."""
    dry_run: bool = False
    """Do two steps and a validation, print memory, speed and what the whole run would need, and end; writes nothing into output_dir."""
    save_every_steps: int = 0
    """Extra checkpoints every so many optimizer steps; 0 = only after validations."""
    keep_last: int = 3
    """Checkpoints kept besides the best one; 0 = all."""
    val_av_rank_hard_neg: int = 30
    val_av_rank_other_neg: int = 30
    """Passages per dev question in the average-rank pool."""
    val_av_rank_bsz: int = 128
    """Passages per forward pass of the average-rank validation."""
    val_av_rank_max_qs: int = 10000
    """Dev questions used for the average rank, over all ranks."""
    num_workers: int = 1
    """Processes per rank that read, tokenise and collate ahead of the model; 0 = in the training process."""
    token_store: str = "auto"
    """Tokens of training and dev sets, written once and mapped. auto: in the cache folder, unless the run sees less than half of the rows
    or is a dry run; off: texts are tokenised for every batch; anything else: the folder to keep them in, whatever the run."""
    prefetch_batches: int = 4
    """Batches each worker keeps ready."""
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)

    def token_store_folder(self) -> str | None:
        """The folder that ``token_store`` names; None for auto and off."""
        return None if self.token_store in ("auto", "off") else self.token_store

    def betas(self) -> tuple[float, float]:
        """``adam_betas`` as two numbers."""
        parts = self.adam_betas.strip().strip("()[]").split(",")
        try:
            first, second = (float(part) for part in parts)
        except ValueError:
            raise ConfigError(f'train.adam_betas={self.adam_betas!r} is not two numbers, expected "(0.9, 0.999)"') from None
        if not (0 <= first < 1 and 0 <= second < 1):
            raise ConfigError(f"train.adam_betas={self.adam_betas!r} is out of range; both must be in [0, 1)")
        return first, second

    def check(self) -> None:
        self.betas()
        if self.token_store in ("False", "false"):  # what YAML makes of a bare off
            self.token_store = "off"
        if self.token_store.strip() in ("", "True", "true"):
            raise ConfigError(f"train.token_store={self.token_store!r} is neither auto, nor off, nor the name of a folder")
        self.augment.check()
        self.early_stopping.check()
        for epoch in self.eval_epochs or []:
            require_at_least("train.eval_epochs", epoch, 0)
        if self.grad_cache_tokens and self.memory_budget_gb:
            raise ConfigError("train.grad_cache_tokens and train.memory_budget_gb both say how much fits; set one of them")
        require_choice("train.precision", self.precision, ("fp32", "bf16", "fp16"))
        require_choice("train.lr_schedule", self.lr_schedule, ("linear", "cosine", "constant", "dpr"))
        for key in (
            "batch_size dev_batch_size gradient_accumulation_steps num_train_epochs log_batch_step "
            "val_av_rank_bsz val_av_rank_max_qs prefetch_batches most_skipped_steps"
        ).split():
            require_at_least(f"train.{key}", getattr(self, key), 1)
        for key in (
            "global_batch_size max_steps learning_rate embedding_lr_factor min_lr_ratio warmup_steps weight_decay adam_eps max_grad_norm "
            "hard_negatives other_negatives eval_per_epoch eval_every_steps save_every_steps keep_last val_av_rank_hard_neg "
            "val_av_rank_other_neg num_workers sanity_validation overfit_batches grad_cache_tokens memory_budget_gb stop_at_epoch"
        ).split():
            require_at_least(f"train.{key}", getattr(self, key), 0)


@dataclass
class BiEncoderTrainConfig:
    """Everything ``dpr train`` can be told. ``train_datasets`` absent and ``model_file`` given: evaluation only."""

    train_datasets: Any = None
    """One name or path, a glob, or a list of them; a name is a key of ``datasets``."""
    dev_datasets: Any = None
    output_dir: str | None = None
    """Folder of the run: checkpoints, logs, metrics. A run found there is continued."""
    model_file: str | None = None
    """Checkpoint folder, run folder, Hugging Face or sentence-transformers folder, or checkpoint file of the original DPR, to start from
    or to evaluate."""
    init: str | None = None
    """How a new run begins: scratch (random weights), weights (those of model_file, else of encoder.pretrained_model_cfg) with a fresh
    schedule and optimizer, resume (output_dir must hold a run to go on with), continue (the run of model_file goes on here, on the same
    questions with other negatives); absent = as model_file and encoder.pretrained say. Whichever it is, starting the same command again
    goes on with the run."""
    compat: str | None = None
    """dpr: loss, validation, schedule and clipping as the original computed them (docs/from_dpr.md); absent = this toolkit's rules."""
    train_sampling_rates: list[float] | None = None
    """One factor per train set, multiplies that set's pools per epoch; train.sampling has other ways."""
    loss_scale_factors: list[float] | None = None
    """One factor per train set, multiplies its loss."""
    do_lower_case: bool = True
    """Given to the tokenizer of a BERT vocabulary."""
    val_av_rank_start_epoch: int = 30
    """From this epoch on (counted from 0) validation is the average rank; before it, the NLL."""
    seed: int = 12345
    checkpoint_file_name: str = "dpr_biencoder"
    """Checkpoint folders are ``<name>.step<N>``."""
    special_tokens: list[str] | None = None
    """Put into the vocabulary's [unusedN] slots, in this order."""
    ignore_checkpoint_offset: bool = False
    """Start counting steps and epochs at 0 again."""
    ignore_checkpoint_optimizer: bool = False
    """Fresh optimizer state."""
    ignore_checkpoint_lr: bool = False
    """Start the learning-rate schedule at its beginning."""
    local_shards_dataloader: bool = False
    """Each rank shuffles inside its own contiguous part of every data set."""
    on_bad_row: str = "fail"
    """fail, or skip (rows go to a rejects file, up to max_bad_rows)."""
    max_bad_rows: int = 100
    device: str | None = None
    """cpu, cuda, cuda:N; absent = CUDA when there is one."""
    no_cuda: bool = False
    rank_timeout_s: float = 300.0
    """Seconds after which a process of the group that does not answer counts as lost."""
    resume: str = "auto"
    """auto: continue the run found in output_dir; fresh: refuse a folder that holds one; force: continue it though data or order differ."""
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    datasets: dict[str, Any] = field(default_factory=dict)
    """Catalogue: name -> options of a data set (file, special_token, encoder_type, ...)."""

    @property
    def as_dpr(self) -> bool:
        """Whether the original's rules were asked for."""
        return self.compat == "dpr"

    def candidates(self) -> str:
        """``loss.candidates``; where absent, as ``compat`` has it."""
        return self.loss.candidates or ("dpr" if self.as_dpr else "distinct")

    def trailing_sep(self) -> bool:
        """``encoder.dpr_trailing_sep`` of a new model; where absent, as ``compat`` has it."""
        return self.as_dpr if self.encoder.dpr_trailing_sep is None else self.encoder.dpr_trailing_sep

    def lr_schedule(self) -> str:
        """``train.lr_schedule``, with the original's linear one under ``compat``."""
        return "dpr" if self.as_dpr else self.train.lr_schedule

    def _check_compat(self) -> None:
        if self.compat is None:
            return
        require_choice("compat", self.compat, ("dpr",))
        foreign = {
            "train.lr_schedule": self.train.lr_schedule not in ("linear", "dpr"),
            "train.min_lr_ratio": self.train.min_lr_ratio != 0,
            "train.embedding_lr_factor": self.train.embedding_lr_factor != 1,
            "loss.name": self.loss.name != "nll",
            "loss.temperature": self.loss.temperature not in (None, 1),
            "loss.learn_temperature": self.loss.learn_temperature,
            "encoder.normalize": self.encoder.normalize,
            "encoder.pooling": self.encoder.pooling != "cls",
        }
        if named := [key for key, is_foreign in foreign.items() if is_foreign]:
            raise ConfigError(f"compat=dpr and {', '.join(named)} contradict, the original has no such choice; leave one of them out")

    def resume_mode(self) -> str:
        """``resume``, or that there must be a run."""
        return "require" if self.init == "resume" and self.resume == "auto" else self.resume

    def _check_init(self) -> None:
        if self.init is None:
            return
        require_choice("init", self.init, ("scratch", "weights", "resume", "continue"))
        if self.init == "scratch" and self.model_file is not None:
            raise ConfigError("init=scratch and model_file contradict; leave model_file out, or set init=weights to start from it")
        if self.init == "weights" and self.model_file is None and not self.encoder.pretrained:
            raise ConfigError("init=weights and encoder.pretrained=false contradict; name a model_file, or leave encoder.pretrained out")
        if self.init == "continue" and self.model_file is None:
            raise ConfigError("init=continue needs model_file=<the run, or its checkpoint, that goes on>")
        if self.init == "resume" and self.resume == "fresh":
            raise ConfigError("init=resume and resume=fresh contradict; leave one of them out")

    def check(self) -> None:
        """Checks every field and the pairs that contradict each other.

        Raises:
            ConfigError: names the key, the value and what it may be.
        """
        self._check_compat()
        for part in (self.encoder, self.train, self.loss, self.tracking):
            part.check()
        self.encoder.check_attention(precision=self.train.precision, trains=self.train_datasets is not None)
        self._check_init()
        self.train.sampling.check(rates=self.train_sampling_rates, local_shards=self.local_shards_dataloader)
        require_choice("on_bad_row", self.on_bad_row, ("fail", "skip"))
        require_choice("resume", self.resume, ("auto", "fresh", "force"))
        require_at_least("max_bad_rows", self.max_bad_rows, 0)
        require_at_least("rank_timeout_s", self.rank_timeout_s, 1)
        require_at_least("seed", self.seed, 0)
