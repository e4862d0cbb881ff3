"""Negatives are counted as the data have them, and hard ones that are left unused are reported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.helpers.tiny import ListSource, make_samples, tiny_model
from tests.helpers.training import make_trainer


@pytest.mark.parametrize(("hard_negatives", "has_hard", "own"), [(1, True, 1), (0, True, 0), (1, False, 0)])
def test_negatives_are_counted_as_they_are_there(
    tmp_path: Path, hard_negatives: int, has_hard: bool, own: int, caplog: pytest.LogCaptureFixture
) -> None:
    samples = make_samples(16)
    if not has_hard:
        samples = [replace(sample, hard_negatives=(), other_negatives=()) for sample in samples]
    model = tiny_model(tmp_path / "encoder", dtype=torch.float32)
    with caplog.at_level("INFO"):
        make_trainer(model, [ListSource(samples)], [], tmp_path / "run", hard_negatives=hard_negatives, max_steps=1).train()
    width = 8 * (1 + own)
    assert f"up to {width} contexts, so up to {width - 1} negatives per question of which {own} are its own" in caplog.text
    assert caplog.text.count("have hard negatives, but train.hard_negatives=0 ignores them") == (has_hard and not hard_negatives)
