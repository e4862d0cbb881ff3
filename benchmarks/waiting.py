"""How long OpenMP's threads spin while they wait for each other, alone and beside other programs on the same cores.

    python -m benchmarks.waiting --out benchmarks/results/waiting.md

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
    """Reads ``encode`` or ``train`` from a pipe, does it, and writes seconds of wall and of CPU."""
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
        cpu = time.process_time()
        {"encode": encode, "train": train}[line.strip()]()
        print(time.perf_counter() - start, time.process_time() - cpu, flush=True)


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


def measure(process: subprocess.Popen[str], what: str) -> tuple[float, float]:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(what + "\n")
    process.stdin.flush()
    wall, cpu = process.stdout.readline().split()
    return float(wall), float(cpu)


def main() -> None:
    """Writes the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker)
        return
    lines = [
        "| | busy programs beside it | " + " | ".join(WAYS) + " |",
        "|---|---:|" + "---:|" * len(WAYS),
    ]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "encoder"
        write_encoder(folder, load_texts(48), layers=6, width=384)
        processes = {name: started(folder, way) for name, way in WAYS.items()}
        for what in ("encode", "train"):
            for busy in BUSY:
                others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
                ratios: dict[str, list[float]] = {name: [] for name in WAYS}
                seconds = []
                for _ in range(ROUNDS):
                    walls = {name: measure(process, what)[0] for name, process in processes.items()}
                    seconds.append(walls["30,000 (dpr)"])
                    for name, wall in walls.items():
                        ratios[name].append(wall / walls["30,000 (dpr)"])
                for other in others:
                    other.kill()
                cells = [
                    f"{median_and_range(seconds)[0]:.2f} s"
                    if name == "30,000 (dpr)"
                    else "{:.2f} ({:.2f} to {:.2f})".format(*median_and_range(values))
                    for name, values in ratios.items()
                ]
                lines.append(f"| {what} | {busy} | " + " | ".join(cells) + " |")
                print(lines[-1], flush=True)
        for process in processes.values():
            process.kill()
    if options.out:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
