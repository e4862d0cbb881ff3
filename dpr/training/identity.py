"""The identity of a run: what a resumed run must share with the checkpoint, and what it may change with a
warning."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpr.core.distributed import Ranks, current_ranks, from_main
from dpr.core.errors import CheckpointError, DprError
from dpr.core.logs import get_logger
from dpr.core.settings import IDENTITY, MODEL, WARNED, flat_values, unused_keys
from dpr.data.training_data import OpenedSets
from dpr.formats import checkpoints
from dpr.losses.protocol import Loss
from dpr.models.backbones import deciding_config, dropout_of
from dpr.models.biencoder import BiEncoder
from dpr.models.settings import TowerSettings
from dpr.storage.checksums import shared_content
from dpr.storage.durable import read_json
from dpr.training.checkpointing import StoredRun
from dpr.training.plan import Plan
from dpr.training.run import CHECKPOINT_NAME, Callback
from dpr.training.settings import TrainingSettings
from dpr.training.validations.protocol import Validation

logger = get_logger(__name__)


@dataclass(frozen=True)
class RunIdentity:
    """What must be equal for a resumed run to see the same batches and objective (``fixed``), and what it may
    change with a warning.

    Keys are the names of settings, so a refusal can name the override that fixes it.
    """

    fixed: dict[str, Any]
    free: dict[str, Any]
    models: dict[str, list[str]] = field(default_factory=dict)
    """By the settings that name models on this machine, what was read of them: names of files and their
    content. May not change either."""


_DEFAULTS = (
    flat_values(TrainingSettings())
    | flat_values(TowerSettings(), prefix="encoder.")
    | {"encoder.dpr_trailing_sep": False}
)
del _DEFAULTS["loss.learn_temperature"]  # never stored by earlier versions; the optimizer's state shows it


_OF_MODELS = (".json", ".safetensors", ".bin", ".pt", ".txt", ".model", ".jinja")
_OF_METRICS = (
    "dev_datasets.",
    "train.validation.",
    "train.dev_batch_size",
    "train.val_av_rank_",
)
"""With another value of these, metrics of one name are not those of before."""


def _differences(
    stored: dict[str, Any], own: dict[str, Any], absent: dict[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """What differs, as it was and as it is; a key that one of the two lacks is taken from ``absent``."""
    was, now, absent = (_flat(json.loads(json.dumps(values))) for values in (stored, own, absent))
    pairs = {}
    for key in sorted(was.keys() | now.keys()):
        usual = absent.get(key, now.get(key))
        pairs[key] = was.get(key, usual), now.get(key, usual)
    return {key: (old, new) for key, (old, new) in pairs.items() if old != new}


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, with dotted keys. A setting whose value is a dictionary stays whole.

    What a section holds wins over a dotted key of the same name: it is in effect, whatever the command said.
    Files have keys in any order.
    """
    sections = {
        key for key, value in tree.items() if isinstance(value, dict) and prefix + key not in _DEFAULTS
    }
    by_key = {prefix + key: value for key, value in tree.items() if key not in sections}
    for key in sections:
        by_key |= _flat(tree[key], f"{prefix}{key}.")
    return by_key


def run_identity(
    settings: TrainingSettings,
    plan: Plan,
    model: BiEncoder,
    loss: Loss,
    ranks: Ranks,
    *,
    dev_sets: OpenedSets,
    validations: Sequence[Validation],
    callbacks: Sequence[Callback],
    output_dir: Path,
) -> RunIdentity:
    """What decides the batches and the objective of this run (fixed), and what else decides its outcome
    (free).

    Both are the settings of these roles, except where the data, the model or the process group decide what is
    in effect, and the content of all files that are read: those of train and dev sets, of models, and what
    validations and callbacks state as theirs.
    """
    named = {key: value for key, value in flat_values(settings, (MODEL,)).items() if value}
    models = {key: read for key, value in named.items() if (read := _model_content(Path(value), output_dir))}
    options, sources = flat_values(model.options, (IDENTITY, WARNED)), plan.dataset.sources
    files = [source.fingerprint for source in sources]
    return RunIdentity(
        models=models,
        fixed=flat_values(settings, (IDENTITY,))
        | {
            "train_datasets": files,
            "datasets": [
                options.facts(source.name)
                for source, options in zip(sources, plan.dataset.options, strict=True)
            ],
            "train_sampling_rates": plan.dataset.iterator.identity(),
            "train.global_batch_size": plan.pool_size,
            "loss.candidates": loss.candidates,
            "loss.guide.content": None,
            "loss.teacher.content": None,
            **{f"loss.{key}.content": content for key, content in loss.content().items()},
            "loss.temperature": options["temperature"],
            "loss.learn_temperature": options["learn_temperature"],
            "encoder": {**model.settings.as_dict(), "fix_ctx_encoder": options["fix_ctx_encoder"]},
            # the default depends on the model
            "encoder.plain_apostrophes": (None if model.settings.plain_apostrophes else False),
            "encoder_config": [
                deciding_config(tower.config) for tower in (model.question_model, model.ctx_model)
            ],
            "encoder.tokenizer": model.tensorizer.fingerprint,
            **({} if model.base is None else {"encoder.base": model.base.fingerprint}),
            **{
                f"train.callbacks.{each.state_key}": content
                for each in callbacks
                if (content := dict(each.content()))
            },
        },
        free=flat_values(settings, (WARNED,))
        | {
            "dev_datasets.content": [source.fingerprint for source, _ in dev_sets],
            "dev_datasets.options": [options.facts("") for _, options in dev_sets],
            "train.validation.content": [
                content for each in validations if (content := dict(each.content()))
            ],
            "train.max_steps": plan.total_steps,
            "train.max_grad_norm": settings.gradient_limit(ranks.world_size),
            "train.warmup_steps": settings.train.warmup(plan.total_steps),
            "train.lr_schedule": settings.lr_schedule(),
            "encoder.packed": options["packed"],
            "encoder.attention": options["attention"],
            "encoder.lora_dropout": options["lora_dropout"],
            **dropout_of(model.ctx_model.config),
            **_environment(ranks, model.device),
        },
    )


