"""A plain script sees the messages of training; an application that has set up logging is left alone."""

import io
import logging
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dpr.core import logs
from dpr.core.logs import ProgressBar, configure_by_default, counted, details_in, shows_bars


@contextmanager
def fresh_logging() -> Iterator[logging.Logger]:
    """No logging set up anywhere. Not a fixture: pytest adds its own handlers after fixtures."""
    root, logger = logging.getLogger(), logging.getLogger("dpr")
    before = root.handlers[:], logger.handlers[:], logger.level, logger.propagate
    root.handlers[:], logger.handlers[:], logger.propagate = [], [], True
    logger.setLevel(logging.NOTSET)
    try:
        yield logger
    finally:
        root.handlers[:], logger.handlers[:], logger.propagate = before[0], before[1], before[3]
        logger.setLevel(before[2])


def test_a_plain_script_sees_messages_once(capsys: pytest.CaptureFixture[str]) -> None:
    with fresh_logging() as logger:
        configure_by_default()
        configure_by_default()
        logger.getChild("training").info("step 1")
        assert capsys.readouterr().err.count("step 1") == 1
        assert not logging.getLogger().handlers


def test_all_ranks_speak_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    for rank in (0, 1):
        with fresh_logging() as logger, warnings.catch_warnings():
            configure_by_default(rank=rank)
            logger.info("step 1")
            logger.warning("careful")
            warnings.warn("from elsewhere", stacklevel=1)
            logger.error("broken")
    text = capsys.readouterr().err
    assert (text.count("step 1"), text.count("careful"), text.count("broken")) == (1, 1, 2)
    assert "[rank 1] E broken" in text


def test_a_stage_that_trains_says_how_far_it_is_now_and_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with fresh_logging() as logger:
        configure_by_default()
        training = logger.getChild("training")
        with details_in(tmp_path / "log.txt", "dpr.stages"):
            training.info("step %d", 1, extra={"step": 1})
            monkeypatch.setattr(logs, "_STEPS_EVERY_S", -1.0)
            training.info("step %d", 2, extra={"step": 2})
            monkeypatch.setattr(logs, "_STEPS_EVERY_S", 30.0)
            training.info("step %d", 3, extra={"step": 3})
    shown = capsys.readouterr().err
    assert [f"step {step}" in shown for step in (1, 2, 3)] == [False, True, False]
    assert (tmp_path / "log.txt").read_text().count("step") == 3


def test_logging_that_is_set_up_before_is_left_alone() -> None:
    with fresh_logging() as logger:
        for level, handlers in ((logging.ERROR, []), (logging.NOTSET, [logging.NullHandler()])):
            logger.setLevel(level)
            logger.handlers[:] = handlers
            configure_by_default()
            assert (logger.level, logger.handlers) == (level, handlers)


def test_logging_that_is_set_up_afterwards_takes_over(capsys: pytest.CaptureFixture[str]) -> None:
    with fresh_logging() as logger:
        configure_by_default()
        records: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger().addHandler(handler)
        logger.info("step 1")
        assert records == ["step 1"]
        assert capsys.readouterr().err == ""


def test_bars_are_drawn_on_a_terminal_and_in_a_notebook() -> None:
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})
    assert shows_bars(stream())
    assert not shows_bars(io.StringIO())


def test_progress_is_a_line_within_a_part_too_and_then_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    monkeypatch.setattr("dpr.core.logs.time.monotonic", lambda: now[0])
    monkeypatch.setattr("dpr.core.logs.shows_bars", lambda stream: False)
    with caplog.at_level("INFO", logger="dpr"):
        progress = ProgressBar("embedding", 1_000)
        for second in range(1, 101):
            now[0] = float(second)
            progress.under_way(10) if second <= 99 else progress.advance(1_000, 5_000)
    lines = [record.getMessage() for record in caplog.records]
    shown = [line.split(" passages")[0] for line in lines]
    assert shown == [f"embedding: {done} of 1,000" for done in (100, 200, 300, 400, 500, 600, "1,000")]
    assert lines[0].endswith("10/s, about 90 s left") and "50 tokens/s, took 100 s" in lines[-1]

    progress.close()

    # The first items of a resumed job say nothing about the time that is left.
    caplog.clear()
    with caplog.at_level("INFO", logger="dpr"):
        resumed = ProgressBar("embedding", 10_000_000, done=3_000_000)
        for second, items in ((180, 16), (300, 70_000)):
            now[0] = float(second)
            resumed.under_way(items)
        resumed.close()
    few, more = [record.getMessage() for record in caplog.records]
    assert few.endswith("3,000,016 of 10,000,000 passages, 0/s, just started")
    assert more.endswith("350/s, about 5.5 h left")

    # What is done before its first line is due says nothing.
    caplog.clear()
    with caplog.at_level("INFO", logger="dpr"):
        ProgressBar("embedding", 10).advance(10, 50)
    assert not caplog.records


def lines_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, items: Iterable[object]
) -> list[str]:
    """What going through the items says, each line as soon as it can be said."""
    monkeypatch.setattr("dpr.core.logs._FIRST_LINES_EVERY_S", 0.0)
    monkeypatch.setattr("dpr.core.logs._LINES_EVERY_S", 0.0)
    caplog.clear()
    with caplog.at_level("INFO", logger="dpr"):
        for _ in items:
            pass
    return [record.getMessage().split(",")[0] for record in caplog.records]


def test_the_first_bar_is_shown(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    inner = (item for _ in range(2) for item in counted("ab", "inner", unit="letters"))
    lines = [f"outer: {done} of 4 passages" for done in range(1, 5)]
    assert lines_of(caplog, monkeypatch, counted(inner, "outer", 4)) == lines
    assert lines_of(caplog, monkeypatch, counted("a", "inner", unit="letters")) == ["inner: 1 of 1 letters"]

    # One that was left in the middle silences no other, and is not to be closed.
    left = counted("ab", "left", unit="letters")
    next(left)
    del left
    ProgressBar("never closed", 2).advance(1)
    lines = [f"steps: {done} of 5 passages" for done in (2, 4, 5)]
    assert lines_of(caplog, monkeypatch, counted(range(0, 5, 2), "steps")) == lines
    # More than there should be, such as of a file that grows, is no reason to speak on.
    assert lines_of(caplog, monkeypatch, counted(iter("abc"), "grown", 1)) == ["grown: 1 of 1 passages"]


def test_a_bar_is_drawn_of_what_takes_longer_than_a_second(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    monkeypatch.setattr("dpr.core.logs.time.monotonic", lambda: now[0])
    monkeypatch.setattr("dpr.core.logs.shows_bars", lambda stream: True)
    for seconds in (0.1, 1.0):
        progress = ProgressBar("embedding", 4)
        for _ in range(4):
            now[0] += seconds
            inner = ProgressBar("reading", 1)
            now[0] += seconds
            inner.advance(1)
            inner.close()
            progress.advance(1)
        progress.close()
        said = capsys.readouterr().err
        assert "reading" not in said
        assert ("embedding: 100%" in said and "4/4" in said) if seconds == 1.0 else not said

    # A rank other than 0 shows errors only, and so draws none.
    with caplog.at_level("ERROR", logger="dpr"):
        for _ in counted(range(4), "searching"):
            now[0] += 1.0
    assert not capsys.readouterr().err
