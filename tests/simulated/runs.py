"""Trainings on the CPU and on the simulated device, for a process of their own: prints one JSON object.

python -m tests.simulated.runs FOLDER
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from dpr.training.run import Run
from tests.helpers.tiny import ListSource, encoder_folder, make_samples, tiny_model
from tests.helpers.training import Curve, make_trainer
from tests.simulated import device

RUNS: dict[str, dict[str, Any]] = {
    "direct": {},
    "accumulated, with an average of the weights": {"gradient_accumulation_steps": 2, "ema_decay": 0.9},
    "checkpointed activations": {"gradient_checkpointing": True},
}


class Moments(Curve):
    """Also counts what waits from the end of the first step to the end of the second, where nothing is logged,
    validated or saved."""

    def __init__(self) -> None:
        super().__init__()
        self.of_step: Counter[str] = Counter()

    def on_step_end(self, run: Run) -> None:
        if run.progress.step == 2:
            self.of_step.update(device.waits())
        device.forget()


def trained(folder: Path, name: str, at: torch.device) -> dict[str, Any]:
    model = tiny_model(encoder_folder(folder / "encoder"), dtype=torch.float32).to(at)
    sets = [ListSource(make_samples(48))], [ListSource(make_samples(5, seed=1), "dev")]
    moments = Moments()
    job = make_trainer(
        model,
        *sets,
        folder / f"{name}-{at.type}",
        moments,
        learning_rate=1e-3,
        log_batch_step=3,
        **RUNS[name],
    )
    job.train()
    return {
        "curve": [*moments.losses, *moments.norms],
        "validation": list(job.progress.last_metrics.values()),
        "waits": dict(moments.of_step),
    }


if __name__ == "__main__":
    simulated = device.install()
    places = {"cpu": torch.device("cpu"), "simulated": simulated}
    found = {
        name: {place: trained(Path(sys.argv[1]), name, at) for place, at in places.items()} for name in RUNS
    }
    print(json.dumps(found))
