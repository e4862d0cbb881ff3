"""Stages are copies of a process that has only imported."""

from __future__ import annotations

import subprocess
import sys

from dpr.jobs.ladder.process import _IMPORTED
from tests.architecture.source_files import REPOSITORY

ASKED = """
import importlib, sys, torch

def asked(*arguments, **options):
    raise AssertionError("asks for devices, which no copy of this process could use any more")

torch.cuda.is_available = torch.cuda.device_count = torch.cuda._lazy_init = asked
for name in sys.argv[1:]:
    importlib.import_module(name)
assert not torch.cuda.is_initialized()
"""


def test_what_is_imported_before_a_stage_is_forked_begins_nothing_on_a_gpu() -> None:
    ran = subprocess.run([sys.executable, "-c", ASKED, *_IMPORTED], capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert ran.returncode == 0, ran.stderr
