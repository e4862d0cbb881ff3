"""Signals on systems that have fewer of them; worker processes whose parent is killed."""

import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dpr.core import stopping
from tests.helpers.patience import patient

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


WORKER = """
import multiprocessing, time
from dpr.core.stopping import end_with_parent

def work():
    end_with_parent()
    print("works", flush=True)
    time.sleep(600)

if __name__ == "__main__":
    multiprocessing.get_context("spawn").Process(target=work).start()
    time.sleep(600)
"""


def test_a_worker_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    (tmp_path / "started.py").write_text(WORKER)
    parent = subprocess.Popen(
        [sys.executable, str(tmp_path / "started.py")], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None and parent.stdout.readline() == "works\n"
    parent.kill()
    assert parent.communicate(timeout=patient(10))[0] == ""  # the worker holds the other end until it ends
