"""How a command ends: its exit code, and what a person reads when it failed."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable

from dpr.core.errors import DprError, StopRequested


def exit_code_of(work: Callable[[], int]) -> int:
    """Runs ``work``: errors meant for a person become one message and their own code, others a traceback and 1, Ctrl-C 130."""
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
    except Exception:
        traceback.print_exc()
        return 1


def _tell(error: DprError) -> None:
    """Prints the message. Ranks other than a node's first wait a moment, since the launcher ends all when one ends."""
    local_rank = os.environ.get("LOCAL_RANK", "0")
    if local_rank != "0":
        time.sleep(1.0)
    where = "" if local_rank == "0" else f"[rank {os.environ.get('RANK', local_rank)}] "
    kind = "stopped" if isinstance(error, StopRequested) else "error"
    print(f"{where}{kind}: {error}", file=sys.stderr, flush=True)
