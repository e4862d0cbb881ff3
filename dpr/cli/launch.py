"""Command line -> settings -> checked dataclass object -> job -> exit code. Below this file there are dataclass objects only."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from dpr.cli import composed, values
from dpr.cli.arguments import parse, under_launcher
from dpr.cli.endings import exit_code_of
from dpr.cli.help_text import help_text
from dpr.cli.keys import check_keys, conf_folder
from dpr.cli.legacy import with_original_defaults
from dpr.core.errors import ConfigError
from dpr.core.logs import configure_logging
from dpr.core.machine import launched
from dpr.core.settings import Settings, quoted, settings

Config = TypeVar("Config", bound=Settings)
Job = Callable[[Config], Any]


def launch(config_name: str | None, config_class: type[Config], job: Job[Config], argv: list[str], *, program: str = "dpr COMMAND") -> int:
    """Runs ``job`` with the settings that ``argv`` asks for, and returns the exit code: that of the job where it returns a whole number.

    Args:
        config_name: the YAML file in ``conf/``, without its suffix, from which Hydra composes the settings; None: they are set as they are
            given, and Hydra is not imported.
        config_class: the root dataclass.
        job: called with the checked object; a sweep optimises what it returns. It imports heavy packages itself.
        argv: the arguments after the name of the command.
        program: how the command is called, for messages.
    """

    def work() -> int:
        rank = launched("RANK") if under_launcher() else 0
        configure_logging(rank=rank)
        return answer(config_name, config_class, job, argv, program=program, is_main=rank == 0)

    return exit_code_of(work)


def answer(
    config_name: str | None, config_class: type[Config], job: Job[Config], argv: list[str], *, program: str, is_main: bool = True
) -> int:
    """``launch`` whose errors are the caller's."""
    known = {entry.key: entry for entry in settings(config_class)}
    has_groups = config_name is not None
    given = parse(argv, known, has_groups=has_groups)
    folders = [conf_folder(), *(Path(extra).absolute() for extra in given.values_of("--config-dir", "-cd", "--config-path", "-cp"))]
    operands = [entry.rule.operand for entry in known.values() if entry.rule.operand]
    is_bare = not argv and bool(operands) and not operands[0].startswith("[")
    if given.wants_help or is_bare:
        if is_main:
            print(help_text(program, config_class, folders[0] if has_groups else None), end="")
        return 2 if is_bare else 0
    if given.is_sweep and under_launcher():
        raise ConfigError(
            "-m (--multirun) cannot run under torchrun: its processes cannot form a second group\n"
            "start one torchrun for each combination instead, e.g. for lr in 1e-5 2e-5; do torchrun ... train.learning_rate=$lr; done"
        )
    overrides, warnings = check_keys(given.overrides, known, folders if has_groups else (), program=program)
    if is_main:
        for warning in warnings:
            print(f"warning: {warning}", file=sys.stderr)
    if config_name is None:
        result = job(values.filled(config_class, replace(given, overrides=overrides), known))
        return result if type(result) is int else 0
    words = [f"{key}=[{','.join(map(quoted, value))}]" for key, value in given.operands.items()]
    overrides = composed.quote_values(with_original_defaults(overrides, known), known, is_sweep=given.is_sweep)
    if is_main or not given.is_for_hydra:
        composed.run_composed(config_name, config_class, job, given, [*overrides, *words], folder=folders[0], is_main=is_main)
    return 0
