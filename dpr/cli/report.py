"""``dpr report``: a run and its retrieval metrics on one page, ``report.html``."""

from __future__ import annotations

from pathlib import Path

from dpr.cli.plain_arguments import PlainParser, labelled

EXAMPLE = """examples:
  dpr report runs/first
  dpr report runs/first BM25=runs/first/bm25.json trained=runs/first/dense.json
  dpr report runs/first DPR=results.json --out compared.html
"""


def main(argv: list[str]) -> int:
    """Writes one self-contained HTML page about a run folder: curves, metrics, example questions, settings."""
    parser = PlainParser(prog="dpr report", operands="FOLDER [[LABEL=]FILE ...]", description=main.__doc__, epilog=EXAMPLE, labels=True)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="run folder; if it contains several runs, the longest is shown")
    parser.add_argument("runs", nargs="*", metavar="[LABEL=]FILE", help="metrics files (metrics_file=...) or results (out_file=...)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write it (default: FOLDER/report.html)")
    parser.add_argument("--title", help="heading (default: the name of the folder)")
    options = parser.parse(argv)
    from dpr.core.errors import InputError
    from dpr.evaluation.report.write import write_report

    if not options.folder.is_dir():
        raise InputError("no such folder", file=options.folder, expected="the output_dir of a training run, or the folder above it")
    target = write_report(options.folder, labelled(options.runs), out=options.out, title=options.title)
    print(f"{target} ({target.stat().st_size / 1000:.0f} kB)")
    return 0
