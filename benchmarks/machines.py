"""The same bytes from any number of workers? `python -m benchmarks.machines MODEL CORPUS QUESTIONS TRAIN
FOLDER [--workers 1,2,4]`

MODEL is a trained run or checkpoint, CORPUS and TRAIN are files of ``dpr embed`` and ``dpr mine``, QUESTIONS
those of ``dpr retrieve``. Every command runs as typed: in processes of this machine (``torchrun`` for
vectors, ``processes=`` for mining; a search has one process), and on a Ray cluster of as many nodes with a
CPU each, which are started here. FOLDER gets what they write.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

SHARDS, CHUNK, DEPTH = 4, 64, 100


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("model", "corpus", "questions", "train", "folder"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--workers", default="1,2,4")
    given = parser.parse_args()
    work = Work(
        *(path.resolve() for path in (given.model, given.corpus, given.questions, given.train, given.folder))
    )
    work.folder.mkdir(parents=True, exist_ok=True)
    print("| workers | by | vectors | results | mined negatives |\n|---:|---|---|---|---|", flush=True)
    for count in map(int, given.workers.split(",")):
        row(count, "torchrun, processes", work.here(count, work.folder / f"here-{count}"))
        with nodes(count) as address:
            row(
                count,
                f"Ray, {count} node{'s' * (count > 1)}",
                work.there(address, work.folder / f"ray-{count}"),
            )


def row(workers: int, by: str, found: Sequence[str]) -> None:
    print(f"| {workers} | {by} | " + " | ".join(found) + " |", flush=True)


class Work:
    """The three commands, and what they write."""

    def __init__(self, model: Path, corpus: Path, questions: Path, train: Path, folder: Path) -> None:
        self.model, self.corpus, self.questions, self.train, self.folder = (
            model,
            corpus,
            questions,
            train,
            folder,
        )

    def commands(self, out: Path) -> dict[str, list[str]]:
        chunks = [f"num_shards={SHARDS}", f"chunk_size={CHUNK}"]
        written = [f"out_file={out}/results.json", f"trec_run_file={out}/run.trec", f"n_docs={DEPTH}"]
        searched = [f"encoded_ctx_files=[{out}/vectors_*]", f"ctx_datasets=[{self.corpus}]"]
        mined = [f"corpus={self.corpus}", f"vectors={out}/vectors_*"]
        return {
            "embed": [
                "embed",
                f"model_file={self.model}",
                f"ctx_src={self.corpus}",
                f"out_file={out}/vectors",
                *chunks,
            ],
            "retrieve": [
                "retrieve",
                f"model_file={self.model}",
                *searched,
                f"qa_dataset={self.questions}",
                *written,
            ],
            "mine": ["mine", str(self.train), f"model_file={self.model}", *mined, f"out={out}/mined.jsonl"],
        }

    def here(self, workers: int, out: Path) -> list[str]:
        shutil.rmtree(out, ignore_errors=True)
        commands = self.commands(out)
        launcher = (
            ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
            if workers > 1
            else []
        )
        for shard in range(SHARDS):
            run([*launcher, "-m", "dpr", *commands["embed"], f"shard_id={shard}"])
        run(["-m", "dpr", *commands["retrieve"]])
        run(["-m", "dpr", *commands["mine"], f"processes={workers}"])
        return cells(out)

    def there(self, address: str, out: Path) -> list[str]:
        shutil.rmtree(out, ignore_errors=True)
        for command in self.commands(out).values():
            run(["-m", "dpr", *command, "cluster=ray", f"cluster.address={address}"])
        return cells(out)


def cells(out: Path) -> list[str]:
    """The beginning of the SHA-256 of what each command wrote."""
    written = [
        sorted(out.glob("vectors_*/*")),
        [out / "results.json", out / "run.trec"],
        [out / "mined.jsonl"],
    ]
    return [f"`{digest(out, files)}`" for files in written]


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
