"""The command ``dpr``: one subcommand per job, each imported only when it is called."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from dpr.cli.launch import exit_code_of, launch, run_and_leave
from dpr.core.errors import ConfigError
from dpr.core.other_names import hint
from dpr.core.settings import suggestion
from dpr.core.version import __version__


class Command(NamedTuple):
    """A subcommand."""

    about: str
    settings: str
    """module:Class, the root of its settings. The module imports nothing heavy, so that a mistake is reported
    at once."""
    config: str | None = None
    """File in ``conf/`` from which Hydra composes the settings. None: there are no groups of files, and Hydra
    is not imported."""
    job: str | None = None
    """module:function, imported once the settings are checked. None: ``run`` in the module of the command's
    name in ``dpr/jobs``."""

    def settings_class(self) -> Any:
        """Returns the dataclass."""
        return _imported(self.settings)


COMMANDS: dict[str, Command] = {
    "quickstart": Command(
        "from a folder of documents to an evaluated retriever", "dpr.adaptation.settings:QuickstartSettings"
    ),
    "adapt": Command(
        "from a corpus without questions to a retriever", "dpr.adaptation.settings:AdaptSettings"
    ),
    "download": Command(
        "fetch DPR's published data and models by their keys",
        "dpr.preparation.settings:DownloadConfig",
        "download",
    ),
    "prepare": Command(
        "make training data of other formats, of a folder of documents, or of a corpus",
        "dpr.preparation.settings:PrepareSettings",
    ),
    "check-data": Command(
        "look for problems in training data before training", "dpr.preparation.settings:CheckDataSettings"
    ),
    "mine": Command(
        "add hard negatives to training data, by BM25 or a model", "dpr.mining.settings:MineCommand"
    ),
    "score": Command(
        "add a teacher's scores to training data, by a cross-encoder, a model, BM25 or a hybrid",
        "dpr.mining.settings:ScoreCommand",
        job="dpr.jobs.mine:run_score",
    ),
    "new-encoder": Command(
        "make a small untrained encoder with its own vocabulary",
        "dpr.preparation.settings:NewEncoderSettings",
        job="dpr.jobs.prepare:make_encoder",
    ),
    "train": Command(
        "train a bi-encoder, or evaluate one on training-style data",
        "dpr.training.command_settings:TrainCommand",
        "biencoder_train_cfg",
    ),
    "explain": Command(
        "print what a step of a training run is made of",
        "dpr.training.command_settings:ExplainCommand",
        "explain",
    ),
    "embed": Command(
        "turn a corpus into vectors, in shards", "dpr.embedding.settings:EmbedConfig", "gen_embs"
    ),
    "retrieve": Command(
        "search with a set of questions and evaluate the results",
        "dpr.retrieval.settings:RetrievalConfig",
        "dense_retriever",
    ),
    "evaluate": Command(
        "evaluate a model, BM25 and both on many test sets, or a TREC run",
        "dpr.retrieval.settings:EvaluateConfig",
        "evaluate",
    ),
    "compare": Command(
        "a table of several retrieval results, and tests of their differences",
        "dpr.jobs.compare:CompareSettings",
    ),
    "report": Command(
        "a page of curves and metrics of a run",
        "dpr.jobs.compare:ReportSettings",
        job="dpr.jobs.compare:report",
    ),
    "search": Command("ask one question of a finished run", "dpr.jobs.search:SearchCommand"),
    "serve": Command(
        "answer questions over HTTP, with a page to try a run or compare two",
        "dpr.serving.settings:ServeSettings",
    ),
    "export": Command(
        "write a model in another program's format", "dpr.export.settings:ExportConfig", "export"
    ),
    "merge": Command(
        "write the model between a model and what it was tuned to, or the mean of several",
        "dpr.export.settings:MergeConfig",
    ),
    "verify": Command(
        "check output folders and files against their checksums",
        "dpr.jobs.doctor:VerifySettings",
        job="dpr.jobs.doctor:verify",
    ),
    "doctor": Command(
        "print versions, devices, disk space and optional packages", "dpr.jobs.doctor:DoctorSettings"
    ),
}


def main(argv: list[str] | None = None) -> int:
    """Runs the subcommand named by the first argument; returns its exit code."""
    return exit_code_of(lambda: _run_command(sys.argv[1:] if argv is None else argv))


def _run_command(arguments: list[str]) -> int:
    name = arguments[0].strip() if arguments else "--help"
    if name in ("--help", "-h", "help"):
        print("Usage: dpr COMMAND [key=value ...]\n")
        for command, entry in COMMANDS.items():
            print(f"  {command:<14} {entry.about}")
        print(
            "\ndpr COMMAND --help lists its first settings. Under a launcher: torchrun ... -m dpr COMMAND ..."
        )
        return 0 if arguments else 2
    if name == "--version":
        print(f"dpr {__version__}")
        return 0
    if name not in COMMANDS:
        raise ConfigError(
            f"unknown command {name}{hint(name) or suggestion(name, COMMANDS)}\ndpr --help lists the commands"
        )
    chosen = COMMANDS[name]
    program = f"dpr {name}"
    return launch(chosen.config, chosen.settings_class(), job_of(name), arguments[1:], program=program)


def job_of(name: str) -> Callable[[Any], Any]:
    """Returns the function of a command, whose module is imported when the function is called."""
    path = COMMANDS[name].job or f"dpr.jobs.{name.replace('-', '_')}:run"
    return lambda config: _imported(path)(config)


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def run(*before: str) -> NoReturn:
    """Runs the process of the installed command, or of a script that stands for the subcommand ``before``,
    and ends it with its exit code."""
    run_and_leave(lambda: main([*before, *sys.argv[1:]]))
