"""A teacher in ``dpr adapt``: its scores of mined negatives, and a training by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpr.jobs import mine, prepare, score, train
from dpr.jobs.stages import Stages
from dpr.mining.settings import MineCommand, ScoreCommand
from dpr.storage.durable import read_json
from dpr.training.command_settings import BiEncoderTrainConfig

_WIDEST_MARGIN = 3.0
"""What is learned, in temperatures, for the widest of the teacher's scores."""


def teach(
    stages: Stages,
    training: BiEncoderTrainConfig,
    *,
    teacher: Path,
    cut: prepare.PrepareSettings,
    made_of: dict[str, Any],
    read: str,
    processes: int,
) -> None:
    """Trains the model further on the teacher's margins between pairs and the negatives that BM25 and this
    model find for them, among the passages of the pairs: were those held back negatives, the dev questions
    would tell nothing.

    Args:
        training: the settings of the training, but for the data and the margins.
        teacher: folder of a cross-encoder or a bi-encoder.
        cut: the settings that write the pairs as a file, and ``made_of`` those that decide which.
        read: the stage that has prepared the texts.
    """
    first = str(training.model_file)
    out = stages.out
    cut.out = str(out / "pairs" / "cut")
    stages.run("pairs", "pairs, as a file", prepare, cut, outputs=["cut"], settings=made_of, after=[read])

    made = ["pairs.jsonl", "pairs.jsonl.audit.json"]
    files = {name: str(out / name / "pairs.jsonl") for name in ("mined_bm25", "mined", "scored")}
    by_words = MineCommand(
        files=[str(out / "pairs" / "cut" / "train.jsonl")], out=files["mined_bm25"], per_question=3
    )
    stages.run("mined_bm25", "negatives, by BM25", mine, by_words, outputs=made, after=["pairs"])
    by_model = MineCommand(
        files=[files["mined_bm25"]],
        out=files["mined"],
        per_question=3,
        keep_existing=True,
        model_file=first,
        device=training.device,
    )
    both = ["mined_bm25", Path(first).name]
    stages.run("mined", "negatives, by the encoder", mine, by_model, outputs=made, after=both)
    scoring = ScoreCommand(files=[files["mined"]], out=files["scored"], device=training.device)
    described = teacher / "config.json"
    if described.is_file() and "ForSequenceClassification" in described.read_text():
        scoring.cross_encoder = str(teacher)
    else:
        scoring.model_file = str(teacher)
    given = {"teacher": [teacher]}
    stages.run("scored", "the teacher's scores", score, scoring, outputs=made, files=given, after=["mined"])

    audit = read_json(Path(f"{files['scored']}.audit.json"))
    scores = audit["positive_score_quantiles"] + audit["negative_score_quantiles"]
    temperature = training.loss.temperature or 1.0
    scale = _WIDEST_MARGIN * temperature / (max(scores) - min(scores) or 1)
    training.train_datasets = files["scored"]
    training.train.hard_negatives = 6
    training.train.num_train_epochs = 1
    training.loss.temperature = None  # the model's own
    training.loss.nll_weight = 0.0
    training.loss.margin_mse_weight = float(f"{2 / temperature**2:g}")
    training.loss.margin_mse_scale = float(f"{scale:g}")
    stages.run(
        "model",
        "training, by the teacher",
        train,
        training,
        settings={"seed": training.seed},
        after=[Path(first).name, "scored"],
        processes=processes,
    )
