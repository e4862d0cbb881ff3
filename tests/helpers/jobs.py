"""The commands as functions (argv) -> exit code."""

from collections.abc import Callable

from dpr.cli.launch import answer
from dpr.cli.main import COMMANDS, job_of, main


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
