"""The data of a report, read from run folders, metrics files and results. Whatever is missing or damaged
becomes a note."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from dpr.core.errors import DprError, InputError
from dpr.evaluation.report.examples import NUM_EXAMPLES, example_of, is_example, spread
from dpr.formats.checkpoints import (
    CONFIG_FILE,
    METRICS_LINES,
    RUN_FILE,
    STATE_FILE,
    VERDICT_FILE,
    metrics_lines,
    metrics_problems,
)
from dpr.formats.json_records import is_finite_number
from dpr.formats.metrics_files import PerQuestion, read_metrics
from dpr.formats.results import RetrievedQuestion, iter_results
from dpr.formats.text_input import open_input
from dpr.storage.durable import read_json
from dpr.storage.inside import is_below, leads_inside
from dpr.storage.strict_json import parsed

METRICS_FILE = "metrics.json"
_CATALOGUES = ("datasets", "ctx_sources")
_SECRET_KEY = re.compile(
    r"secret|passw|credential|(?:^|[_.])(?:api|auth|access|hf|wandb|hub)_?(?:key|token)|(?:^|[_.])token$",
    re.IGNORECASE,
)
_SECRET_TEXT = re.compile(r"\b(?:hf_|sk-|gh[pousr]_|xox[bp]-|AKIA)[A-Za-z0-9_-]{12,}|(?<=://)[^/\s@]+@")
# The last part of an absolute path names the file; the rest reveals whose machine it is on.
_ABSOLUTE = re.compile(
    r"(?<![\w.:/~*-])(?:~|[A-Za-z]:)?[/\\]+(?:[^/\\\s\"',\[\]]+[/\\]+)*(?=[^/\\\s\"',\[\]])"
)


@dataclass
class Training:
    """A training run: logged metrics by step, validations, settings."""

    name: str
    logs: list[dict[str, float]] = field(default_factory=list)
    validations: list[dict[str, float]] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    saved_step: float = 0
    verdict: dict[str, Any] = field(default_factory=dict)
    """What the run won (``dpr.training.callbacks.verdict``), if it has ended."""

    @property
    def step(self) -> float:
        """The last step of any checkpoint, validation or log line."""
        return max([self.saved_step, *(entry["step"] for entry in (*self.logs[-1:], *self.validations[-1:]))])


@dataclass
class Retrieval:
    """Metrics of one retrieval run. ``rank_counts[r]``: questions whose first right passage has rank r + 1;
    None where ranks were not kept."""

    label: str
    question_set: str
    num_questions: int
    metrics: dict[str, float]
    rank_counts: list[int] | None = None
    num_without: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)
    fingerprint: str = ""
    """Of the questions, where the set has no name: runs over the same questions are compared."""
    each: PerQuestion | None = None

    @property
    def num_judged(self) -> int:
        """The questions that the metrics are taken over."""
        return self.num_questions if self.rank_counts is None else sum(self.rank_counts) + self.num_without

    def accuracy_curve(self) -> list[tuple[int, float]]:
        """(k, share of questions with a right passage among the first k), for every k of ``rank_counts``."""
        return [
            (rank, right / max(self.num_judged, 1))
            for rank, right in enumerate(accumulate(self.rank_counts or ()), 1)
        ]


def read_training(folder: Path) -> Training | None:
    """The training run in ``folder``; of several one level below, the one with the most steps; else the
    evaluation in it, if any."""
    folder = Path(folder)
    names = (METRICS_LINES, RUN_FILE)
    if any((folder / name).is_file() for name in names):
        return _read_run(folder)
    runs = [
        _read_run(path)
        for path in sorted({path.parent for name in names for path in folder.glob(f"*/{name}")})
    ]
    return max(runs, key=lambda run: run.step, default=_read_evaluation(folder))


def _read_evaluation(folder: Path) -> Training | None:
    """The result of evaluation-only mode: one validation, no steps."""
    stored = _object(folder / METRICS_FILE, [])
    metrics = {
        key: float(value)
        for key, value in stored.items()
        if key.startswith("eval/") and is_finite_number(value)
    }
    if not metrics:
        return None
    notes = ["an evaluation without training, so there are no curves"]
    return Training(folder.resolve().name, validations=[{"step": 0.0, **metrics}], notes=notes)


def _read_run(folder: Path) -> Training:
    run = Training(folder.resolve().name)
    damaged = 0
    try:
        for line in metrics_lines(folder / METRICS_LINES):
            entry = _metrics_of(line or "")
            if entry is None:
                damaged += 1
                continue
            if "train/loss" in entry:
                run.logs.append(entry)
            if any(key.startswith("eval/") for key in entry):
                run.validations.append(entry)
    except InputError as error:
        run.notes.append(f"{METRICS_LINES} {error.found}")
    if damaged:
        run.notes.append(f"{damaged} lines of {METRICS_LINES} are damaged and left out")
    facts = _object(folder / RUN_FILE, run.notes)
    run.notes += [f"{METRICS_LINES} {problem}" for problem in metrics_problems(folder) or []]
    run.best = {key: facts.get(key) for key in ("best_metric", "best_value", "best_checkpoint")}
    if (folder / VERDICT_FILE).is_file():
        run.verdict = _object(folder / VERDICT_FILE, run.notes)
        run.verdict["comparisons"] = [
            each
            for each in _list(run.verdict.get("comparisons"))
            if isinstance(each, dict)
            and is_finite_number(each.get("before"))
            and is_finite_number(each.get("after"))
        ]
    name = facts.get("last_checkpoint")
    if is_below(name) and leads_inside(folder, folder / name):
        step = name.rpartition(".step")[2]
        run.saved_step = float(step) if step.isdecimal() else 0
        _read_settings(folder / name, run)
    else:
        run.notes.append("no checkpoint yet, so settings are not shown")
    return run


def _read_settings(checkpoint: Path, run: Training) -> None:
    identity = _object(checkpoint / STATE_FILE, run.notes).get("identity")
    parts = identity if isinstance(identity, dict) else {}
    fixed = parts.get("fixed") or {}
    free = parts.get("free") or {}
    config = _object(checkpoint / CONFIG_FILE, run.notes)
    # A run started from Python has no configuration; its identity names the settings that matter.
    chosen = {key: value for key, value in config.items() if key not in _CATALOGUES} or {**fixed, **free}
    chosen |= {key: value for key, value in free.items() if key.startswith("environment.")}
    if "train.global_batch_size" in fixed:
        chosen["train.global_batch_size"] = fixed["train.global_batch_size"]  # what a 0 there came to
    run.settings = flatten(chosen)


def read_retrieval(label: str, file: Path) -> Retrieval:
    """One run from a metrics file of ``dpr retrieve`` or from DPR's results JSON.

    Raises:
        InputError: the file is neither, or its metrics contradict each other.
    """
    with open_input(file) as stream:
        is_results = stream.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
    if is_results:
        return from_results(label, iter_results(file))
    stored = read_metrics(file)
    counts, without = _rank_counts(stored.report.get("first_right_rank"))
    return Retrieval(
        label=label,
        question_set=stored.question_set,
        num_questions=stored.num_questions,
        metrics=stored.metrics,
        rank_counts=counts,
        num_without=without,
        examples=[value for value in _list(stored.report.get("examples")) if is_example(value)],
        each=stored.each,
    )


def from_results(label: str, results: Iterator[RetrievedQuestion]) -> Retrieval:
    """Metrics and examples by the ``has_answer`` marks of the hits."""
    ranks: Counter[int | None] = Counter()  # 0: none is right; None: nothing is judged; -1: no hits
    depth = 0
    digest = hashlib.sha256()

    def counted() -> Iterator[RetrievedQuestion]:
        nonlocal depth
        for result in results:
            digest.update(result.question.encode() + b"\0")
            marks = [hit.has_answer for hit in result.hits]
            depth = max(depth, len(marks))
            if True in marks:
                ranks[marks.index(True) + 1] += 1
            elif False in marks:
                ranks[0] += 1
            else:
                ranks[None if marks else -1] += 1
            yield result

    examples = [example_of(result) for result in spread(counted(), NUM_EXAMPLES)]
    found = Retrieval(label, "", ranks.total(), {}, examples=examples, fingerprint=digest.hexdigest())
    if ranks.keys() - {None, -1}:
        found.rank_counts = [ranks[rank] for rank in range(1, depth + 1)]
        found.num_without = ranks[0] + ranks[-1]
    shown = (1, 5, 10, 20, 100)
    found.metrics = {f"accuracy@{k}": share for k, share in found.accuracy_curve() if k in shown}
    return found


def flatten(value: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as ``section.key`` -> text, without what a page must not show."""
    flat: dict[str, str] = {}
    for key, entry in value.items():
        name = f"{prefix}{key}"
        if _SECRET_KEY.search(name) and entry is not None:
            flat[name] = "(hidden)"
        elif isinstance(entry, dict):
            flat |= flatten(entry, f"{name}.")
        else:
            flat[name] = printable(entry)
    return flat


