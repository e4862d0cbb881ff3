"""``dpr prepare SOURCE ... out=FILE``: training data from other formats."""

from __future__ import annotations

from pathlib import Path

from dpr.cli.plain_arguments import PlainParser, add_read_settings, read_options
from dpr.core.errors import ConfigError

EXAMPLES = """examples:
  dpr prepare squad/train-v1.1.json out=train.jsonl
  dpr prepare scifact out=train.jsonl                     # a folder with corpus.jsonl, queries.jsonl and qrels/
  dpr prepare qidpidtriples.tsv queries=queries.train.tsv corpus=collection.tsv format=triples out=train.jsonl
  dpr prepare faq.jsonl question=title positive=body out=train.jsonl
  dpr prepare train.jsonl to=tevatron out=tevatron.jsonl
"""


def main(argv: list[str]) -> int:
    """Makes training data from one or more files (or folders) of another format. The content tells the format."""
    parser = PlainParser(prog="dpr prepare", operands="SOURCE [SOURCE ...]", description=main.__doc__, epilog=EXAMPLES, add_help=False)
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help="files, folders or patterns")
    parser.setting("out", type=Path, required=True, metavar="FILE", help="file to write (a folder for to=beir); .gz is compressed")
    parser.setting("format", default="", metavar="NAME", help="format of the source, where its content does not tell")
    parser.setting("to", default="dpr", metavar="NAME", help="format to write (default %(default)s)")
    add_read_settings(parser)
    on_bad_row = "skip lists bad rows in <out>.rejected.jsonl (default fail)"
    parser.setting("on_bad_row", choices=("fail", "skip"), default="fail", help=on_bad_row)
    parser.setting("max_bad_rows", type=int, metavar="N", help="how many may be skipped (default: 100 or 0.1%% of all, if that is more)")
    parser.setting("overwrite", action="store_true", help="replace what is at out")
    if not argv or {"--help", "-h"} & set(argv):
        print(f"{parser.format_help()}\n{_formats_table()}", end="")
        return 0 if argv else 2
    if argv[0] == "docstrings" and not Path(argv[0]).exists():
        raise ConfigError("the corpus of docstrings is an example: python -m examples.docstring_corpus --out FOLDER, in the repository")
    options = parser.parse(argv)
    from dpr.core.logs import configure_logging
    from dpr.formats.text_input import expand_files
    from dpr.preparation.conversion import convert

    configure_logging()
    counts = convert(
        expand_files(options.sources),
        options.out,
        read_options(options),
        format_name=options.format,
        to=options.to,
        skip_bad_rows=options.on_bad_row == "skip",
        max_bad_rows=options.max_bad_rows,
        overwrite=options.overwrite,
    )
    print(f"{options.out}: {counts or 'there already, made of the same'}")
    return 0


def _formats_table() -> str:
    """Every format with an example row."""
    from dpr.formats.training_files.registry import FORMATS

    rows = [
        f"  {name:<14} {entry.about}{'' if entry.write is None else ' [to=' + name + ']'}\n{' ' * 17}{entry.example}\n"
        for name, entry in FORMATS.items()
    ]
    return "formats (those marked to= can be written too):\n" + "".join(rows)
