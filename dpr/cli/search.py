"""``dpr search``: one question of a finished run, or one after another."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from dpr.cli.plain_arguments import PlainParser

if TYPE_CHECKING:
    from dpr.retrieval.hits import Hit, Place
    from dpr.retriever import Retriever

_SNIPPET_LINES = 3
_SIDES = {"dense": "dense", "bm25": "BM25"}
EXAMPLE = """examples:
  dpr search runs/quickstart "read a csv file"
  dpr search runs/quickstart --mode bm25 --top 3
  dpr search --corpus corpus.tsv --mode bm25 "read a csv file"
  dpr search --model runs/first --vectors runs/first/vectors_* --corpus corpus.tsv "read a csv file"
"""


def main(argv: list[str]) -> int:
    """Asks a run folder a question, or opens a prompt when none is given."""
    parser = PlainParser(prog="dpr search", operands="[RUN_FOLDER] [QUESTION]", description=main.__doc__, epilog=EXAMPLE, labels=True)
    parser.add_argument("folder", nargs="?", metavar="RUN_FOLDER", help="folder with a search.json (dpr retrieve search_folder=...)")
    parser.add_argument("question", nargs="?", help="what to look for (default: read questions from the terminal)")
    parser.add_argument("--top", "-k", type=_positive, default=5, metavar="N", help="passages to show (default %(default)s)")
    parser.add_argument("--mode", choices=("dense", "bm25", "hybrid"), help="how to search (default: as the folder says)")
    parser.add_argument("--weight", type=_share, metavar="W", help="share of the dense side in a hybrid, 0 to 1")
    parser.add_argument("--indexer", metavar="KIND", help="index, or a user-defined module:Class (default: as stored in the folder)")
    parser.add_argument("--model", metavar="FOLDER", help="checkpoint or run folder")
    parser.add_argument("--vectors", nargs="+", default=[], metavar="FOLDER", help="vectors of the corpus")
    parser.add_argument(
        "--corpus", action="append", default=[], metavar="FILE", help="passages, DPR's TSV or BEIR's JSON lines; again for more"
    )
    parser.add_argument("--pooling", default="cls", metavar="module:Class", help="of a model with a user-defined pooling")
    parser.add_argument("--device", help="cpu, cuda, cuda:N (default: CUDA when there is one)")
    options = parser.parse(argv)
    if options.corpus and options.question is None and options.folder is not None and not Path(options.folder).is_dir():
        options.folder, options.question = None, options.folder  # with --corpus, a single word is the question
    from dpr.core.logs import configure_logging
    from dpr.retriever import Retriever

    configure_logging()
    names = ("folder", "model", "vectors", "corpus", "mode", "weight", "indexer", "device", "pooling")
    searcher = Retriever.open(**{name: getattr(options, name) for name in names})
    if options.question is not None:
        _answer(searcher, options.question, options.top)
        return 0
    if is_terminal := sys.stdin.isatty():
        print("Type a question; an empty line or Ctrl-D ends.")
    while True:
        try:
            question = input("> " if is_terminal else "").strip()
        except EOFError:
            return 0
        if not question:
            return 0
        _answer(searcher, question, options.top)


def _answer(searcher: Retriever, question: str, top: int) -> None:
    hits = searcher.search(question, top)
    if not hits:
        print("nothing found")
    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    is_bright = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    for hit in hits:
        print(format_hit(hit, question=question, width=width, is_bright=is_bright))


def format_hit(hit: Hit, *, question: str, width: int, is_bright: bool = False) -> str:
    """Rank, score and title; the part of the text around the question's words, these ``is_bright`` ones; where the passage is from and why
    it was found. Control characters become spaces: a corpus must not drive a terminal."""
    from dpr.retrieval.explaining import QuestionWords

    words = QuestionWords(question)
    title, text, name = (_printable(part) for part in (hit.title, hit.text, hit.id))
    heading = f"{hit.rank:>2}. {hit.score:9.4f}  {title or name}" + (f"  [{name}]" if title else "")
    inner = max(width - 4, 20)
    excerpt = "".join(words.excerpt(text, _SNIPPET_LINES * inner - inner // 4))
    lines = textwrap.wrap(excerpt, inner, max_lines=_SNIPPET_LINES, placeholder=" ...")
    if is_bright:
        lines = [
            "".join(f"\033[1m{piece}\033[0m" if place % 2 else piece for place, piece in enumerate(words.pieces(line))) for line in lines
        ]
    facts = [_printable(fact) for fact in _origin(hit)]
    facts += [_place_text(_SIDES.get(side, side), place) for side, place in hit.sides.items()] if len(hit.sides) > 1 else []
    common = words.in_common(title, text)
    facts.append(f"in common: {_printable(', '.join(common))}" if common else "no word in common")
    return "\n".join([heading, *(f"    {line}" for line in lines), *(f"    {line}" for line in textwrap.wrap(" | ".join(facts), inner))])


def _origin(hit: Hit) -> list[str]:
    """Where the passage was taken from: place and heading, where the title does not end with it, and address; else the corpus."""
    origin = hit.origin
    if origin is None:
        return [] if hit.file is None else [hit.file.name]
    heading = "" if hit.title.endswith(origin.heading) else origin.heading
    return [fact for fact in (origin.place, heading, origin.url) if fact]


def _place_text(side: str, place: Place | None) -> str:
    return f"{side} none" if place is None else f"{side} #{place.rank} ({place.score:.4g})"


def _printable(text: str) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{value} is not between 0 and 1")
    return value
