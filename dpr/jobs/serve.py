"""``dpr serve``: serves run folders over HTTP, with a page to try them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from dpr.core.errors import ConfigError, InputError
from dpr.core.machine import require
from dpr.serving.settings import ServeSettings


def run(config: ServeSettings) -> int:
    """Serves until it is stopped; returns the exit code."""
    runs = named(config.folders)
    for package in ("uvicorn", "fastapi", "prometheus_client"):
        require(package, extra="serve", purpose="dpr serve")
    from dpr.serving.app import make_app
    from dpr.serving.engine import open_runs
    from dpr.serving.server import serve

    return serve(config, partial(make_app, config, lambda: open_runs(runs, config)))


def named(given: Sequence[str]) -> dict[str, Path]:
    """Returns the folders by their names.

    Raises:
        ConfigError: there is none, a name is unsuitable for an address, or two are the same.
        InputError: a folder cannot be searched.
    """
    folders_by_name: dict[str, Path] = {}
    for token in given:
        label, _, folder = ("", "", token) if os.path.isdir(token) else token.rpartition("=")
        name = label or re.sub(r"[^\w.-]", "-", Path(folder).resolve().name)
        if not re.fullmatch(r"[\w.-]+", name):
            raise ConfigError(f"{name!r} is not a name; use letters, digits, '.', '_' and '-'")
        if name in folders_by_name:
            raise ConfigError(f"two folders are called {name}; name one: other={folder}")
        folders_by_name[name] = Path(folder)
        has_model = Path(folder).is_file() or next(Path(folder).rglob("*.safetensors"), None) is not None
        if not has_model and not (Path(folder) / "search.json").is_file():
            raise InputError(
                "no search.json, and no model",
                file=folder,
                hint=f"dpr retrieve ... search_folder={folder} writes a search.json",
            )
    if not folders_by_name:
        raise ConfigError("there is nothing to serve; name a run folder, e.g. dpr serve runs/first")
    return folders_by_name
