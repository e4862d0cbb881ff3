"""Settings of a training run, grouped by what they are about. Their names are those of the command line, without ``train.``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from dpr.data.collator import Augmentation
from dpr.data.mixing import Sampling


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """What a pool is made of, and how batches come to the model.

    ``global_batch_size`` is the pool, whose contexts are each other's negatives (0: batch_size x ranks of the first start);
    ``gradient_accumulation_steps`` pools make an update. Negatives count per question. ``sampling`` says what each train set
    gives; with ``local_shards`` each rank shuffles inside its own part of every set. With ``overfit_batches`` the first so many pools are
    trained on over and over.
    """

    global_batch_size: int = 0
    gradient_accumulation_steps: int = 1
    hard_negatives: int = 1
    other_negatives: int = 0
    sampling: Sampling = field(default_factory=Sampling)
    local_shards: bool = False
    augmentation: Augmentation = field(default_factory=Augmentation)
    num_workers: int = 1
    prefetch_batches: int = 4
    overfit_batches: int = 0


@dataclass(frozen=True, slots=True)
class Periods:
    """When things are due, in optimizer steps unless the name says otherwise; 0 switches one off.

    Validations are due ``eval_per_epoch`` times an epoch or, if set, ``eval_every_steps``; from ``val_av_rank_start_epoch`` on (counted
    from 0) they take the average rank. ``eval_epochs`` (counted from 0) are the only ones that validations follow, where it is set.
    ``sanity_pools`` of each dev set are validated before training. A checkpoint follows each validation, and others ``save_every_steps``.
    """

    log_every_steps: int = 100
    eval_per_epoch: int = 1
    eval_every_steps: int = 0
    eval_epochs: tuple[int, ...] = ()
    val_av_rank_start_epoch: int = 30
    sanity_pools: int = 2
    save_every_steps: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """Which checkpoints are kept, and what is made of a run found in the output folder.

    ``keep_last``: the newest that stay besides the best; 0 keeps all. ``resume`` is auto (continue), fresh (refuse), force (continue
    though data or order differ) or require (refuse a folder without a run). The ``ignore_`` switches start counting, the optimizer
    state or the schedule afresh. ``goes_on`` is a run, or a checkpoint of one, that goes on in a new output folder: with its weights,
    optimizer and schedule, on train sets of the same questions with other negatives.
    The best is the one with the lowest NLL or average rank or, if set, the lowest ``best_metric`` (the highest with ``best_is_highest``).
    """

    name: str = "dpr_biencoder"
    keep_last: int = 3
    resume: str = "auto"
    ignore_offset: bool = False
    ignore_optimizer: bool = False
    ignore_lr: bool = False
    best_metric: str | None = None
    best_is_highest: bool = False
    goes_on: Path | None = None


@dataclass(frozen=True, slots=True)
class ComputeSettings:
    """How the arithmetic is done.

    ``precision`` is fp32, bf16 (autocast) or fp16 (autocast with loss scaling). ``tf32`` lets a GPU round the factors of fp32 products.
    ``gradient_checkpointing`` computes activations again instead of keeping them, ``compile`` runs layers through ``torch.compile``,
    ``deterministic`` refuses operations whose result is not the same each time (on one kind of device). An update whose gradient is not a
    number is skipped; ``most_skipped_steps`` of them in a row end the run.
    With ``grad_cache_tokens`` or ``memory_budget_gb`` (GiB a process, from which the former follows) pools of any size are trained on in
    bounded memory (``CachedStep``); 0 and 0 is the direct step.
    """

    precision: str = "fp32"
    most_skipped_steps: int = 5
    tf32: bool = False
    gradient_checkpointing: bool = False
    compile: bool = False
    deterministic: bool = False
    grad_cache_tokens: int = 0
    memory_budget_gb: float = 0.0
