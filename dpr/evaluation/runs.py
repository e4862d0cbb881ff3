"""Training runs and retrieval runs as a report shows them, read from their files. Missing or damaged files
become notes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from dpr.core.errors import DprError, InputError
from dpr.evaluation.page_text import flatten
from dpr.formats.checkpoints import CONFIG_FILE, STATE_FILE
from dpr.formats.metrics_files import MetricsFile
from dpr.formats.record_fields import is_finite_number
from dpr.formats.run_folders import METRICS_LINES, RUN_FILE, VERDICT_FILE, metrics_lines, metrics_problems
from dpr.storage.untrusted import is_below, leads_inside, parsed, read_json

_CATALOGUES = ("datasets", "ctx_sources")


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
    """Comparison with the base model (``dpr.training.callbacks.base_comparison``), if the run has ended."""

    @property
    def step(self) -> float:
        """Returns the last step of any checkpoint, validation or log line."""
        return max([self.saved_step, *(entry["step"] for entry in (*self.logs[-1:], *self.validations[-1:]))])


@dataclass(frozen=True)
class Retrieval:
    """A metrics file with its label."""

    label: str
    file: MetricsFile

    @property
    def rank_counts(self) -> list[int]:
        """Returns the number of questions by the rank of their first relevant passage; the last number counts
        those without one. Empty if ranks were not kept or are damaged."""
        ranks = self.file.report.get("first_right_rank")
        if not isinstance(ranks, dict) or not _list(ranks.get("counts")):
            return []
        counts = [*ranks["counts"], ranks.get("not_found")]
        return counts if all(type(count) is int and count >= 0 for count in counts) else []

    @property
    def num_judged(self) -> int:
        """Returns the number of questions that the metrics average over."""
        return sum(self.rank_counts) or self.file.num_questions

    def accuracy_curve(self) -> list[tuple[float, float]]:
        """Returns pairs of k and the share of questions with a relevant passage among the first k, for some
        k."""
        shares = accumulate(self.rank_counts[:-1])
        judged = max(self.num_judged, 1)
        return [(k, right / judged) for k, right in enumerate(shares, 1) if k <= 20 or k % 5 == 0]


def read_training(folder: Path) -> Training | None:
    """Returns the training run in ``folder``. If there are several one level below, returns the one with the
    most steps."""
    folder = Path(folder)
    names = (METRICS_LINES, RUN_FILE)
    if any((folder / name).is_file() for name in names):
        return _read_run(folder)
    folders = {path.parent for name in names for path in folder.glob(f"*/{name}")}
    return max((_read_run(path) for path in sorted(folders)), key=lambda run: run.step, default=None)


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
    metadata = _object(folder / RUN_FILE, run.notes)
    run.notes += [f"{METRICS_LINES} {problem}" for problem in metrics_problems(folder) or []]
    run.best = {key: metadata.get(key) for key in ("best_metric", "best_value", "best_checkpoint")}
    if (folder / VERDICT_FILE).is_file():
        run.verdict = _object(folder / VERDICT_FILE, run.notes)
        run.verdict["comparisons"] = [
            each
            for each in _list(run.verdict.get("comparisons"))
            if isinstance(each, dict)
            and is_finite_number(each.get("before"))
            and is_finite_number(each.get("after"))
        ]
    name = metadata.get("last_checkpoint")
    if is_below(name) and leads_inside(folder, folder / name):
        step = name.rpartition(".step")[2]
        run.saved_step = float(step) if step.isdecimal() else 0
        identity = _object(folder / name / STATE_FILE, run.notes).get("identity")
        parts = identity if isinstance(identity, dict) else {}
        fixed = parts.get("fixed") or {}
        free = parts.get("free") or {}
        config = _object(folder / name / CONFIG_FILE, run.notes)
        # A run started from Python has no configuration; its identity names the settings that matter.
        chosen = {key: value for key, value in config.items() if key not in _CATALOGUES} or {**fixed, **free}
        chosen |= {key: value for key, value in free.items() if key.startswith("environment.")}
        if "train.global_batch_size" in fixed:
            chosen["train.global_batch_size"] = fixed["train.global_batch_size"]  # what a 0 there came to
        run.settings = flatten(chosen)
    else:
        run.notes.append("no checkpoint yet, so settings are not shown")
    return run


def _metrics_of(line: str) -> dict[str, float] | None:
    """Returns the numbers of a line of metrics. A null, which stands for NaN or infinity, becomes NaN."""
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


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
