"""``dpr compare``: a table of the metrics of retrieval runs or of whole evaluations, with significance tests;
``dpr report``: a run and its retrieval metrics on one page, ``report.html``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dpr.core.errors import ConfigError, InputError
from dpr.core.settings import Settings, require_set, setting

if TYPE_CHECKING:
    from dpr.formats.metrics_files import MetricsFile

Groups = dict[str, "dict[str, MetricsFile]"]
"""Runs by label, for each test set."""


@dataclass
class CompareSettings(Settings):
    """Prints a table from metrics files that answer the same questions, and tests each run against the first:
    a paired t test, a randomisation test (100,000 random signs) and Holm's correction over all comparisons
    made. Choose the metric before you look at results: each additional metric makes the correction stricter.
    From one folder of dpr evaluate all systems are compared, from several folders one system."""

    EXAMPLES: ClassVar[str] = """\
dense_retriever.py ... indexer=bm25 metrics_file=runs/first/bm25.json
dense_retriever.py ... model_file=runs/first metrics_file=runs/first/dense.json
dpr compare BM25=runs/first/bm25.json trained=runs/first/dense.json
dpr compare BM25=runs/first/bm25.json trained=runs/first/dense.json --metrics mrr@10
dpr evaluate ... model_file=runs/first output_dir=runs/first/suite
dpr compare runs/first/suite
dpr compare first=runs/first/suite second=runs/second/suite --metrics ndcg@10
"""
    runs: list[str] = setting(list, operand="[LABEL=]FILE_OR_FOLDER ...", path="input")
    """Metrics files, or output folders of dpr evaluate, with their labels in the table."""
    metrics: list[str] = setting(list)
    """Metrics to test, metrics=mrr@10,ndcg@10; none = all metrics of the table that the files have."""
    system: str | None = None
    """System to compare if there are several folders; absent = dense, or else their first."""
    out: str | None = setting(None, path="output")
    """JSON file to write all metrics and tests to."""

    def check_together(self, prefix: str) -> None:
        require_set(self, {"runs": "runs/first/dense.json"})


def run(config: CompareSettings) -> None:
    """Prints the tables and writes the file.

    Raises:
        ConfigError: two runs have the same label.
        InputError: a file is missing, is of another kind, or does not belong to the others.
    """
    from dpr.evaluation.comparison import (
        changed_most,
        changed_table,
        difference_table,
        differences,
        metrics_to_test,
    )
    from dpr.evaluation.ranking_metrics import format_table, tested_columns
    from dpr.storage.durable import write_json
    from dpr.storage.outputs import require_writable

    if config.out is not None:
        require_writable(config.out)
    named = labelled(config.runs)
    for _, path in named:
        if not path.exists():
            raise InputError(
                "no such file or folder", file=path, hint="for several metrics: metrics=mrr@10,ndcg@10"
            )
    is_folders = all(path.is_dir() for _, path in named)
    if is_folders:
        groups = read_folders(named, config.system)
    else:
        alone = read_runs(named)
        groups = {next(iter(alone.values())).question_set: alone}
    for runs in groups.values():
        first = next(iter(runs.values()))
        print(f"{first.question_set}, {first.num_questions} questions")
        print(format_table({label: run.metrics for label, run in runs.items()}, tested_columns()))

    every = {f"{label} ({name})": run for name, runs in groups.items() for label, run in runs.items()}
    against, *others = next(iter(groups.values()))
    compared = []
    if others:
        names = metrics_to_test(every, config.metrics)
        values = {
            name: {label: run.each for label, run in runs.items() if run.each}
            for name, runs in groups.items()
        }
        compared = differences(values, names)
        if not compared:
            print("\nNothing is tested: no metric has values of two or more questions in all of these files.")
    if compared:
        heading = others[0] if len(others) == 1 else f"{len(others)} runs"
        counts = sorted({one.test.num_questions for one in compared if one.question_set in groups})
        number = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
        # a difference of 0 on all questions is no comparison
        family = f"Holm over {sum(one.test.difference != 0 or one.test.detectable != 0 for one in compared)} comparisons"
        print(f"\n{heading} against {against}: {number} judged questions; {family}")
        print(difference_table(compared))
        print(
            "t test, randomisation and Holm are p-values; detectable is the smallest true difference that a test of"
            " as many questions finds 4 times in 5."
        )
        # The finest metric, unless one was named: other metrics change most questions by the same amount.
        finest = [name for name in ("ndcg@10", "mrr@10") if name in names and not config.metrics]
        shown = [*finest, *names][0]
        if len(groups) == len(others) == 1:
            (of_set,) = values.values()
            if most := changed_most(of_set[against], of_set[others[0]], shown):
                print(f"\nThe questions whose {shown} changed most, {against} -> {others[0]}:")
                print(changed_table(most))

    if config.out is not None:
        records: dict[str, Any] = {}
        for name, runs in groups.items():
            reports = {label: run.report for label, run in runs.items()}
            count = next(iter(runs.values())).num_questions
            records[name] = {"question_set": name, "num_questions": count, "runs": reports}
        report: dict[str, Any] = {"sets": records} if is_folders else next(iter(records.values()))
        if compared:
            tests = []
            for one in compared:
                record = asdict(one)
                record["p_holm"] = record.pop("adjusted")
                tests.append(record | record.pop("test"))
            report["tests"] = tests
        write_json(Path(config.out), report, note={})


def labelled(runs: Sequence[str]) -> list[tuple[str, Path]]:
    """Returns (label, file) of ``label=file``, or of files, whose names are then the labels.

    Raises:
        ConfigError: two files have the same label.
    """
    files_by_label: dict[str, Path] = {}
    for run in runs:
        label, has_label, name = run.partition("=")
        file = Path(name if has_label else run)
        label = label if has_label else file.stem
        if label in files_by_label:
            raise ConfigError(f"two files have the label {label}; set other labels: label=file")
        files_by_label[label] = file
    return list(files_by_label.items())


def read_runs(named: Sequence[tuple[str, Path]]) -> dict[str, MetricsFile]:
    """Reads metrics files by label, in the order given.

    Raises:
        InputError: a file is not a metrics file, or the files are not about the same questions.
    """
    from dpr.formats.metrics_files import read_metrics

    by_label: dict[str, MetricsFile] = {}
    wanted = ""
    for label, file in named:
        run = read_metrics(file)
        asked = f"{run.num_questions} questions of {run.question_set}"
        wanted = wanted or asked
        if asked != wanted:
            raise InputError(f"is about {asked}", file=file, expected=f"{wanted}, as {named[0][1]}")
        by_label[label] = run
    return by_label


def read_folders(named: Sequence[tuple[str, Path]], system: str | None) -> Groups:
    """Reads the metrics files of output folders of dpr evaluate, by set: all systems of one folder, or one
    system of several folders.

    Raises:
        InputError: a folder is no such output, lacks the system, or is about other sets than the first.
    """
    from dpr.formats.metrics_files import read_evaluation

    evaluations = [(label, folder, *read_evaluation(folder)) for label, folder in named]
    _, first, sets, systems = evaluations[0]
    if len(evaluations) == 1:
        return {name: read_runs([(one, first / name / f"{one}.json") for one in systems]) for name in sets}
    chosen = system or ("dense" if all("dense" in theirs for *_, theirs in evaluations) else systems[0])
    for _, folder, names, theirs in evaluations:
        if chosen not in theirs:
            raise InputError(
                f"has no results of {chosen}",
                file=folder,
                expected=f"--system with one of {', '.join(theirs)}",
            )
        if set(names) != set(sets):
            expected = f"{', '.join(sets)}, as {first}"
            raise InputError(f"has the test sets {', '.join(names)}", file=folder, expected=expected)
    return {
        name: read_runs([(label, folder / name / f"{chosen}.json") for label, folder, *_ in evaluations])
        for name in sets
    }


@dataclass
class ReportSettings(Settings):
    """Writes one self-contained HTML page about a run folder: curves, metrics, settings."""

    EXAMPLES: ClassVar[str] = """\
