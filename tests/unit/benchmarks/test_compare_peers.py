"""``benchmarks.compare_peers``: both trainers do the same work, and the table says what was measured."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import compare_peers
from benchmarks.compare_peers import QUICK, prepare, rows_of, section, train_ours, train_rival, values_of
from tests.helpers.examples import IS_THOROUGH

pytestmark = pytest.mark.skipif(
    find_spec("sentence_transformers") is None, reason="sentence-transformers is not installed"
)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("peers")
    prepare(folder, None)
    return folder


def run_of(out: Path, name: str) -> Path:
    (out / name).mkdir()
    return out / name


@pytest.mark.skipif(not IS_THOROUGH, reason="takes long; make fuzz runs it")
def test_both_trainers_take_the_same_steps_and_find_the_same(out: Path) -> None:
    """Rows, negatives, weights, loss, clipping, optimizer and schedule: else the losses would part."""
    case = QUICK[0]
    assert len(rows_of(case, out)) == case.rows
    ours = train_ours(case, out, run_of(out, "ours"), 3, same_loss=True, log_every=1)
    theirs = train_rival(case, out, run_of(out, "theirs"), 3, log_every=1)
    assert len(ours) == case.epochs * case.rows // case.batch
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-3, atol=1e-4)
    assert ours[-1] < 0.9 * ours[0], "something is learned"
    found = [values_of(out / name, out, out / name / "model") for name in ("ours", "theirs")]
    assert found[0] == pytest.approx(found[1]) and 0 < sum(found[0].values()) < len(found[0])


def test_the_table_has_ratios_seed_by_seed_and_paired_differences() -> None:
    def measured(seconds: float, values: list[float]) -> dict[str, Any]:
        found = {str(number): value for number, value in enumerate(values)}
        return {
            "seconds": seconds,
            "cpu": 2 * seconds,
            "mb": 100.0,
            "rows": 2000,
            "losses": [],
            "questions": found,
        }

    rival = [measured(20, [0.0, 1.0, 0.5]), measured(30, [0.5, 0.5, 0.5])]
    ours = [measured(10, [0.5, 1.0, 0.5]), measured(10, [1.0, 1.0, 0.5])]
    lines = section(compare_peers.CASES[0], {"dpr": ours, "dpr_same_loss": ours, "rival": rival}).splitlines()
    (line,) = (line for line in lines if line.startswith("| dpr |"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1:8] == [
        "200",
        "2.50 (2.00 to 3.00)",
        "20",
        "0.42 (0.33 to 0.50)",
        "100",
        "0.667 0.833",
        "0.750",
    ]
    assert cells[8].startswith("+0.250 (")
    assert lines[-1].startswith("| sentence-transformers") and lines[-1].endswith("|  |")


def test_without_data_it_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["compare_peers", "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit):
        compare_peers.main()
    assert "--data FOLDER is missing" in capsys.readouterr().err
