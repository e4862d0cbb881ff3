"""Sources of models: the folder of a name that the user or a file gives, and the files that a model is read
from."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any

from dpr.core.errors import CheckpointError, InputError, first_line
from dpr.core.machine import no_downloads, reading
from dpr.core.paths import texts_in, user_path
from dpr.formats.model_folder import is_read
from dpr.storage.untrusted import is_below, read_json

HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_FETCHED = ["*.safetensors", "*.json", "*.txt", "*.model"]
_NAMING = re.compile(r"(modules|(router|tokenizer|adapter)_config|encoder_settings|.*\.index)\.json")
_TOWERS = ("encoder", "question_encoder", "ctx_encoder")


def local_model(name: str | Path) -> Path:
    """Returns the file or folder of a model that the user named.

    For a name that is none here, this is the snapshot of the hub's model, fetched or in the cache, without
    pickles and code. A name without a slash is first tried among those of sentence-transformers, as that
    library does.

    Raises:
        CheckpointError: there is neither a file or folder nor such a model.
    """
    path = user_path(name)
    is_below_here = "/" in str(name) and path.parent.is_dir()
    if os.path.lexists(path) or is_below_here or not HUB_NAME.fullmatch(str(name)):
        return path
    return snapshot_of(str(name))


@cache  # all that a process reads is of one revision
def snapshot_of(name: str) -> Path:
    """Returns the snapshot of a model of the hub.

    Raises:
        CheckpointError: there is none.
    """
    from huggingface_hub import constants, snapshot_download

    with reading(name):
        for repository in [name] if "/" in name else [f"sentence-transformers/{name}", name]:
            try:
                return Path(snapshot_download(repository, allow_patterns=_FETCHED))
            except Exception as error:  # no such model, no access to it, no network, no disk space
                reason = first_line(error)
        found = f"there is no such file or folder here, and the hub gives no such model ({reason})"
        hint = "check the name"
        if constants.HF_HUB_OFFLINE:
            found = (
                "there is no such file or folder here, no such model in the cache of the hub, and no network"
            )
            hint = f"download it on a machine with a network (hf download {repository}), or name a folder"
    raise CheckpointError(found, file=name, hint=hint)


def files_of_model(path: Path) -> dict[str, Path]:
    """Returns the files that a model is read from, by their names in its folder (of a run, in that of its
    checkpoint): those there, those in folders that they name, and those of the model that an adapter builds
    on. Other files may come and go, such as a run that was trained from the model and written into its folder."""
    found: dict[str, Path] = {}
    seen = set()
    places = [("", path)]
    for name, place in places:  # grows in the loop
        if os.path.isdir(place) and place.resolve() not in seen:
            seen.add(place.resolve())
            inner = [each for each in sorted(os.listdir(place)) if is_read(each) or each in _TOWERS]
            places += [(os.path.join(name, each), place / each) for each in inner]
        if not os.path.isfile(place) or name in found:
            continue
        found[name] = place
        own = place.parent.resolve() / place.name
        if own in seen or not _NAMING.fullmatch(place.name):
            continue
        seen.add(own)
        stated = read_json(place)
        for text in filter(is_below, texts_in(stated)):
            places.append((os.path.normpath(os.path.join(name, "..", text)), place.parent / text))
        if isinstance(stated, dict):
            # as this toolkit and as peft name the model that an adapter builds on
            for named in texts_in([stated.get("base"), stated.get("base_model_name_or_path")]):
                with suppress(CheckpointError), base_model(None, named, place) as base:
                    places.append((f"{name}: {base}", local_model(base)))
    return dict(sorted(found.items()))


@contextmanager
def base_model(given: str | None, stored: Any, file: Path) -> Iterator[str]:
    """Yields the name of a model that another file builds on: ``given`` by the user, else the one ``stored``
    in the file. The latter is looked up on this machine only, so that no file can cause a download.

    Raises:
        CheckpointError: no name is stored, or the model is not here or cannot be loaded.
    """
    hint = "set encoder.pretrained_model_cfg=<folder of that model, with config.json and tokenizer>"
    if not given and not (isinstance(stored, str) and stored):
        raise CheckpointError("names no encoder that it builds on", file=file, hint=hint)
    try:
        with nullcontext() if given else no_downloads():
            yield given or stored
    except (InputError, OSError) as error:  # OSError: a name of a thousand letters
        if given:
            raise
        reason = error.found if isinstance(error, InputError) else first_line(error)
        raise CheckpointError(
            f"it builds on {stored[:100]}, which cannot be loaded on this machine ({reason})",
            file=file,
            hint=hint,
        ) from error
