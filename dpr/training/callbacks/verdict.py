"""Whether a run has made its model better: what it began with, measured before its first step, and a paired
test at its end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dpr.core.distributed import from_main, on_main
from dpr.core.logs import get_logger
from dpr.formats.checkpoints import RUN_FILE, VERDICT_FILE, write_run
from dpr.formats.results import is_baseline
from dpr.storage.durable import read_json, write_json
from dpr.training.metrics import Metrics
from dpr.training.run import Callback, Run
from dpr.training.validations.protocol import Validation, guard_limits, higher_is_better, run_validations

logger = get_logger(__name__)

MOST_SHARE = 0.2
"""The start is not measured where that would cost a larger share of what training does."""
_PASSES = 3  # of a text in training: backward takes twice as long as forward
_FLIPS = 10_000
_START = "start"
Values = Mapping[str, Sequence[float]]
"""By metric, the value of every question."""


class Measured(NamedTuple):
    """What validations found of a model; ``values``, those of single questions, on rank 0 alone."""

    metrics: Metrics
    values: Values


@dataclass(frozen=True)
class Comparison:
    """A metric of a model against that of the start or of BM25; the last four are missing where questions
    have no values, the interval where they are too few."""

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
            "no difference": f"no difference to {self.against}",
            "not tested": f"not tested against {self.against}",
            "too few questions": f"too few questions to tell whether it is better than {self.against}",
        }
        interval = f", 95 % interval {self.low:+.3f} to {self.high:+.3f}" if self.low is not None else ""
        interval += f", {self.num_questions} questions" if self.num_questions is not None else ""
        numbers = (
            f"{self.metric.removeprefix('eval/')} {self.before:.3f} -> {self.after:.3f},"
            f" {self.difference:+.3f}{interval}"
        )
        return f"{words.get(self.verdict, f'{self.verdict} than {self.against}')} ({numbers})"


class Verdict(Callback):
    """Measures the start of a run, by all validations that it will reach: ``run.progress.start_metrics``. At
    the end, says in the log and in ``verdict.json`` whether the best checkpoint is better. Training is not
    changed by it.

    Checkpoints hold the values of each question at the start, at the best checkpoint and at their step, of
    the metrics that are compared.
    """

    def __init__(self) -> None:
        self._values: dict[str, Values] = {}

    def on_train_begin(self, run: Run) -> None:
        if run.progress.step < run.last_step:  # that of an earlier end
            on_main(lambda: (run.output_dir / VERDICT_FILE).unlink(missing_ok=True))
        if run.progress.step or run.progress.start_metrics:
            return
        if not is_start_measured(run):
            return
        run.progress.start_metrics = metrics = run_validations(
            validations_ahead(run), run.model, at_start=True
        )
        self._values = {_START: _compared(run, metrics)}
        metrics |= {
            _beside(name, "guard"): limit
            for name, (limit, _) in guard_limits(run.validations, metrics).items()
        }
        shown = (
            name
            for name in metrics
            if not is_baseline(name) or name in self._values[_START] or "/guard/" in name
        )
        logger.info("step 0  %s", "  ".join(f"{name} {metrics[name]:.4f}" for name in shown))

    def on_validate_end(self, run: Run, metrics: Metrics) -> None:
        if run.progress.start_metrics:
            kept = (_START, run.progress.best_checkpoint)  # the present one is the best once it is saved
            self._values = {key: values for key, values in self._values.items() if key in kept}
            self._values[_checkpoint(run, run.progress.step)] = _compared(run, metrics)

    def on_train_end(self, run: Run) -> None:
        progress, start, best = run.progress, run.progress.start_metrics, run.progress.best_checkpoint
        name = progress.best_metric or run.best_by(progress.last_metrics)[0]
        if not start or name not in start or not (best or guard_limits(run.validations, start)):
            return
        candidates: dict[str, Measured] = {}
        if run.settings.train.keep == "better":
            saved = _checkpoint(run, 0)
            if from_main((run.output_dir / saved).is_dir()):
                candidates[saved] = Measured(start, self._values.get(_START, {}))
            else:
                logger.warning(
                    "the start was not saved, since it was not asked for then; the best checkpoint stays %s",
                    best,
                )
        if best:
            candidates[best] = Measured({name: float(progress.best_value or 0)}, self._values.get(best, {}))
        # Of equals the start: that is their order.
        sign = 1 if _is_highest(run, name) else -1
        comparable = {
            each: sign * one.metrics[name]
            for each, one in candidates.items()
            if not math.isnan(one.metrics[name])
        }
        opens = max(comparable or candidates, key=lambda each: comparable.get(each, math.nan), default=None)
        if opens is not None:
            progress.best_metric = name
            progress.best_value = candidates[opens].metrics[name]
            progress.best_checkpoint = opens

        def write() -> None:
            self._write(run, name, candidates.get(best or ""), best, opens)
            facts = read_json(run.output_dir / RUN_FILE)
            if facts != (now := {**facts, **progress.best()}):
                write_run(run.output_dir, now)

        on_main(write)

    def _write(self, run: Run, name: str, made: Measured | None, best: str | None, opens: str | None) -> None:
        """All comparisons of the best checkpoint, ``made``, that by which it was chosen first."""
        limits = guard_limits(run.validations, run.progress.start_metrics)
        guards = {guarded: limit for guarded, (limit, _) in limits.items()}
        facts: dict[str, Any] = {
            "best_checkpoint": best,
            "opens": opens,
            "step": run.progress.step,
            "guards": guards,
        }
        if made is None:
            line = (
                "no checkpoint keeps the guards"
                f" ({', '.join(f'{guarded} {limit:.3f}' for guarded, limit in guards.items())})"
            )
            logger.info(
                "verdict: %s; model_file=%s opens the %s",
                line,
                run.output_dir,
                "start" if opens else "last checkpoint",
            )
            write_json(
                run.output_dir / VERDICT_FILE,
                {**facts, "verdict": "guards broken", "line": line, "comparisons": []},
            )
            return
        start = Measured(run.progress.start_metrics, self._values.get(_START, {}))
        compared = [_compare(run, name, start, made)]
        compared += [
            _compare(run, other, start, made)
            for other in made.values
            if other != name and other in start.values
        ]
        compared += [
            _compare(run, other, start, made, "BM25")
            for other in made.values
            if _beside(other) in start.values
        ]
        for each in compared:
            logger.info("verdict: %s", each)
        if opens != best or compared[0].verdict == "worse":
            opened = "the start" if opens != best else "it all the same (train.keep=best)"
            logger.info("model_file=%s opens %s", run.output_dir, opened)
        facts |= {
            "verdict": compared[0].verdict,
            "line": str(compared[0]),
            "comparisons": [vars(one) for one in compared],
        }
        write_json(run.output_dir / VERDICT_FILE, facts)

    def state_dict(self) -> dict[str, Any]:
        return {"values": self._values} if self._values else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._values = dict(state["values"])


def validations_ahead(run: Run) -> list[Validation]:
    """Those that the run will reach."""
    epochs = range(-(-run.last_step // run.steps_per_epoch))
    return [each for each in run.validations if any(map(each.is_due, epochs))]


def is_start_measured(run: Run) -> bool:
    """Whether ``train.eval_at_start``, ``keep`` or a guard asks for it or, where the first is absent, the
    start has weights and measuring it is cheap beside training. All ranks call it together."""
    train, ahead = run.settings.train, validations_ahead(run)
    is_needed = train.keep == "better" or any(each.guard is not None for each in ahead)
    wanted = True if is_needed else train.eval_at_start
    if wanted is not None or not ahead or run.model.is_random:
        return bool(wanted and ahead)
    num_texts, trained = sum(each.num_texts(run.model) for each in ahead), _PASSES * run.plan.num_texts()
    if num_texts > MOST_SHARE * trained:
        message = (
            "the start is not measured: %d texts would be encoded, more than %.0f %% of what training does;"
            " train.eval_at_start=true"
        )
        logger.info(f"{message} measures it", num_texts, 100 * MOST_SHARE)
    return num_texts <= MOST_SHARE * trained


def _compared(run: Run, metrics: Metrics) -> Values:
    """Of these metrics, the values of questions of those that are compared, and of BM25 beside them."""
    names = [run.best_by(metrics)[0], *(name for each in run.validations for name in each.judged_by)]
    wanted = dict.fromkeys([*names, *map(_beside, names)])
    values = {
        name: listed
        for each in run.validations
        for name, listed in each.values.items()
        if name in wanted and name in metrics
    }
    return {name: values[name] for name in wanted if name in values}


def _compare(run: Run, name: str, one: Measured, other: Measured, against: str = "the start") -> Comparison:
    theirs = _beside(name) if against == "BM25" else name
    before, ours = one.values.get(theirs, ()), other.values.get(name, ())
    if not (before and ours and all(map(math.isfinite, (*before, *ours)))):
        was, now = one.metrics[theirs], sum(ours) / len(ours) if ours else other.metrics[name]
        return Comparison(name, against, "not tested", was, now, now - was)
    from dpr.evaluation.significance import HIGHER, LOWER, TOO_FEW, paired_test

    test = paired_test((before, ours), flips=_FLIPS)
    words = (
        {HIGHER: "better", LOWER: "worse"} if _is_highest(run, name) else {HIGHER: "worse", LOWER: "better"}
    )
    interval = (None, None) if test.outcome == TOO_FEW else (test.low, test.high)
    numbers = test.first, test.second, test.difference, *interval, test.p_flips, test.num_questions
    return Comparison(name, against, words.get(test.outcome, test.outcome), *numbers)


def _is_highest(run: Run, name: str) -> bool:
    train = run.settings.train
    return (name == train.best_metric and train.best_is_highest) or higher_is_better(run.validations, name)


def _checkpoint(run: Run, step: int) -> str:
    return f"{run.settings.checkpoint_file_name}.step{step}"


def _beside(name: str, what: str = "bm25") -> str:
    """The same metric of what stands beside the start."""
    head, _, kind = name.rpartition("/")
    return f"{head}/{what}/{kind}"
