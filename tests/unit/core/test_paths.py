"""Paths as users write them, in the settings of every command."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dpr.cli.main import COMMANDS
from dpr.core.errors import ConfigError
from dpr.core.paths import matching_paths, user_path
from dpr.core.settings import Settings, setting, settings

_NAMES_OF_PATHS = (
    "model_file corpus out out_file output_dir files qrels vectors metrics_file cross_encoder".split()
)


@dataclass
class Job(Settings):
    """Reads and writes."""

    read: Any = setting(None, path="input")
    out: str | None = setting(None, path="output")
    run: str | None = setting(None, path="folder")
    sets: dict[str, Any] = setting(dict, entries=Settings)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def test_the_home_folder_is_meant_unless_a_file_has_that_name(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("~notes.jsonl").touch()
    Path("~root").mkdir()
    names = "~ ~/a ~notes.jsonl ~root/x ~nobody-of-this-name/x a/~ ./~".split()
    found = {name: str(user_path(name)) for name in names}
    literal = {name: name for name in ("~notes.jsonl", "~root/x", "~nobody-of-this-name/x", "a/~")}
    assert found == {"~": str(place / "home"), "~/a": str(place / "home/a"), **literal, "./~": "~"}
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 987_654)
    assert user_path("~/a") == Path("~/a"), "a user without a home folder gets no traceback"


def test_every_command_reads_and_writes_in_the_home_folder(place: Path) -> None:
    missing = [
        f"dpr {name} {entry.key}"
        for name, command in COMMANDS.items()
        for entry in settings(command.settings_class())
        if entry.key.rpartition(".")[2] in _NAMES_OF_PATHS and not entry.rule.path
    ]
    assert not missing
    job = Job(read=["~/a", {"file": "~/b"}], out="~/c")
    job.check()
    assert (job.read, job.out) == ([f"{place}/home/a", {"file": "~/b"}], f"{place}/home/c")


@pytest.mark.parametrize(
    ("given", "is_refused"),
    [
        ({"read": "c.jsonl", "out": "c.jsonl"}, True),
        ({"read": "c.jsonl", "out": "hard"}, True),
        ({"read": "soft", "out": "d/../c.jsonl"}, True),
        ({"read": "*.jsonl", "out": "c.jsonl"}, True),
        ({"read": "LABEL=c.jsonl", "out": "c.jsonl"}, True),
        ({"read": [{"file": "c.jsonl", "pairs": "crops"}], "out": "c.jsonl"}, True),
        ({"read": "named", "sets": {"named": {"file": "c.jsonl"}}, "out": "c.jsonl"}, True),
        ({"read": "d", "out": "d/corpus.tsv"}, True),
        ({"read": "d/corpus.tsv", "out": "d"}, True),
        ({"read": "c.jsonl", "run": "c.jsonl"}, True),
        ({"read": "pipe"}, True),
        ({"read": "c.jsonl", "out": "caf\udce9"}, True),
        ({"read": "c.jsonl", "out": "new"}, False),
        ({"read": "d", "out": "d/new"}, False),
        ({"read": "d", "out": "d/result.json"}, False),
        ({"read": "d/corpus.tsv", "run": "d"}, False),
        ({"read": "d", "run": "d"}, False),
    ],
)
def test_no_command_writes_over_what_it_reads(given: dict[str, Any], is_refused: bool) -> None:
    for name in ("c.jsonl", "d/corpus.tsv", "d/result.json", "d/result.json.sha256"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("x")
    os.link("c.jsonl", "hard")
    os.symlink("c.jsonl", "soft")
    os.mkfifo("pipe")
    job = Job(**given)
    if not is_refused:
        return job.check()
    with pytest.raises(ConfigError, match=r"^(read|out|run)=") as caught:
        job.check()
    assert "\n" not in str(caught.value)


def test_a_folder_with_brackets_in_its_name_is_no_pattern() -> None:
    for name in ("my [data]/a.jsonl", "my [data]/b.jsonl", "my [data]/a[1].txt", "my d/a.jsonl"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    patterns = "my [data]/[ab].jsonl", "my [data]/a[1].txt", "my [d]/*"
    found = {each: [str(path) for path in matching_paths(each)] for each in patterns}
    first = ["my [data]/a.jsonl", "my [data]/b.jsonl"]
    second = ["my [data]/a[1].txt"]
    assert found == {"my [data]/[ab].jsonl": first, second[0]: second, "my [d]/*": ["my d/a.jsonl"]}
