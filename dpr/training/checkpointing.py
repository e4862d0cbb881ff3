"""What a trainer puts into a checkpoint and takes out of one, and what makes two runs the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpr.core.distributed import on_main
from dpr.core.errors import CheckpointError, ConfigError
from dpr.core.logs import get_logger
from dpr.core.settings import IDENTITY, TOLD, flat_values
from dpr.data.collator import SetOptions
from dpr.data.loader import SampleSource
from dpr.data.training_data import questions_fingerprint
from dpr.formats import checkpoints
from dpr.formats.durable import read_json
from dpr.models.backbones import dropout_of
from dpr.training.finite_guard import refuse_not_finite
from dpr.training.optimizer import optimizer_tensors, restore_optimizer
from dpr.training.run_state import CheckpointFolder, Progress, RunIdentity, environment_facts
from dpr.training.settings import TrainingSettings

if TYPE_CHECKING:
    from dpr.training.callbacks import Callback
    from dpr.training.trainer import BiEncoderTrainer

logger = get_logger(__name__)

SCALER_FILE = "scaler.json"
CALLBACKS_FILE = "callbacks.json"


@dataclass(frozen=True, slots=True)
class StoredRun:
    """The checkpoint that a run resumes from."""

    folder: Path
    progress: Progress
    identity: dict[str, Any]
    is_other: bool = False
    """It belongs to another run, which continues in this output folder."""

    @property
    def pool_size(self) -> int:
        """Questions per pool of the run so far."""
        return int(self.identity.get("fixed", {}).get("train.global_batch_size", 0))


def find_stored_run(folder: CheckpointFolder, settings: TrainingSettings) -> StoredRun | None:
    """The newest whole checkpoint of the output folder or, in a new one, of the run that goes on there; None where there is neither.

    Raises:
        ConfigError: there is one and ``resume`` is ``fresh``, or there is none and it is ``require``.
        CheckpointError: there are checkpoints, but every one is damaged.
    """
    folder.prepare()
    newest = folder.newest(start_afresh=settings.resume == "fresh")
    if newest is not None:
        return StoredRun(newest, *CheckpointFolder.read_state(newest))
    if (other := settings.continued_run()) is not None:
        last = checkpoints.last_checkpoint(other)
        on_main(lambda: checkpoints.check_whole(last))
        return StoredRun(last, *CheckpointFolder.read_state(last), is_other=True)
    if settings.resume_mode() == "require":
        raise ConfigError(f"init=resume, but {folder.output_dir} holds no run of the name {folder.name}; is it the right output_dir?")
    return None


def write_state(trainer: BiEncoderTrainer, folder: Path) -> None:
    """Writes model, optimizer, loss scale and the state of callbacks into a checkpoint that is being made."""
    refuse_not_finite(trainer.model.weights())
    trainer.model.write_to(folder)
    checkpoints.write_tensors(folder, checkpoints.OPTIMIZER_FILE, optimizer_tensors(trainer.model, trainer.optimizer))
    checkpoints.write_json_file(folder, SCALER_FILE, trainer.step.scaler.state_dict())
    states = {name: state for name, callback in _named(trainer.callbacks) if (state := callback.state_dict())}
    checkpoints.write_json_file(folder, CALLBACKS_FILE, states)


def restore_state(trainer: BiEncoderTrainer, stored: StoredRun, settings: TrainingSettings) -> Progress:
    """Puts back what ``write_state`` wrote; returns the progress to go on from.

    Raises:
        CheckpointError: the checkpoint belongs to a different run.
    """
    identity = _succeed(trainer, stored) if stored.is_other else stored.identity
    trainer.identity.check(identity, source=stored.folder, force=settings.resume == "force")
    if identity.get("lineage"):
        trainer.identity = replace(trainer.identity, lineage=identity["lineage"])
    trainer.model.load_weights(checkpoints.read_tensors(stored.folder, checkpoints.MODEL_FILE), source=stored.folder)
    if not settings.ignore_checkpoint_optimizer:
        restore_optimizer(trainer.model, trainer.optimizer, checkpoints.read_tensors(stored.folder, checkpoints.OPTIMIZER_FILE))
        trainer.step.scaler.load_state_dict(checkpoints.read_json(stored.folder / SCALER_FILE))
    logger.info("resuming from %s at step %d", stored.folder, stored.progress.step)
    if settings.ignore_checkpoint_offset:
        return Progress()
    if (stored.folder / CALLBACKS_FILE).is_file():  # checkpoints of earlier versions have none
        states = read_json(stored.folder / CALLBACKS_FILE)
        for name, callback in _named(trainer.callbacks):
            if name in states:
                callback.load_state_dict(states[name])
    if settings.ignore_checkpoint_lr:
        stored.progress.schedule_start = stored.progress.step
    return stored.progress


def _succeed(trainer: BiEncoderTrainer, stored: StoredRun) -> dict[str, Any]:
    """The identity of another run as it is when that goes on with this trainer's files, which must be of the same questions in the same
    order, since which questions make up a pool depends on their rows.

    Raises:
        CheckpointError: they are not, or the run has come to its end.
    """
    lineage, own = stored.identity.get("lineage") or {}, trainer.identity
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
    if stored.progress.step >= trainer.total_steps:
        found = f"has come to its end, step {stored.progress.step} of {trainer.total_steps}"
        raise CheckpointError(found, file=stored.folder, hint="raise train.num_train_epochs to go on, or set init=weights to start from it")
    data = own.fixed["train_datasets"]
    rounds = [*lineage["rounds"], {"from_step": stored.progress.step, "train_datasets": data}]
    fixed = {**stored.identity["fixed"], "train_datasets": data}
    # Its best checkpoint is in another folder, where nobody would find it.
    stored.progress.best_metric = stored.progress.best_value = stored.progress.best_checkpoint = None
    return {**stored.identity, "fixed": fixed, "lineage": {**lineage, "rounds": rounds}}


def with_lineage(identity: RunIdentity, sources: Sequence[SampleSource]) -> RunIdentity:
    """The identity of a run whose negatives may be renewed later."""
    rounds = [{"from_step": 0, "train_datasets": identity.fixed["train_datasets"]}]
    return replace(identity, lineage={"questions": [questions_fingerprint(source) for source in sources], "rounds": rounds})


def _named(callbacks: list[Callback]) -> Iterator[tuple[str, Callback]]:
    """Callbacks by name; the second of a name is ``Name#2``."""
    seen: dict[str, int] = {}
    for callback in callbacks:
        name = callback.state_key
        seen[name] = seen.get(name, 0) + 1
        yield (name if seen[name] == 1 else f"{name}#{seen[name]}"), callback


