"""The command line of ``dpr serve``: names of folders, and what is refused before anything starts."""

import socket
from pathlib import Path

import pytest

from dpr.cli.main import main as dpr
from dpr.core.errors import ConfigError, InputError
from dpr.jobs.serve import named

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")
pytest.importorskip("prometheus_client", reason="the extra serve is not installed")


def test_folders_are_called_by_their_label_or_their_name(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "se cond", "third")]
    for folder in folders:
        folder.mkdir()
        (folder / "search.json").touch()
    given = [str(folders[0]), str(folders[1]), f"other={folders[2]}"]
    assert list(named(given)) == ["first", "se-cond", "other"]
    with pytest.raises(ConfigError, match="two folders are called first"):
        named([given[0], f"first={folders[2]}"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "there is nothing to serve"),
        (["runs/x", "prot=3"], "unknown setting prot; did you mean port"),
        (["runs/x", "port=70000"], "port=70000 is out of range"),
        (["runs/x", "modes=sparse"], "sparse is not known"),
        (["runs/x", "metadata=year:date"], "year is of kind date"),
        (["empty"], "no search.json"),
        (["runs/x", "token_file=none.txt"], "none.txt: cannot be read"),
        (["runs/x", "host=0.0.0.0"], "lets other machines search without a token"),
        (["runs/x", "host=example"], "lets other machines search without a token"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_a_sentence(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "runs" / "x").mkdir(parents=True)
    (tmp_path / "runs" / "x" / "search.json").touch()
    assert dpr(["serve", *arguments]) in (2, 3)
    assert words in capsys.readouterr().err


def test_a_port_that_is_taken_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "search.json").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert dpr(["serve", str(tmp_path), f"port={port}"]) == 2
    assert f"port={port}: " in capsys.readouterr().err


def test_a_token_is_one_line_without_spaces(tmp_path: Path) -> None:
    from dpr.serving.server import read_token

    (tmp_path / "good").write_text("abc-123\n")
    assert read_token(tmp_path / "good") == "abc-123"
    for text in ("", "two words", "a\nb", "é"):
        (tmp_path / "bad").write_text(text)
        with pytest.raises(InputError):
            read_token(tmp_path / "bad")


def test_indexes_that_do_not_open_end_the_service(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "search.json").write_text('{"schema": 1, "passages": [{"file": "none.tsv"}]}')
    assert dpr(["serve", str(tmp_path), "port=0"]) == 3
    assert "none.tsv" in capsys.readouterr().err
