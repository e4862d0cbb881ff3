"""``dpr serve``: run folders behind HTTP, with a page to try them."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from dpr.cli.plain_arguments import PlainParser
from dpr.core.errors import ConfigError, InputError
from dpr.core.settings import settings
from dpr.serving.settings import ServeSettings

EXAMPLES = """examples:
  dpr serve runs/quickstart
  dpr serve runs/first second=runs/other/best port=9000
  dpr serve runs/first host=0.0.0.0 token_file=token.txt workers=2
"""


def main(argv: list[str]) -> int:
    """Answers questions over HTTP, one or more run folders at a time, and shows a page to try them: http://127.0.0.1:8080

    A folder needs a search.json (dpr retrieve ... search_folder=<folder>). label=folder gives it another name than its own.
    Ctrl-C or SIGTERM ends the service once what it has is answered; SIGHUP or POST /reload opens the files again.
    """
    parser = PlainParser(prog="dpr serve", operands="RUN_FOLDER ...", description=main.__doc__, epilog=EXAMPLES)
    parser.add_argument("folders", nargs="*", metavar="RUN_FOLDER", help="folder with a search.json, or label=folder")
    for entry in settings(ServeSettings):
        parser.declared(entry)
    labelled = [token for token in argv if "=" in token and not token.startswith("-") and _is_labelled(token)]
    options = parser.parse([token for token in argv if token not in labelled])
    given = ServeSettings(**{item.name: getattr(options, item.name) for item in fields(ServeSettings)})
    given.check()
    runs = _named([*options.folders, *labelled])
    from dpr.core.lazy import require

    require("uvicorn", extra="serve", purpose="dpr serve")
    require("fastapi", extra="serve", purpose="dpr serve")
    require("prometheus_client", extra="serve", purpose="dpr serve")
    from dpr.core.logs import configure_logging
    from dpr.serving.server import serve

    configure_logging()
    told = json.dumps({"runs": {name: str(folder) for name, folder in runs.items()}, "settings": asdict(given)})
    return serve(given, [sys.executable, "-m", "dpr.serving.engine", told])


def _is_labelled(token: str) -> bool:
    name, is_pair, folder = token.partition("=")
    is_path = "/" in folder or os.path.isdir(folder)
    return bool(is_pair) and is_path and name not in {item.name for item in fields(ServeSettings)}


def _named(given: Sequence[str]) -> dict[str, Path]:
    """The folders by their names.

    Raises:
        ConfigError: there is none, a name is unsuitable for an address, or two are the same.
        InputError: one cannot be searched.
    """
    found: dict[str, Path] = {}
    for token in given:
        label, _, folder = token.rpartition("=") if _is_labelled(token) else ("", "", token)
        name = label or re.sub(r"[^\w.-]", "-", Path(folder).resolve().name)
        if not re.fullmatch(r"[\w.-]+", name):
            raise ConfigError(f"{name!r} is not a name; use letters, digits, '.', '_' and '-'")
        if name in found:
            raise ConfigError(f"two folders are called {name}; name one: other={folder}")
        found[name] = Path(folder)
        if not (Path(folder) / "search.json").is_file():
            raise InputError("no search.json", file=folder, hint=f"dpr retrieve ... search_folder={folder} writes one")
    if not found:
        raise ConfigError("there is nothing to serve; name a run folder, e.g. dpr serve runs/first")
    return found
