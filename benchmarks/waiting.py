"""How long OpenMP's threads spin while they wait for each other, alone and beside other programs on the same cores.

    python -m benchmarks.waiting

Each way is a process of its own, since OpenMP reads the environment once; they take turns. The encoder is a BERT of 6
layers x 384 with random weights.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measuring import median_and_range
from benchmarks.workload import load_texts, write_encoder

WAYS = {
    "OpenMP's own": {"OMP_WAIT_POLICY": ""},
    "100,000": {"GOMP_SPINCOUNT": "100000"},
    "30,000 (dpr)": {"GOMP_SPINCOUNT": "30000"},
    "10,000": {"GOMP_SPINCOUNT": "10000"},
    "1,000": {"GOMP_SPINCOUNT": "1000"},
}
BUSY = (0, 3)
ROUNDS = 6


def worker(folder: str) -> None:
    """Reads ``encode`` or ``train`` from a pipe, does it, and writes the seconds it took."""
    import torch

    from dpr.core.batch import TokenBatch
    from dpr.models.biencoder import BiEncoder
    from dpr.models.settings import EncoderSettings

    texts = load_texts(48)
    settings = EncoderSettings(shared=True, pooling="mean", sequence_length=256)
    model = BiEncoder.from_pretrained(folder, settings)
    short = TokenBatch.from_lists(model.tensorizer.question_tokens([text[:250] for text in texts.passages]))

    def encode() -> None:
        model.eval()
        model.encode_passages(texts.passages)

    def train() -> None:
        model.train()
        model.question_model(short).square().sum().backward()
        model.zero_grad()

    encode()
    train()
    print(f"ready {torch.get_num_threads()}", flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        {"encode": encode, "train": train}[line.strip()]()
        print(time.perf_counter() - start, flush=True)


def started(folder: Path, way: dict[str, str]) -> subprocess.Popen[str]:
    """A worker that is ready."""
    environment = {name: value for name, value in (os.environ | way).items() if value}
    if way == WAYS["OpenMP's own"]:
        environment["GOMP_SPINCOUNT"] = "300000"  # what it is while there are not more threads than cores
    command = [sys.executable, "-m", "benchmarks.waiting", "--worker", str(folder)]
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline().startswith("ready")
    return process


def measure(process: subprocess.Popen[str], what: str) -> float:
    """Seconds of wall time."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(what + "\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def main() -> None:
    """Prints the table of benchmarks/results/waiting.md."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker)
        return
    print("| | busy programs beside it | " + " | ".join(WAYS) + " |")
    print("|---|---:|" + "---:|" * len(WAYS))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "encoder"
        write_encoder(folder, load_texts(48), layers=6, width=384)
        processes = {name: started(folder, way) for name, way in WAYS.items()}
        for what in ("encode", "train"):
            for busy in BUSY:
                others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
                seconds: dict[str, list[float]] = {name: [] for name in WAYS}
                for _ in range(ROUNDS):
                    for name, process in processes.items():
                        seconds[name].append(measure(process, what))
                for other in others:
                    other.kill()
                cells = [
                    "{:.2f} ({:.2f} to {:.2f})".format(*median_and_range(values))
                    for values in seconds.values()
                ]
                print(f"| {what} | {busy} | " + " | ".join(cells) + " |", flush=True)
        for process in processes.values():
            process.kill()


if __name__ == "__main__":
    main()
