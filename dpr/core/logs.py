"""Logging for programs with several processes: rank 0 logs everything, the others only errors."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from functools import cache

LOGGER_NAME = "dpr"


def get_logger(module: str) -> logging.Logger:
    """The logger of a module of this package (pass ``__name__``)."""
    return logging.getLogger(module)


@cache
def warn_once(logger: logging.Logger, message: str, *values: object) -> None:
    """Logs a warning once per process for the same values."""
    logger.warning(message, *values)


class _BesideProgressBars(logging.StreamHandler):
    """Writes to the current standard error, above a progress bar instead of into it."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        tqdm = sys.modules.get("tqdm")
        if tqdm is None or not self.stream.isatty():
            super().emit(record)
        else:
            tqdm.tqdm.write(self.format(record), file=self.stream)


def configure_logging(*, rank: int = 0, verbose: bool = False) -> None:
    """Sends this package's messages to standard error, for the command line."""
    logger = logging.getLogger(LOGGER_NAME)
    logger.handlers.clear()
    handler = _BesideProgressBars()
    prefix = "" if rank == 0 else f"[rank {rank}] "
    handler.setFormatter(logging.Formatter(f"%(asctime)s {prefix}%(levelname).1s %(message)s", "%H:%M:%S"))
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR if rank else logging.DEBUG if verbose else logging.INFO)
    logger.propagate = False
    if rank:  # otherwise each rank would repeat the warnings of other packages
        warnings.simplefilter("ignore")
        os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}  # read when these are imported


def configure_by_default(*, rank: int = 0) -> None:
    """The same for a plain script: does nothing if logging is configured, and falls silent once the application configures it."""
    logger = logging.getLogger(LOGGER_NAME)
    if logger.hasHandlers() or logger.level != logging.NOTSET:
        return
    configure_logging(rank=rank)
    logger.propagate = True
    logger.handlers[0].addFilter(lambda record: not logging.getLogger().handlers)
