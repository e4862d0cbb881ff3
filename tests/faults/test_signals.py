"""SIGTERM, SIGINT, SIGUSR1: all ranks stop at the same step with a checkpoint, and the same command resumes."""

import json
import re
import signal
import time
from pathlib import Path

from dpr.formats.run_folders import checkpoint_folders
from dpr.storage.durable import verify_folder
from tests.faults.conftest import Trial, fault
from tests.faults.runs import RANK_TIMEOUT_S, Run, Workshop, final_hash, saved_steps
from tests.helpers.patience import patient

SAVED = 75
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


@fault(
    "A4",
    "SIGTERM, SIGINT or SIGUSR1 to one rank or all",
    "saved at one step within 15 s, exit 75 everywhere; equal weights",
    trials=21,
)
def test_asked_to_stop(trial: Trial, workshop: Workshop, undisturbed: dict[int, str]) -> None:
    ranks = 1 if trial.number % 7 == 6 else 2
    # Without a checkpoint due anywhere near, so that the one found was written for the signal.
    run = workshop.start(
        trial.output_dir,
        "train.save_every_steps=0",
        ranks=ranks,
        injections=[("slow_steps", {"seconds": 0.1})],
    )
    run.wait_for(rf"step {trial.random.randint(1, 4)}/")
    time.sleep(trial.random.uniform(0, 0.1))
    start = time.monotonic()
    to = None if trial.number % 2 else [ranks - 1]
    run.signal(SIGNALS[trial.number % 3], ranks=to)
    assert run.wait() == [SAVED] * ranks, run.text
    assert time.monotonic() - start < patient(15)
    reported = set(re.findall(r"stopped: (\w+); saved at step (\d+) of 12", run.text))
    assert len(reported) == 1, run.text
    (name, step), *_ = reported
    assert name == SIGNALS[trial.number % 3].name
    assert saved_steps(trial.output_dir) == [int(step)]
    assert not verify_folder(checkpoint_folders(trial.output_dir)[0])
    assert json.loads((trial.output_dir / "run.json").read_text())["stopped_at_step"] == int(step)
    again = workshop.finish(trial.output_dir, "train.save_every_steps=0", ranks=ranks)
    assert f"at step {step}" in again.rank_text(0)
    assert final_hash(trial.output_dir) == undisturbed[ranks]
    assert "stopped_at_step" not in json.loads((trial.output_dir / "run.json").read_text())


@fault(
    "A4",
    "a second signal while the first is being answered",
    "ends at once with 128 + its number; equal weights",
    trials=4,
)
def test_a_second_signal_ends_at_once(trial: Trial, workshop: Workshop, undisturbed: dict[int, str]) -> None:
    run = workshop.start(trial.output_dir, ranks=1, injections=[("slow_steps", {"seconds": 8.0})])
    run.wait_for("a slow update begins")
    number = SIGNALS[trial.number % 2]
    run.signal(number)
    time.sleep(0.2)
    run.signal(number)  # the same request, sent twice
    time.sleep(1.0)
    assert run.poll() is None
    start = time.monotonic()
    run.signal(number)
    assert run.wait() == [128 + number]
    assert time.monotonic() - start < patient(0.5)
    assert "again: ending at once" in run.text
    assert workshop.finished_hash(trial.output_dir, ranks=1) == undisturbed[1]


LOST = 5
HANG_TIMEOUT_S = round(patient(5 / 3))


def end_of(run: Run, rank: int, limit_s: float) -> float:
    """Seconds until a rank has ended."""
    start = time.monotonic()
    while run.pids[rank] not in run.codes:
        run.poll()
        assert time.monotonic() - start < patient(limit_s), f"rank {rank} still runs:\n{run.text}"
        time.sleep(0.01)
    return time.monotonic() - start


@fault(
    "A2",
    "SIGKILL of one rank",
    "the other ends with 5 within timeout + 10 s, rank and step named; equal weights",
    trials=20,
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


CALLS = (("gather", 30), ("validation", 2), ("save", 6))
"""Places where a rank is lost, and how often a run comes there at the least."""


@fault(
    "A2",
    "SIGKILL of one rank while it gathers, validates or saves",
    "the other ends with 5 within timeout + 10 s; equal weights",
    trials=21,
    fast=3,
)
def test_one_rank_is_killed_at_a_call(trial: Trial, workshop: Workshop, undisturbed: dict[int, str]) -> None:
    of, most = CALLS[trial.number % 3]
    victim = trial.number % 2
    lost = {"of": of, "number": trial.random.randint(1, most), "on_rank": victim, "what": "dies"}
    run = workshop.start(trial.output_dir, injections=[("at_call", lost)])
    run.wait_for(r"rank \d dies")
    end_of(run, 1 - victim, RANK_TIMEOUT_S + 10)
    codes = run.wait()
    assert (codes[victim], codes[1 - victim]) == (-signal.SIGKILL, LOST), run.text
    assert re.search(
        r"error: .*(died or stopped answering|has ended), at step \d+ ", run.rank_text(1 - victim)
    )
    assert "Traceback" not in run.rank_text(1 - victim)
    assert workshop.finished_hash(trial.output_dir) == undisturbed[2]


@fault(
    "A3",
    "SIGSTOP of one rank while it gathers, validates or saves",
    "the other ends with 5 within 10 s (timeout 5 s); equal weights",
    trials=21,
    fast=0,
)
def test_one_rank_hangs_at_a_call(trial: Trial, workshop: Workshop, undisturbed: dict[int, str]) -> None:
    of, most = CALLS[trial.number % 3]
    lost = {"of": of, "number": trial.random.randint(1, most), "on_rank": 1, "what": "hangs"}
    run = workshop.start(trial.output_dir, f"rank_timeout_s={HANG_TIMEOUT_S}", injections=[("at_call", lost)])
    try:
        run.wait_for(r"rank 1 hangs")
        end_of(run, 0, HANG_TIMEOUT_S + 5.0)
        assert run.codes[run.pids[0]] == LOST
        assert re.search(r"error: rank 1 of 2 died or stopped answering, at step \d+ ", run.rank_text(0))
    finally:
        run.kill()  # as a launcher does
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
    trials=20,
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
        trial.output_dir, injections=[("worker_dies", {"on_rank": victim, "batch": batch, "how": how})]
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
