"""Comparison of a run with its base model: metrics measured before the first step, and a paired test at the
end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dpr.core.distributed import from_main, on_main
from dpr.core.logs import get_logger
from dpr.evaluation.ranking_metrics import is_baseline
from dpr.formats.run_folders import RUN_FILE, VERDICT_FILE, checkpoint_name, write_run
from dpr.storage.durable import write_json
from dpr.storage.untrusted import read_json
from dpr.training.run import Callback, Run
from dpr.training.validations.protocol import (
    Metrics,
    Validation,
    each_once,
    guard_limits,
    higher_is_better,
    run_validations,
)

logger = get_logger(__name__)

MOST_SHARE = 0.2
"""Largest share of the work of training that measuring the base model may cost."""
_PASSES = 3  # passes over a text in training: backward takes twice as long as forward
_FLIPS = 10_000
_BASE = "start"  # its name in checkpoints
BASE_MODEL = "the base model"
_LOSS = "nll_loss"
_CORRECT = "in_batch_acc"
Values = Mapping[str, Sequence[float]]
"""Values of every question by metric; on rank 0 alone."""


@dataclass(frozen=True)
class Comparison:
    """A metric of a model against that of the base model or of BM25.

    The last four fields are missing if questions have no values, the interval also if there are too few
    questions.
    """

    metric: str
    against: str
    verdict: str
    before: float
    after: float
    difference: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    num_questions: int | None = None

    def __str__(self) -> str:
        words = {
            "no difference": "no significant difference from",
            "not tested": "not tested against",
            "too few questions": "too few questions to tell whether it is better than",
        }
        verdict = words.get(self.verdict, f"{self.verdict} than")
        name = self.metric.removeprefix("eval/")
        figures = f"{name} {self.before:.3f} -> {self.after:.3f}, {self.difference:+.3f}"
        if self.low is not None:
            figures += f", 95 % interval {self.low:+.3f} to {self.high:+.3f}"
        if self.num_questions is not None:
            figures += f", {self.num_questions} questions"
        return f"{verdict} {self.against} ({figures})"


class BaseComparison(Callback):
    """Callback that compares the best checkpoint with the base model. It measures the base model by all
    validations that the run will reach (``run.progress.start_metrics``). At the end it reports in the log and
    in ``verdict.json`` whether the best checkpoint is better. It does not change training.

    Checkpoints hold the values of each question for the compared metrics: of the base model, of the best
    checkpoint and of their own step.
    """

    state_key = "Verdict"  # its name in checkpoints of all versions

    def __init__(self) -> None:
        self._values: dict[str, Values] = {}

    def on_train_begin(self, run: Run) -> None:
        if run.progress.step < run.last_step:  # that of an earlier end
            on_main(lambda: (run.output_dir / VERDICT_FILE).unlink(missing_ok=True))
        if run.progress.step or run.progress.start_metrics or not is_base_measured(run):
            return
        metrics = run_validations(validations_ahead(run), run.model, at_start=True)
        run.progress.start_metrics = metrics
        self._values[_BASE] = _compared(run, metrics)
        limits = guard_limits(run.validations, metrics)
        guards = {baseline_of(name, "guard"): limit for name, limit in limits.items()}
        metrics |= guards
        shown = [
            f"{name} {value:.4f}"
            for name, value in each_once(metrics).items()
            if not is_baseline(name) or name in self._values[_BASE] or name in guards
        ]
        logger.info("step 0  %s", "  ".join(shown))

    def on_validate_end(self, run: Run, metrics: Metrics) -> None:
        if run.progress.start_metrics:
            kept = (_BASE, run.progress.best_checkpoint)  # the present one is the best once it is saved
            self._values = {key: values for key, values in self._values.items() if key in kept}
            self._values[checkpoint_name(run.progress.step)] = _compared(run, metrics)

    def on_train_end(self, run: Run) -> None:
        progress = run.progress
        name = progress.best_metric or run.best_by(progress.last_metrics)[0]
        best = progress.best_checkpoint
        limits = guard_limits(run.validations, progress.start_metrics)
        if name not in progress.start_metrics or not (best or limits):
            return
        before = progress.start_metrics[name]
        after = progress.best_value or 0.0
        sign = 1 if higher_is_better(run.validations, name) else -1
        is_ahead = best is not None and (math.isnan(before) or sign * after > sign * before)

        of_base = self._values.get(_BASE, {})
        of_best = self._values.get(best or "", {})
        compared: list[Comparison] = []
        if best is not None:
            compared.append(_compare(run, name, of_base, of_best, after=after))
            # A loss can fall while the ranking gets worse: scores move apart if the temperature is far too
            # high.
            correct = _correct_beside(name)
            if compared[0].verdict != "worse" and correct in of_base and correct in of_best:
                order = _compare(run, correct, of_base, of_best)
                if order.verdict == "worse":
                    compared.insert(0, order)
        is_misled = from_main(len(compared) > 1)
        is_ahead = is_ahead and not is_misled
        if run.settings.train.keep == "better" and not is_ahead:
            base = checkpoint_name(0)
            if from_main((run.output_dir / base).is_dir()):
                progress.best_metric = name
                progress.best_value = before
                progress.best_checkpoint = base
            else:
                logger.warning("the base model was not saved, so the best checkpoint stays %s", best)

        def write() -> None:
            """Writes all comparisons of the best checkpoint, first the one by which it was chosen, or that
            there is no best checkpoint."""
            opens = run.progress.best_checkpoint
            if best is None:
                verdict = "guards broken"
                shown = ", ".join(f"{guarded} {limit:.3f}" for guarded, limit in limits.items())
                lines = [f"no checkpoint meets the guards ({shown})"]
                opened = "the base model" if opens else "the last checkpoint"
            else:
                for other in of_best:
                    if other in of_base and other not in (name, _correct_beside(name)):
                        compared.append(_compare(run, other, of_base, of_best))
                for other in of_best:
                    if baseline_of(other) in of_base:
                        compared.append(_compare(run, other, of_base, of_best, against="BM25"))
                verdict = compared[0].verdict
                lines = [str(each) for each in compared]
                opened = (
                    "the base model" if opens != best else "the trained model all the same (train.keep=best)"
                )
            for line in lines:
                logger.info("result: %s", line)
            if is_misled:
                logger.info(
                    "fewer questions rank their positive first, although the loss fell; loss.temperature=%g may"
                    " be too high for these scores",
                    float(run.model.temperature),
                )
            elif name == "eval/nll_loss" and len(compared) == 1:  # no other validation was compared
                logger.info(
                    "the loss compares passages within a batch; a validation of kind retrieval measures search"
                    " in your corpus (train.validation)"
                )
            if opens != best or verdict in ("worse", "guards broken"):
                logger.info("model=%s opens %s", run.output_dir, opened)
            found = {
                "best_checkpoint": best,
                "opens": opens,
                "step": run.progress.step,
                "guards": limits,
                "verdict": verdict,
                "line": lines[0],
                "comparisons": [asdict(each) for each in compared],
            }
            write_json(run.output_dir / VERDICT_FILE, found)
            write_run(run.output_dir, {**read_json(run.output_dir / RUN_FILE), **run.progress.best()})

        on_main(write)

    def state_dict(self) -> dict[str, Any]:
        return {"values": self._values} if self._values else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._values = dict(state["values"])


def validations_ahead(run: Run) -> list[Validation]:
    """Returns the validations that the run will reach."""
    epochs = range(-(-run.last_step // run.steps_per_epoch))
    return [each for each in run.validations if any(map(each.is_due, epochs))]


def is_base_measured(run: Run) -> bool:
    """Returns whether the base model is measured: if ``train.eval_at_start``, ``keep`` or a guard asks for it
    or, with the first absent, if the model has trained weights and measuring is cheap compared with training.
    All ranks call it together."""
    train = run.settings.train
    ahead = validations_ahead(run)
    if not ahead:
        return False
    if train.eval_at_start or train.keep == "better" or any(each.guard is not None for each in ahead):
        return True
    if train.eval_at_start is False or run.model.is_random:
        return False
    num_texts = sum(each.num_texts(run.model) for each in ahead)
    is_cheap = num_texts <= MOST_SHARE * _PASSES * run.num_texts()
    if not is_cheap:
        logger.info(
            "the base model is not measured before the first step: %d texts would be encoded, more than %.0f %%"
            " of the work of training; train.eval_at_start=true measures it",
            num_texts,
            100 * MOST_SHARE,
        )
    return is_cheap


def _compared(run: Run, metrics: Metrics) -> Values:
    """Returns the question values of the compared metrics, and those of BM25."""
    best = run.best_by(metrics)[0]
    names = [best, _correct_beside(best), *(name for each in run.validations for name in each.judged_by)]
    values = {name: of_each for each in run.validations for name, of_each in each.values.items()}
    compared = dict.fromkeys([*names, *map(baseline_of, names)])
    return {name: values[name] for name in compared if name in values and name in metrics}


def _compare(
    run: Run,
    name: str,
    of_base: Values,
    of_best: Values,
    *,
    against: str = BASE_MODEL,
    after: float = math.nan,
) -> Comparison:
    """Returns the comparison of a metric of the best checkpoint with that of the base model or of BM25.
    ``after`` is the checkpoint's mean if questions have no values."""
    theirs = baseline_of(name) if against == "BM25" else name
    before = of_base.get(theirs, ())
    ours = of_best.get(name, ())
    if not (before and ours and all(map(math.isfinite, (*before, *ours)))):
        was = run.progress.start_metrics[theirs]
        now = sum(ours) / len(ours) if ours else after
        return Comparison(name, against, "not tested", was, now, now - was)
    from dpr.evaluation.significance import HIGHER, LOWER, TOO_FEW, paired_test

    test = paired_test((before, ours), flips=_FLIPS)
    is_highest = higher_is_better(run.validations, name)
    words = {HIGHER: "better" if is_highest else "worse", LOWER: "worse" if is_highest else "better"}
    has_interval = test.outcome != TOO_FEW
    return Comparison(
        metric=name,
        against=against,
        verdict=words.get(test.outcome, test.outcome),
        before=test.first,
        after=test.second,
        difference=test.difference,
        low=test.low if has_interval else None,
        high=test.high if has_interval else None,
        p=test.p_flips,
        num_questions=test.num_questions,
    )


def _correct_beside(name: str) -> str:
    """Returns the name of the in-batch accuracy that belongs to a loss: the share of questions whose positive
    ranks first. Empty for other metrics."""
    return name.removesuffix(_LOSS) + _CORRECT if name.endswith(f"/{_LOSS}") else ""


def baseline_of(name: str, what: str = "bm25") -> str:
    """Returns the name of the same metric of a baseline."""
    head, _, kind = name.rpartition("/")
    return f"{head}/{what}/{kind}"
