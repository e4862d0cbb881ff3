"""How a command ends: its exit code, and its error message."""

from __future__ import annotations

import atexit
import io
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

from dpr.core.errors import DprError, InputError, StopRequested


def exit_code_of(work: Callable[[], int]) -> int:
    """Runs ``work``. Errors of the toolkit and the system become one message and a code, others a traceback
    and 1, Ctrl-C 130."""
    try:
        return work()
    except DprError as error:
        _print(error)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of the output (head, less) has exited; closing would raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if (
            isinstance(error, OSError) and error.errno is not None
        ):  # a disk, a permission, a missing file: a traceback explains nothing
            where = f"{error.filename}: " if error.filename else ""
            print(f"error: {where}{error.strerror or error}", file=sys.stderr)
            return InputError.exit_code
        traceback.print_exc()
        return 1


def run_and_leave(main: Callable[[], int]) -> NoReturn:
    """Ends this process with the code that ``main`` returns; for scripts and the installed command, which own
    the process.

    A process of a launcher's group leaves after its exit handlers, without dismantling the interpreter: a
    thread of gloo may still hold the tensors of the last collective, and if it releases them too late it
    aborts a process that has finished its work.
    """
    for stream in (
        sys.stdin,
        sys.stdout,
    ):  # texts of a corpus are printed on any terminal; standard error replaces already
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    code: list[int] = []
    if "RANK" in os.environ:
        atexit.register(_leave, code)  # handlers run in reverse order: this one is the last
    code.append(main())
    sys.exit(code[0])


def _leave(code: list[int]) -> None:
    if code:  # otherwise ``main`` raised, and the interpreter prints the exception
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code[0])


def _print(error: DprError) -> None:
    """Ranks other than a node's first wait a moment, since the launcher ends all when one ends."""
    local_rank = os.environ.get("LOCAL_RANK", "0")
    if local_rank != "0":
        time.sleep(1.0)
    where = "" if local_rank == "0" else f"[rank {os.environ.get('RANK', local_rank)}] "
    kind = "stopped" if isinstance(error, StopRequested) else "error"
    print(f"{where}{kind}: {error}", file=sys.stderr, flush=True)
