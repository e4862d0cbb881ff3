"""What scores are divided by before a softmax."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Temperature:
    """``scores / temperature`` are the logits. ``value`` is above 0: a number or, where it is learned, ()
    with its gradient."""

    value: Tensor | float = 1.0

    def constant(self) -> Tensor | float:
        """The value without a gradient."""
        return self.value.detach() if isinstance(self.value, Tensor) else self.value

    def like(self, other: Tensor) -> Tensor:
        """The value, (), on the device and of the type of ``other``."""
        if isinstance(self.value, Tensor):
            return self.value.to(other.device, other.dtype)
        # filled on the device: a copy to it would wait for all work under way
        return other.new_full((), self.value)

    def touched_by(self, losses: Tensor) -> Tensor:
        """``losses`` plus 0, so that a learned value gets a gradient from any loss: data-parallel training
        waits for a missing one."""
        return losses + 0.0 * self.value if isinstance(self.value, Tensor) else losses

    def __rtruediv__(self, scores: Tensor) -> Tensor:
        return scores / self.value

    def __float__(self) -> float:
        return float(self.constant())
