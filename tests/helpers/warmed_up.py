"""Composes a command line and makes a model when it is imported, which forks of this process then have."""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from dpr.cli.launch import answer
from dpr.training.command_settings import TrainCommand
from tests.helpers.tiny import tiny_model

answer(
    "biencoder_train_cfg",
    TrainCommand,
    lambda config: None,
    ["train_datasets=[a.json]", "output_dir=out", "encoder.dropout=0.1"],
    program="dpr train",
    is_main=False,
)

# With one thread nothing of this leaves a thread behind, which a fork would lose.
torch.set_num_threads(1)
with TemporaryDirectory() as folder:
    for shared in (False, True):
        tiny_model(Path(folder), shared=shared)
