"""``make gpu``, or ``python -m benchmarks.gpu [--only training,search] [--out benchmarks/results/gpu]``: what one GPU does,
part by part.

Each part writes ``PART.json`` into the folder as its results come, with the bars that it meets or misses. It
runs in a process of its own, which is ended after eight minutes; what it had found stays.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

try:
    import torch

    from benchmarks.gpu import caching, checks, decoder, embedding, memory, searching, training
    from benchmarks.gpu.record import Record
    from benchmarks.gpu.workload import REHEARSAL, Sizes
    from dpr.storage.durable import write_json
    from dpr.storage.untrusted import read_json
except ImportError as error:
    needed = error.name or "another version of a package"
    sys.exit(
        f"python -m benchmarks.gpu needs {needed}, which cannot be imported here ({error}); benchmarks/results/gpu.md lists"
        " the packages"
    )

PARTS: dict[str, Callable[[Record, Sizes], None]] = {
    "checks": checks.part,
    "training": training.part,
    "embedding": embedding.part,
    "search": searching.part,
    "caching": caching.part,
    "decoder": decoder.part,
    "memory": memory.part,
}
MOST_SECONDS = 480


def main() -> int:
    """0 if every part ended by itself, whatever its bars."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        default=",".join(PARTS),
        help=f"parts to run (default: all, in this order): {', '.join(PARTS)}",
    )
    parser.add_argument("--out", type=Path, default=None, help="a folder for the results, a JSON file a part")
    parser.add_argument(
        "--rehearse", action="store_true", help="every part on the CPU, with tiny sizes: seconds"
    )
    parser.add_argument(
        "--here",
        action="store_true",
        help="the parts in this process, without a limit of time (for profilers)",
    )
    arguments = parser.parse_args()
    chosen = arguments.only.split(",")
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if not arguments.rehearse and not torch.cuda.is_available():
        parser.error("no CUDA device: the parts measure one; --rehearse runs them on the CPU with tiny sizes")
    if arguments.rehearse or arguments.here:
        return max([run(name, arguments.out, is_rehearsal=arguments.rehearse) for name in chosen])
    return max([_apart(name, arguments.out) for name in chosen])


def run(name: str, out: Path | None, *, is_rehearsal: bool = False) -> int:
    """Runs a part in this process; 1 if it raised, which its file then says."""
    print(f"## {name}", flush=True)
    device = torch.device("cpu" if is_rehearsal else "cuda:0")
    record = Record(name, out, device, is_rehearsal=is_rehearsal)
    try:
        PARTS[name](record, REHEARSAL if is_rehearsal else Sizes())
    except Exception as error:
        record.end(f"failed: {type(error).__name__}: {error}")
        traceback.print_exc()
        return 1
    record.end("done")
    return 0


def _apart(name: str, out: Path | None) -> int:
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu",
        "--here",
        "--only",
        name,
        *(["--out", str(out)] if out is not None else []),
    ]
    try:
        return subprocess.run(command, timeout=MOST_SECONDS).returncode
    except subprocess.TimeoutExpired:
        print(f"  cut off after {MOST_SECONDS} seconds", flush=True)
        file = out / f"{name}.json" if out is not None else None
        if file is not None and file.is_file():
            write_json(file, read_json(file) | {"state": f"cut off after {MOST_SECONDS} seconds"})
        return 1


if __name__ == "__main__":
    sys.exit(main())
