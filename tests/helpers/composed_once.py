"""Composes a command line when it is imported: Hydra's parser is faster in every fork of this process."""

from __future__ import annotations

from dpr.cli.launch import answer
from dpr.training.settings import BiEncoderTrainConfig

answer(
    "biencoder_train_cfg",
    BiEncoderTrainConfig,
    lambda config: None,
    ["train_datasets=[a.json]", "output_dir=out", "encoder.dropout=0.1"],
    program="dpr train",
    is_main=False,
)
