"""Docstrings of the standard library and of installed packages: the first sentence is the question, the rest
the passage.

Makes a training set, a corpus, and dev and test questions with judgements. Nothing is imported.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dpr.cli.launch import exit_code_of
from dpr.core.cores import usable_cores
from dpr.core.logs import configure_logging
from examples.docstring_corpus.corpus import prepare_docstrings
from examples.docstring_corpus.docstrings import default_packages

EXAMPLE = """examples:
  python -m examples.docstring_corpus --out runs/quickstart/data
  python -m examples.docstring_corpus --out data/numeric --packages stdlib numpy scipy
"""


def main(argv: list[str]) -> int:
    """Writes the folder and prints its counts."""
    options = _parser().parse_args(argv)
    configure_logging()
    packages = options.packages or default_packages()
    if packages == ["all"]:
        packages = None
    counts = prepare_docstrings(
        options.out,
        packages=packages,
        seed=options.seed,
        num_dev=options.dev,
        num_test=options.test,
        num_negatives=options.hard_negatives,
        processes=options.processes or usable_cores(),
        overwrite=options.overwrite,
    )
    print(f"{options.out}: " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.docstring_corpus",
        description=__doc__,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="folder to write")
    packages = "top-level names, stdlib for the standard library, or all (default: a fixed list)"
    parser.add_argument("--packages", nargs="+", metavar="NAME", help=packages)
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of the choice of held-out modules (default %(default)s)",
    )
    parser.add_argument(
        "--dev", type=int, default=1000, metavar="N", help="dev questions, about (default %(default)s)"
    )
    parser.add_argument(
        "--test", type=int, default=2000, metavar="N", help="test questions, about (default %(default)s)"
    )
    parser.add_argument(
        "--hard-negatives",
        type=int,
        default=2,
        metavar="N",
        help="BM25 negatives per question (default %(default)s)",
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=0,
        metavar="N",
        help="processes that read files (default: one per core)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing --out")
    return parser


if __name__ == "__main__":
    sys.exit(exit_code_of(lambda: main(sys.argv[1:])))
