"""A job that only prints what it was given: for trying launchers and sweeps."""

import os
import sys
from dataclasses import dataclass, field

from dpr.cli.launch import launch
from dpr.training.command_settings import TrainCommand


@dataclass
class Seen:
    """The configurations that the job was called with."""

    configs: list[TrainCommand] = field(default_factory=list)

    def __call__(self, config: TrainCommand) -> float:
        self.configs.append(config)
        return config.train.learning_rate

    @property
    def only(self) -> TrainCommand:
        (config,) = self.configs
        return config


def _print(config: TrainCommand) -> None:
    rank, size = os.environ.get("RANK", "-"), os.environ.get("WORLD_SIZE", "-")
    # One write, line end included, so that two ranks on one pipe do not mix.
    print(f"rank {rank} of {size}: batch_size {config.train.batch_size}\n", end="", flush=True)


if __name__ == "__main__":
    sys.exit(launch("biencoder_train_cfg", TrainCommand, _print, sys.argv[1:]))
