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
        "train and evaluate a retriever for a folder of documents",
        "dpr.adaptation.settings:QuickstartSettings",
    ),
    "adapt": Command(
        "fit a retriever to a corpus, with or without labels", "dpr.adaptation.settings:AdaptSettings"
    ),
    "download": Command(
        "download DPR's published data and models",
        "dpr.preparation.settings:DownloadConfig",
        "download",
    ),
    "prepare": Command(
        "make training data from other formats, a folder of documents, or a corpus",
        "dpr.preparation.settings:PrepareSettings",
    ),
    "check-data": Command("check training data for problems", "dpr.preparation.settings:CheckDataSettings"),
    "mine": Command(
        "add hard negatives from BM25 or a model to training data", "dpr.mining.settings:MineCommand"
    ),
    "score": Command(
        "add scores of a teacher (cross-encoder, model, BM25, hybrid) to training data",
        "dpr.mining.settings:ScoreCommand",
        job="dpr.jobs.mine:run_score",
    ),
    "new-encoder": Command(
        "make a small untrained encoder with its own vocabulary",
        "dpr.preparation.settings:NewEncoderSettings",
        job="dpr.jobs.prepare:make_encoder",
    ),
    "train": Command(
        "train a bi-encoder, or evaluate one on dev sets",
        "dpr.training.command_settings:TrainCommand",
        "biencoder_train_cfg",
    ),
    "explain": Command(
        "show the rows, passages and tokens of one training step",
        "dpr.training.command_settings:ExplainCommand",
        "explain",
    ),
    "embed": Command(
        "encode a corpus into shards of vectors", "dpr.embedding.settings:EmbedConfig", "gen_embs"
    ),
    "retrieve": Command(
        "search for a set of questions and evaluate the results",
        "dpr.retrieval.settings:RetrievalConfig",
        "dense_retriever",
    ),
    "evaluate": Command(
        "evaluate a model, BM25 and their hybrid on test sets, or a TREC run",
        "dpr.retrieval.settings:EvaluateConfig",
        "evaluate",
    ),
    "compare": Command(
        "compare retrieval results in a table, with significance tests",
        "dpr.jobs.compare:CompareSettings",
    ),
    "report": Command(
        "write a page with the curves and metrics of a run",
        "dpr.jobs.compare:ReportSettings",
        job="dpr.jobs.compare:report",
    ),
    "search": Command("search a finished run with one question", "dpr.jobs.search:SearchCommand"),
    "serve": Command(
        "serve runs over HTTP, with a web page to try or compare them",
        "dpr.serving.settings:ServeSettings",
    ),
    "export": Command(
        "export a model or vectors for another program", "dpr.export.settings:ExportConfig", "export"
    ),
    "merge": Command(
        "average a fine-tuned model with its base model, or several models",
        "dpr.export.settings:MergeConfig",
    ),
    "verify": Command(
        "check output folders and files against their checksums",
        "dpr.jobs.doctor:VerifySettings",
        job="dpr.jobs.doctor:verify",
    ),
    "doctor": Command(
        "report on the installation, or on problems of a training run", "dpr.jobs.doctor:DoctorSettings"
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
            "\ndpr COMMAND --help lists its main settings. On several processes: torchrun ... -m dpr COMMAND"
            " ..."
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
