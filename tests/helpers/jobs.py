"""The commands with their configuration names and classes, and a function (argv) -> exit code for each of those that tests call most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from dpr.cli.main import COMMANDS, main


@dataclass(frozen=True)
class LaunchedJob:
    """A command whose configuration is composed of files."""

    command: str
    config_name: str
    config_class: type


@cache
def launched_jobs() -> tuple[LaunchedJob, ...]:
    """All commands that have a file in ``conf/``."""
    return tuple(LaunchedJob(name, entry.config, entry.settings_class()) for name, entry in COMMANDS.items() if entry.config)


def command(name: str) -> Callable[[list[str]], int]:
    """The function of a command."""
    return lambda argv: main([name, *argv])


compare, embed, evaluate, explain, export, new_encoder, push, report, retrieve, search, train, verify = map(
    command, "compare embed evaluate explain export new-encoder push report retrieve search train verify".split()
)
