"""A run folder -> what a model card says of its training."""

from __future__ import annotations

import re
import shlex
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.evaluation.report.reading import flatten
from dpr.export.folders import CardFacts
from dpr.formats.checkpoints import CONFIG_FILE, STATE_FILE, resolve_checkpoint
from dpr.storage.durable import read_json
from dpr.training.command_settings import BiEncoderTrainConfig

_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_NOT_OF_THE_RUN = ("datasets", "output_dir", "device", "no_cuda")


def card_facts(model_file: str, name: str) -> CardFacts:
    """What is known of a model. Of its checkpoint only what can be read is used; absolute paths and
    credentials are left out."""
    checkpoint = Path(model_file)
    config: dict[str, Any] = {}
    state: dict[str, Any] = {}
    if checkpoint.is_dir():
        checkpoint = resolve_checkpoint(checkpoint)
        with suppress(InputError):
            config = _section(read_json(checkpoint / CONFIG_FILE))
        with suppress(InputError):
            state = _section(read_json(checkpoint / STATE_FILE))
    fixed = _section(state, "identity", "fixed")
    data = {
        "training data": fixed.get("train_datasets"),
        "validation data": _section(state, "identity", "free").get("dev_datasets.content"),
    }
    metrics = _section(state, "progress", "last_metrics")
    base = None if config.get("model_file") else _section(config, "encoder").get("pretrained_model_cfg")
    if not isinstance(base, str) or not _HUB_NAME.fullmatch(base) or Path(base).exists():
        base = None
    return CardFacts(
        name=name,
        base_model=base,
        command=_command(config) if config else "",
        seed=fixed.get("seed") if isinstance(fixed.get("seed"), int) else None,
        data={key: list(map(str, found)) for key, found in data.items() if isinstance(found, list) and found},
        validation={key: float(value) for key, value in metrics.items() if type(value) in (int, float)},
    )


def _command(config: dict[str, Any]) -> str:
    """The command of the run: the settings that are not the default ones, files by their names."""
    defaults = flatten(asdict(BiEncoderTrainConfig()))
    words = ["dpr train"]
    for key, text in flatten({key: config[key] for key in config if key not in _NOT_OF_THE_RUN}).items():
        if text != defaults.get(key):
            value: Any = config
            for part in key.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            if isinstance(value, list):
                text = f"[{text.replace(', ', ',')}]"
            words.append(shlex.quote(f"{key}={'null' if text == '-' else text}"))
    return " ".join(words)


def _section(value: Any, *names: str) -> dict[str, Any]:
    """The section of nested settings; empty where there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}
