"""Trainings on the CPU and on the simulated device, for a process of their own: prints one line of JSON for
each, as soon as it is over.

python -m tests.simulated.runs FOLDER
"""

import json
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from dpr.core.records import Passage, TrainingSample
from dpr.formats.corpora import write_passages
from dpr.losses.nll import BiEncoderNllLoss
from dpr.models.biencoder import TowerOptions
from dpr.training import grad_cache
from dpr.training.bi_encoder_trainer import BiEncoderTrainer
from dpr.training.callbacks import Callback
from dpr.training.optimizer import optimizer_tensors
from dpr.training.run import Run
from dpr.training.validations.protocol import Metrics
from tests.helpers.jobs import embed
from tests.helpers.tiny import ListSource, encoder_folder, make_samples, static_folder, tiny_model
from tests.helpers.training import Curve, StopAfter, make_trainer
from tests.simulated import device
from tests.unit.training.test_retrieval_validation import entry, write_retrieval_set


@dataclass(frozen=True)
class Training:
    """A training of two epochs of two steps: its encoder's folder, and settings of towers and trainer."""

    trainer: dict[str, Any] = field(default_factory=dict)
    towers: dict[str, Any] = field(default_factory=dict)
    options: TowerOptions = field(default_factory=lambda: TowerOptions(temperature=0.5))
    encoder: str = "layer"
    is_resumed: bool = False
    """Stopped after its first step, and resumed by a trainer with a model of its own."""


LENGTH_1 = {"shared": True, "normalize": True, "pooling": "mean"}
LEARNED = TowerOptions(temperature=0.5, learn_temperature=True)
FROZEN = TowerOptions(temperature=0.5, fix_ctx_encoder=True)
TAUGHT = {"kl_weight": 1.0, "margin_mse_weight": 0.1}
STATIC = {"learning_rate": 0.05, "adam_eps": 0.01}

RUNS: dict[str, Training] = {
    "direct": Training(encoder="encoder"),
    "accumulated, with an average of the weights": Training(
        {"gradient_accumulation_steps": 2, "ema_decay": 0.9, "num_train_epochs": 3}
    ),
    "checkpointed activations": Training({"gradient_checkpointing": True}, encoder="encoder"),
    "gradient caching": Training({"grad_cache_tokens": 60}, encoder="encoder"),
    "padded": Training(options=TowerOptions(temperature=0.5, packed=False)),
    "bf16": Training({"precision": "bf16"}, encoder="encoder"),
    "fp16 with its scaler": Training({"precision": "fp16", "grad_cache_tokens": 60}),
    "resumed": Training({"ema_decay": 0.9}, is_resumed=True),
    "loss in blocks": Training({"loss": BiEncoderNllLoss(max_scores=50)}, options=LEARNED),
    "every slot a candidate": Training({"candidates": "dpr"}),
    "both directions": Training({"symmetric_weight": 0.5}),
    "a teacher's scores": Training(TAUGHT, options=LEARNED),
    "a teacher's scores alone": Training({"nll_weight": 0.0, **TAUGHT}),
    "a model's vectors": Training({"teacher": "teacher"}),
    "a model's vectors of questions": Training({"teacher": "teacher"}, options=FROZEN),
    "stored vectors": Training({"teacher": "teacher-vectors*"}),
    "a filter of false negatives": Training({"guide": ["table-vectors*"], "guide_threshold": 0.3}),
    "several widths, one tower": Training({"dimensions": [16, 5]}, LENGTH_1),
    "a projection, other negatives": Training({"other_negatives": 1}, {"projection_dim": 6}),
    "static towers": Training(
        STATIC, {"pooling": "idf", "normalize": True, "shared": True}, encoder="static"
    ),
    "static towers, averaged": Training(
        {**STATIC, "ema_decay": 0.9, "grad_cache_tokens": 200}, {"pooling": "mean"}, encoder="static"
    ),
    "static questions": Training(
        STATIC, {"static_questions": True, "pooling": "mean", "projection_dim": 6}, FROZEN
    ),
    "adapters": Training({}, {"adapter": "lora", "lora_rank": 2}),
    "validation by average rank": Training({"val_av_rank_start_epoch": 1}),
    "validation by search": Training({"validation": [entry(Path())], "eval_at_start": True}),
}


