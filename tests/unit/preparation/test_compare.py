"""The table of several retrieval runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dpr.cli.compare import main
from dpr.core.errors import ConfigError, InputError


def report(folder: Path, name: str, *, questions: int = 7, **metrics: float) -> str:
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"question_set": "test", "num_questions": questions, "metrics": metrics}))
    return str(path)


def test_runs_stand_side_by_side_in_the_order_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = report(tmp_path, "first", **{"accuracy@20": 0.5, "mrr@10": 0.25})
    second = report(tmp_path, "second", **{"accuracy@20": 0.75})
    assert main([f"BM25={first}", second, "--out", str(tmp_path / "all.json")]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["test,", "7", "questions"]
    assert lines[1] == ["top-20", "MRR@10"]
    assert lines[3:] == [["BM25", "0.500", "0.250"], ["second", "0.750", "-"]]
    stored = json.loads((tmp_path / "all.json").read_text())
    assert stored["runs"]["BM25"]["metrics"] == {"accuracy@20": 0.5, "mrr@10": 0.25}


def test_runs_about_other_questions_other_files_and_double_labels_are_refused(tmp_path: Path) -> None:
    first = report(tmp_path, "first", **{"mrr@10": 0.5})
    with pytest.raises(InputError, match="8 questions"):
        main([first, report(tmp_path, "other", questions=8, **{"mrr@10": 0.5})])
    with pytest.raises(ConfigError, match="two files"):
        main([first, first])
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(InputError, match="metrics file"):
        main([str(tmp_path / "list.json")])
