"""Symptoms of a faulty training run for ``dpr doctor RUN`` (docs/troubleshooting.md explains them)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from dpr.evaluation.runs import Training

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
            " of the questions rank their positive first"
        )
        temperature = run.settings.get("loss.temperature")
        is_normalised = run.settings.get("encoder.normalize", "").lower() == "true"
        is_softmax_flat = is_normalised and temperature in ("1", "1.0")
        is_level = is_long and 0.95 * start_loss <= end_loss <= _RISEN * start_loss
        if counts := _series(run, "pool/candidates"):
            chance = math.log(counts[-1])
            seen += (
                f"; chance level is {chance:.3f} and {1 / counts[-1]:.1%}, with {counts[-1]:.0f} candidates"
            )
            # A falling loss passes chance, and the loss of another objective may lie above it. In both cases
            # more positives are found.
            is_unclear = not is_long and end_loss <= 1.03 * chance
            is_level |= 0.97 * chance <= end_loss and (
                found <= 2 / counts[-1] or is_softmax_flat or is_unclear
            )
        advice = (
            "a train.learning_rate ten times lower, and one ten times higher; to see whether the model learns at"
            " all, train on ten rows for many epochs"
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
                "a train.learning_rate a third as high, more train.warmup_steps; too high a rate makes all vectors"
                " alike",
            )

    ranks = _series(run, "pool/effective_rank")
    if ranks and ranks[-1] < min(3.0, max(ranks) / 4):
        yield Symptom(
            "The vectors collapse",
            f"the effective rank of a global batch's passages fell from {max(ranks):.1f} to {ranks[-1]:.1f}: they all"
            " have nearly the same vector",
            "restart with a tenth of the train.learning_rate, or more train.warmup_steps",
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
            if not seen and each.get("against") != "BM25" and each.get("verdict") == "worse":
                seen = (
                    f"{each.get('metric')} {each['before']:.4f} before the first step, {each['after']:.4f} of"
                    f" {run.verdict.get('best_checkpoint')}"
                )
    elif len(values) > 1 and values[0][0] <= 0:
        before = values[0][1]
        best_since = max(sign * value for _, value in values[1:])
        if best_since < sign * before:
            seen = f"{name} {before:.4f} before the first step, {sign * best_since:.4f} at best after it"
    if seen:
        yield Symptom(
            "Worse than before",
            seen,
            "a lower train.learning_rate, fewer epochs, dpr merge base=BASE_MODEL tuned=RUN; dpr check-data suspects="
            " lists doubtful labels",
        )

    if len(after) >= 3 and losses[-1:] <= losses[:1]:
        best = max(after, key=lambda value: sign * value[1])
        last = after[-1]
        if best[0] <= 0.5 * last[0] and abs(best[1] - last[1]) >= 0.01 * abs(best[1]):
            yield Symptom(
                "The loss falls, the metric does not",
                f"{name} {best[1]:.4f} at step {best[0]:.0f}, {last[1]:.4f} at step {last[0]:.0f}, while the loss"
                " kept falling",
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