def _own_options(options: SetOptions) -> dict[str, Any]:
    """A set's options; later ones only where they are set, so that older checkpoints compare equal."""
    return {name: value for name, value in asdict(options).items() if value is not None or name not in ("passage_prefix", "weight")}


def run_identity(trainer: BiEncoderTrainer) -> RunIdentity:
    """What decides the batches and the objective of this run (fixed), and what else decides what it ends with (told).

    Both are the settings of these roles, except where the data, the model or the process group say what is in effect.
    """
    settings, model = trainer.settings, trainer.model
    options = flat_values(model.options, (IDENTITY, TOLD))
    return RunIdentity(
        fixed=flat_values(settings, (IDENTITY,))
        | {
            "train_datasets": [source.fingerprint for source in trainer.dataset.sources],
            "datasets": [_own_options(options) for options in trainer.dataset.options],
            "train_sampling_rates": trainer.dataset.iterator.identity(),
            "train.global_batch_size": trainer.pool_size,
            "local_shards_dataloader": trainer.ranks.world_size if settings.local_shards_dataloader else 0,
            "loss.candidates": trainer.loss.candidates,
            "loss.temperature": options["temperature"],
            "loss.learn_temperature": options["learn_temperature"],
            "encoder": {**model.settings.as_dict(), "fix_ctx_encoder": options["fix_ctx_encoder"]},
        },
        free=flat_values(settings, (TOLD,))
        | {
            "train.max_steps": trainer.total_steps,
            "train.max_grad_norm": trainer.max_grad_norm,
            "train.warmup_steps": trainer.schedule.warmup_steps,
            "train.warmup_ratio": None,
            "train.lr_schedule": trainer.schedule.kind,
            "train.adam_betas": str(settings.train.betas()),
            "train.eval_epochs": settings.train.eval_epochs or None,
            "encoder.packed": options["packed"],
            "encoder.attention": options["attention"],
            **dropout_of(model.question_model.config),
            **environment_facts(trainer.ranks.world_size, trainer.device),
        },
    )
