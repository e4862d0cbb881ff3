"""What happens around the updates of a run. docs/extending.md shows how to add a callback."""

from dpr.training.run import Callback

__all__ = ["Callback"]
