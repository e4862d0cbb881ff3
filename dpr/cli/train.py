"""``dpr train`` and ``train_dense_encoder.py``."""

from __future__ import annotations

from dpr.cli.launch import launch
from dpr.config.training import BiEncoderTrainConfig


def main(argv: list[str]) -> int:
    """Trains a bi-encoder, or only evaluates one when no training data are named."""
    return launch("biencoder_train_cfg", BiEncoderTrainConfig, _train, argv)


def _train(config: BiEncoderTrainConfig) -> float | None:
    from dpr.assembly.training import run

    return run(config)
