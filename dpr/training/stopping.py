"""Stopping a run when it is asked to: all ranks at the same step, with a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dpr.core.distributed import AgreedRequest
from dpr.core.errors import StopRequested
from dpr.core.stopping import StopSignals, describe

if TYPE_CHECKING:
    from dpr.training.trainer import BiEncoderTrainer


@contextmanager
def stoppable(trainer: BiEncoderTrainer) -> Iterator[Callable[[], None]]:
    """A block in which signals ask ``trainer`` to stop. Yields what every rank calls after every step.

    Raises:
        StopRequested: by that call, on all ranks at the same step, when any rank was asked. A checkpoint of that step was written.
    """
    agreed = AgreedRequest()
    with StopSignals() as signals:

        def stop_if_asked() -> None:
            if number := agreed.update(signals.requested()):
                agreed.finish()
                _stop(trainer, number)

        yield stop_if_asked
        agreed.finish()


def _stop(trainer: BiEncoderTrainer, number: int) -> None:
    step = trainer.progress.step
    if trainer.saved_step != step:
        trainer.save()
    if trainer.saved_step != step:
        raise StopRequested(
            f"{describe(number)}; step {step} could not be saved, the checkpoints before it are whole", exit_code=128 + number
        )
    trainer.checkpoints.note_stop(step)
    raise StopRequested(f"{describe(number)}; saved at step {step} of {trainer.total_steps}. Run the same command again to go on")
