"""A checkpoint folder made to do harm: refused, and nothing outside it is opened."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from dpr.core.errors import CheckpointError
from dpr.models.biencoder import BiEncoder
from dpr.storage.durable import MANIFEST, describe_file, durable_folder, verify_folder
from tests.helpers.tiny import tiny_model

_opened: list[str] | None = None


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if _opened is not None and event == "open":
        _opened.append(str(arguments[0]))


sys.addaudithook(_note)  # cannot be taken back, so it is idle but inside ``files_opened``


@contextmanager
def files_opened() -> Iterator[list[str]]:
    global _opened
    _opened = found = []
    try:
        yield found
    finally:
        _opened = None


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    with durable_folder(folder / "c") as target:
        tiny_model(folder / "encoder", dtype=torch.float32).write_to(target)
    return folder / "c"


def listed(name: str) -> Callable[[Path, Path], None]:
    """The manifest lists one more file, with the size and hash of the secret."""

    def change(folder: Path, secret: Path) -> None:
        manifest = json.loads((folder / MANIFEST).read_text())
        manifest["files"][name.replace("SECRET", str(secret))] = describe_file(secret)
        (folder / MANIFEST).write_text(json.dumps(manifest))

    return change


def linked(name: str) -> Callable[[Path, Path], None]:
    """A file, or a whole folder, is a link to the same content elsewhere, so that every hash agrees."""

    def change(folder: Path, secret: Path) -> None:
        moved = secret.parent / "moved"
        (folder / name).rename(moved)
        (folder / name).symlink_to(moved)

    return change


def added(name: str, *, link: bool = False) -> Callable[[Path, Path], None]:
    """A file that the manifest does not know."""

    def change(folder: Path, secret: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to(secret) if link else shutil.copy(secret, folder / name)

    return change


EVIL: dict[str, Callable[[Path, Path], None]] = {
    **{
        f"manifest lists {name!r}": listed(name)
        for name in ("../secret", "SECRET", "a/../../secret", "encoder/../../secret", "..", ".", "")
    },
    **{
        f"manifest lists {name!r}": listed(name)
        for name in ("..\\secret", "secret\0", "/", "//secret", "nowhere", "x/" * 500)
    },
    **{
        f"{name} is a link": linked(name)
        for name in ("model.safetensors", "encoder_settings.json", "encoder/config.json", "encoder", MANIFEST)
    },
    "a link beside": added("link", link=True),
    "a link in the encoder": added("encoder/vocab.txt", link=True),
    "code beside": added("encoder/modeling.py"),
    "a file beside": added("extra.bin"),
}


def test_files_opened_are_seen(good: Path) -> None:
    with files_opened() as opened:
        BiEncoder.load(good)
    assert {str(good / MANIFEST), str(good / "encoder_settings.json")} <= set(opened)


@pytest.mark.parametrize("case", EVIL)
def test_it_is_refused_and_nothing_outside_is_opened(case: str, good: Path, tmp_path: Path) -> None:
    folder, secret = tmp_path / "c", tmp_path / "outside" / "secret"
    shutil.copytree(good, folder)
    (folder / "encoder" / "vocab.txt").unlink(missing_ok=True) if "vocab" in case else None
    secret.parent.mkdir()
    secret.write_text("secret")
    (tmp_path / "secret").write_text("secret")
    EVIL[case](folder, secret)
    with files_opened() as opened, pytest.raises(CheckpointError):
        BiEncoder.load(folder)
    assert verify_folder(folder)
    assert not [path for path in opened if path.startswith((str(secret.parent), str(tmp_path / "secret")))]


@pytest.mark.parametrize("name", ["..", "../other", "/etc", "a/b", ".", "x\0", 3, ["c"], {"a": 1}, True])
def test_a_run_cannot_name_a_checkpoint_elsewhere(name: Any, good: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    shutil.copytree(good, tmp_path / "other")
    (tmp_path / "run" / "run.json").write_text(json.dumps({"best_checkpoint": name, "last_checkpoint": name}))
    with pytest.raises(CheckpointError):
        BiEncoder.load(tmp_path / "run")
