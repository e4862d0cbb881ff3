"""What importing the trainer loads of this toolkit: a reader of it opens these modules and no others."""

from __future__ import annotations

import subprocess
import sys

MODULES = 95
COUNT = """
import sys, dpr.training.trainer
print(sum(name == "dpr" or name.startswith("dpr.") for name in sys.modules))
"""


def test_the_trainer_loads_no_more_than_training_needs() -> None:
    done = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= MODULES
