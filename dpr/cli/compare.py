"""``dpr compare``: the metrics of several retrieval runs side by side, and which differences are more than chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpr.cli.plain_arguments import PlainParser, labelled
from dpr.core.errors import InputError

if TYPE_CHECKING:
    from dpr.formats.metrics_files import MetricsFile

EXAMPLE = """example:
  dense_retriever.py ... indexer=bm25 metrics_file=runs/first/bm25.json
  dense_retriever.py ... model_file=runs/first metrics_file=runs/first/dense.json
  dpr compare BM25=runs/first/bm25.json trained=runs/first/dense.json
  dpr compare BM25=runs/first/bm25.json trained=runs/first/dense.json --metrics mrr@10
"""


def main(argv: list[str]) -> int:
    """Prints one table from metrics files of dpr retrieve that answer the same questions, and tests each run against the first:
    a paired t test, a randomisation test (100,000 random signs) and Holm's correction over all comparisons made. Decide on the metric
    before you look: every further one makes the correction stricter."""
    parser = PlainParser(prog="dpr compare", operands="[LABEL=]FILE ...", description=main.__doc__, epilog=EXAMPLE, labels=True)
    parser.add_argument("runs", nargs="+", metavar="[LABEL=]FILE", help="metrics files, with the label of their line")
    parser.add_argument("--metrics", metavar="NAME,...", help="metrics to test (default: all in the table that the files have)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON file to write all metrics and tests to")
    options = parser.parse(argv)
    from dpr.evaluation.ranking_metrics import RETRIEVAL_COLUMNS, format_table
    from dpr.formats.durable import write_json
    from dpr.formats.outputs import require_writable

    if options.out is not None:
        require_writable(options.out)
    runs = read_runs(options.runs)
    first = next(iter(runs.values()))
    print(f"{first.question_set}, {first.num_questions} questions")
    print(format_table({label: run.metrics for label, run in runs.items()}, RETRIEVAL_COLUMNS))
    tested = tests_of(runs, options.metrics.split(",") if options.metrics else [])
    if options.out is not None:
        # Example questions are for reading one by one: dpr report.
        reports = {label: {name: value for name, value in run.report.items() if name != "examples"} for label, run in runs.items()}
        facts = {"question_set": first.question_set, "num_questions": first.num_questions}
        write_json(options.out, {**facts, "runs": reports, **tested})
    return 0


def tests_of(runs: dict[str, MetricsFile], metrics: Sequence[str]) -> dict[str, Any]:
    """Prints the tests of each run against the first, and of two runs the questions that changed most; returns both for JSON."""
    from dpr.evaluation.comparison import as_record, changed_most, changed_table, difference_table, differences, metrics_to_test

    without = [label for label, run in runs.items() if run.each is None]
    if len(runs) < 2 or without:
        if without and metrics:
            raise InputError(f"{without[0]} has no values of each question", hint="run dpr retrieve metrics_file=... again")
        if without and len(runs) > 1:
            print(f"\nNothing is tested: {', '.join(without)} has no values of each question; dpr retrieve metrics_file=... writes them.")
        return {}
    names = metrics_to_test(runs, metrics)
    against, *others = runs
    found = differences({next(iter(runs.values())).question_set: runs}, names)
    if not found:
        print("\nNothing is tested: no metric is taken over two questions or more in all of these files.")
        return {}
    heading = others[0] if len(others) == 1 else f"{len(others)} runs"
    print(f"\n{heading} against {against}: {found[0].test.num_questions} judged questions; Holm over {len(found)} comparisons")
    print(difference_table(found))
    changed: dict[str, Any] = {}
    for label in others:
        first, second = runs[against].each, runs[label].each
        assert first is not None and second is not None
        listed = changed_most(first, second, names[0])
        changed[label] = [asdict(one) for one in listed]
        if len(others) == 1 and listed:
            print(f"\nThe questions whose {names[0]} changed most, {against} -> {label}:\n{changed_table(listed)}")
    return {"tests": [as_record(one) for one in found], "changed": {"metric": names[0], "questions": changed}}


def read_runs(runs: Sequence[str]) -> dict[str, MetricsFile]:
    """Metrics files by label, in the order given; ``runs`` are ``label=file``, or files, whose names are then the labels.

    Raises:
        ConfigError: two files have the same label.
        InputError: a file is not a metrics file, or they are not about the same questions.
    """
    from dpr.formats.metrics_files import read_metrics

    found: dict[str, MetricsFile] = {}
    questions: tuple[Any, Any, Path] | None = None
    for label, file in labelled(runs):
        run = read_metrics(file)
        asked = (run.question_set, run.num_questions)
        if questions is not None and questions[:2] != asked:
            about = f"is about {asked[1]} questions of {asked[0]}"
            raise InputError(about, file=file, expected=f"{questions[1]} of {questions[0]}, as {questions[2]}")
        questions = questions or (*asked, file)
        found[label] = run
    return found
