"""``benchmarks.compare_peers``: both trainers do the same work."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from benchmarks.compare_peers import QUICK, prepare, rows_of, train_ours, train_rival, values_of
from tests.helpers.examples import IS_THOROUGH

pytestmark = pytest.mark.skipif(
    find_spec("sentence_transformers") is None, reason="sentence-transformers is not installed"
)


def run_of(out: Path, name: str) -> Path:
    (out / name).mkdir()
    return out / name


@pytest.mark.skipif(not IS_THOROUGH, reason="takes long; make fuzz runs it")
def test_both_trainers_take_the_same_steps_and_find_the_same(tmp_path: Path) -> None:
    """Rows, negatives, weights, loss, clipping, optimizer and schedule: else the losses would part."""
    out = tmp_path
    prepare(out, None)
    case = QUICK[0]
    assert len(rows_of(case, out)) == case.rows
    ours = train_ours(case, out, run_of(out, "ours"), 3, same_loss=True, log_every=1)
    theirs = train_rival(case, out, run_of(out, "theirs"), 3, log_every=1)
    assert len(ours) == case.epochs * case.rows // case.batch
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-3, atol=1e-4)
    assert ours[-1] < 0.9 * ours[0], "something is learned"
    found = [values_of(out / name, out, out / name / "model") for name in ("ours", "theirs")]
    assert found[0] == pytest.approx(found[1]) and 0 < sum(found[0].values()) < len(found[0])
