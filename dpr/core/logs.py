"""Logging for programs with several processes: rank 0 logs everything, the others only errors. Progress of a
long job is a bar on a terminal and in a notebook, a line every ten seconds, later every minute, elsewhere."""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TextIO

LOGGER_NAME = "dpr"


def get_logger(module: str) -> logging.Logger:
    """The logger of a module of this package (pass ``__name__``)."""
    return logging.getLogger(module)


@cache
def warn_once(logger: logging.Logger, message: str, *values: object) -> None:
    """Logs a warning once per process for the same values."""
    logger.warning(message, *values)


def shows_bars(stream: Any) -> bool:
    """Whether progress bars can be drawn there: on a terminal, or below the cell of a notebook."""
    return bool(stream.isatty()) or type(stream).__module__.startswith("ipykernel.")


class _BesideProgressBars(logging.StreamHandler):
    """Writes to the current standard error, above a progress bar instead of into it."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        tqdm = sys.modules.get("tqdm")
        if tqdm is None or not shows_bars(self.stream):
            super().emit(record)
        else:
            tqdm.tqdm.write(self.format(record), file=self.stream)


def configure_logging(*, rank: int = 0) -> None:
    """Sends this package's messages to standard error, for the command line."""
    logger = logging.getLogger(LOGGER_NAME)
    logger.handlers.clear()
    handler = _BesideProgressBars()
    prefix = "" if rank == 0 else f"[rank {rank}] "
    handler.setFormatter(logging.Formatter(f"%(asctime)s {prefix}%(levelname).1s %(message)s", "%H:%M:%S"))
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR if rank else logging.INFO)
    logger.propagate = False
    if rank:  # otherwise each rank would repeat the warnings of other packages
        warnings.simplefilter("ignore")
        # read when these are imported
        os.environ |= {
            "TRANSFORMERS_VERBOSITY": "error",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }


@contextmanager
def details_in(file: Path, module: str) -> Iterator[TextIO | None]:
    """A block whose messages go to ``file``. Standard error has the warnings, and the messages of ``module``. Yields
    the open file."""
    logger = logging.getLogger(LOGGER_NAME)
    level = logger.level

    def is_shown(record: logging.LogRecord) -> bool:
        return record.levelno >= (level if record.name == module else logging.WARNING)

    details = logging.FileHandler(file, encoding="utf-8")
    details.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(message)s"))
    shown = logger.handlers[:]
    for handler in shown:
        handler.addFilter(is_shown)
    logger.addHandler(details)
    logger.setLevel(logging.DEBUG)
    try:
        yield details.stream
    finally:
        logger.setLevel(level)
        logger.removeHandler(details)
        details.close()
        for handler in shown:
            handler.removeFilter(is_shown)


def configure_by_default(*, rank: int = 0) -> None:
    """The same for a plain script: does nothing if logging is configured, and falls silent once the
    application configures it."""
    logger = logging.getLogger(LOGGER_NAME)
    if logger.hasHandlers() or logger.level != logging.NOTSET:
        return
    configure_logging(rank=rank)
    logger.propagate = True
    logger.handlers[0].addFilter(lambda record: not logging.getLogger().handlers)


logger = get_logger(__name__)

_FIRST_LINES_EVERY_S = 10.0
_LINES_EVERY_S = 60.0


class Progress:
    """Counts items of ``total``, of which ``done`` were finished before. ``quiet`` for ranks other than 0."""

    def __init__(
        self, what: str, total: int, *, unit: str = "passages", done: int = 0, quiet: bool = False
    ) -> None:
        self._what = what
        self._total = total
        self._unit = unit
        self._quiet = quiet
        self._done = done
        self._under_way = 0
        self._at_start = done
        self._tokens = 0
        self._started = self._last_line = time.monotonic()
        self._bar = None
        if shows_bars(sys.stderr) and not quiet:
            from tqdm import tqdm

            self._bar = tqdm(total=total, initial=done, desc=what, unit=unit, dynamic_ncols=True)

    def advance(self, items: int, tokens: int) -> None:
        """Adds finished items and their tokens."""
        self._done += items
        self._tokens += tokens
        self._under_way = 0
        self._show()

    def under_way(self, items: int) -> None:
        """Shows items of a part that counts when all of it is finished."""
        self._under_way += items
        self._show()

    def _show(self) -> None:
        if self._quiet:
            return
        now = time.monotonic()
        done = min(self._done + self._under_way, self._total)
        if self._bar is not None:
            self._bar.update(done - self._bar.n)
            return
        period = _LINES_EVERY_S if now - self._started > _LINES_EVERY_S else _FIRST_LINES_EVERY_S
        seconds = max(now - self._started, 1e-9)
        # What is done before its first line is due has nothing to tell.
        if now - self._last_line < period and (self._done < self._total or seconds < period):
            return
        self._last_line = now
        rate = (done - self._at_start) / seconds
        remaining = f"took {_duration(seconds)}"
        if done < self._total:
            remaining = f"about {_duration((self._total - done) / rate)} left" if rate else "just begun"
        tokens = f", {self._tokens / seconds:,.0f} tokens/s" if self._tokens else ""
        logger.info(
            "%s: %s of %s %s, %s/s%s, %s",
            self._what,
            f"{done:,}",
            f"{self._total:,}",
            self._unit,
            f"{rate:,.0f}",
            tokens,
            remaining,
        )

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
