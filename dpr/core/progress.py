"""Progress of a long job: a bar on a terminal and in a notebook, a log line every 30 seconds elsewhere."""

from __future__ import annotations

import sys
import time

from dpr.core.logs import get_logger, shows_bars

logger = get_logger(__name__)

_LINE_EVERY_S = 30.0


class Progress:
    """Counts items of ``total``, of which ``done`` were finished before. ``quiet`` for ranks other than 0."""

    def __init__(
        self, what: str, total: int, *, unit: str = "passages", done: int = 0, quiet: bool = False
    ) -> None:
        self._what, self._total, self._unit, self._quiet = what, total, unit, quiet
        self._done, self._at_start, self._tokens = done, done, 0
        self._started = self._last_line = time.monotonic()
        self._bar = None
        if shows_bars(sys.stderr) and not quiet:
            from tqdm import tqdm

            self._bar = tqdm(total=total, initial=done, desc=what, unit=unit, dynamic_ncols=True)

    def advance(self, items: int, tokens: int) -> None:
        """Adds finished items and their tokens."""
        self._done += items
        self._tokens += tokens
        if self._bar is not None:
            self._bar.update(items)
        elif not self._quiet and (
            time.monotonic() - self._last_line >= _LINE_EVERY_S or self._done >= self._total
        ):
            self._last_line = time.monotonic()
            logger.info("%s", self._line())

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def _line(self) -> str:
        seconds = max(time.monotonic() - self._started, 1e-9)
        rate = (self._done - self._at_start) / seconds
        left = (self._total - self._done) / rate if rate else 0.0
        remaining = (
            f"about {_duration(left)} left" if self._done < self._total else f"took {_duration(seconds)}"
        )
        tokens = f", {self._tokens / seconds:,.0f} tokens/s" if self._tokens else ""
        return (
            f"{self._what}: {self._done:,} of {self._total:,} {self._unit}, {rate:,.0f}/s{tokens},"
            f" {remaining}"
        )


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
