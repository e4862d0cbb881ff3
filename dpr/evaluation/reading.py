"""The data of a report, read from run folders, and the symptoms of a faulty run for ``dpr doctor RUN``
(docs/troubleshooting.md explains them). Missing or damaged files become notes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from dpr.core.errors import DprError, InputError
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
from dpr.formats.results import MetricsFile
from dpr.storage.durable import read_json
from dpr.storage.untrusted import is_below, leads_inside, parsed

_CATALOGUES = ("datasets", "ctx_sources")
_SECRET_KEY = re.compile(
    r"secret|passw|credential|(?:^|[_.])(?:api|auth|access|hf|wandb|hub)_?(?:key|token)|(?:^|[_.])token$",
    re.IGNORECASE,
)
_SECRET_TEXT = re.compile(r"\b(?:hf_|sk-|gh[pousr]_|xox[bp]-|AKIA)[A-Za-z0-9_-]{12,}|(?<=://)[^/\s@]+@")
# Only the last part of an absolute path is kept: it names the file, and the rest would reveal its owner.
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
        """Returns the number of questions by the rank of their first right passage; the last number counts
        those without one. Empty if ranks were not kept or are damaged."""
        ranks = self.file.report.get("first_right_rank")
        if not isinstance(ranks, dict):
            return []
        counts = _list(ranks.get("counts"))
        if not counts:
            return []
        counts = [*counts, ranks.get("not_found")]
        return counts if all(type(count) is int and count >= 0 for count in counts) else []

    @property
    def num_judged(self) -> int:
        """Returns the number of questions that the metrics average over."""
        return sum(self.rank_counts) or self.file.num_questions

    def accuracy_curve(self) -> list[tuple[float, float]]:
        """Returns pairs of k and the share of questions with a right passage among the first k, for some
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


