"""What makes two runs the same: what a resumed run must share with the checkpoint, and what it may change with a warning."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpr.core.distributed import Ranks
from dpr.core.errors import CheckpointError
from dpr.core.logs import get_logger
from dpr.core.settings import IDENTITY, TOLD, flat_values
from dpr.data.collator import SetOptions
from dpr.data.training_data import questions_fingerprint
from dpr.formats import checkpoints
from dpr.formats.durable import read_json
from dpr.losses.protocol import Loss
from dpr.models.backbones import dropout_of
from dpr.models.biencoder import BiEncoder
from dpr.models.settings import TowerSettings
from dpr.training.checkpointing import StoredRun
from dpr.training.plan import Plan
from dpr.training.settings import TrainingSettings

logger = get_logger(__name__)


@dataclass(frozen=True)
class RunIdentity:
    """What must be equal for a resumed run to see the same batches and the same objective, and what may change with a word of warning.

    Keys are the settings' names, so that a refusal can name the override that mends it.
    """

    fixed: dict[str, Any]
    free: dict[str, Any]
    lineage: dict[str, Any] = field(default_factory=dict)
    """Of a run whose negatives are renewed: which questions it is on (``questions``), and since which step on which files (``rounds``)."""

    def check(self, stored: dict[str, Any], *, source: Path, force: bool) -> None:
        """Compares with a checkpoint's identity.

        Raises:
            CheckpointError: a fixed setting differs and ``force`` is off.
        """
        config = source / checkpoints.CONFIG_FILE
        before = _flat(read_json(config)) if config.is_file() else {}
        changed = _differences(stored.get("fixed", {}), self.fixed, _DEFAULTS | before)
        if changed and not force:
            key, (was, now) = next(iter(changed.items()))
            raise CheckpointError(
                f"was written by a different run: {key} was {was}, is now {now}"
                + (f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""),
                file=source,
                expected="the same data, order and objective",
                hint=f"restore {key}, choose a new output_dir, or set resume=force to resume with another order of samples",
            )
        # What an earlier version did not store is in the settings beside it, or nobody knows.
        for key, (was, now) in (changed | _differences(stored.get("free", {}), self.free, self.free | before)).items():
            logger.warning("resuming with %s changed from %s to %s%s", key, was, now, _consequence(key))


def environment_facts(world_size: int, device: torch.device) -> dict[str, Any]:
    """What decides the last bits of a sum; a resumed run that differs in one of them is right, but not bitwise equal."""
    return {
        "environment.world_size": world_size,
        "environment.threads": torch.get_num_threads(),
        "environment.torch": torch.__version__,
        "environment.numpy": np.__version__,  # it draws the order of samples
        "environment.device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
    }


def _consequence(key: str) -> str:
    if key == "train.batch_size":
        return "; the pool stays as it was (train.global_batch_size)"
    return "; the weights will not be bitwise those of an uninterrupted run" if key.startswith("environment.") else ""


_DEFAULTS = flat_values(TrainingSettings()) | flat_values(TowerSettings(), prefix="encoder.") | {"encoder.dpr_trailing_sep": False}
del _DEFAULTS["loss.learn_temperature"]  # never stored by earlier versions; the optimizer's state tells


def _differences(stored: dict[str, Any], own: dict[str, Any], absent: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What differs, as it was and as it is; what one of the two does not name is taken from ``absent``."""
    was, now, absent = (_flat(json.loads(json.dumps(values))) for values in (stored, own, absent))
    pairs = {}
    for key in sorted(was.keys() | now.keys()):
        usual = absent.get(key, now.get(key))
        pairs[key] = was.get(key, usual), now.get(key, usual)
    return {key: (old, new) for key, (old, new) in pairs.items() if old != new}


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, with dotted keys; the value of a setting stays whole."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        is_section = isinstance(value, dict) and prefix + key not in _DEFAULTS
        found |= _flat(value, f"{prefix}{key}.") if is_section else {prefix + key: value}
    return found


