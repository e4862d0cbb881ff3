"""Settings of ``dpr train`` and ``dpr explain``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from dpr.core.compute_settings import CudaSettings
from dpr.core.errors import ConfigError
from dpr.core.settings import (
    CONTENT,
    IDENTITY,
    NO_EFFECT,
    START,
    Settings,
    setting,
)
from dpr.data.settings import BadRowSettings, DataSetSettings
from dpr.models.settings import TowerSettings
from dpr.training.settings import DevSetSettings, NegativeSettings, TrainingSettings

_OF_TRAINING = (
    "resume",
    "seed",
    "train_sampling_rates",
    "loss_scale_factors",
    "val_av_rank_start_epoch",
    "encoder.dropout",
    "encoder.attention_dropout",
    "encoder.fix_ctx_encoder",
    "tracking",
)
_TRAIN_SETTINGS_OF_EVALUATION = {
    *(item.name for item in fields(DevSetSettings)),
    *(item.name for item in fields(NegativeSettings)),
    "precision",
    "validation",
    "token_store",
}
_LOSS_SETTINGS_OF_EVALUATION = ("candidates", "temperature")
_OF_THE_MODEL = (
    "do_lower_case",
    "encoder.encoder_model_type",
    "encoder.pretrained",
)
"""Settings that ``model_file`` determines."""
_OF_VALIDATIONS = (
    "early_stopping",
    "eval_at_start",
    "best_metric",
    "keep",
)
_OF_AVERAGE_RANK = ("val_av_rank_hard_neg", "val_av_rank_other_neg")


@dataclass
class TrackingConfig(Settings):
    """Programs that show metrics; metrics.jsonl and report.html are written in any case."""

    tensorboard: bool = setting(False, on_resume=NO_EFFECT)
    """Write TensorBoard event files into <output_dir>/tensorboard; needs the extra tb."""
    wandb: bool = setting(False, on_resume=NO_EFFECT)
    """Log to Weights & Biases, project $WANDB_PROJECT; needs the extra wandb."""


@dataclass
class RunConfig(Settings):
    """Data sets and output folder of a run."""

    train_datasets: Any = setting(None, on_resume=CONTENT, path="input")
    """One name or path, a glob, an entry such as {file: corpus.tsv, pairs: crops}, or a list of them; a name
    is a key of ``datasets``."""
    dev_datasets: Any = setting(None, on_resume=CONTENT, path="input")
    """Sets for validation, given in the same way."""
    output_dir: str | None = setting(None, also=("out",), on_resume=NO_EFFECT, path="folder")
    """Folder of the run: checkpoints, logs, metrics. An existing run in it is resumed."""


@dataclass
class TrainCommand(BadRowSettings, CudaSettings, TrainingSettings, RunConfig):
    """Trains a bi-encoder. With ``model_file`` and no ``train_datasets``, evaluates one."""

    FIRST: ClassVar[str] = """\
train_datasets dev_datasets output_dir encoder.pretrained_model_cfg model_file
train.batch_size train.num_train_epochs train.learning_rate train.hard_negatives
train.precision
"""
    EXAMPLES: ClassVar[str] = """\
dpr train train_datasets=train.json dev_datasets=dev.json output_dir=runs/first
dpr train train=biencoder_nq train_datasets=[nq_train] dev_datasets=[nq_dev] output_dir=runs/nq
dpr train model_file=runs/first dev_datasets=dev.json             # evaluates
"""
    loss_scale_factors: list[float] | None = setting(None, least=0, on_resume=IDENTITY)
    """One factor per train set, which multiplies its loss."""
    do_lower_case: bool | None = setting(None, on_resume=START)
    """true: lower-case texts and strip accents; false: keep both. For tokenizers with a BERT vocabulary.
    Absent = as the tokenizer states."""
    special_tokens: list[str] | None = setting(None, on_resume=START)
    """Tokens that replace the vocabulary's [unusedN] entries, in this order."""
    rank_timeout_s: float = setting(300.0, unit="seconds", least=1, on_resume=NO_EFFECT)
    """Time without a response after which a process of the group counts as lost."""
    encoder: TowerSettings = field(default_factory=TowerSettings)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    datasets: dict[str, Any] = setting(dict, entries=DataSetSettings, on_resume=CONTENT)
    """Catalogue: name -> options of a data set (file, special_token, encoder_type, ...)."""

    def trailing_sep(self) -> bool:
        """Returns ``encoder.dpr_trailing_sep`` of a new model; if absent, the rule of ``compat``."""
        return self.as_dpr if self.encoder.dpr_trailing_sep is None else self.encoder.dpr_trailing_sep

    def unused(self) -> Iterator[str]:
        yield from super().unused()
        train = self.train
        trains = self.train_datasets is not None or self.model_file is None
        if self.model_file is not None:
            yield from _OF_THE_MODEL
        if not trains:
            yield from _OF_TRAINING
            yield from (
                f"train.{item.name}"
                for item in fields(train)
                if item.name not in _TRAIN_SETTINGS_OF_EVALUATION
            )
            yield from (
                f"loss.{item.name}"
                for item in fields(self.loss)
                if item.name not in _LOSS_SETTINGS_OF_EVALUATION
            )
        if self.dev_datasets is None:
            yield "val_av_rank_start_epoch"
            yield from (f"train.{item.name}" for item in fields(DevSetSettings))
            if not trains:
                yield from (f"train.{item.name}" for item in fields(NegativeSettings))
            if not train.validation and not train.callbacks:
                yield from (f"train.{name}" for name in _OF_VALIDATIONS)
        elif trains and self.val_av_rank_start_epoch is None:
            yield from (f"train.{name}" for name in _OF_AVERAGE_RANK)
        if self.on_bad_row != "skip":
            yield "max_bad_rows"

    def check_together(self, prefix: str) -> None:
        super().check_together(prefix)
        self.encoder.check_attention(precision=self.train.precision, trains=self.train_datasets is not None)
        foreign = {
            "train.lr_schedule": self.train.lr_schedule not in ("linear", "dpr"),
            "train.embedding_lr_factor": self.train.embedding_lr_factor != 1,
            "loss.name": self.loss.name != "nll",
            "loss.temperature": self.loss.temperature not in (None, 1),
            "loss.learn_temperature": self.loss.learn_temperature,
            "encoder.normalize": self.encoder.normalize,
            "encoder.pooling": self.encoder.pooling not in (None, "cls"),
        }
        given = [key for key, is_foreign in foreign.items() if is_foreign]
        if self.as_dpr and given:
            raise ConfigError(
                f"compat=dpr and {', '.join(given)} are mutually exclusive, the original has no such choice;"
                " leave one of them out"
            )


@dataclass
class ExplainCommand(TrainCommand):
    """Prints the content of one step of a training run: rows, drawn passages, masked passages, tokens. Takes
    the settings of the run."""

    FIRST = f"step questions {TrainCommand.FIRST}"
    EXAMPLES = """\
dpr explain step=1 train_datasets=train.json output_dir=runs/first
"""
    step: int = setting(1, least=1, on_resume=NO_EFFECT)
    """Number of the optimizer step, counted from 1 as in the log."""
    questions: int = setting(3, unit="questions", least=0, on_resume=NO_EFFECT)
    """Questions shown of each global batch; 0 = all."""

    def check_together(self, prefix: str) -> None:
        super().check_together(prefix)
        if self.train_datasets is None:
            raise ConfigError(
                "train_datasets is not set; give the command line of the training run, and step=N"
            )