def flatten(value: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Returns nested settings as ``section.key`` -> text, without anything that a page must not show."""
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
    """Returns a setting as text, with absolute paths shortened to their last part and credentials hidden."""
    if isinstance(value, list | tuple):
        return ", ".join(printable(item) for item in value)
    text = value if isinstance(value, str) else "-" if value is None else json.dumps(value, default=str)
    if re.match(r"(?:~|[A-Za-z]:)?[/\\][^,:]+$", text):  # one path; its folders may hold spaces
        return ".../" + re.split(r"[/\\]+", text.rstrip("/\\"))[-1]
    return _ABSOLUTE.sub(".../", _SECRET_TEXT.sub("(hidden)", text))


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


def cut(text: str, limit: int) -> str:
    """Returns at most ``limit`` characters, cut at a space if one is near. White space becomes single
    spaces."""
    flat = " ".join(text[: 4 * limit + 100].split())
    if len(flat) <= limit:
        return flat
    kept = flat[:limit].rsplit(" ", 1)[0] if " " in flat[max(limit - 30, 1) : limit] else flat[:limit]
    return kept.rstrip() + " ..."


_LEAST_LINES = 4
_RISEN = 1.2
_HIGHEST = re.compile(r"(@\d+|_acc)$")


class Symptom(NamedTuple):
    """A symptom of a faulty run; ``name`` is a section of docs/troubleshooting.md."""

    name: str
    seen: str
    """The figures that show it."""
    advice: str


def symptoms(run: Training) -> Iterator[Symptom]:
    """Yields the symptoms of the run."""
    losses = _series(run, "train/loss")
    quarter = max(1, len(losses) // 4)
    is_long = len(losses) >= _LEAST_LINES
    start_loss = _mean(losses[:quarter])
    end_loss = _mean(losses[-quarter:])

    skipped = max((line.get("train/skipped_steps", 0.0) for line in run.logs), default=0.0)
    bad = sum(not math.isfinite(line["train/loss"]) for line in run.logs)
    if skipped or bad:
        yield Symptom(
            "NaN",
            f"{skipped:.0f} steps skipped for a gradient that was NaN or infinite; {bad} log lines without a"
            " loss",
            "train.precision=bf16 in place of fp16, a lower train.learning_rate, train.max_grad_norm=1; dpr"
            " explain step=N shows the batch",
        )

    accuracy = _series(run, "train/in_batch_acc")
    if losses and accuracy:
        found = _mean(accuracy[-max(1, len(accuracy) // 4) :])
        seen = (
            f"loss {start_loss:.3f} over the first quarter of the log, {end_loss:.3f} over the last; {found:.1%}"
            " find their positive in the pool"
        )
        temperature = run.settings.get("loss.temperature")
        is_normalised = run.settings.get("encoder.normalize", "").lower() == "true"
        is_softmax_flat = is_normalised and temperature in ("1", "1.0")
        is_level = is_long and 0.95 * start_loss <= end_loss <= _RISEN * start_loss
        if counts := _series(run, "pool/candidates"):
            chance = math.log(counts[-1])
            seen += f"; chance is {chance:.3f} and {1 / counts[-1]:.1%}, of {counts[-1]:.0f} candidates"
            # A falling loss passes chance, and the loss of another objective may lie above it. In both cases
            # more positives are found.
            is_unclear = not is_long and end_loss <= 1.03 * chance
            is_level |= 0.97 * chance <= end_loss and (
                found <= 2 / counts[-1] or is_softmax_flat or is_unclear
            )
        advice = (
            "another train.learning_rate, ten times less and ten times more; whether it can learn at all is seen"
            " by training on some ten rows, for many epochs"
        )
        if is_softmax_flat:
            advice = "loss.temperature=0.05: similarities of normalised vectors lie between -1 and 1"
        if is_level and found <= 0.5:
            yield Symptom("The loss does not fall", seen, advice)

    if is_long:
        lowest = min(losses)
        if end_loss >= max(1.5 * lowest + 0.1, losses[0] * (_RISEN if lowest == losses[0] else 0)):
            steps = [line["step"] for line in run.logs if math.isfinite(line["train/loss"])]
            yield Symptom(
                "The loss rises again",
                f"loss {lowest:.3f} at step {steps[losses.index(lowest)]:.0f}, {end_loss:.3f} over the last"
                " quarter",
                "a train.learning_rate a third as high, more train.warmup_steps; vectors that are all alike are"
                " what too high a rate leaves",
            )

    ranks = _series(run, "pool/effective_rank")
    if ranks and ranks[-1] < min(3.0, max(ranks) / 4):
        yield Symptom(
            "The vectors collapse",
            f"the effective rank of a pool's passages was {max(ranks):.1f} and is {ranks[-1]:.1f}: they all have"
            " nearly the same vector",
            "start anew with a lower train.learning_rate, a tenth of it, or more train.warmup_steps",
        )

    # The metric that chooses the best checkpoint, at each step; the sign is 1 if higher values of it are
    # better.
    name = str(run.best.get("best_metric"))
    values = [
        (line["step"], line[name]) for line in run.validations if math.isfinite(line.get(name, math.nan))
    ]
    is_highest = _HIGHEST.search(name) or run.settings.get("train.best_is_highest", "").lower() == "true"
    sign = 1 if is_highest else -1
    after = [value for value in values if value[0] > 0]

    seen = ""
    if compared := run.verdict.get("comparisons"):
        for each in compared:
            if not seen and each.get("against") == "the start" and each.get("verdict") == "worse":
                seen = (
                    f"{each.get('metric')} {each['before']:.4f} before the first step, {each['after']:.4f} of"
                    f" {run.verdict.get('best_checkpoint')}"
                )
    elif len(values) > 1 and values[0][0] <= 0:
        before = values[0][1]
        best_since = max(sign * value for _, value in values[1:])
        if best_since < sign * before:
            seen = f"{name} {before:.4f} before the first step, {sign * best_since:.4f} at its best since"
    if seen:
        yield Symptom(
            "Worse than before",
            seen,
            "a lower train.learning_rate, fewer epochs, dpr merge base=START tuned=RUN; dpr check-data suspects="
            " lists wrong labels",
        )

    if len(after) >= 3 and losses[-1:] <= losses[:1]:
        best = max(after, key=lambda value: sign * value[1])
        last = after[-1]
        if best[0] <= 0.5 * last[0] and abs(best[1] - last[1]) >= 0.01 * abs(best[1]):
            yield Symptom(
                "The loss falls, the metric does not",
                f"{name} {best[1]:.4f} at step {best[0]:.0f}, {last[1]:.4f} at step {last[0]:.0f}, while the loss"
                " went on falling",
                "fewer epochs or train.early_stopping.patience, more or cleaner data; model_file=RUN opens the"
                " best checkpoint",
            )

    if run.logs and not run.validations:
        yield Symptom(
            "Nothing was measured",
            f"{len(run.logs)} log lines up to step {run.step:.0f}, and no validation",
            "dev_datasets=dev.jsonl, or train.validation=[{kind: retrieval, ...}]; dpr evaluate run=RUN set=...",
        )


def _series(run: Training, name: str) -> list[float]:
    return [value for line in run.logs if math.isfinite(value := line.get(name, math.nan))]


def _mean(values: list[float]) -> float:
    return sum(values) / max(len(values), 1)