def run_identity(
    settings: TrainingSettings, plan: Plan, model: BiEncoder, loss: Loss, ranks: Ranks, dev_files: Sequence[str] = ()
) -> RunIdentity:
    """What decides the batches and the objective of this run (fixed), and what else decides what it ends with (free).

    Both are the settings of these roles, except where the data, the model or the process group say what is in effect. ``dev_files`` are
    the fingerprints of the dev sets.
    """
    options = flat_values(model.options, (IDENTITY, TOLD))
    files = [source.fingerprint for source in plan.dataset.sources]
    identity = RunIdentity(
        fixed=flat_values(settings, (IDENTITY,))
        | {
            "train_datasets": files,
            "datasets": [_own_options(options) for options in plan.dataset.options],
            "train_sampling_rates": plan.dataset.iterator.identity(),
            "train.global_batch_size": plan.pool_size,
            "local_shards_dataloader": ranks.world_size if settings.local_shards_dataloader else 0,
            "loss.candidates": loss.candidates,
            "loss.temperature": options["temperature"],
            "loss.learn_temperature": options["learn_temperature"],
            "encoder": {**model.settings.as_dict(), "fix_ctx_encoder": options["fix_ctx_encoder"]},
            "encoder.tokenizer": model.tensorizer.fingerprint,
        },
        free=flat_values(settings, (TOLD,))
        | {
            "dev_datasets.content": list(dev_files),
            "train.max_steps": plan.total_steps,
            "train.max_grad_norm": settings.gradient_limit(ranks.world_size),
            "train.warmup_steps": settings.train.warmup(plan.total_steps),
            "train.warmup_ratio": None,
            "train.lr_schedule": settings.lr_schedule(),
            "train.adam_betas": str(settings.train.betas()),
            "train.eval_epochs": settings.train.eval_epochs or None,
            "encoder.packed": options["packed"],
            "encoder.attention": options["attention"],
            **dropout_of(model.question_model.config),
            **environment_facts(ranks.world_size, model.device),
        },
    )
    if not (settings.train.stop_at_epoch or settings.continued_run()):
        return identity
    # Its negatives may be renewed later, on the same questions.
    questions = [questions_fingerprint(source) for source in plan.dataset.sources]
    return replace(identity, lineage={"questions": questions, "rounds": [{"from_step": 0, "train_datasets": files}]})


def resumed_identity(own: RunIdentity, stored: StoredRun, *, total_steps: int, force: bool) -> RunIdentity:
    """The identity of a run that resumes ``stored``: its own, with the lineage of that.

    Raises:
        CheckpointError: the checkpoint belongs to a different run, or to one that cannot be continued on these files.
    """
    identity = _continued(own, stored, total_steps) if stored.is_other else stored.identity
    own.check(identity, source=stored.folder, force=force)
    return replace(own, lineage=identity["lineage"]) if identity.get("lineage") else own


def _continued(own: RunIdentity, stored: StoredRun, total_steps: int) -> dict[str, Any]:
    """The identity of another run as it is when that goes on with this trainer's files, which must be of the same questions in the same
    order, since which questions make up a pool depends on their rows.

    Raises:
        CheckpointError: they are not, or the run has come to its end.
    """
    lineage = stored.identity.get("lineage") or {}
    if not lineage:
        raise CheckpointError(
            "does not say which questions it was trained on",
            file=stored.folder,
            hint="start a run that you want to continue elsewhere with train.stop_at_epoch",
        )
    if lineage["questions"] != own.lineage["questions"]:
        raise CheckpointError(
            "was trained on other questions than those of train_datasets",
            file=stored.folder,
            expected="the same questions in the same order, with other negatives, as dpr mine writes them",
            hint="to start from its weights on other data, set init=weights",
        )
    if stored.progress.step >= total_steps:
        found = f"has come to its end, step {stored.progress.step} of {total_steps}"
        raise CheckpointError(
            found, file=stored.folder, hint="raise train.num_train_epochs to continue, or set init=weights to start from it"
        )
    data = own.fixed["train_datasets"]
    rounds = [*lineage["rounds"], {"from_step": stored.progress.step, "train_datasets": data}]
    # The tokenizer now comes from a checkpoint, which need not write it as it was read.
    fixed = {**stored.identity["fixed"], "train_datasets": data, "encoder.tokenizer": own.fixed["encoder.tokenizer"]}
    # Its best checkpoint is in another folder, where nobody would find it.
    stored.progress.best_metric = stored.progress.best_value = stored.progress.best_checkpoint = None
    return {**stored.identity, "fixed": fixed, "lineage": {**lineage, "rounds": rounds}}


def _own_options(options: SetOptions) -> dict[str, Any]:
    """A set's options; later ones only where they are set, so that older checkpoints compare equal."""
    return {name: value for name, value in asdict(options).items() if value is not None or name not in ("passage_prefix", "weight")}
