"""Whether a run has made its model better: what it began with, measured before its first step, and a paired test at its end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpr.core.distributed import from_main, on_main
from dpr.core.logs import get_logger
from dpr.formats.checkpoints import RUN_FILE, VERDICT_FILE
from dpr.formats.metrics_files import is_beside
from dpr.storage.durable import read_json, write_json
from dpr.training.callbacks.protocol import Callback
from dpr.training.metrics import Metrics
from dpr.training.run import Run
from dpr.training.validations.protocol import Validation, guard_limits, higher_is_better, run_validations

logger = get_logger(__name__)

MOST_SHARE = 0.2
"""The start is not measured where that would cost a larger share of what training does."""
_PASSES = 3  # of a text in training: backward takes twice as long as forward
_FLIPS = 10_000
_START = "start"

Values = Mapping[str, Sequence[float]]
"""By metric, the value of every question."""


@dataclass(frozen=True)
class Comparison:
    """A metric of the best checkpoint against that of the start, or of BM25; the last four are missing where questions have no values."""

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
        words = {"no difference": f"no difference to {self.against}", "not tested": f"not tested against {self.against}"}
        interval = f", 95 % interval {self.low:+.3f} to {self.high:+.3f}, {self.num_questions} questions" if self.low is not None else ""
        numbers = f"{self.metric.removeprefix('eval/')} {self.before:.3f} -> {self.after:.3f}, {self.difference:+.3f}{interval}"
        return f"{words.get(self.verdict, f'{self.verdict} than {self.against}')} ({numbers})"


class Verdict(Callback):
    """Measures the start of a run, by all validations that it will reach: ``run.progress.start_metrics``. At the end, says in the log and
    in ``verdict.json`` whether the best checkpoint is better. Training is not changed by it.

    Checkpoints hold the values of each question at the start, at the best checkpoint and at their step, of the metrics that are compared.
    """

    def __init__(self) -> None:
        self._values: dict[str, Values] = {}

    def on_train_begin(self, run: Run) -> None:
        if run.progress.step < run.last_step:  # that of an earlier end
            on_main(lambda: (run.output_dir / VERDICT_FILE).unlink(missing_ok=True))
        if run.progress.step or run.progress.start_metrics or not is_start_measured(run):
            return
        run.progress.start_metrics = metrics = run_validations(validations_ahead(run), run.model, at_start=True)
        self._values = {_START: _compared(run, metrics)}
        metrics |= {_beside(name, "guard"): limit for name, (limit, _) in guard_limits(run.validations, metrics).items()}
        shown = (name for name in metrics if not is_beside(name) or name in self._values[_START] or "/guard/" in name)
        logger.info("step 0  %s", "  ".join(f"{name} {metrics[name]:.4f}" for name in shown))

    def on_validate_end(self, run: Run, metrics: Metrics) -> None:
        if run.progress.start_metrics:
            kept = (_START, run.progress.best_checkpoint)  # the present one is the best once it is saved
            self._values = {key: values for key, values in self._values.items() if key in kept}
            self._values[_checkpoint(run, run.progress.step)] = _compared(run, metrics)

    def on_train_end(self, run: Run) -> None:
        progress, start = run.progress, run.progress.start_metrics
        best = progress.best_checkpoint
        name = progress.best_metric or run.best_by(progress.last_metrics)[0]
        if not start or name not in start or not (best or guard_limits(run.validations, start)):
            return
        is_ahead = progress.best_value is not None and (progress.best_value - start[name]) * (1 if _is_highest(run, name) else -1) > 0
        opened = _checkpoint(run, 0) if run.settings.train.keep == "better" and not is_ahead else best
        if opened and opened != best and not from_main((run.output_dir / opened).is_dir()):
            logger.warning("the start was not saved, since train.keep=better was not set then; the best checkpoint stays %s", best)
            opened = best
        on_main(lambda: self._write(run, name, best, opened))
        if opened != best:
            progress.best_metric, progress.best_value, progress.best_checkpoint = name, start[name], opened
            on_main(lambda: write_json(run.output_dir / RUN_FILE, {**read_json(run.output_dir / RUN_FILE), **progress.best()}))

    def _write(self, run: Run, name: str, best: str | None, opened: str | None) -> None:
        """All comparisons, that by which the best was chosen first."""
        facts: dict[str, Any] = {"best_checkpoint": best, "opens": opened, "step": run.progress.step}
        facts["guards"] = {guarded: limit for guarded, (limit, _) in guard_limits(run.validations, run.progress.start_metrics).items()}
        if best is None:
            line = f"no checkpoint keeps the guards ({', '.join(f'{guarded} {limit:.3f}' for guarded, limit in facts['guards'].items())})"
            logger.info("verdict: %s; model_file=%s opens the %s", line, run.output_dir, "start" if opened else "last checkpoint")
            write_json(run.output_dir / VERDICT_FILE, {**facts, "verdict": "guards broken", "line": line, "comparisons": []})
            return
        start, after = self._values.get(_START, {}), self._values.get(best, {})
        found = [_compare(run, name, start, after)]
        found += [_compare(run, other, start, after) for other in after if other != name and other in start]
        found += [_compare(run, other, start, after, beside) for other in after if (beside := _beside(other)) in start]
        for one in found:
            logger.info("verdict: %s", one)
        if opened != best or found[0].verdict == "worse":
            logger.info("model_file=%s opens %s", run.output_dir, "the start" if opened != best else "it all the same (train.keep=best)")
        facts |= {"verdict": found[0].verdict, "line": str(found[0]), "comparisons": [vars(one) for one in found]}
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
    """Whether ``train.eval_at_start``, ``train.keep`` or a guard asks for it or, where the first is absent, the start has weights and
    measuring it is cheap beside training. All ranks call it together."""
    train, ahead = run.settings.train, validations_ahead(run)
    is_needed = train.keep == "better" or any(each.guard is not None for each in ahead)
    wanted = True if is_needed else train.eval_at_start
    if wanted is not None or not ahead or run.model.is_random:
        return bool(wanted and ahead)
    num_texts, trained = sum(each.num_texts(run.model) for each in ahead), _PASSES * run.plan.num_texts()
    if num_texts > MOST_SHARE * trained:
        message = "the start is not measured: %d texts would be encoded, more than %.0f %% of what training does; train.eval_at_start=true"
        logger.info(f"{message} measures it", num_texts, 100 * MOST_SHARE)
    return num_texts <= MOST_SHARE * trained


def _compared(run: Run, metrics: Metrics) -> Values:
    """Of these metrics, the values of questions of those that are compared, and of BM25 beside them."""
    names = [run.best_by(metrics)[0], *(name for each in run.validations for name in each.judged_by)]
    wanted = dict.fromkeys([*names, *map(_beside, names)])
    values = {name: listed for each in run.validations for name, listed in each.values.items() if name in wanted and name in metrics}
    return {name: values[name] for name in wanted if name in values}


def _compare(run: Run, name: str, start: Values, after: Values, beside: str = "") -> Comparison:
    before, against = start.get(beside or name, ()), "BM25" if beside else "the start"
    ours = after.get(name, ())
    if min(len(before), len(ours)) < 2 or not all(map(math.isfinite, (*before, *ours))):
        was, now = run.progress.start_metrics[beside or name], sum(ours) / len(ours) if ours else float(run.progress.best_value or 0)
        return Comparison(name, against, "not tested", was, now, now - was)
    from dpr.evaluation.significance import paired_test

    test = paired_test((before, ours), flips=_FLIPS)
    sign = 1 if _is_highest(run, name) else -1
    verdict = "better" if min(sign * test.low, sign * test.high) > 0 else "worse" if max(sign * test.low, sign * test.high) < 0 else ""
    numbers = test.first, test.second, test.difference, test.low, test.high, test.p_flips, test.num_questions
    return Comparison(name, against, verdict or "no difference", *numbers)


def _is_highest(run: Run, name: str) -> bool:
    train = run.settings.train
    return (name == train.best_metric and train.best_is_highest) or higher_is_better(run.validations, name)


def _checkpoint(run: Run, step: int) -> str:
    return f"{run.settings.checkpoint_file_name}.step{step}"


def _beside(name: str, what: str = "bm25") -> str:
    """The same metric of what stands beside the start."""
    head, _, kind = name.rpartition("/")
    return f"{head}/{what}/{kind}"
