"""What happens around the updates of a run. docs/training.md shows how to add a callback."""

from dpr.training.callbacks.optional import EarlyStopping, LoadBest
from dpr.training.callbacks.protocol import Callback, FunctionCallback

__all__ = ["Callback", "EarlyStopping", "FunctionCallback", "LoadBest"]
