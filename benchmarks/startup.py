"""How long commands take before they do what they were asked for, each in a fresh process whose files the
system has read before."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.measuring import median_and_range
from benchmarks.page import Section

SHORT_BAR_S, FIRST_STEP_BAR_S = 2.0, 8.0
WORDS = [f"word{number}" for number in range(500)]


def section(rounds: int) -> Section:
    """Seconds of short answers, and from the command to the end of the first training step beyond two
    imports."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        _write_inputs(folder)
        short = {
            "`dpr --help`": lambda: _ended(["--help"], folder, code=0),
            "`dpr train --help`": lambda: _ended(["train", "--help"], folder, code=0),
            "a misspelt setting": lambda: _ended(["train", "train.batch_sise=8"], folder, code=2),
            "`dpr doctor`": lambda: _ended(["doctor"], folder, code=0),
        }
        long = {
            "import of torch and transformers": lambda: _import_seconds(folder),
            "`dpr train` to its first step, a new data file": lambda: _first_step(folder, afresh=True),
            "`dpr train` to its first step, data seen before": lambda: _first_step(folder, afresh=False),
        }
        seconds: dict[str, list[float]] = {name: [] for name in (*short, *long)}
        for number in range(rounds + 1):
            for name, run in (*short.items(), *long.items()):
                taken = run()
                if number:  # the first round has the files read
                    seconds[name].append(taken)
    lines = [
        "| | seconds | at most |",
        "|---|---:|---:|",
        *(_row(name, seconds[name], SHORT_BAR_S) for name in short),
    ]
    imports, *steps = long
    lines.append(_row(imports, seconds[imports]))
    for name in steps:
        lines.append(_row(name, seconds[name]))
        beyond = [own - other for own, other in zip(seconds[name], seconds[imports], strict=True)]
        lines.append(_row("... beyond the imports", beyond, FIRST_STEP_BAR_S))
    what = (
        "Fresh processes; the system has their files in memory. Training is of 400 rows with a BERT of 1"
        " layer x 64, batches of 8, until the line of the first step is in `metrics.jsonl`."
    )
    return Section("Start-up", "\n\n".join([what, "\n".join(lines)]))


def _row(name: str, seconds: list[float], bar: float | None = None) -> str:
    median, low, high = median_and_range(seconds)
    verdict = "" if bar is None else f"{bar:g}" + (", **missed**" if median > bar else "")
    return f"| {name} | {median:.2f} ({low:.2f} to {high:.2f}) | {verdict} |".replace("|  |", "| |")


def _write_inputs(folder: Path) -> None:
    from benchmarks.workload import load_texts, write_encoder
    from dpr.core.records import Passage, TrainingSample
    from dpr.formats.training_files.dpr import write_training_set

    write_encoder(folder / "encoder", load_texts(128), layers=1, width=64)
    rng = random.Random(0)
    samples = [
        TrainingSample(
            " ".join(rng.sample(WORDS, 8)), (Passage(" ".join(rng.sample(WORDS, 60)), "Title", f"p{number}"),)
        )
        for number in range(400)
    ]
    write_training_set(folder / "train.jsonl", samples)


def _environment(cache: Path) -> dict[str, str]:
    return {**os.environ, "DPR_CACHE": str(cache), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def _ended(arguments: list[str], folder: Path, *, code: int) -> float:
    start = time.perf_counter()
    command = [sys.executable, "-m", "dpr", *arguments]
    done = subprocess.run(command, env=_environment(folder / "cache"), capture_output=True, text=True)
    taken = time.perf_counter() - start
    if done.returncode != code:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return taken


def _import_seconds(folder: Path) -> float:
    start = time.perf_counter()
    imports = "import torch; from transformers import AutoModel, AutoTokenizer"
    subprocess.run([sys.executable, "-c", imports], env=_environment(folder / "cache"), check=True)
    return time.perf_counter() - start


def _first_step(folder: Path, *, afresh: bool) -> float:
    """From starting the command until the metrics of step 1 are written; ``afresh`` has no cache of the
    training data."""
    with tempfile.TemporaryDirectory(dir=folder) as run:
        cache = Path(run) / "cache" if afresh else folder / "cache"
        settings = {
            "train_datasets": folder / "train.jsonl",
            "output_dir": f"{run}/out",
            "encoder.pretrained_model_cfg": folder / "encoder",
            "train.batch_size": 8,
            "train.log_batch_step": 1,
            "train.max_steps": 1,
            "train.warmup_steps": 0,
            "train.hard_negatives": 0,
        }
        command = [
            sys.executable,
            "-m",
            "dpr",
            "train",
            *(f"{key}={value}" for key, value in settings.items()),
        ]
        metrics = Path(run) / "out" / "metrics.jsonl"
        start = time.perf_counter()
        with subprocess.Popen(
            command, env=_environment(cache), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            taken = _wait(lambda: metrics.is_file() and metrics.stat().st_size > 0, process, start)
            output, _ = process.communicate()
        if taken is None or process.returncode != 0:
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{output}")
        return taken


def _wait(is_done: Callable[[], bool], process: subprocess.Popen[str], start: float) -> float | None:
    while not is_done():
        if process.poll() is not None:
            return None
        time.sleep(0.01)
    return time.perf_counter() - start


if __name__ == "__main__":
    print(section(rounds=3).text)
