"""The same bytes from any number of workers? `python -m benchmarks.machines MODEL CORPUS FOLDER [--workers 1,2,4] [--shards 4]`

MODEL is a trained run or checkpoint, CORPUS a file of ``dpr embed``, which runs as typed: by ``torchrun``, and on a
Ray cluster of as many nodes with a CPU each, which are started here. FOLDER gets what they write.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("model", "corpus", "folder"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--chunk-size", type=int, default=64)
    given = parser.parse_args()
    work = Work(
        given.model.resolve(),
        given.corpus.resolve(),
        given.folder.resolve(),
        shards=given.shards,
        chunk_size=given.chunk_size,
    )
    work.folder.mkdir(parents=True, exist_ok=True)
    print("| workers | by | vectors | s |\n|---:|---|---|---:|", flush=True)
    for count in map(int, given.workers.split(",")):
        started = time.monotonic()
        row(count, "torchrun", work.here(count, work.folder / f"here-{count}"), started)
        with nodes(count) as address:
            by = f"Ray, {count} node{'s' * (count > 1)}"
            started = time.monotonic()
            row(count, by, work.there(address, work.folder / f"ray-{count}"), started)


def row(workers: int, by: str, found: str, started: float) -> None:
    print(f"| {workers} | {by} | `{found}` | {time.monotonic() - started:.0f} |", flush=True)


class Work:
    """The command, and what it writes."""

    def __init__(self, model: Path, corpus: Path, folder: Path, *, shards: int, chunk_size: int) -> None:
        self.model = model
        self.corpus = corpus
        self.folder = folder
        self.shards = shards
        self.chunk_size = chunk_size

    def command(self, out: Path) -> list[str]:
        made_of = [f"model_file={self.model}", f"ctx_src={self.corpus}", f"out_file={out}/vectors"]
        return ["-m", "dpr", "embed", *made_of, f"num_shards={self.shards}", f"chunk_size={self.chunk_size}"]

    def here(self, workers: int, out: Path) -> str:
        shutil.rmtree(out, ignore_errors=True)
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
        for shard in range(self.shards):
            run([*(launcher if workers > 1 else []), *self.command(out), f"shard_id={shard}"])
        return digest(out, sorted(out.glob("vectors_*/*")))

    def there(self, address: str, out: Path) -> str:
        shutil.rmtree(out, ignore_errors=True)
        run([*self.command(out), "cluster=ray", f"cluster.address={address}"])
        return digest(out, sorted(out.glob("vectors_*/*")))


def digest(folder: Path, files: Sequence[Path]) -> str:
    """Of names and contents."""
    whole = hashlib.sha256()
    for file in files:
        whole.update(f"{file.relative_to(folder)} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()[:16]


def run(arguments: Sequence[str]) -> None:
    done = subprocess.run(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        sys.exit(f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stdout[-3000:]}")


@contextmanager
def nodes(count: int) -> Iterator[str]:
    """The address of a cluster of so many nodes on this machine."""
    from ray.cluster_utils import Cluster

    made = Cluster()
    try:
        for _ in range(count):
            made.add_node(num_cpus=1, object_store_memory=80_000_000, include_dashboard=False)
        yield made.address
    finally:
        made.shutdown()


if __name__ == "__main__":
    # Threads decide how vectors are rounded; a worker of a cluster has as many as CPUs.
    os.environ |= {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    main()
