"""What happens around the updates of a run; users add their own (docs/training.md)."""

from dpr.training.callbacks.protocol import Callback

__all__ = ["Callback"]
