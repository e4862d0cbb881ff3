"""A gate in the middle of a process's work, so that a test can kill it there however slow the machine is."""

import os
import time
from pathlib import Path

from torch import Tensor

from dpr.models.pooling import MeanPooling

FOLDER = "DPR_TESTS_GATE"
_passed = [0]


def pass_gate(*, free: int) -> None:
    """Does nothing ``free`` times; then signs in, and waits until the file ``open`` exists in the named folder."""
    _passed[0] += 1
    folder = Path(os.environ.get(FOLDER, os.devnull))
    if not folder.is_dir() or _passed[0] <= free or (folder / "open").exists():
        return
    (folder / f"{os.getpid()}.waits").touch()
    while not (folder / "open").exists():
        time.sleep(0.02)


class GatedPooling(MeanPooling):
    def padded(self, hidden: Tensor, tokens: Tensor, mask: Tensor, position: Tensor) -> Tensor:
        pass_gate(free=12)
        return super().padded(hidden, tokens, mask, position)

    def packed(self, hidden: Tensor, tokens: Tensor, lengths: Tensor, position: Tensor) -> Tensor:
        pass_gate(free=12)
        return super().packed(hidden, tokens, lengths, position)
