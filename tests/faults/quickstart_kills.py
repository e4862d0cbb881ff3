"""A small transformer, trained twice: once undisturbed, once killed many times at random moments and started
again by the same command.

    python -m tests.faults.quickstart_kills runs/quickstart [--kills 20] [--steps 40] [--seed 0]

The folder is that of examples/quickstart, whose data and vocabulary are used; the settings are
``encoder=quickstart train=quickstart``. Prints what the kills met, whether the weights are equal, and the
share of the undisturbed run that saving and verifying took, here and for the steps and saves of these
settings.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.runs import NAME, REPOSITORY, final_hash, saved_steps

SAVE_EVERY = 2
QUICKSTART_STEPS, QUICKSTART_SAVES = 792, 2


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        whole, killed = Path(scratch) / "whole", Path(scratch) / "killed"
        options.encoder = encoder = Path(scratch) / "encoder"
        corpus, tokenizer = options.folder / "data" / "corpus.tsv", options.folder / "encoder"
        made = (
            "new-encoder",
            f"--corpus={corpus}",
            f"--tokenizer={tokenizer}",
            "--layers=1",
            "--hidden=256",
            f"--out={encoder}",
        )
        assert (
            subprocess.run([sys.executable, "-m", "dpr", *made], env=environment(), cwd=REPOSITORY).returncode
            == 0
        )
        start = time.perf_counter()
        print(f"undisturbed: {options.steps} steps, a checkpoint every {SAVE_EVERY}", flush=True)
        timed = subprocess.run(
            command(options, whole, module="tests.faults.quickstart_kills"),
            env=environment(timed=True),
            cwd=REPOSITORY,
        )
        assert timed.returncode == 0
        print(f"took {time.perf_counter() - start:.0f} s", flush=True)
        # Moments are drawn so that all kills meet the run, however far each start gets.
        generator, start = random.Random(options.seed), time.perf_counter()
        kills = sum(kill_once(options, killed, generator, number) for number in range(options.kills))
        result = subprocess.run(
            command(options, killed), env=environment(), cwd=REPOSITORY, capture_output=True, text=True
        )
        assert result.returncode == 0, result.stderr
        is_equal = final_hash(killed) == final_hash(whole)
        print(
            f"{kills} kills of {options.kills}, {time.perf_counter() - start:.0f} s; last start:"
            f" {went_on(result.stderr)}"
        )
        print(
            "final weights, optimizer and metrics:",
            "EQUAL" if is_equal else "DIFFERENT",
            final_hash(whole)[:50],
        )
        return 0 if is_equal and kills == options.kills else 1


def command(options: argparse.Namespace, output_dir: Path, *, module: str = "") -> list[str]:
    """The training of ``train=quickstart``, with fewer steps and more checkpoints."""
    return [
        *(
            sys.executable,
            *(["-m", module, "--timed"] if module else [str(REPOSITORY / "train_dense_encoder.py")]),
        ),
        *("encoder=quickstart", "train=quickstart", "loss.temperature=0.07"),
        f"encoder.pretrained_model_cfg={options.encoder}",
        f"train_datasets={options.folder / 'data' / 'train.json'}",
        f"dev_datasets={options.folder / 'data' / 'dev.json'}",
        f"output_dir={output_dir}",
        f"train.max_steps={options.steps}",
        f"train.eval_every_steps={options.steps // 2}",
        f"train.save_every_steps={SAVE_EVERY}",
        "train.log_batch_step=1",
    ]


def environment(*, timed: bool = False) -> dict[str, str]:
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(REPOSITORY),
        **({"PYTHONUNBUFFERED": "1"} if timed else {}),
    }


def kill_once(options: argparse.Namespace, output_dir: Path, generator: random.Random, number: int) -> bool:
    """Starts the command and kills all its processes at a random moment; whether it still ran."""
    left = options.steps - (
        saved_steps(output_dir)[0] if output_dir.exists() and saved_steps(output_dir) else 0
    )
    log = output_dir.with_suffix(".log")
    with log.open("wb") as out:
        process = subprocess.Popen(
            command(options, output_dir),
            env=environment(),
            cwd=REPOSITORY,
            stderr=out,
            start_new_session=True,
        )
        # One in four is killed while it starts, the others after some of the steps that are theirs if all are
        # to get the same share.
        if number % 4 == 3:
            time.sleep(generator.uniform(0.5, 4.0))
        else:
            steps = generator.randint(1, max(1, min(left - 1, round(2 * options.steps / options.kills))))
            while len(re.findall(r" step \d+/", log.read_text())) < steps and process.poll() is None:
                time.sleep(0.01)
            time.sleep(generator.uniform(0, 0.5))
        still_ran = process.poll() is None
        os.killpg(process.pid, signal.SIGKILL) if still_ran else None
        process.wait()
    done = re.findall(r" step (\d+)/", log.read_text())
    print(
        f"kill {number + 1}: {went_on(log.read_text())}, killed"
        f" {f'after step {done[-1]}' if done else 'while starting'}",
        flush=True,
    )
    return still_ran


def went_on(log: str) -> str:
    found = re.findall(r"resuming from .* at step (\d+)", log)
    return (
        f"went on from step {found[0]}"
        if found
        else "from the beginning"
        if " pool: " in log
        else "not yet under way"
    )


def timed_command() -> None:
    """Runs the command in this process and prints how long it trained, saved and verified."""
    from dpr.storage.durable import verify_folder
    from dpr.training.assembly import BiEncoderTrainer
    from dpr.training.checkpointing import CheckpointFolder

    taken: dict[str, list[float]] = {"save": [], "train": []}
    folders = []

    def timing(owner: type, name: str) -> None:
        real = getattr(owner, name)

        def replaced(self: object, *arguments: object, **options: object) -> object:
            start = time.perf_counter()
            try:
                return real(self, *arguments, **options)
            finally:
                taken[name].append(time.perf_counter() - start)
                folders.append(self)

        setattr(owner, name, replaced)

    timing(CheckpointFolder, "save")
    timing(BiEncoderTrainer, "train")
    sys.argv = [str(REPOSITORY / "train_dense_encoder.py"), *sys.argv[2:]]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    output_dir = folders[0].output_dir  # type: ignore[attr-defined]
    start = time.perf_counter()
    newest = output_dir / f"{NAME}.step{saved_steps(output_dir)[0]}"
    assert not verify_folder(newest)
    verifying, saves = time.perf_counter() - start, taken["save"]
    steps = json.loads((output_dir / "metrics.json").read_text())["step"]
    saving = sum(saves) / len(saves)
    step_s = (taken["train"][0] - sum(saves)) / steps
    size = sum(path.stat().st_size for path in newest.rglob("*")) / 1e6
    here = (sum(saves) + verifying) / taken["train"][0]
    quickstart = (QUICKSTART_SAVES * saving + verifying) / (QUICKSTART_STEPS * step_s)
    print(
        f"checkpoint {size:.0f} MB: saving {saving:.3f} s, verifying {verifying:.3f} s; step with validation"
        f" {step_s:.3f} s"
    )
    print(
        f"share of training time: {here:.2%} with {len(saves)} saves in {steps} steps, {quickstart:.3%} with"
        " train=quickstart ",
        end="",
    )
    print(f"({QUICKSTART_SAVES} saves and a check in {QUICKSTART_STEPS} steps)", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--timed"]:
        timed_command()
    else:
        sys.exit(main())
