"""``dpr compare``: the metrics of several retrieval runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpr.cli.plain_arguments import PlainParser, labelled
from dpr.core.errors import InputError

EXAMPLE = """example:
  dense_retriever.py ... indexer=bm25 metrics_file=runs/first/bm25.json
  dense_retriever.py ... model_file=runs/first metrics_file=runs/first/dense.json
  dpr compare BM25=runs/first/bm25.json trained=runs/first/dense.json
"""


def main(argv: list[str]) -> int:
    """Prints one table from metrics files of dpr retrieve that answer the same questions."""
    parser = PlainParser(prog="dpr compare", operands="[LABEL=]FILE ...", description=main.__doc__, epilog=EXAMPLE, labels=True)
    parser.add_argument("runs", nargs="+", metavar="[LABEL=]FILE", help="metrics files, with the label of their line")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON file to write all metrics to")
    options = parser.parse(argv)
    from dpr.evaluation.ranking_metrics import RETRIEVAL_COLUMNS, format_table
    from dpr.formats.durable import write_json
    from dpr.formats.outputs import require_writable

    if options.out is not None:
        require_writable(options.out)
    reports = read_reports(options.runs)
    first = next(iter(reports.values()))
    print(f"{first['question_set']}, {first['num_questions']} questions")
    print(format_table({label: report["metrics"] for label, report in reports.items()}, RETRIEVAL_COLUMNS))
    if options.out is not None:
        # Example questions are for reading one by one: dpr report.
        runs = {label: {name: value for name, value in report.items() if name != "examples"} for label, report in reports.items()}
        write_json(options.out, {"question_set": first["question_set"], "num_questions": first["num_questions"], "runs": runs})
    return 0


def read_reports(runs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Reports by label, in the order given; ``runs`` are ``label=file``, or files, whose names are then the labels.

    Raises:
        ConfigError: two files have the same label.
        InputError: a file is not a metrics file, or they are not about the same questions.
    """
    from dpr.formats.durable import read_json
    from dpr.formats.json_records import describe, is_finite_number

    reports: dict[str, dict[str, Any]] = {}
    questions: tuple[Any, Any, Path] | None = None
    for label, file in labelled(runs):
        report = read_json(file)
        is_report = isinstance(report, dict) and isinstance(report.get("metrics"), dict)
        if not is_report or not {"question_set", "num_questions"} <= set(report):
            raise InputError("not a metrics file", file=file, expected="what dpr retrieve metrics_file=... writes")
        for name, value in report["metrics"].items():
            if not is_finite_number(value):
                raise InputError(f"the metric {name} is {describe(value)}", file=file, expected="a number")
        asked = (report["question_set"], report["num_questions"])
        if questions is not None and questions[:2] != asked:
            found = f"is about {asked[1]} questions of {asked[0]}"
            raise InputError(found, file=file, expected=f"{questions[1]} of {questions[0]}, as {questions[2]}")
        questions = questions or (*asked, file)
        reports[label] = report
    return reports