def printable(value: Any) -> str:
    """A setting as text: absolute paths shortened to their last part, credentials hidden."""
    if isinstance(value, list | tuple):
        return ", ".join(printable(item) for item in value)
    text = value if isinstance(value, str) else "-" if value is None else json.dumps(value, default=str)
    if re.match(r"(?:~|[A-Za-z]:)?[/\\][^,:]+$", text):  # one path; its folders may hold spaces
        return ".../" + re.split(r"[/\\]+", text.rstrip("/\\"))[-1]
    return _ABSOLUTE.sub(".../", _SECRET_TEXT.sub("(hidden)", text))


def _metrics_of(line: str) -> dict[str, float] | None:
    """The numbers of a line of metrics; null, which stands for NaN or infinity, is NaN."""
    try:
        entry = parsed(line)
        step = float(entry["step"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
    numbers = {
        str(key): float(value) if is_finite_number(value) else math.nan for key, value in entry.items()
    }
    return numbers if math.isfinite(step) else None


def _object(path: Path, notes: list[str]) -> dict[str, Any]:
    try:
        value = read_json(path)
    except DprError:
        value = None
    if isinstance(value, dict):
        return value
    notes.append(f"{path.name} is missing or damaged")
    return {}


def _rank_counts(value: Any) -> tuple[list[int] | None, int]:
    """Counts by rank, and the questions without; None where none were kept, or they are damaged."""
    counts = _list(value.get("counts")) if isinstance(value, dict) else []
    numbers = [*counts, value.get("not_found")] if counts else []
    if not numbers or not all(type(number) is int and number >= 0 for number in numbers):
        return None, 0
    return counts, numbers[-1]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
