"""SIGTERM, SIGINT, SIGUSR1: all ranks stop at the same step with a checkpoint, and the same command resumes."""

import json
import re
import signal
import time

from dpr.formats.run_folders import checkpoint_folders
from dpr.storage.durable import verify_folder
from tests.faults.conftest import Trial, fault
from tests.faults.runs import Workshop, final_hash, saved_steps
from tests.helpers.patience import patient

SAVED = 75
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


@fault(
    "A4",
    "SIGTERM, SIGINT or SIGUSR1 to one rank or all",
    "saved at one step within 15 s, exit 75 everywhere; equal weights",
    trials=14,
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
