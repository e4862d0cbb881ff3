"""Logging for programs with several processes: rank 0 logs everything, the others only errors. The progress
of a long job is a bar on a terminal and in a notebook; elsewhere it is a line every ten seconds, later every
minute."""

from __future__ import annotations

import io
import logging
import os
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TextIO, TypeVar

LOGGER_NAME = "dpr"
_FIRST_LINES_EVERY_S = 10.0
_LINES_EVERY_S = 60.0
_STEPS_EVERY_S = 30.0
_BAR_AFTER_S = 1.0

_Item = TypeVar("_Item")


def get_logger(module: str) -> logging.Logger:
    """Returns the logger of a module of this package (pass ``__name__``)."""
    return logging.getLogger(module)


logger = get_logger(__name__)


@cache
def warn_once(logger: logging.Logger, message: str, *values: object) -> None:
    """Logs a warning once per process for the same values."""
    logger.warning(message, *values)


def shows_bars(stream: Any) -> bool:
    """True if progress bars can be drawn in ``stream``: a terminal, or the output below a notebook cell."""
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
        os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


@contextmanager
def details_in(file: Path, module: str) -> Iterator[TextIO | None]:
    """Sends the messages of the block to ``file``. Standard error gets the warnings, the messages of
    ``module`` and the progress, which a training shows at most twice a minute. Yields the open file."""
    logger = logging.getLogger(LOGGER_NAME)
    level = logger.level
    last = time.time()

    def is_shown(record: logging.LogRecord) -> bool:
        nonlocal last
        if hasattr(record, "step") and record.created > last + _STEPS_EVERY_S:
            last = record.created
            return True
        return record.levelno >= (level if record.name in (module, __name__) else logging.WARNING)

    details = logging.FileHandler(file, encoding="utf-8", errors="backslashreplace")
    # not with a traceback of a full disk: whatever is written next says it in one line
    details.handleError = lambda record: None  # type: ignore[method-assign]
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
    """Configures logging for a plain script. Does nothing if logging is configured, and stops once the
    application configures it."""
    logger = logging.getLogger(LOGGER_NAME)
    if logger.hasHandlers() or logger.level != logging.NOTSET:
        return
    configure_logging(rank=rank)
    logger.propagate = True
    logger.handlers[0].addFilter(lambda record: not logging.getLogger().handlers)


class ProgressBar:
    """Counts items of ``total``, ``done`` of which were finished before; with the unit MB, it counts bytes.
    ``quiet`` is for ranks other than 0; None means quiet unless messages of this package are shown.

    If several are open at a time, only the first is shown. A search inside mining, for example, or
    the reading of a file whose passages are being embedded, shows nothing.
    """

    _shown: ClassVar[Callable[[], ProgressBar | None]] = lambda: None

    def __init__(
        self, what: str, total: int, *, unit: str = "passages", done: int = 0, quiet: bool | None = False
    ) -> None:
        self._what = what
        self.total = total
        self._unit = unit
        self._done = done
        self._under_way = 0
        self._at_start = done
        self._tokens = 0
        self._started = self._last_line = time.monotonic()
        self._bar: Any = None
        if quiet is None:
            quiet = not logger.isEnabledFor(logging.INFO)
        self._quiet = quiet or ProgressBar._shown() is not None
        if not self._quiet:
            # weak, so that one that nobody closed does not silence all others
            ProgressBar._shown = weakref.ref(self)

    def advance(self, items: int, tokens: int = 0) -> None:
        """Adds finished items and their tokens."""
        self._done += items
        self._tokens += tokens
        self._under_way = 0
        if not self._quiet:
            self._show()

    def under_way(self, items: int) -> None:
        """Shows items of a part that counts only when the whole part is finished."""
        self._under_way += items
        if not self._quiet:
            self._show()

    def _show(self) -> None:
        now = time.monotonic()
        seconds = now - self._started
        period = _LINES_EVERY_S if seconds > _LINES_EVERY_S else _FIRST_LINES_EVERY_S
        # A job that ends before its first line is due shows nothing.
        if seconds < min(_BAR_AFTER_S, period):
            return
        done = min(self._done + self._under_way, self.total)
        if self._bar is None and shows_bars(sys.stderr):
            from tqdm import tqdm

            self._bar = tqdm(
                total=self.total,
                initial=self._at_start,
                desc=self._what,
                unit="B" if self._unit == "MB" else self._unit,
                unit_scale=self._unit == "MB",
                dynamic_ncols=True,
                leave=None,  # below the bar of a training, until it is full
            )
            self._bar.start_t -= seconds
        if self._bar is not None:
            self._bar.update(done - self._bar.n)
            return
        is_end = self._done >= self.total
        if now - self._last_line < period and not (is_end and seconds >= period):
            return
        self._last_line = now
        self._quiet = is_end
        rate = (done - self._at_start) / max(seconds, 1e-9)
        remaining = f"took {duration(seconds)}"
        if not is_end:
            remaining = "just started"  # the first items wait until a whole part is tokenised
            if (done - self._at_start) * 1000 >= self.total - self._at_start:
                remaining = f"about {duration((self.total - done) / rate)} left"
        tokens = f", {self._tokens / seconds:,.0f} tokens/s" if self._tokens else ""
        scale = 10**6 if self._unit == "MB" else 1
        logger.info(
            "%s: %s of %s %s, %s/s%s, %s",
            self._what,
            f"{-(-done // scale):,}",
            f"{-(-self.total // scale):,}",
            self._unit,
            f"{rate / scale:,.0f}",
            tokens,
            remaining,
        )

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        if ProgressBar._shown() is self:
            ProgressBar._shown = lambda: None


def counted(
    items: Iterable[_Item],
    what: str,
    total: int | None = None,
    *,
    unit: str = "passages",
    size_of: Callable[[_Item], int] | None = None,
) -> Iterator[_Item]:
    """Yields the items and shows their progress if messages of this package are shown. An item counts as
    finished when the next one is requested: as 1, as the step of a range, or as the result of ``size_of``.
    ``total`` defaults to the length of a sequence or the end of a range, and is required for anything
    else."""
    each = 1
    if isinstance(items, range):
        each = items.step
        total = items.stop
    elif total is None:
        total = len(items)  # type: ignore[arg-type]
    progress = ProgressBar(what, total, unit=unit, quiet=None)
    step = max(1, total // 1000)  # with millions of small items, not every one looks at the clock
    finished = 0
    try:
        for item in items:
            yield item
            finished += each if size_of is None else size_of(item)
            if finished >= step:
                progress.advance(finished)
                finished = 0
        progress.advance(finished)
    finally:
        progress.close()


class WatchedFile(io.FileIO):
    """A file that is read once, with progress."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        size = os.fstat(self.fileno()).st_size
        self._progress = ProgressBar(f"reading {path.name}", size, unit="MB", quiet=None)

    def readinto(self, buffer: Any) -> int:
        size = super().readinto(buffer)
        self._progress.advance(size)
        return size

    def close(self) -> None:
        if not self.closed:
            self._progress.close()
        super().close()


def duration(seconds: float) -> str:
    """Returns a duration in words."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
