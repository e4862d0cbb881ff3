"""Settings state what they may be, and a check names the key, the value and what is allowed; paths are as users write them."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dpr.cli.main import COMMANDS
from dpr.core.errors import ConfigError
from dpr.core.paths import matching_paths, user_path
from dpr.core.settings import (
    IDENTITY,
    NO_EFFECT,
    WARNED,
    Settings,
    drop_unused,
    flat_values,
    sections,
    setting,
    settings,
    unused_keys,
)


@dataclass
class Inner(Settings):
    """A section."""

    share: float = setting(0.5, least=0, most=1, on_resume=WARNED)
    """How much."""
    kind: str = setting("a", choices=("a", "b"), on_resume=IDENTITY)


@dataclass
class Outer(Settings):
    """The root."""

    count: int = setting(1, unit="steps", least=1, on_resume=NO_EFFECT)
    """How many."""
    rate: float = setting(0.1, above=0)
    dropout: float | None = setting(None, least=0, below=1)
    epochs: list[int] | None = setting(None, least=0)
    where: int | str | None = None
    inner: Inner = field(default_factory=Inner)

    def check_together(self, prefix: str) -> None:
        if self.count > 5 and self.inner.kind == "b":
            raise ConfigError(f"{prefix}count={self.count} and {prefix}inner.kind=b are mutually exclusive")


@dataclass
class Where(Settings):
    """A mix-in."""

    device: str | None = None
    """Which."""
    speed: int = 0


@dataclass
class Writing(Where):
    writer: str | None = None
    speed: int = 0
    inner: Inner = field(default_factory=Inner)

    def unused(self) -> Iterator[str]:
        if self.writer is None:
            yield from ("device", "inner")


@dataclass
class Command(Writing):
    overwrite: bool = False


def test_what_does_nothing_is_known_and_set_to_its_default() -> None:
    command = Command(device="cpu", speed=1, inner=Inner(kind="b"))
    assert unused_keys(command) == ["device", "inner.share", "inner.kind"]
    assert drop_unused(command) == ["device", "inner.kind"]
    assert command == Command(speed=1)
    assert unused_keys(Command(writer="quick", device="cpu")) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 0}, "count=0 is out of range; it must be at least 1"),
        ({"rate": 0.0}, "rate=0.0 is out of range; it must be above 0"),
        ({"rate": float("nan")}, "rate=nan is out of range; it must be above 0"),
        ({"rate": float("inf")}, "rate=inf is out of range; it must be above 0"),
        ({"dropout": 1.0}, r"dropout=1.0 is out of range; it must be in [0, 1)"),
        ({"epochs": [1, -1]}, "epochs=-1 is out of range; it must be at least 0"),
        ({"inner": Inner(share=2)}, "inner.share=2 is out of range; it must be in [0, 1]"),
        ({"inner": Inner(kind="c")}, "inner.kind=c is not known; choose one of a, b"),
        ({"count": "3"}, "count='3' is not a whole number"),
        ({"count": True}, "count=True is not a whole number"),
        ({"count": None}, "count=None is not a whole number"),
        ({"where": 1.5}, "where=1.5 is not a whole number or a text"),
        ({"count": 6, "inner": Inner(kind="b")}, "count=6 and inner.kind=b are mutually exclusive"),
    ],
)
def test_a_check_names_the_key_the_value_and_what_is_allowed(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Outer(**changes).check()
    assert str(error.value) == message


def test_what_is_allowed_passes() -> None:
    Outer().check()
    Outer(count=3, rate=1, dropout=0.0, epochs=(0, 2), where="[CLS]", inner=Inner(1.0, "b")).check()


def test_settings_are_made_of_a_mapping_in_which_none_is_the_default() -> None:
    assert Outer.from_mapping({"count": 3, "rate": None, "epochs": []}, "train.") == Outer(count=3, epochs=[])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cuont": 3}, "unknown setting train.cuont; did you mean count?"),
        ({"nothing": 3}, "unknown setting train.nothing; it has count, rate, dropout, epochs, where, inner"),
        ({"count": 0}, "train.count=0 is out of range"),
    ],
)
def test_a_mapping_with_what_is_no_setting_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        Outer.from_mapping(given, "train.")


def test_settings_are_listed_with_their_words_and_rules() -> None:
    entries = {entry.key: entry for entry in settings(Outer)}
    assert list(entries) == ["count", "rate", "dropout", "epochs", "where", "inner.share", "inner.kind"]
    assert (entries["inner.share"].doc, entries["count"].rule.unit) == ("How much.", "steps")
    assert sections(Outer) == {"": Outer, "inner": Inner}


def test_values_are_found_by_what_a_change_means() -> None:
    assert flat_values(Outer(), (IDENTITY, WARNED)) == {"inner.share": 0.5, "inner.kind": "a"}
    assert flat_values(Outer(), (NO_EFFECT,)) == {"count": 1}


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


def test_home_is_meant_unless_a_file_has_that_name(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
