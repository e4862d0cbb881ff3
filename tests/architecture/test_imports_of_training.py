"""What importing the trainer loads of this toolkit: a reader of it opens these modules and no others."""

from __future__ import annotations

import subprocess
import sys

MODULES, LINES = 90, 12_000
COUNT = """
import sys, dpr.training.trainer
files = [module.__file__ for name, module in sys.modules.items() if name == "dpr" or name.startswith("dpr.")]
print(len(files), sum(len(open(file).read().splitlines()) for file in files))
"""


def test_the_trainer_loads_no_more_than_training_needs() -> None:
    done = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True)
    modules, lines = map(int, done.stdout.split())
    assert modules <= MODULES and lines <= LINES, f"{modules} modules, {lines} lines"
