"""How many of the labels that ``dpr check-data suspects=`` lists are wrong, where it is known which are.

    python -m benchmarks.wrong_labels squad=squad-v1.1-dev.json medquad=medquad.jsonl.gz --out
    runs/wrong_labels

Of each data set (any format that ``dpr prepare`` reads), 5 % of the questions get the positive of another of
them. The model is that of ``dpr adapt`` on the passages, which sees no labels.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from dpr.core.records import TrainingSample
from dpr.formats.training_files.dpr import write_training_set
from dpr.formats.training_sets import open_training_set
from dpr.mining.search import write_training_passages

SHARE, FIRST = 0.05, (50, 100, 200)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sets", nargs="+", metavar="NAME=FILE")
    parser.add_argument(
        "--columns",
        nargs="*",
        default=[],
        metavar="ROLE=NAME",
        help="of tables and JSON lines, as dpr prepare takes them",
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(argv)
    print(
        "| data | questions | wrong labels | seed | "
        + " | ".join(f"first {count}" for count in FIRST)
        + " | found in as many as are wrong |"
    )
    print("|---|" + "---:|" * (4 + len(FIRST)))
    for entry in given.sets:
        name, _, file = entry.partition("=")
        folder = given.out / name
        folder.mkdir(parents=True, exist_ok=True)
        _dpr("prepare", file, f"out={folder / 'train.jsonl'}", *given.columns)
        train = open_training_set(folder / "train.jsonl", name=name)
        samples = [train[row] for row in range(len(train))]
        write_training_passages(train, folder / "texts.jsonl")
        _dpr("adapt", str(folder / "texts.jsonl"), f"out={folder / 'model'}", "device=cpu")
        for seed in range(given.seeds):
            print(_row(name, samples, folder, seed), flush=True)
    return 0


def _row(name: str, samples: list[TrainingSample], folder: Path, seed: int) -> str:
    chosen = (
        np.random.default_rng(seed).choice(len(samples), round(SHARE * len(samples)), replace=False).tolist()
    )
    planted = list(samples)
    wrong = set()
    for row, other in zip(chosen, chosen[1:] + chosen[:1], strict=True):
        planted[row] = replace(samples[row], positives=samples[other].positives)
        if samples[other].positives[0].text != samples[row].positives[0].text:
            wrong.add(row)
    file, found = folder / f"planted-{seed}.jsonl", folder / f"suspects-{seed}.jsonl"
    write_training_set(file, planted)
    _dpr(
        "check-data",
        str(file),
        f"model_file={folder / 'model'}",
        f"suspects={found}",
        f"most_suspects={len(wrong)}",
        "device=cpu",
    )
    listed = [json.loads(line)["row"] in wrong for line in found.read_text(encoding="utf-8").splitlines()]
    shares = " | ".join(f"{np.mean(listed[:count]):.3f}" for count in FIRST)
    return f"| {name} | {len(samples):,} | {len(wrong):,} | {seed} | {shares} | {np.mean(listed):.3f} |"


def _dpr(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "dpr", *arguments], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
