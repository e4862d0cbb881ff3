"""The moments of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpr.training.metrics import Metrics
from dpr.training.run import Run


class Callback:
    """Override the moments you care for; all methods do nothing here.

    Callbacks run in order, on every rank; what only one process should do asks ``run.ranks.is_main``. A decision that not every rank
    takes alike goes through ``run.request_stop``, on which the ranks agree.
    """

    @property
    def state_key(self) -> str:
        """What a checkpoint keeps its state under."""
        return type(self).__name__

    def on_train_begin(self, run: Run) -> None:
        """Before the first update; after resuming."""

    def on_epoch_begin(self, run: Run) -> None:
        """Before the first update that this process makes in an epoch: after resuming that may be in the middle of it."""

    def on_before_optimizer_step(self, run: Run) -> None:
        """Gradients of the whole update are there, unscaled and clipped."""

    def on_after_optimizer_step(self, run: Run) -> None:
        """The parameters are new, the gradients still there."""

    def on_step_end(self, run: Run) -> None:
        """After every update; ``run.progress.step`` updates are done."""

    def on_epoch_end(self, run: Run) -> None:
        """After the last update of an epoch and its ``on_step_end``, before the validation and the checkpoint that are due then."""

    def on_log(self, run: Run, metrics: Metrics) -> None:
        """Training figures of all ranks since the last time are there; what is added to ``metrics`` reaches the callbacks that follow."""

    def on_validate_end(self, run: Run, metrics: Metrics) -> None:
        """After a validation; its figures, the same on all ranks."""

    def on_save(self, run: Run, folder: Path) -> None:
        """After a checkpoint was written."""

    def on_train_end(self, run: Run) -> None:
        """After the last update, validation and checkpoint."""

    def on_exception(self, run: Run, error: BaseException) -> None:
        """Training ends by an error or an interruption, which is raised on after this. Other ranks may not be there any more."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must know, as JSON; stored in every checkpoint (by rank 0), after all other moments of its step."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts back what ``state_dict`` returned; before ``on_train_begin``."""
