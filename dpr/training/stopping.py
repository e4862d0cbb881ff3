"""Stopping a run before its last step: all ranks after the same update, with a checkpoint."""

from __future__ import annotations

from dpr.core.distributed import largest_over_ranks
from dpr.core.errors import StopRequested
from dpr.core.logs import get_logger
from dpr.core.stopping import StopSignals, describe

logger = get_logger(__name__)

# Above every signal's number: a run that a callback ends is done, and a signal at the same step has nothing to add.
_BY_CALLBACK = 1000


class StopAgreement:
    """What may end a run early, signals and callbacks, and the one question to all ranks whether any of them was asked."""

    def __init__(self) -> None:
        self.signals = StopSignals()
        """The block in which signals ask, instead of ending the process."""
        self._reason: str | None = None
        self._agreed = 0

    def request(self, reason: str) -> None:
        """Asks for the end; the first reason is the one that is told."""
        self._reason = self._reason or reason

    def reached(self, step: int) -> bool:
        """Whether any rank was asked; all ranks must call it at the same point. Once true it stays true.

        Eight bytes from CPU to CPU; on a GPU the host is a step ahead of the device, so that the step under way hides the wait.
        """
        if not self._agreed:
            self._agreed = largest_over_ranks(_BY_CALLBACK if self._reason is not None else self.signals.requested())
            if self._agreed == _BY_CALLBACK:
                logger.info("stopping at step %d: %s", step, self._reason or "another process asked to")
        return bool(self._agreed)

    @property
    def signal(self) -> int:
        """The number of the signal that all ranks stop for; 0 where none came, or a callback has ended the run, which is then done."""
        return 0 if self._agreed == _BY_CALLBACK else self._agreed


def stop_requested(signal: int, step: int, last_step: int, *, is_saved: bool) -> StopRequested:
    """What ends a run that a signal stops after update ``step``."""
    asked = describe(signal)
    if is_saved:
        return StopRequested(f"{asked}; saved at step {step} of {last_step}. Rerun the same command to resume")
    return StopRequested(f"{asked}; step {step} could not be saved, the checkpoints before it are intact", exit_code=128 + signal)
