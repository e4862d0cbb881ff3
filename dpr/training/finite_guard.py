"""Updates whose gradient is not a number are skipped, alike on all ranks, and too many in a row end the run."""

from __future__ import annotations

import torch
from torch import Tensor

from dpr.core.errors import DivergedError
from dpr.core.logs import get_logger

logger = get_logger(__name__)

# A loss scale of 2^16 may have to be halved this often before fp16 gradients fit; that is its way of starting, not a failure.
_HALVINGS_OF_THE_SCALE = 16


class FiniteGuard:
    """Decides before each update whether it happens.

    The gradient was summed over ranks before its norm is taken, so every rank sees the same norm and decides the same without asking.
    The decision stays on the device: the fused optimizer reads it there, and the host reads the counts one step later on CUDA, where they
    have arrived by then, so that it never waits for the step under way.
    """

    def __init__(self, device: torch.device, *, most_in_row: int = 5, has_loss_scale: bool = False) -> None:
        self._most = most_in_row + (_HALVINGS_OF_THE_SCALE if has_loss_scale else 0)
        self._has_loss_scale = has_loss_scale
        self._counts = torch.zeros(2, dtype=torch.int32, device=device)  # skipped in a row, skipped in all
        self._is_cuda = device.type == "cuda"
        self._on_host = torch.zeros(2, dtype=torch.int32, pin_memory=self._is_cuda)
        self._arrived = torch.cuda.Event() if self._is_cuda else None
        self._told = 0

    def check(self, optimizer: torch.optim.Optimizer, grad_norm: Tensor) -> None:
        """Tells ``optimizer``, which must be fused, whether its next step is to change anything. ``grad_norm`` is (), on the device."""
        is_bad = ~torch.isfinite(grad_norm)
        in_row, in_all = self._counts.unbind()
        self._counts = torch.stack([(in_row + 1) * is_bad, in_all + is_bad])
        if not self._has_loss_scale:  # the scaler tells the optimizer by itself
            optimizer.found_inf = is_bad.float()  # type: ignore[attr-defined]

    def stop_if_hopeless(self, step: int) -> None:
        """After the update: warns of what was skipped.

        Raises:
            DivergedError: too many updates in a row were skipped; on all ranks alike.
        """
        if self._arrived is None:
            self._on_host.copy_(self._counts)
        elif step > 0:
            self._arrived.synchronize()
        in_row, in_all = self._on_host.tolist()
        if in_all > self._told and not self._has_loss_scale:
            logger.warning("step %d: the gradient is not a number on some rank, so the update is skipped (%d in a row)", step, in_row)
        self._told = in_all
        if self._arrived is not None:
            self._on_host.copy_(self._counts, non_blocking=True)
            self._arrived.record()
        if in_row >= self._most:
            raise DivergedError(
                f"the gradient was not a number in {in_row} updates in a row, the last at step {step}; lower train.learning_rate, raise "
                "train.warmup_steps, or use train.precision=fp32. Those updates were skipped; saved checkpoints are intact"
            )

    @property
    def num_skipped(self) -> int:
        """Updates skipped so far in this process; waits for the device."""
        return int(self._counts[1])


def refuse_not_finite(tensors: dict[str, Tensor]) -> None:
    """Keeps weights that are not numbers out of checkpoints.

    Raises:
        DivergedError: names the first such tensor.
    """
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise DivergedError(
                f"{name} has values that are not numbers, so no checkpoint is written; lower train.learning_rate, or use "
                "train.precision=fp32. The checkpoints before it are whole"
            )
