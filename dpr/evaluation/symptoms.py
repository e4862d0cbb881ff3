"""What the metrics of a run say about its faults, a rule each, for ``dpr doctor RUN``;
docs/troubleshooting.md has the symptoms."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import NamedTuple

from dpr.evaluation.report.reading import Training

_LEAST_LINES = 4
_RISEN = 1.2
_HIGHEST = re.compile(r"(@\d+|_acc)$")


class Symptom(NamedTuple):
    """``name`` is that of a section of docs/troubleshooting.md."""

    name: str
    seen: str
    """The figures that tell."""
    advice: str


def symptoms(run: Training) -> list[Symptom]:
    """Those that the run has."""
    return [symptom for rule in _RULES if (symptom := rule(run)) is not None]


def _not_finite(run: Training) -> Symptom | None:
    skipped = max((line.get("train/skipped_steps", 0.0) for line in run.logs), default=0.0)
    bad = sum(not math.isfinite(line["train/loss"]) for line in run.logs)
    if not skipped and not bad:
        return None
    advice = (
        "train.precision=bf16 in place of fp16, a lower train.learning_rate, train.max_grad_norm=1; dpr"
        " explain step=N shows the batch"
    )
    return Symptom(
        "NaN",
        f"{skipped:.0f} steps skipped for a gradient that was NaN or infinite; {bad} log lines without a"
        " loss",
        advice,
    )


def _not_learning(run: Training) -> Symptom | None:
    losses = _series(run, "train/loss")
    accuracy = _series(run, "train/in_batch_acc")
    if not losses or not accuracy:
        return None
    start = _mean(losses[: _quarter(losses)])
    end = _mean(losses[-_quarter(losses) :])
    found = _mean(accuracy[-_quarter(accuracy) :])
    seen = (
        f"loss {start:.3f} over the first quarter of the log, {end:.3f} over the last; {found:.1%} find their"
        " positive in the pool"
    )
    temperature = run.settings.get("loss.temperature")
    is_normalised = run.settings.get("encoder.normalize", "").lower() == "true"
    is_softmax_flat = is_normalised and temperature in ("1", "1.0")
    is_level = len(losses) >= _LEAST_LINES and 0.95 * start <= end <= _RISEN * start
    if counts := _series(run, "pool/candidates"):
        chance = math.log(counts[-1])
        seen += f"; chance is {chance:.3f} and {1 / counts[-1]:.1%}, of {counts[-1]:.0f} candidates"
        # A loss that is falling passes chance, and that of another objective may lie above it: both find more
        # positives.
        is_unclear = len(losses) < _LEAST_LINES and end <= 1.03 * chance
        is_level |= 0.97 * chance <= end and (found <= 2 / counts[-1] or is_softmax_flat or is_unclear)
    if not is_level or found > 0.5:
        return None
    advice = (
        "another train.learning_rate, ten times less and ten times more; whether it can learn at all is seen"
        " by training on some ten rows, for many epochs"
    )
    if is_softmax_flat:
        advice = "loss.temperature=0.05: similarities of normalised vectors lie between -1 and 1"
    return Symptom("The loss does not fall", seen, advice)


def _diverged(run: Training) -> Symptom | None:
    losses = _series(run, "train/loss")
    if len(losses) < _LEAST_LINES:
        return None
    lowest = min(losses)
    end = _mean(losses[-_quarter(losses) :])
    if end < max(1.5 * lowest + 0.1, losses[0] * (_RISEN if lowest == losses[0] else 0)):
        return None
    step = [line["step"] for line in run.logs if math.isfinite(line["train/loss"])][losses.index(lowest)]
    advice = (
        "a train.learning_rate a third as high, more train.warmup_steps; vectors that are all alike are what"
        " too high a rate leaves"
    )
    return Symptom(
        "The loss rises again",
        f"loss {lowest:.3f} at step {step:.0f}, {end:.3f} over the last quarter",
        advice,
    )


def _collapsed(run: Training) -> Symptom | None:
    ranks = _series(run, "pool/effective_rank")
    if not ranks or ranks[-1] >= min(3.0, max(ranks) / 4):
        return None
    seen = (
        f"the effective rank of a pool's passages was {max(ranks):.1f} and is {ranks[-1]:.1f}: they all have"
        " nearly the same vector"
    )
    return Symptom(
        "The vectors collapse",
        seen,
        "start anew with a lower train.learning_rate, a tenth of it, or more train.warmup_steps",
    )


def _worse_than_start(run: Training) -> Symptom | None:
    advice = (
        "a lower train.learning_rate, fewer epochs, dpr merge base=START tuned=RUN; dpr check-data suspects="
        " lists wrong labels"
    )
    if compared := run.verdict.get("comparisons"):
        for each in compared:
            if each.get("against") == "the start" and each.get("verdict") == "worse":
                seen = (
                    f"{each.get('metric')} {each['before']:.4f} before the first step, {each['after']:.4f} of"
                    f" {run.verdict.get('best_checkpoint')}"
                )
                return Symptom("Worse than before", seen, advice)
        return None
    name, sign, values = _best_metric(run)
    if len(values) < 2 or values[0][0] > 0:
        return None
    start = values[0][1]
    best = max(sign * value for _, value in values[1:])
    if best >= sign * start:
        return None
    seen = f"{name} {start:.4f} before the first step, {sign * best:.4f} at its best since"
    return Symptom("Worse than before", seen, advice)


def _overfitted(run: Training) -> Symptom | None:
    name, sign, values = _best_metric(run)
    after = [value for value in values if value[0] > 0]
    losses = _series(run, "train/loss")
    if len(after) < 3 or losses[-1:] > losses[:1]:
        return None
    best = max(after, key=lambda value: sign * value[1])
    last = after[-1]
    if best[0] > 0.5 * last[0] or abs(best[1] - last[1]) < 0.01 * abs(best[1]):
        return None
    seen = (
        f"{name} {best[1]:.4f} at step {best[0]:.0f}, {last[1]:.4f} at step {last[0]:.0f}, while the loss"
        " went on falling"
    )
    advice = (
        "fewer epochs or train.early_stopping.patience, more or cleaner data; model_file=RUN opens the best"
        " checkpoint"
    )
    return Symptom("The loss falls, the metric does not", seen, advice)


def _never_validated(run: Training) -> Symptom | None:
    if run.validations or not run.logs:
        return None
    seen = f"{len(run.logs)} log lines up to step {run.step:.0f}, and no validation"
    return Symptom(
        "Nothing was measured",
        seen,
        "dev_datasets=dev.jsonl, or train.validation=[{kind: retrieval, ...}]; dpr evaluate run=RUN set=...",
    )


_RULES: tuple[Callable[[Training], Symptom | None], ...] = (
    _not_finite,
    _not_learning,
    _diverged,
    _collapsed,
    _worse_than_start,
    _overfitted,
    _never_validated,
)


def _series(run: Training, name: str) -> list[float]:
    return [value for line in run.logs if math.isfinite(value := line.get(name, math.nan))]


def _best_metric(run: Training) -> tuple[str, int, list[tuple[float, float]]]:
    """The metric that chooses the best checkpoint, 1 or -1 where high or low values of it are good, and its
    value at each step."""
    name = str(run.best.get("best_metric"))
    values = [
        (line["step"], line[name]) for line in run.validations if math.isfinite(line.get(name, math.nan))
    ]
    is_highest = _HIGHEST.search(name) or run.settings.get("train.best_is_highest", "").lower() == "true"
    return name, 1 if is_highest else -1, values


def _quarter(values: list[float]) -> int:
    return max(1, len(values) // 4)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
