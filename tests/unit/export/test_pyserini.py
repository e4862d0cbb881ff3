"""What Pyserini's encoder of questions computes from an exported folder, and what it could not compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpr.core.errors import InputError
from dpr.export.checking import check, format_of
from dpr.export.folders import export_folder
from tests.helpers.exports import COSINE, MODELS, bert, shared


@pytest.mark.parametrize(
    "name", ["two towers", "mean and cosine", "prompts", "shared, two lengths", "static", "adapters"]
)
def test_questions_have_the_same_vectors(name: str, tmp_path: Path) -> None:
    if name == "adapters":
        pytest.importorskip("peft")
    model = MODELS[name](tmp_path / "made_of")
    export_folder(model, tmp_path / "out", "pyserini", source=name)
    found = check(model, tmp_path / "out", format_of("pyserini"), name)
    assert found is not None and 0 <= found.questions < 1e-5


def test_the_readme_names_its_arguments(tmp_path: Path) -> None:
    export_folder(
        shared(tmp_path / "made_of", query_prompt="be: ", **COSINE),
        tmp_path / "out",
        "pyserini",
        source="model",
    )
    card = (tmp_path / "out" / "README.md").read_text()
    assert """AutoQueryEncoder("PATH", pooling='mean', l2_norm=True, prefix='be:')""" in card


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"projection_dim": 6}, "projection"),
        ({"pooling": "max"}, "pooling is max"),
        ({"dimensions": 5}, "cut to 5"),
        ({"query_prompt": "be:"}, "does not end in a space"),
    ],
)
def test_what_it_cannot_compute_is_refused(settings: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=reason):
        export_folder(bert(tmp_path / "made_of", **settings), tmp_path / "out", "pyserini", source="model")
    assert not (tmp_path / "out").exists()
