"""Training on a simulated device equals training on a CPU, mixes no devices, and waits in a step for the check
of the gradient alone.

On CUDA this check reads what has arrived, by an event that the simulated device does not have.
"""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.simulated import device
from tests.simulated.runs import RUNS


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if (reason := device.is_missing()) is not None:
        pytest.skip(reason)
    command = [sys.executable, "-m", "tests.simulated.runs", str(tmp_path_factory.mktemp("runs"))]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_that_of_a_cpu(found: dict[str, Any], name: str) -> None:
    for part in ("curve", "validation"):
        values = found[name]["simulated"][part]
        assert values == pytest.approx(found[name]["cpu"][part], rel=1e-4, abs=1e-4), part


@pytest.mark.parametrize("name", RUNS)
def test_between_log_lines_only_the_check_of_the_gradient_waits(found: dict[str, Any], name: str) -> None:
    assert found[name]["simulated"]["waits"] == {"training/stopping.py:FiniteCheck.stop_if_hopeless": 1}
