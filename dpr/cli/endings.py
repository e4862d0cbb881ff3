"""How a command ends: its exit code, and what a person reads when it failed."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

from dpr.core.errors import DprError, InputError, StopRequested


def exit_code_of(work: Callable[[], int]) -> int:
    """Runs ``work``: errors meant for a person, and the system's, become one message and a code, others a traceback and 1, Ctrl-C 130."""
    try:
        return work()
    except DprError as error:
        _tell(error)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output (head, less) has gone; closing would raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:  # a disk, a permission, a file that went: nothing that a traceback explains
        if error.errno is None:
            traceback.print_exc()
            return 1
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {where}{error.strerror or error}", file=sys.stderr)
        return InputError.exit_code
    except Exception:
        traceback.print_exc()
        return 1


def run_and_leave(main: Callable[[], int]) -> NoReturn:
    """Ends this process with the code that ``main`` returns; for scripts and the installed command, which own the process.

    A process of a launcher's group leaves after its exit handlers, without dismantling the interpreter: a thread of gloo may still hold
    the tensors of the last collective, and when it lets go of them too late it aborts a process that has done everything.
    """
    code: list[int] = []
    if "RANK" in os.environ:
        atexit.register(_leave, code)  # handlers run in reverse order: this one is the last
    code.append(main())
    sys.exit(code[0])


def _leave(code: list[int]) -> None:
    if code:  # otherwise ``main`` was left by an exception, which the interpreter tells
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code[0])


def _tell(error: DprError) -> None:
    """Prints the message. Ranks other than a node's first wait a moment, since the launcher ends all when one ends."""
    local_rank = os.environ.get("LOCAL_RANK", "0")
    if local_rank != "0":
        time.sleep(1.0)
    where = "" if local_rank == "0" else f"[rank {os.environ.get('RANK', local_rank)}] "
    kind = "stopped" if isinstance(error, StopRequested) else "error"
    print(f"{where}{kind}: {error}", file=sys.stderr, flush=True)
