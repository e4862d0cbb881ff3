"""``dpr prepare``: training data, a corpus and question sets from text at hand."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

EXAMPLE = """examples:
  dpr prepare docstrings --out runs/quickstart/data
  dpr prepare docstrings --out data/numeric --packages stdlib numpy scipy
"""


def main(argv: list[str]) -> int:
    """Makes a training set, a corpus, and dev and test questions with judgements."""
    options = _parser().parse_args(argv)
    return int(options.run(options))


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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dpr prepare", description=main.__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sources = parser.add_subparsers(title="sources", required=True, metavar="SOURCE")
    about = "Docstrings of the standard library and of installed packages: the first sentence is the question, the rest the passage."
    docstrings = sources.add_parser("docstrings", help="docstrings of installed Python packages; nothing is imported", description=about)
    docstrings.set_defaults(run=_docstrings)
    docstrings.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="folder to write")
    docstrings.add_argument(
        "--packages",
        nargs="+",
        default=["all"],
        metavar="NAME",
        help="top-level names, stdlib for the standard library (default: all)",
    )
    docstrings.add_argument("--seed", type=int, default=0, metavar="N", help="decides which modules are held out (default %(default)s)")
    docstrings.add_argument("--dev", type=int, default=1000, metavar="N", help="dev questions, about (default %(default)s)")
    docstrings.add_argument("--test", type=int, default=2000, metavar="N", help="test questions, about (default %(default)s)")
    docstrings.add_argument("--hard-negatives", type=int, default=2, metavar="N", help="BM25 negatives per question (default %(default)s)")
    docstrings.add_argument("--processes", type=int, default=0, metavar="N", help="processes that read files (default: one per core)")
    docstrings.add_argument("--overwrite", action="store_true", help="replace what is at --out")
    return parser
