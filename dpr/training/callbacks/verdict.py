"""What a run began with, measured before its first step."""

from __future__ import annotations

from dpr.core.logs import get_logger
from dpr.formats.metrics_files import is_beside
from dpr.training.callbacks.protocol import Callback
from dpr.training.run import Run
from dpr.training.validations.protocol import Validation, run_validations

logger = get_logger(__name__)

MOST_SHARE = 0.2
"""The start is not measured where that would cost a larger share of what training does."""
_PASSES = 3  # of a text in training: backward takes twice as long as forward


def validations_ahead(run: Run) -> list[Validation]:
    """Those that the run will reach."""
    epochs = range(-(-run.last_step // run.steps_per_epoch))
    return [each for each in run.validations if any(map(each.is_due, epochs))]


class Verdict(Callback):
    """Measures the start of a run, by all validations that it will reach: ``run.progress.start_metrics``. Training is not changed by it."""

    def on_train_begin(self, run: Run) -> None:
        if run.progress.step or run.progress.start_metrics or not is_start_measured(run):
            return
        ahead = validations_ahead(run)
        run.progress.start_metrics = metrics = run_validations(ahead, run.model, at_start=True)
        judged = {name for each in ahead for name in each.judged_by}
        shown = (name for name in metrics if not is_beside(name) or name.replace(name.split("/")[-2] + "/", "") in judged)
        logger.info("step 0  %s", "  ".join(f"{name} {metrics[name]:.4f}" for name in shown))


def is_start_measured(run: Run) -> bool:
    """Whether ``train.eval_at_start`` asks for it or, where it is absent, the start has weights and measuring it is cheap beside training.
    All ranks call it together."""
    wanted, ahead = run.settings.train.eval_at_start, validations_ahead(run)
    if wanted is not None or not ahead or run.model.is_random:
        return bool(wanted and ahead)
    num_texts, trained = sum(each.num_texts(run.model) for each in ahead), _PASSES * run.plan.num_texts()
    if num_texts > MOST_SHARE * trained:
        message = "the start is not measured: %d texts would be encoded, more than %.0f %% of what training does; train.eval_at_start=true"
        logger.info(f"{message} measures it", num_texts, 100 * MOST_SHARE)
    return num_texts <= MOST_SHARE * trained
