"""What is released: one version everywhere, and a wheel that holds what the program reads besides its
code."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import yaml

import dpr
from tests.architecture.source_files import REPOSITORY

_SOURCES = ("dpr", "conf", "setup.py", "pyproject.toml", "README.md", "LICENSE")
_READ = {".html", ".css", ".js", ".svg", ".typed"}


def test_the_version_is_one() -> None:
    cited = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == dpr.__version__
    changes = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"(?m)^## {re.escape(dpr.__version__)} - {cited['date-released']}$", changes)


def test_the_wheel_has_all_that_is_read_and_nothing_else(tmp_path: Path) -> None:
    for name in _SOURCES:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tmp_path)
    subprocess.run(
        [sys.executable, "setup.py", "-q", "bdist_wheel"], cwd=tmp_path, check=True, capture_output=True
    )
    (wheel,) = (tmp_path / "dist").glob("dpr_toolkit-*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    code = {
        path.relative_to(tmp_path).as_posix()
        for path in (tmp_path / "dpr").rglob("*")
        if path.suffix in _READ | {".py"}
    }
    settings = {
        f"dpr/{path.relative_to(tmp_path).as_posix()}" for path in (tmp_path / "conf").rglob("*.yaml")
    }
    assert names == code | settings
