"""The identity of a run: settings and content that a resumed run must share with the checkpoint, and those
that it may change with a warning."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpr.core.distributed import Ranks, copy_from_main, current_ranks
from dpr.core.errors import CheckpointError, DprError
from dpr.core.logs import get_logger
from dpr.core.settings import IDENTITY, MODEL, UPDATES, WARNED, flat_values, unused_keys
from dpr.data.training_data import OpenedSets
from dpr.formats import checkpoints, run_folders
from dpr.formats.run_folders import resolve_checkpoint
from dpr.losses.protocol import Loss
from dpr.models.properties import deciding_config, dropout_of
from dpr.models.sources import files_of_model
from dpr.models.towers import Towers
from dpr.storage.checksums import shared_content
from dpr.storage.untrusted import read_json
from dpr.training.command_settings import TrainCommand
from dpr.training.run import Callback, StoredRun
from dpr.training.settings import TrainingSettings
from dpr.training.validations.protocol import Validation

logger = get_logger(__name__)


@dataclass(frozen=True)
class RunIdentity:
    """Settings and content that must be equal for a resumed run to see the same batches and objective
    (``fixed``), and those that may change with a warning (``free``).

    Keys are the names of settings, so a refusal can name the override that fixes it.
    """

    fixed: dict[str, Any]
    free: dict[str, Any]
    models: dict[str, list[str]] = field(default_factory=dict)
    """Name and content of each file read from local models, by the setting that names the model. They may not
    change either."""


_OF_METRICS = (
    "dev_datasets.",
    "train.validation.",
    "train.dev_batch_size",
    "train.val_av_rank_",
)
"""Settings that change the meaning of metrics: with another value, metrics of the same name cannot be
compared."""


def _with_command_settings(fixed: dict[str, Any]) -> dict[str, Any]:
    """Returns fixed settings, completed by the defaults of those that only ``dpr train`` has. A run of
    ``BiEncoderTrainer`` does not store these."""
    from_python = flat_values(TrainingSettings(), (IDENTITY,))
    from_command = flat_values(TrainCommand(), (IDENTITY,))
    only_there = {key: value for key, value in from_command.items() if key not in from_python}
    return only_there | fixed


def _differences(stored: dict[str, Any], own: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Returns the differences as pairs of old and new value, by the names of settings and of their parts."""
    was = dict(_leaves(stored))
    now = dict(_leaves(json.loads(json.dumps(own))))
    pairs = {key: (was.get(key), now.get(key)) for key in sorted(was.keys() | now.keys())}
    return {key: (old, new) for key, (old, new) in pairs.items() if old != new}


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _leaves(part, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _leaves(part, f"{key}[{number}]")
    else:
        yield key, value


def _by_file(name: str, contents: list[str]) -> dict[str, str]:
    """Returns the contents of a model's files, by the name of the setting and of the file."""
    files = dict(entry.rpartition(" ")[::2] for entry in contents)
    return {f"{name}[{file}]" if file else name: content for file, content in files.items()}


def run_identity(
    settings: TrainingSettings,
    model: Towers,
    loss: Loss,
    ranks: Ranks,
    *,
    of_batches: Mapping[str, Any],
    total_steps: int,
    dev_sets: OpenedSets,
    validations: Sequence[Validation],
    callbacks: Sequence[Callback],
    output_dir: Path,
) -> RunIdentity:
    """Returns the settings and content that the batches and the objective of this run depend on (fixed), and
    all others that its outcome depends on (free).

    Both are the settings of these roles. Where the data, the model or the process group determine the
    effective value, that value is taken; ``of_batches`` is ``Plan.identity``. Both also have the content of all
    files read: those of train and dev sets, of models, and those that validations and callbacks state.
    """
    # Name and content of each file that a model is read from; none if the model is not local or is this
    # run's.
    models = {}
    for key, value in flat_values(settings, (MODEL,)).items():
        path = Path(value or "")
        if not value or not path.exists() or path.resolve().is_relative_to(output_dir.resolve()):
            continue
        read = files_of_model(resolve_checkpoint(path))
        contents = shared_content(list(read.values()))
        if read:
            models[key] = [f"{name} {content}" for name, content in zip(read, contents, strict=True)]
    options = flat_values(model.options, (IDENTITY, UPDATES, WARNED))
    return RunIdentity(
        models=models,
        fixed=flat_values(settings, (IDENTITY,))
        | {
            **of_batches,
            "loss.candidates": loss.candidates,
            "loss.guide.content": None,
            "loss.teacher.content": None,
            **{f"loss.{key}.content": content for key, content in loss.content().items()},
            "loss.temperature": options["temperature"],
            "loss.learn_temperature": options["learn_temperature"],
            # instead of the settings, since a given model may state other values
            **{f"encoder.{name}": value for name, value in model.settings.as_dict().items()},
            "encoder.fix_ctx_encoder": options["fix_ctx_encoder"],
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
        free=flat_values(settings, (UPDATES, WARNED))
        | {
            "dev_datasets.content": [source.fingerprint for source, _ in dev_sets],
            "dev_datasets.options": [options.metadata("") for _, options in dev_sets],
            "train.validation.content": [
                content for each in validations if (content := dict(each.content()))
            ],
            "train.max_steps": total_steps,
            "train.max_grad_norm": settings.gradient_limit(ranks.world_size),
            "train.warmup_steps": settings.train.warmup(total_steps),
            "train.lr_schedule": settings.lr_schedule(),
            "train.adam_betas": str(settings.train.betas()),
            "encoder.packed": options["packed"],
            "encoder.attention": options["attention"],
            **dropout_of(model.ctx_model.config),
            # The last bits of a sum depend on these: in another environment a run is right, but not equal.
            "environment.world_size": ranks.world_size,
            "environment.threads": torch.get_num_threads(),
            "environment.torch": torch.__version__,
            "environment.numpy": np.__version__,  # it draws the order of samples
            "environment.device": (
                torch.cuda.get_device_name(model.device)
                if model.device.type == "cuda"
                else platform.machine()
            ),
        },
    )


def check_identity(own: RunIdentity, stored: StoredRun, settings: TrainingSettings) -> None:
    """Checks that a run may resume ``stored``. Warns of changed settings that are free. If they change the
    meaning of metrics, forgets the best checkpoint of ``stored``.

    Raises:
        CheckpointError: ``resume`` is not force, and a fixed setting differs or, in a finished run, a setting
            of the updates.
    """
    identity = stored.identity
    unused = unused_keys(settings)
    changed = {
        key: values
        for key, values in _differences(
            _with_command_settings(identity.get("fixed", {})), _with_command_settings(own.fixed)
        ).items()
        if key.partition("[")[0] not in unused
    }
    models = identity.get("models", {})
    for name in models.keys() & own.models.keys():  # a model that is elsewhere now cannot be compared
        was = _by_file(name, models[name])
        now = _by_file(name, own.models[name])
        changed |= {key: (was.get(key), now.get(key)) for key in sorted(now) if was.get(key) != now.get(key)}
    free = _differences(identity.get("free", {}), own.free)
    callbacks = stored.folder / checkpoints.CALLBACKS_FILE
    states = read_json(callbacks) if callbacks.is_file() else {}
    is_stopped = any(state.get("stopped") for state in states.values())
    if is_stopped or stored.progress.step >= identity.get("free", {}).get("train.max_steps", math.inf):
        # A value derived from more than its setting may differ: a warm-up from the number of steps, the
        # original's gradient limit from the number of processes.
        given = flat_values(settings, (UPDATES,)) | {"train.adam_betas": str(settings.train.betas())}
        is_scaled = settings.as_dpr and "environment.world_size" in free
        for key, values in free.items():
            if key in given and given[key] == own.free[key] and not is_scaled:
                changed[key] = values
    if changed and settings.resume != "force":
        key, (was, now) = next(iter(changed.items()))
        more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
        restored = "the encoder" if key == "encoder.tokenizer" else key.partition("[")[0]
        raise CheckpointError(
            f"was written by a different run: {key} was {was}, is now {now}{more}",
            file=stored.folder,
            expected="the same data, order and objective, and for a finished run the same optimizer settings",
            hint=f"restore {restored}, choose a new output_dir, or set resume=force to resume despite the"
            " change",
        )
    for key, (was, now) in (changed | free).items():
        consequence = (
            "; the global batch stays as it was (train.global_batch_size)"
            if key == "train.batch_size"
            else ""
        )
        if key.startswith("environment."):
            consequence = "; the weights will not be bitwise those of an uninterrupted run"
        if key.startswith(_OF_METRICS):
            consequence = (
                "; metrics before and after cannot be compared, so the best checkpoint is chosen again"
            )
            stored.progress.forget_best()
            stored.progress.start_metrics = {}
        logger.warning("resuming with %s changed from %s to %s%s", key, was, now, consequence)


def stored_value(output_dir: str | Path | None, settings: TrainingSettings, key: str) -> float:
    """Returns a fixed setting of the run that a start in ``output_dir`` would resume, the same on all ranks;
    0 if there is none.

    Nothing is locked or checked here. The setting is compared again when the run is resumed.
    """
    value = torch.zeros((), dtype=torch.float64)
    if current_ranks().is_main and output_dir is not None and settings.resume != "fresh":
        # damaged: reported when the run is resumed
        with suppress(DprError, KeyError, TypeError, ValueError):
            for folder in run_folders.checkpoint_folders(Path(output_dir))[:1]:
                state = read_json(folder / checkpoints.STATE_FILE)
                value.fill_(float(state["identity"]["fixed"][key]))
    copy_from_main([value])
    return float(value)