class Moments(Callback):
    """What waits for the device in steps, by their numbers, and at a log line, a validation and a checkpoint."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, int]] = {}

    def on_train_begin(self, run: Run) -> None:
        device.forget()

    def on_step_end(self, run: Run) -> None:
        self._note(f"step {run.progress.step}")

    def on_log(self, run: Run, metrics: Metrics) -> None:
        self._note("log line")

    def on_validate_end(self, run: Run, metrics: Metrics) -> None:
        self._note("validation")

    def on_save(self, run: Run, folder: Path) -> None:
        self._note("checkpoint")

    def _note(self, moment: str) -> None:
        self.found[moment] = dict(Counter(device.waits()))
        device.forget()


def scored(samples: list[TrainingSample]) -> list[TrainingSample]:
    """Passages with a teacher's scores, but for a few."""

    def with_score(passage: Passage) -> Passage:
        size = len(passage.text)
        return replace(passage, teacher_score=None if size % 5 == 0 else size / 20, id=passage.text)

    return [
        replace(
            sample,
            positives=tuple(map(with_score, sample.positives)),
            hard_negatives=tuple(map(with_score, sample.hard_negatives)),
            other_negatives=tuple(map(with_score, sample.other_negatives)),
        )
        for sample in samples
    ]


def prepare(folder: Path) -> None:
    """Writes what the trainings read, and makes ``folder`` the working directory."""
    os.environ["DPR_CACHE"] = str(folder / "cache")
    os.chdir(write_retrieval_set(folder))
    encoder_folder(Path("layer"), num_hidden_layers=1)
    static_folder(Path("static"))
    tiny_model(Path("layer"), seed=9, dtype=torch.float32).save("teacher")
    tiny_model(Path("static"), seed=9, dtype=torch.float32, pooling="mean").save("table")
    passages = {passage.id: passage for sample in scored(make_samples(16)) for passage in sample.passages}
    write_passages(Path("taught.tsv"), passages.values())
    for model in ("teacher", "table"):
        assert embed([f"model={model}", "corpus=taught.tsv", f"out={model}-vectors", "device=cpu"]) == 0
    grad_cache.MIN_CHUNK_TOKENS = 1


def trained(name: str, at: torch.device) -> dict[str, Any]:
    training = RUNS[name]
    moments, curve = Moments(), Curve()

    def job(*callbacks: Callback) -> BiEncoderTrainer:
        model = tiny_model(
            Path(training.encoder), dtype=torch.float32, options=training.options, **training.towers
        ).to(at)
        sets = [ListSource(scored(make_samples(16)))], [ListSource(make_samples(5, seed=1), "dev")]
        options = {"learning_rate": 1e-3, "adam_eps": 1e-3, "log_batch_step": 3, **training.trainer}
        out = Path("runs") / at.type / name
        return make_trainer(model, *sets, out, moments, curve, *callbacks, **options)

    if training.is_resumed:
        job(StopAfter(1)).train()
    last = job()
    last.train()
    weights = last.model.weights()
    return {
        "curve": [*curve.losses, *curve.norms],
        "validation": list(last.progress.last_metrics.values()),
        "weights": [float(weight.cpu().double().square().sum()) for weight in weights.values()],
        "num_weights": len(weights),
        "num_tensors": len(weights) + len(optimizer_tensors(last.model, last.optimizer)),
        "waits": moments.found,
    }


def report(names: list[str], run: Callable[[str, torch.device], dict[str, Any]]) -> None:
    """Prints what each run has found on the CPU and on the device, or how it failed."""
    simulated = device.install()
    places = {"cpu": torch.device("cpu"), "simulated": simulated}
    for name in names:
        found: dict[str, Any] = {"name": name}
        try:
            found |= {place: run(name, at) for place, at in places.items()}
        except Exception:
            found["error"] = traceback.format_exc()[-3000:]
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    prepare(Path(sys.argv[1]).resolve())
    report(sys.argv[2:] or list(RUNS), trained)
