"""All jobs of the command line with their configuration names and classes, as the commands themselves state them."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest import mock

from dpr.cli.main import COMMANDS, entry_of


@dataclass(frozen=True)
class LaunchedJob:
    """A command that is configured through ``launch``."""

    command: str
    config_name: str
    config_class: type


@cache
def launched_jobs() -> tuple[LaunchedJob, ...]:
    """Asks every command module that uses ``launch`` what it would launch."""
    jobs = []
    for command, (module_name, _) in COMMANDS.items():
        if importlib.util.find_spec(module_name) is None:
            continue  # has its own test
        module = importlib.import_module(module_name)
        if not hasattr(module, "launch"):
            continue

        def record(config_name: str, config_class: type, job: Any, argv: Any, command: str = command, **options: Any) -> int:
            jobs.append(LaunchedJob(command, config_name, config_class))
            return 0

        with mock.patch.object(module, "launch", record):
            entry_of(command)([])
    return tuple(jobs)
