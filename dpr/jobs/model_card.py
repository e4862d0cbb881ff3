"""A run folder -> what a model card says of its training."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.evaluation.report.reading import flatten, read_retrieval
from dpr.export.model_card import CardFacts
from dpr.formats.checkpoints import CONFIG_FILE, STATE_FILE, resolve_checkpoint
from dpr.storage.durable import read_json
from dpr.training.command_settings import BiEncoderTrainConfig

_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_NOT_OF_THE_RUN = ("datasets", "output_dir", "device", "no_cuda")


def card_facts(model_file: str, name: str, *, license_name: str | None, results: Sequence[str]) -> CardFacts:
    """What is known of a model. Of its checkpoint only what can be read is used; absolute paths and
    credentials are left out.

    Raises:
        InputError: a file of ``results`` is no metrics file.
    """
    checkpoint = Path(model_file)
    config: dict[str, Any] = {}
    state: dict[str, Any] = {}
    if checkpoint.is_dir():
        checkpoint = resolve_checkpoint(checkpoint)
        config, state = _object(checkpoint / CONFIG_FILE), _object(checkpoint / STATE_FILE)
    fixed, free = (_dict(_dict(state.get("identity")).get(part)) for part in ("fixed", "free"))
    fingerprints = {
        "training data": fixed.get("train_datasets"),
        "validation data": free.get("dev_datasets.content"),
    }
    metrics = _dict(_dict(state.get("progress")).get("last_metrics"))
    base = None if config.get("model_file") else _dict(config.get("encoder")).get("pretrained_model_cfg")
    return CardFacts(
        name=name,
        license=license_name,
        base_model=base
        if isinstance(base, str) and _HUB_NAME.fullmatch(base) and not Path(base).exists()
        else None,
        command=_command(config) if config else "",
        seed=fixed.get("seed") if isinstance(fixed.get("seed"), int) else None,
        data={
            key: [str(value) for value in values]
            for key, values in fingerprints.items()
            if isinstance(values, list) and values
        },
        validation={key: float(value) for key, value in metrics.items() if type(value) in (int, float)},
        retrievals=[read_retrieval(Path(file).stem, Path(file)) for file in results],
    )


def _command(config: dict[str, Any]) -> str:
    """The command of the run: the settings that are not the default ones, files by their names."""
    usual = flatten(asdict(BiEncoderTrainConfig()))
    own = {key: value for key, value in config.items() if key not in _NOT_OF_THE_RUN}
    shown = {key: value for key, value in flatten(own).items() if value != usual.get(key)}
    leaves = _leaves(own)
    words = [f"{key}={_typed(leaves.get(key), text)}" for key, text in shown.items()]
    return " ".join(["dpr train", *map(shlex.quote, words)])


def _typed(value: Any, text: str) -> str:
    """The ``text`` that a page shows of a value, as it is typed."""
    return (
        "null"
        if value is None
        else f"[{text.replace(', ', ',')}]"
        if isinstance(value, list | tuple)
        else text
    )


def _leaves(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, entry in value.items():
        flat |= _leaves(entry, f"{prefix}{key}.") if isinstance(entry, dict) else {f"{prefix}{key}": entry}
    return flat


def _object(file: Path) -> dict[str, Any]:
    with suppress(InputError):
        return _dict(read_json(file))
    return {}


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
