"""``train.export``: the best checkpoint of a finished run, in formats of other libraries, in the run's
folder."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from dpr.core.errors import ConfigError
from dpr.embedding.settings import CheckpointEncoderConfig
from dpr.export.checking import format_of
from dpr.export.folders import export_folder
from dpr.export.settings import MODEL_FORMATS
from dpr.jobs.model_card import card_facts
from dpr.models.biencoder import BiEncoder
from dpr.models.pooling import is_user_defined
from dpr.storage.durable import read_manifest, remove_folder
from dpr.training.command_settings import BiEncoderTrainConfig

FOLDER = "export"
_NEEDS = {"onnx": ("onnx", "onnxscript")}


def check_formats(names: list[str] | None) -> None:
    """Refuses, before training, formats that are not known or cannot be written here.

    Raises:
        ConfigError: names one.
    """
    for name in names or ():
        if name not in MODEL_FORMATS:
            raise ConfigError(f"train.export={name} is not known; choose of {', '.join(MODEL_FORMATS)}")
        if missing := [package for package in _NEEDS.get(name, ()) if find_spec(package) is None]:
            raise ConfigError(
                f'train.export={name} needs the package {missing[0]!r}: pip install -e ".[onnx]" in the clone'
            )


def check_model(names: list[str] | None, model: BiEncoder) -> None:
    """Refuses, before training, a model that a format cannot say.

    Raises:
        InputError: names what it cannot say.
    """
    for name in names or ():
        format_of(name).require_sayable(model, f"train.export={name}")


def export_best(config: BiEncoderTrainConfig) -> list[Path]:
    """Writes the run's best checkpoint (without validations its last) as ``<output_dir>/export/<format>``;
    what an earlier end of the run wrote there is replaced.

    Raises:
        InputError: a format cannot say what the model does. The run and its checkpoints are complete.
    """
    if not config.train.export:
        return []
    run = Path(str(config.output_dir))
    pooling = (
        config.encoder.pooling
        if is_user_defined(config.encoder.pooling)
        else CheckpointEncoderConfig().pooling
    )
    model = BiEncoder.load(run, **CheckpointEncoderConfig(pooling=pooling).arguments())
    facts = card_facts(str(run), run.resolve().name, license_name=None, results=())
    written = []
    for name in dict.fromkeys(config.train.export):
        target = run / FOLDER / name
        if (
            target.is_dir()
            and read_manifest(target)["metadata"].get("made_of", {}).get("model") != model.fingerprint
        ):
            remove_folder(target)
        export_folder(model, target, name, source=str(run), facts=facts)
        written.append(target)
    return written
