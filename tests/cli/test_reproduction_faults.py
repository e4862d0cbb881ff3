"""The small form of a published result notices a toolkit that is broken: each fault turns one of its numbers to FAIL."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dpr.cli.main import main
from tests.architecture.source_files import REPOSITORY
from tests.helpers.patience import patient

_RUN = "import runpy, sys; {fault}; sys.argv = ['dpr', 'reproduce', 'dpr-nq', *sys.argv[1:]]; runpy.run_module('dpr', run_name='__main__')"
_SCORES = "import dpr.losses.nll as m; old = m.score_matrix; m.score_matrix = lambda q, c, t: "
_MATCH = "import dpr.evaluation.answer_match as m; m._match_strings = lambda text, askers: "
FAULTS = {
    "passages get no gradient": ("train", _SCORES + "old(q, c.detach(), t)"),
    "another temperature": ("train", _SCORES + "old(q, c, t) / 1.5"),
    "no hard negatives": ("train", "import dpr.data.collator as m; m._draw = lambda *_: ()"),
    "answers inside of words": ("bm25", _MATCH + "[any(a.lower() in text.lower() for a in answers) for answers in askers]"),
}


@pytest.fixture(scope="module")
def run(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run without a fault, which reaches its numbers: the small form of the family dpr-single."""
    out = tmp_path_factory.mktemp("faults") / "run"
    assert outcomes(out, shared_data, "0") <= {"OK", "within tolerance"}
    assert main(["verify", str(out / "repro.json")]) == 0
    return out


def outcomes(out: Path, data: Path, fault: str, *stages: str) -> set[str]:
    """Of the numbers of these stages, or of all, which are run from the start where ``out`` has them not."""
    line = ["size=mini", f"data={data}", f"out={out}", "keep_going=true", *([f"stage=[{','.join(stages)}]"] if stages else [])]
    command = [sys.executable, "-c", _RUN.format(fault=fault), *line]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "DPR_CACHE": str(out.parent / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=patient(300))
    assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr[-500:]
    return {number["outcome"] for number in json.loads((out / "repro.json").read_text())["numbers"]}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_a_number_that_fails(fault: str, run: Path, shared_data: Path) -> None:
    stage, patch = FAULTS[fault]
    shutil.rmtree(run / stage)
    assert "FAIL" in outcomes(run, shared_data, patch, stage)
