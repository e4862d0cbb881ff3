"""``dpr prepare-folder``: the documents of a folder as passages, training questions, and held-out questions."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from dpr.cli.plain_arguments import PlainParser

EXAMPLES = """examples:
  dpr prepare-folder docs out=data/docs
  dpr prepare-folder docs out=data/docs questions=faq.tsv
  dpr prepare-folder manuals out=data/manuals types=md,pdf words=100 overlap=0
"""


def main(argv: list[str]) -> int:
    """Reads Markdown, text, HTML, reStructuredText, docstrings of Python, CSV and PDF (extra pdf), cuts passages at headings and
    paragraphs, and makes questions of FAQs, headings and first sentences. Files that cannot be read are listed in unread.jsonl."""
    parser = PlainParser(prog="dpr prepare-folder", operands="FOLDER out=DATA", description=main.__doc__, epilog=EXAMPLES)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder of documents; folders in it are read too")
    parser.setting("out", type=Path, required=True, metavar="DATA", help="folder to write")
    add_folder_settings(parser)
    parser.setting("few", action="store_true", help="where there are too few questions, write the corpus alone instead of ending with 3")
    parser.setting("overwrite", action="store_true", help="replace what is at out")
    options = parser.parse(argv)
    from dpr.core.logs import configure_logging
    from dpr.preparation.folder_data import FolderSettings, prepare_folder

    configure_logging()
    settings = FolderSettings(**folder_settings(options))
    how = {"questions": options.questions, "overwrite": options.overwrite, "few": options.few}
    counts = prepare_folder(options.folder, options.out, settings, **how)
    kinds = counts.pop("test questions by kind")
    print(f"{options.out}: " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))
    if kinds:
        print("test questions are " + ", ".join(f"{kind} {count:,}" for kind, count in kinds.items()))
    return 0


def add_folder_settings(parser: PlainParser) -> None:
    """Adds how a folder is read."""
    parser.setting("questions", type=Path, metavar="FILE", help="your own questions with answers or files: TSV, CSV or JSON lines")
    parser.setting("types", default="", metavar="md,pdf", help="endings of the files to read (default: all that can be read)")
    parser.setting("words", type=int, default=150, metavar="N", help="words of a passage, at most (default %(default)s)")
    parser.setting("overlap", type=int, default=30, metavar="N", help="words that are repeated from one to the next (default %(default)s)")
    parser.setting("negatives", type=int, default=0, metavar="N", help="BM25 negatives of each training question (default %(default)s)")
    parser.setting("seed", type=int, default=0, metavar="N", help="decides what is held out (default %(default)s)")


def folder_settings(options: Namespace) -> dict[str, Any]:
    """The values of these settings, by the fields of FolderSettings."""
    values: dict[str, Any] = {name: getattr(options, name) for name in ("words", "overlap", "negatives", "seed")}
    return values | {"types": tuple(filter(None, options.types.split(",")))}
