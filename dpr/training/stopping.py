"""Ending a run before its last step, on all ranks after the same update: signals, callbacks, and gradients
that are NaN or infinite."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dpr.core.distributed import largest_over_ranks
from dpr.core.errors import DivergedError
from dpr.core.logs import get_logger
from dpr.core.stopping import StopSignals

logger = get_logger(__name__)

# Above every signal's number: a run that a callback ends is finished, and a signal at the same step changes
# nothing.
_BY_CALLBACK = 1000

# A loss scale of 2^16 may have to be halved this often before fp16 gradients fit. This is a normal start, not
# a failure.
_HALVINGS_OF_THE_SCALE = 16


class StopAgreement:
    """Requests to end a run early, from signals and callbacks, and the agreement of all ranks on whether
    there is one."""

    def __init__(self) -> None:
        self.signals = StopSignals()
        """The block in which signals are requests instead of ending the process."""
        self._reason: str | None = None
        self._agreed = 0

    def request(self, reason: str) -> None:
        """Asks for the end; the first reason is the one that is logged."""
        self._reason = self._reason or reason

    def reached(self, step: int) -> bool:
        """Returns whether any rank has a request. All ranks must call it at the same point. Once true, it
        stays true.

        It sends eight bytes from CPU to CPU. On a GPU the host is a step ahead of the device, so the step
        under way hides the wait.
        """
        if not self._agreed:
            self._agreed = largest_over_ranks(
                _BY_CALLBACK if self._reason is not None else self.signals.requested()
            )
            if self._agreed == _BY_CALLBACK:
                logger.info("stopping at step %d: %s", step, self._reason or "another process asked to")
        return bool(self._agreed)

    @property
    def signal(self) -> int:
        """Returns the number of the signal that all ranks stop for; 0 if there was none, or if a callback has
        ended the run."""
        return 0 if self._agreed == _BY_CALLBACK else self._agreed


class FiniteCheck:
    """Check that skips updates whose gradient is NaN or infinite, and ends a run with too many of them in a
    row.

    The norm is that of the gradient summed over ranks, so all ranks see the same norm and agree without
    communication. The decision stays on the device, where the fused optimizer reads it. On CUDA the host
    reads the counts one step later, when they have arrived, so it never waits for the step under way.
    """

    def __init__(self, device: torch.device, *, most_in_row: int = 5, has_loss_scale: bool = False) -> None:
        self._most = most_in_row + (_HALVINGS_OF_THE_SCALE if has_loss_scale else 0)
        self._has_loss_scale = has_loss_scale
        self._is_hooked = False
        self._device = device
        self._arrived = torch.cuda.Event() if device.type == "cuda" else None
        self._on_host = torch.zeros(2, dtype=torch.int32, pin_memory=self._arrived is not None)
        self.begin(0)

    def begin(self, num_skipped: int) -> None:
        """Continues from a checkpoint's number of skipped updates."""
        # skipped in a row, skipped in total
        self._counts = torch.tensor([0, num_skipped], dtype=torch.int32, device=self._device)
        self._on_host.copy_(self._counts)
        self._reported = num_skipped

    def check(self, optimizer: torch.optim.Optimizer, grad_norm: Tensor) -> None:
        """Makes ``optimizer``, which must be fused, skip its next step if ``grad_norm``, () on the device, is
        NaN or infinite. The norm of a finite gradient may be infinite, which a loss scaler does not see."""
        is_bad = ~torch.isfinite(grad_norm)
        in_row, in_all = self._counts.unbind()
        self._counts = torch.stack([(in_row + 1) * is_bad, in_all + is_bad])
        self._is_bad = is_bad.float()
        if not self._has_loss_scale:
            optimizer.found_inf = self._is_bad  # type: ignore[attr-defined]
        elif not self._is_hooked:  # the scaler sets it itself as the step begins
            self._is_hooked = True

            def add_to_found(optimizer: Any, *_: Any) -> None:
                optimizer.found_inf = torch.maximum(optimizer.found_inf, self._is_bad)

            optimizer.register_step_pre_hook(add_to_found)

    def stop_if_hopeless(self, step: int) -> None:
        """Warns of skipped updates; all ranks call it after each update.

        Raises:
            DivergedError: too many updates in a row were skipped; on all ranks alike.
        """
        if self._arrived is None:
            self._on_host.copy_(self._counts)
        else:
            self._arrived.synchronize()
            step -= 1  # the counts are those after the previous update
        in_row, in_all = self._on_host.tolist()
        if in_all > self._reported and not self._has_loss_scale:
            logger.warning(
                "step %d: the gradient is NaN or infinite on some rank, so the update is skipped (%d in a"
                " row)",
                step,
                in_row,
            )
        self._reported = in_all
        if self._arrived is not None:
            self._on_host.copy_(self._counts, non_blocking=True)
            self._arrived.record(torch.cuda.current_stream(self._counts.device))
        if in_row >= self._most:
            raise DivergedError(
                f"the gradient was NaN or infinite in {in_row} updates in a row, the last at step {step};"
                " lower train.learning_rate, raise train.warmup_steps, or use train.precision=fp32. Those"
                " updates were skipped; saved checkpoints are intact"
            )

    @property
    def num_skipped(self) -> int:
        """Returns the number of updates skipped so far; waits for the device."""
        return int(self._counts[1])
