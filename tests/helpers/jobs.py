"""The commands with their configuration names and classes, and as functions (argv) -> exit code."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from dpr.cli.launch import answer
from dpr.cli.main import COMMANDS, job_of, main


@dataclass(frozen=True)
class LaunchedJob:
    """A command whose configuration is composed of files."""

    command: str
    config_name: str
    config_class: type


@cache
def launched_jobs() -> tuple[LaunchedJob, ...]:
    """All commands that have a file in ``conf/``."""
    return tuple(
        LaunchedJob(name, entry.config, entry.settings_class())
        for name, entry in COMMANDS.items()
        if entry.config
    )


def command(name: str) -> Callable[[list[str]], int]:
    """The function of a command."""
    return lambda argv: main([name, *argv])


def raising(name: str) -> Callable[[list[str]], int]:
    """The function of a command; its errors are raised."""
    return lambda argv: answer(
        COMMANDS[name].config, COMMANDS[name].settings_class(), job_of(name), argv, program=f"dpr {name}"
    )


embed, evaluate, explain, export, retrieve, train = map(
    command, "embed evaluate explain export retrieve train".split()
)
compare, new_encoder, report, search, verify = map(
    raising, "compare new-encoder report search verify".split()
)