dpr report runs/first
dpr report runs/first BM25=runs/first/bm25.json trained=runs/first/dense.json
dpr report runs/first DPR=dpr.json --out compared.html
"""
    folder: str | None = setting(None, operand="FOLDER", path="input")
    """Run folder; if it contains several runs, the longest is shown."""
    runs: list[str] = setting(list, operand="[[LABEL=]FILE ...]", path="input")
    """Metrics files (metrics_file=...), with their labels in the table."""
    out: str | None = setting(None, path="output")
    """File to write; absent = FOLDER/report.html."""

    def check_together(self, prefix: str) -> None:
        require_set(self, {"folder": "runs/first"})


def report(config: ReportSettings, *, notes: Sequence[str] = ()) -> None:
    """Writes the page, with ``notes`` above its figures."""
    from dpr.evaluation.report import write_report
    from dpr.storage.outputs import require_writable
    from dpr.training.command_settings import TrainCommand

    folder = Path(str(config.folder))
    out = None if config.out is None else Path(config.out)
    if not folder.is_dir():
        raise InputError(
            "no such folder", file=folder, expected="the output_dir of a training run, or the folder above it"
        )
    if out is not None:
        require_writable(out)
    defaults = asdict(TrainCommand())
    target = write_report(folder, labelled(config.runs), out=out, notes=notes, defaults=defaults)
    print(f"{target} ({target.stat().st_size / 1000:.0f} kB)")
