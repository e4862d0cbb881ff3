"""The moments of a run, for a class (``Callback``) or for a plain function (``FunctionCallback``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from dpr.core.batch import BiEncoderBatch
from dpr.core.errors import ConfigError
from dpr.losses.protocol import Pool
from dpr.training.metrics import Metrics
from dpr.training.run import Run


class Callback:
    """Override the moments that you need; all methods do nothing here.

    Callbacks run in order, on every rank; what only one process should do asks ``run.ranks.is_main``. A
    decision that may differ between ranks goes through ``run.request_stop``, on which the ranks agree.
    """

    @property
    def state_key(self) -> str:
        """The name of its state in a checkpoint."""
        return type(self).__name__

    def on_train_begin(self, run: Run) -> None:
        """Before the first update; after resuming."""

    def on_epoch_begin(self, run: Run) -> None:
        """Before the first update that this process makes in an epoch: after resuming, that may be in the
        middle of it."""

    def on_pool(self, run: Run, questions: Tensor, pool: Pool, batch: BiEncoderBatch) -> None:
        """After the loss of each micro-batch of the coming step: what ``Loss`` is called with, without
        gradient. Keep copies only; reading a value makes the host wait for the device."""

    def needs_pool(self, run: Run) -> bool:
        """Whether ``on_pool`` reads vectors of the coming micro-batch. Passages are not encoded where neither
        it nor the loss does."""
        return getattr(self.on_pool, "__func__", None) is not Callback.on_pool

    def on_before_optimizer_step(self, run: Run) -> None:
        """The gradients of the whole update are there, unscaled and clipped."""

    def on_after_optimizer_step(self, run: Run) -> None:
        """The parameters are new, the gradients still there."""

    def on_step_end(self, run: Run) -> None:
        """After every update; ``run.progress.step`` updates are done."""

    def on_epoch_end(self, run: Run) -> None:
        """After the last update of an epoch and its ``on_step_end``, before the validation and the checkpoint
        that are due then."""

    def on_log(self, run: Run, metrics: Metrics) -> None:
        """Training metrics of all ranks since the last time; what is added to ``metrics`` reaches the
        callbacks that follow."""

    def on_validate_end(self, run: Run, metrics: Metrics) -> None:
        """After a validation; its metrics, the same on all ranks."""

    def on_save(self, run: Run, folder: Path) -> None:
        """After a checkpoint was written."""

    def on_train_end(self, run: Run) -> None:
        """After the last update, validation and checkpoint."""

    def on_exception(self, run: Run, error: BaseException) -> None:
        """Training ends with an error or an interruption, which is raised again after this. Other ranks may
        be gone already."""

    def content(self) -> Mapping[str, Any]:
        """What decides the batches or the objective besides settings and train sets, as JSON, e.g. the
        content of a file. A run can only be resumed with the same."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must know, as JSON; stored in every checkpoint (by rank 0), after all other
        moments of its step."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what ``state_dict`` returned; before ``on_train_begin``."""


MOMENTS = tuple(name.removeprefix("on_") for name in vars(Callback) if name.startswith("on_"))
_OF_A_STEP = ("pool", "before_optimizer_step", "after_optimizer_step", "step_end")


class FunctionCallback(Callback):
    """Calls ``function(run)``, or ``function(run, value)`` where the moment has a value (metrics, folder,
    error).

    Args:
        when: a moment without ``on_``, e.g. ``step_end``, ``validate_end``, ``save``.
        every: call at every so many of them. Moments of steps are numbered like the steps of the run, others
        are counted, across resumes.
        once: call at the first of them only, once in a run.
    """

    def __init__(
        self, function: Callable[..., Any], *, when: str = "step_end", every: int = 1, once: bool = False
    ) -> None:
        if when not in MOMENTS:
            raise ConfigError(f"when={when} is not a moment of a run; choose one of {', '.join(MOMENTS)}")
        if every < 1:
            raise ConfigError(f"every={every} is out of range; it must be at least 1")
        self._function, self._when, self._every, self._once = function, when, every, once
        self._times, self._called = 0, False
        setattr(self, f"on_{when}", self._moment)

    @property
    def state_key(self) -> str:
        return getattr(self._function, "__qualname__", type(self._function).__name__)

    def _moment(self, run: Run, *values: Any) -> None:
        self._times += 1
        number = run.progress.step + (self._when != "step_end") if self._when in _OF_A_STEP else self._times
        if number % self._every == 0 and not (self._once and self._called):
            self._called = True
            self._function(run, *values)

    def state_dict(self) -> dict[str, Any]:
        return {"times": self._times, "called": self._called}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._times, self._called = int(state["times"]), bool(state["called"])
