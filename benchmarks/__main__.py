"""``make bench``, or ``python -m benchmarks [--only training,search] [--out benchmarks/results/benchmarks.md]``: speed
against others, as ratios.

Every section prints its part of the page. With ``--out`` the page is written, its figures beside it as JSON
and its drawing as SVG; sections that were not run keep what was measured before, with its date.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from benchmarks import attention, data_loading, encoders, large_batch, page, plot, search, startup
from benchmarks.page import Section

PACKAGES = ("torch", "transformers", "sentence-transformers", "faiss-cpu")
INTRODUCTION = """# Benchmarks

Speed compared with other implementations of the same work. The sides of a comparison take turns within one run, with the same weights,
texts and optimizer, so each ratio is of two measurements seconds apart. The tables show the median of the rounds and their range. A test
(`tests/unit/benchmarks`) checks that the sides compute the same losses. `make bench` writes this page; `python -m
benchmarks --only training,search --out benchmarks/results/benchmarks.md` measures some sections and keeps the others as they were.

"Share of peak" counts the operations that the vectors need, in the same way for every side: those on real tokens, and in a last layer
that is read at one token only, the keys and values of all tokens and the rest of that one. The peak is an fp32 matrix product (2048^3)
timed beside each run. Nothing here was measured on a GPU: not training, not encoding, not search. Measured elsewhere: whole trainings, by
sentence-transformers' own trainer and ours ([compare_peers](compare_peers.md)), [memory](memory.md),
[mining](negatives.md#speed-of-mining), [many processes](scaling.md), [global batches of rows that share words](global_batches.md),
[large files](large_files.md), [indexes](indexes.md), [static encoders](static.md), what encoders and objectives are
worth from scratch ([objectives](objectives_study.md), by `python -m benchmarks.study --data ../shared/data --out runs/study`).

`make gpu` measures one H100 or H200: `python -m benchmarks.gpu --out benchmarks/results/gpu`, in seven parts of at most eight minutes
(`--only training` runs one): tests, training, embedding, exact search, gradient caching, a decoder with LoRA, memory. Each writes
`benchmarks/results/gpu/PART.json` as its results come, and says of each bar whether it is met: 50% of 989 TFLOP/s in training and 55% in
embedding, 1.38 times the time of a direct step with gradient caching, 1.5 times the limit in exact search, no wait for the device between
log lines. Texts, vocabulary and weights are made on the spot. `--rehearse` runs all parts on a CPU with tiny sizes; a test does so too. It
has not run on a GPU yet; [gpu.md](gpu.md) says what has been reviewed."""


@dataclass(frozen=True)
class Settings:
    """Of all sections."""

    rounds: int
    device: torch.device


SECTIONS: dict[str, Callable[[Settings], Section]] = {
    "training": lambda settings: encoders.training(settings.rounds, settings.device, dropout=0.1),
    "training_without_dropout": lambda settings: encoders.training(
        settings.rounds, settings.device, dropout=0.0
    ),
    "large_model_training": lambda settings: encoders.training(
        settings.rounds, settings.device, dropout=0.1, case=encoders.LARGE
    ),
    "large_batch": lambda settings: large_batch.against_rival(settings.rounds),
    "gradient_caching": lambda settings: large_batch.against_itself(settings.rounds),
    "gradient_caching_memory": lambda settings: large_batch.memory_of_global_batches(),
    "encoding": lambda settings: encoders.encoding(settings.rounds, settings.device),
    "large_model_encoding": lambda settings: encoders.encoding(
        settings.rounds, settings.device, encoders.LARGE
    ),
    "attention": lambda settings: attention.section(settings.rounds, settings.device),
    "search": lambda settings: search.section(settings.rounds),
    "data_loading": lambda settings: data_loading.section(settings.rounds),
    "startup": lambda settings: startup.section(settings.rounds),
}
WITHOUT_ROUNDS = {"gradient_caching_memory"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default=",".join(SECTIONS), help=f"sections to run (default: all): {', '.join(SECTIONS)}"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="for training and encoding"
    )
    parser.add_argument("--out", type=Path, default=None, help="the page, Markdown")
    arguments = parser.parse_args()
    chosen = arguments.only.split(",")
    if unknown := set(chosen) - set(SECTIONS):
        parser.error(f"unknown sections: {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    settings = Settings(arguments.rounds, torch.device(arguments.device))
    for name in chosen:
        section = SECTIONS[name](settings)
        if not section.measured:
            section = replace(section, measured=_measured(name, settings))
        print(f"## {section.title}", section.measured, section.text, sep="\n\n", end="\n\n", flush=True)
        if arguments.out is not None:
            keep(arguments.out, name, section)


def keep(out: Path, name: str, section: Section) -> None:
    """Puts a section into the page, its numbers and its drawing."""
    known = page.read(out.with_suffix(".json")) | {name: section}
    sections = {name: known[name] for name in SECTIONS if name in known}
    drawing = out.with_suffix(".svg")
    page.write(out.with_suffix(".json"), sections)
    drawing.write_text(plot.bars(sections.values()), encoding="utf-8")
    out.write_text(page.render(INTRODUCTION, sections, drawing.name), encoding="utf-8")


def _measured(name: str, settings: Settings) -> str:
    """On what, with what, when and how a section was measured."""
    device = torch.cuda.get_device_name() if settings.device.type == "cuda" else _processor()
    cores = len(os.sched_getaffinity(0))
    versions = ", ".join(f"{package} {found}" for package in PACKAGES if (found := _version(package)))
    return (
        f"*{device}, {cores} cores, {torch.get_num_threads()} threads; Python {platform.python_version()},"
        f" {versions};"
        f" {'' if name in WITHOUT_ROUNDS else f'{settings.rounds} rounds; '}{datetime.date.today()}; `python"
        f" -m benchmarks --only {name}{'' if name in WITHOUT_ROUNDS else f' --rounds {settings.rounds}'}`*"
    )


def _processor() -> str:
    """The name that the system has for it; virtual machines often have none but the architecture."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{platform.machine()} CPU" + (f" ({names[0]})" if names else "")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
