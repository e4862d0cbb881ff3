"""A plain function as a callback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dpr.core.errors import ConfigError
from dpr.training.callbacks.protocol import Callback
from dpr.training.run import Run

MOMENTS = tuple(name.removeprefix("on_") for name in vars(Callback) if name.startswith("on_"))
_OF_A_STEP = ("before_optimizer_step", "after_optimizer_step", "step_end")


class FunctionCallback(Callback):
    """Calls ``function(run)``, or ``function(run, value)`` where the moment has a value (metrics, folder, error).

    Args:
        when: a moment without ``on_``, e.g. ``step_end``, ``validate_end``, ``save``.
        every: call at every so many of them. Moments of steps are numbered like the steps of the run, others are counted; a resumed run
            goes on counting.
        once: call at the first of them only, once in a run.
    """

    def __init__(self, function: Callable[..., Any], *, when: str = "step_end", every: int = 1, once: bool = False) -> None:
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
        number = self._times
        if self._when in _OF_A_STEP:
            number = run.progress.step + (self._when != "step_end")
        if number % self._every == 0 and not (self._once and self._called):
            self._called = True
            self._function(run, *values)

    def state_dict(self) -> dict[str, Any]:
        return {"times": self._times, "called": self._called}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._times, self._called = int(state["times"]), bool(state["called"])
