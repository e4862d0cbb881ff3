"""Runs of a job from a command line: settings, a checked dataclass object, the job, its exit code and error
message. Modules below this one see dataclass objects only."""

from __future__ import annotations

import atexit
import io
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from dpr.cli import composed
from dpr.cli.arguments import parse, under_launcher
from dpr.cli.help_page import help_text
from dpr.cli.keys import check_keys, conf_folder
from dpr.core.errors import DprError, InputError, StopRequested
from dpr.core.logs import LOGGER_NAME, configure_logging
from dpr.core.machine import launched, panics_caught
from dpr.core.settings import Settings, quoted, settings


def exit_code_of(work: Callable[[], int]) -> int:
    """Runs ``work`` and returns its exit code. Errors of the toolkit and the system become one message and a
    code, others a traceback and 1, Ctrl-C 130."""
    try:
        with panics_caught():
            code = work()
            print(end="", flush=True)  # what cannot be written is an error here, and a traceback later
            return code
    except DprError as error:
        # Ranks other than a node's first wait a moment, because the launcher ends all ranks when one ends.
        local_rank = os.environ.get("LOCAL_RANK", "0")
        where = ""
        if local_rank != "0":
            time.sleep(1.0)
            where = f"[rank {os.environ.get('RANK', local_rank)}] "
        kind = "stopped" if isinstance(error, StopRequested) else "error"
        print(f"{where}{kind}: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of the output (head, less) has exited
        return 1
    except Exception as error:
        # a disk, a permission, a missing file: a traceback explains nothing
        if isinstance(error, OSError) and error.errno is not None:
            where = f"{error.filename}: " if error.filename else ""
            print(f"error: {where}{error.strerror or error}", file=sys.stderr)
            return InputError.exit_code
        traceback.print_exc()
        return 1
    finally:
        try:
            print(end="", flush=True)
        except OSError:  # at its end the interpreter would try again, and fail
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run_and_leave(main: Callable[[], int]) -> NoReturn:
    """Ends this process with the code that ``main`` returns; for scripts and the installed command, which own
    the process.

    A process of a launcher's group leaves after its exit handlers, without finalising the interpreter. A
    thread of gloo may still hold the tensors of the last collective; if it releases them too late, it aborts
    a process that has finished its work.
    """
    # Texts of a corpus are printed on any terminal. Standard error replaces already.
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    code: list[int] = []

    def leave() -> None:
        if code:  # otherwise ``main`` raised, and the interpreter prints the exception
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code[0])

    if "RANK" in os.environ:
        atexit.register(leave)  # handlers run in reverse order: this one is the last
    code.append(main())
    sys.exit(code[0])


def launch(
    config_name: str | None,
    config_class: type[Settings],
    job: Callable[[Any], Any],
    argv: list[str],
    *,
    program: str = "dpr COMMAND",
) -> int:
    """Runs ``job`` with the settings that ``argv`` asks for. Returns the exit code, which is that of the job
    if it returns a whole number.

    Args:
        config_name: YAML file in ``conf/``, without its suffix, that the settings start from. None: there is
            no such file, and there are no groups of files.
        config_class: the root dataclass.
        job: called with the checked object. It imports heavy packages itself.
        argv: the arguments after the name of the command.
        program: name of the command in messages.
    """

    def work() -> int:
        rank = launched("RANK") if under_launcher() else 0
        configure_logging(rank=rank)
        return answer(config_name, config_class, job, argv, program=program, is_main=rank == 0)

    return exit_code_of(work)


def answer(
    config_name: str | None,
    config_class: type[Settings],
    job: Callable[[Any], Any],
    argv: list[str],
    *,
    program: str,
    is_main: bool = True,
) -> int:
    """Does what ``launch`` does, but leaves errors to the caller."""
    known = {entry.key: entry for entry in settings(config_class)}
    has_groups = config_name is not None
    given = parse(argv, known, has_groups=has_groups)
    folders = [conf_folder(), *map(Path, given.flags["dir"] + given.flags["path"])]
    operands = [entry.rule.operand for entry in known.values() if entry.rule.operand]
    is_bare = not argv and bool(operands) and not operands[0].startswith("[")
    if given.level and is_main:
        logging.getLogger(LOGGER_NAME).setLevel(given.level)
    if given.help or is_bare:
        text = help_text(program, config_class, folders[0] if has_groups else None, given.help or "first")
        if is_main:
            print(text, end="")
        return 2 if is_bare else 0
    overrides, warnings = check_keys(given.overrides, known, folders if has_groups else (), program=program)
    if is_main:
        for warning in warnings:
            print(f"warning: {warning}", file=sys.stderr)
    words = [
        f"{key}=[{','.join(map(quoted, value))}]" if isinstance(value, list) else f"{key}={quoted(value)}"
        for key, value in given.operands.items()
    ]
    if not has_groups and not overrides and not words:  # Hydra would take as long as all that doctor does
        config = config_class()
        config.check()
        result = job(config)
    else:
        # compat=dpr stands for the original's defaults too, unless another train= is given
        is_original = "compat" in known and "compat=dpr" in overrides
        if is_original and not any(override.startswith("train=") for override in overrides):
            overrides = ["train=biencoder_default", *overrides]
        overrides = composed.quote_values([*words, *overrides], known, has_groups=has_groups)
        result = composed.run_composed(
            config_name, config_class, job, given, overrides, folder=folders[0], is_main=is_main
        )
    return result if type(result) is int else 0
