"""Signals on systems that have fewer of them."""

import runpy
import signal

import pytest

from dpr.core import stopping

ONLY_POSIX = ("SIGUSR1", "SIGHUP", "SIGALRM", "alarm")


def test_without_the_signals_of_posix_runs_still_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ONLY_POSIX:
        monkeypatch.delattr(signal, name)
    found = runpy.run_path(str(stopping.__file__))
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    try:
        with found["StopSignals"]() as signals:
            assert signals.requested() == 0
            signal.raise_signal(signal.SIGTERM)
            assert signals.requested() == signal.SIGTERM
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
        found["ignore_in_worker"]()
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])
    assert found["describe"](1) == "the launcher has ended"
    assert found["describe"](signal.SIGTERM) == "SIGTERM"