def _model_content(path: Path, run: Path) -> list[str]:
    """Name and content of each file that a model is read from; none where it is not local, or is this
    run's."""
    if not path.exists() or path.resolve().is_relative_to(run.resolve()):
        return []
    if path.is_file():
        return shared_content([path])
    folder = checkpoints.resolve_checkpoint(path)
    files = sorted(file for file in folder.rglob("*") if file.suffix in _OF_MODELS and file.is_file())
    return [
        f"{file.relative_to(folder).as_posix()} {content}"
        for file, content in zip(files, shared_content(files), strict=True)
    ]


def _environment(ranks: Ranks, device: torch.device) -> dict[str, Any]:
    """What the last bits of a sum depend on: in another one a run is right, but not equal."""
    return {
        "environment.world_size": ranks.world_size,
        "environment.threads": torch.get_num_threads(),
        "environment.torch": torch.__version__,
        "environment.numpy": np.__version__,  # it draws the order of samples
        "environment.device": (
            torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
        ),
    }


def _narrowed(key: str, was: Any, now: Any) -> tuple[str, Any, Any]:
    """The first part of a value that differs, with its key: of long lists and of options one entry, which is
    what a person looks for."""
    if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        number = next(number for number, (old, new) in enumerate(zip(was, now, strict=True)) if old != new)
        return _narrowed(f"{key}[{number}]", was[number], now[number])
    if isinstance(was, list) and isinstance(now, list):
        old, new = (
            [each for each in part if each not in other] or f"{len(part)} entries"
            for part, other in ((was, now), (now, was))
        )
        return key, old, new
    if isinstance(was, dict) and isinstance(now, dict):
        name = next(name for name in sorted(was.keys() | now.keys()) if was.get(name) != now.get(name))
        return _narrowed(f"{key}.{name}", was.get(name), now.get(name))
    return key, was, now


def check_identity(own: RunIdentity, stored: StoredRun, settings: TrainingSettings) -> None:
    """Looks whether a run may resume ``stored``. Warns of changed settings that are free and forgets the best
    checkpoint of ``stored`` where they change what metrics mean.

    Raises:
        CheckpointError: a fixed setting differs and ``resume`` is not force.
    """
    identity = stored.identity
    differences = _differences(identity.get("fixed", {}), own.fixed, _DEFAULTS)
    unused = unused_keys(settings)
    changed = {key: values for key, values in differences.items() if key not in unused}
    for key, (was, now) in _differences(identity.get("models", {}), own.models, {}).items():
        if was and now:
            changed[key] = was, now
    if changed and settings.resume != "force":
        name, (was, now) = next(iter(changed.items()))
        key, was, now = _narrowed(name, was, now)
        more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
        restored = "the encoder" if key == "encoder.tokenizer" else name
        raise CheckpointError(
            f"was written by a different run: {key} was {was}, is now {now}{more}",
            file=stored.folder,
            expected="the same data, order and objective",
            hint=(
                f"restore {restored}, choose a new output_dir, or set resume=force to resume with another"
                " order of samples"
            ),
        )
    for key, (was, now) in (changed | _differences(identity.get("free", {}), own.free, own.free)).items():
        consequence = (
            "; the pool stays as it was (train.global_batch_size)" if key == "train.batch_size" else ""
        )
        if key.startswith("environment."):
            consequence = "; the weights will not be bitwise those of an uninterrupted run"
        if key.startswith(_OF_METRICS):
            consequence = (
                "; metrics before and after cannot be compared, so the best checkpoint is chosen anew"
            )
            stored.progress.forget_best()
            stored.progress.start_metrics = {}
        logger.warning("resuming with %s changed from %s to %s%s", *_narrowed(key, was, now), consequence)


def stored_pool_size(output_dir: Path | None, settings: TrainingSettings) -> int:
    """Questions per pool of the run that a start in ``output_dir`` would resume, the same on all ranks; 0
    where there is none.

    Nothing is locked or checked here; the size is compared again when the run is resumed.
    """
    size = 0
    if current_ranks().is_main and output_dir is not None and settings.resume != "fresh":
        folders = checkpoints.checkpoint_folders(output_dir, CHECKPOINT_NAME)
        try:
            if folders:
                state = read_json(folders[0] / checkpoints.STATE_FILE)
                size = int(state["identity"]["fixed"]["train.global_batch_size"])
        except (DprError, KeyError, TypeError, ValueError):
            pass  # damaged: reported when the run is resumed
    return from_main(size)
