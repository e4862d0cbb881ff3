"""What happens around the updates of a run; users add their own (docs/training.md)."""

from dpr.training.callbacks.early_stopping import EarlyStopping, LoadBest
from dpr.training.callbacks.function import FunctionCallback
from dpr.training.callbacks.protocol import Callback

__all__ = ["Callback", "EarlyStopping", "FunctionCallback", "LoadBest"]
