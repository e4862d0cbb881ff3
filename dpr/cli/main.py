"""The command ``dpr``: one subcommand per job, each imported only when it is called."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import NoReturn

from dpr.cli.endings import exit_code_of, run_and_leave
from dpr.core.suggestions import suggestion
from dpr.core.version import __version__

# name -> module, and its line in --help. The function (argv) -> exit code has the command's name, or is main in a module of its own.
COMMANDS: dict[str, tuple[str, str]] = {
    "quickstart": ("dpr.cli.quickstart", "from a folder of documents to an evaluated retriever"),
    "download": ("dpr.cli.jobs", "fetch DPR's published data and models by their keys"),
    "prepare": ("dpr.cli.prepare", "make training data from other formats"),
    "prepare-folder": ("dpr.cli.prepare_folder", "make passages, training data and questions of a folder of documents"),
    "check-data": ("dpr.cli.check_data", "look for problems in training data before training"),
    "mine": ("dpr.cli.mine", "add hard negatives to training data, by BM25 or a model"),
    "score": ("dpr.cli.score", "add a teacher's scores to training data, by a cross-encoder, a model, BM25 or a hybrid"),
    "new-encoder": ("dpr.cli.new_encoder", "make a small untrained encoder with its own vocabulary"),
    "ladder": ("dpr.cli.jobs", "train, mine hard negatives with the model, and train again, in rounds"),
    "train": ("dpr.cli.jobs", "train a bi-encoder, or evaluate one on training-style data"),
    "explain": ("dpr.cli.jobs", "print what a step of a training run is made of"),
    "embed": ("dpr.cli.jobs", "turn a corpus into vectors, in shards"),
    "retrieve": ("dpr.cli.jobs", "search with a set of questions and evaluate the results"),
    "evaluate": ("dpr.cli.jobs", "evaluate a model, BM25 and both on many test sets, or a TREC run"),
    "compare": ("dpr.cli.compare", "a table of several retrieval results, and tests of their differences"),
    "report": ("dpr.cli.report", "a page of curves, metrics and example questions of a run"),
    "tune-index": ("dpr.cli.jobs", "measure the recall of an index against the time of its search"),
    "search": ("dpr.cli.search", "ask one question of a finished run"),
    "serve": ("dpr.cli.serve", "answer questions over HTTP, with a page to try a run or compare two"),
    "export": ("dpr.cli.jobs", "write a model in another program's format"),
    "push": ("dpr.cli.jobs", "upload an exported folder to the Hugging Face hub"),
    "verify": ("dpr.cli.verify", "check output folders and files against their checksums"),
    "doctor": ("dpr.cli.doctor", "print versions, devices, disk space and optional packages"),
}


def main(argv: list[str] | None = None) -> int:
    """Runs the subcommand named by the first argument; returns its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    name = arguments[0].strip() if arguments else "--help"
    if name in ("--help", "-h", "help"):
        print(_usage(), end="")
        return 0 if arguments else 2
    if name == "--version":
        print(f"dpr {__version__}")
        return 0
    if name not in COMMANDS:
        print(f"error: unknown command {name}{suggestion(name, COMMANDS)}\ndpr --help lists the commands", file=sys.stderr)
        return 2
    return exit_code_of(lambda: entry_of(name)(arguments[1:]))


def entry_of(name: str) -> Callable[[list[str]], int]:
    """The function of a command."""
    module = importlib.import_module(COMMANDS[name][0])
    found: Callable[[list[str]], int] = getattr(module, name.replace("-", "_"), None) or module.main
    return found


def run(*before: str) -> NoReturn:
    """The process of the installed command, or of a script that stands for the subcommand ``before``: ends with its exit code."""
    run_and_leave(lambda: main([*before, *sys.argv[1:]]))


def _usage() -> str:
    rows = "\n".join(f"  {name:<14} {text}" for name, (_, text) in COMMANDS.items())
    return (
        f"Usage: dpr COMMAND [key=value ...]\n\n{rows}\n\n"
        "dpr COMMAND --help lists its settings. Under a launcher: torchrun ... -m dpr COMMAND ...\n"
    )
