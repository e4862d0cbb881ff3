"""What happens around the updates of a run. docs/training.md shows how to add a callback."""

from dpr.training.run import Callback

__all__ = ["Callback"]
