"""Callbacks, which act around the updates of a run. docs/extending.md shows how to add one."""

from dpr.training.run import Callback

__all__ = ["Callback"]
