"""``python -m dpr train ...`` and ``torchrun -m dpr train ...``."""

from dpr.cli.main import run

run()
