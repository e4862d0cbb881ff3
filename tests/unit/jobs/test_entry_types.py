"""Options of catalogue entries are checked by their declared types and bounds, whatever the entry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpr.core.errors import ConfigError
from dpr.jobs.training_sources import resolve_training_files


@pytest.mark.parametrize(
    ("option", "value", "found"),
    [
        ("selector", True, "selector=True is not a whole number or a text"),
        ("selector", 1.5, "selector=1.5 is not a whole number or a text"),
        ("selector", -1, "selector=-1 is out of range; it must be at least 0"),
        ("weight", "much", "weight='much' is not a number"),
        ("weight", -1.0, "weight=-1.0 is out of range; it must be at least 0"),
        ("shuffle_positives", 1, "shuffle_positives=1 is not true or false"),
        ("encoder_type", "both", "encoder_type=both is not known; choose one of question, ctx"),
    ],
)
def test_an_option_of_the_wrong_type_or_out_of_range_is_refused(
    tmp_path: Path, option: str, value: Any, found: str
) -> None:
    (tmp_path / "train.json").write_text("[]")
    with pytest.raises(ConfigError) as error:
        resolve_training_files(["mine"], {"mine": {"file": str(tmp_path / "train.json"), option: value}})
    assert str(error.value) == f"datasets.mine.{found}"
