"""One process of several dies, hangs or fails: the others name it and end, and the same command resumes."""

import re
import signal
import time
from pathlib import Path

from tests.faults.conftest import Trial, fault
from tests.faults.runs import RANK_TIMEOUT_S, Run, Workshop
from tests.helpers.patience import patient

LOST = 5
HANG_TIMEOUT_S = round(patient(5 / 3))


def end_of(run: Run, rank: int, limit_s: float) -> float:
    """Seconds until a rank has ended."""
    start = time.monotonic()
    while run.pids[rank] not in run.codes:
        run.poll()
        assert time.monotonic() - start < patient(limit_s), (
            f"rank {rank} still runs after {limit_s} s:\n{run.text}"
        )
        time.sleep(0.01)
    return time.monotonic() - start


@fault(
    "A2",
    "SIGKILL of one rank",
    "the other ends with 5 within timeout + 10 s, rank and step named; equal weights",
    trials=10,
)
def test_one_rank_is_killed(trial: Trial, workshop: Workshop, undisturbed: dict[int, str]) -> None:
    step, victim = trial.random.randint(1, 12), trial.number % 2
    run = workshop.start(
        trial.output_dir, injections=[("at_step", {"step": step, "on_rank": victim, "what": "dies"})]
    )
    run.wait_for(r"rank \d dies")
    end_of(run, 1 - victim, RANK_TIMEOUT_S + 10)
    codes = run.wait()
    assert (codes[victim], codes[1 - victim]) == (-signal.SIGKILL, LOST), run.text
    named = rf"rank {victim} of 2 died or stopped answering" if victim else "rank 0 or its launcher has ended"
    assert re.search(rf"error: .*{named}, at step {step} ", run.rank_text(1 - victim)), run.text
    assert "Traceback" not in run.rank_text(1 - victim)
    assert "Timed out" not in run.rank_text(1 - victim), (
        "noticed at once, though the rank's workers live on for some seconds"
    )
    assert workshop.finished_hash(trial.output_dir) == undisturbed[2]


@fault(
    "A2",
    "one rank raises an error",
    "the other ends with 5 and reports the reason; equal weights",
    trials=5,
    fast=0,
)
def test_one_rank_raises(trial: Trial, workshop: Workshop, undisturbed: dict[int, str]) -> None:
    step = trial.random.randint(1, 12)
    run = workshop.run(
        trial.output_dir, injections=[("at_step", {"step": step, "on_rank": 1, "what": "raises"})]
    )
    assert run.wait() == [LOST, 1], run.text
    assert re.search(
        rf"error: rank 1 failed: ValueError: broken on purpose, at step {step} ", run.rank_text(0)
    ), run.text
    assert workshop.finished_hash(trial.output_dir) == undisturbed[2]


@fault(
    "A3",
    "SIGSTOP of one rank",
    "the other ends with 5 within 10 s (timeout 5 s), rank and step named; equal weights",
    trials=10,
)
def test_one_rank_hangs(trial: Trial, workshop: Workshop, undisturbed: dict[int, str]) -> None:
    step = trial.random.randint(1, 12)
    run = workshop.start(
        trial.output_dir,
        f"rank_timeout_s={HANG_TIMEOUT_S}",
        injections=[("at_step", {"step": step, "on_rank": 1, "what": "hangs"})],
    )
    try:
        run.wait_for(r"rank 1 hangs")
        end_of(run, 0, HANG_TIMEOUT_S + 5.0)
        assert run.codes[run.pids[0]] == LOST
        assert re.search(
            rf"error: rank 1 of 2 died or stopped answering, at step {step} ", run.rank_text(0)
        ), run.text
    finally:
        run.kill()  # as a launcher does
    assert workshop.finished_hash(trial.output_dir) == undisturbed[2]


@fault(
    "A21",
    "a data-loader worker dies",
    "exit 5 within 10 s, the worker named on both ranks; equal weights",
    trials=5,
)
def test_a_worker_dies(trial: Trial, workshop: Workshop, undisturbed: dict[int, str]) -> None:
    victim, how = trial.number % 2, ("exit", "signal")[trial.number // 2 % 2]
    batch = trial.random.randint(1, 12)
    start = time.monotonic()
    run = workshop.run(
        trial.output_dir,
        injections=[("worker_dies", {"on_rank": victim, "batch": batch, "how": how})],
    )
    assert run.wait() == [LOST, LOST], run.text
    assert time.monotonic() - start < patient(10)  # the start takes some
    assert re.search(rf"error: data-loader worker \d+ of rank {victim} ", run.rank_text(victim)), run.text
    assert f"rank {victim}" in run.rank_text(1 - victim), run.text
    assert workshop.finished_hash(trial.output_dir) == undisturbed[2]


def test_nothing_is_left_running(workshop: Workshop) -> None:
    """After all of the above: no process of a run, no data-loader worker."""
    deadline = time.monotonic() + 10
    children = Path(f"/proc/{workshop.server.pid}/task/{workshop.server.pid}/children")
    while (left := children.read_text().split()) and time.monotonic() < deadline:
        workshop.server.ask({"do": "poll", "pids": []})
        time.sleep(0.1)
    assert not left
