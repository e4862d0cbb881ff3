"""Logging for programs with several processes: rank 0 speaks, the others only warn."""

from __future__ import annotations

import logging
import sys

LOGGER_NAME = "dpr"


def get_logger(module: str) -> logging.Logger:
    """The logger of a module of this package (pass ``__name__``)."""
    return logging.getLogger(module)


def configure_logging(*, rank: int = 0, verbose: bool = False) -> None:
    """Sends this package's messages to standard error. Called by the command line only; a library user keeps their own set-up."""
    logger = logging.getLogger(LOGGER_NAME)
    logger.handlers.clear()
    handler = logging.StreamHandler(sys.stderr)
    prefix = "" if rank == 0 else f"[rank {rank}] "
    handler.setFormatter(logging.Formatter(f"%(asctime)s {prefix}%(levelname).1s %(message)s", "%H:%M:%S"))
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING if rank else logging.DEBUG if verbose else logging.INFO)
    logger.propagate = False
