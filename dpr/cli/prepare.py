"""``dpr prepare``: training data from files of other formats, or, with a corpus and question sets, from text at hand."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from dpr.cli import prepare_files
from dpr.cli.plain_arguments import PlainParser

ABOUT = """Docstrings of the standard library and of installed packages: the first sentence is the question, the rest the passage.
Makes a training set, a corpus, and dev and test questions with judgements. Nothing is imported."""
EXAMPLE = """examples:
  dpr prepare docstrings --out runs/quickstart/data
  dpr prepare docstrings --out data/numeric --packages stdlib numpy scipy
"""


def main(argv: list[str]) -> int:
    """Training data from files of any known format, or from the docstrings of installed packages."""
    if argv[:1] == ["docstrings"]:
        return _docstrings(_parser().parse(argv[1:]))
    if not argv or {"--help", "-h"} & set(argv):
        print(prepare_files.help_text(_parser()), end="")
        return 0 if argv else 2
    return prepare_files.main(argv)


def _docstrings(options: argparse.Namespace) -> int:
    from dpr.core.logs import configure_logging
    from dpr.preparation.docstring_data import prepare_docstrings

    configure_logging()
    counts = prepare_docstrings(
        options.out,
        packages=None if options.packages == ["all"] else options.packages,
        seed=options.seed,
        num_dev=options.dev,
        num_test=options.test,
        num_negatives=options.hard_negatives,
        processes=options.processes or _cores(),
        overwrite=options.overwrite,
    )
    print(f"{options.out}: " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))
    return 0


def _cores() -> int:
    """Cores this process may use, where the system tells; not all of the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _parser() -> PlainParser:
    docstrings = PlainParser(prog="dpr prepare docstrings", operands="out=FOLDER", description=ABOUT, epilog=EXAMPLE)
    docstrings.setting("out", type=Path, required=True, metavar="FOLDER", help="folder to write")
    docstrings.setting(
        "packages",
        nargs="+",
        default=["all"],
        metavar="NAME",
        help="top-level names, stdlib for the standard library (default: all)",
    )
    docstrings.setting("seed", type=int, default=0, metavar="N", help="decides which modules are held out (default %(default)s)")
    docstrings.setting("dev", type=int, default=1000, metavar="N", help="dev questions, about (default %(default)s)")
    docstrings.setting("test", type=int, default=2000, metavar="N", help="test questions, about (default %(default)s)")
    docstrings.setting("hard_negatives", type=int, default=2, metavar="N", help="BM25 negatives per question (default %(default)s)")
    docstrings.setting("processes", type=int, default=0, metavar="N", help="processes that read files (default: one per core)")
    docstrings.setting("overwrite", action="store_true", help="replace what is at --out")
    return docstrings
