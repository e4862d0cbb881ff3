"""Downloads resume where they broke off, are checked, and appear whole. Against a server on this machine."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dpr.cli.main import main
from dpr.core.errors import CheckpointError, ConfigError, InputError
from dpr.formats.downloads import download

CONTENT = random.Random(0).randbytes(3_000_000)


@dataclass
class Server:
    """What the server does; ``asked`` are the Range headers it got, ``sent`` the bytes it sent."""

    files: dict[str, bytes] = field(default_factory=dict)
    tag: str | None = '"one"'
    break_after: list[int] = field(default_factory=list)
    fail_first: int = 0
    refuse_with: int = 0
    redirect: str = ""
    with_length: bool = True
    length: str = ""
    asked: list[str | None] = field(default_factory=list)
    sent: int = 0
    url: str = ""


def handler(state: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            state.asked.append(self.headers.get("Range"))
            if state.fail_first > 0:
                state.fail_first -= 1
                self.send_error(503)
            elif state.refuse_with:
                self.send_error(state.refuse_with)
            elif state.redirect:
                self.send_response(302)
                self.send_header("Location", state.redirect)
                self.end_headers()
            elif self.path not in state.files:
                self.send_error(404)
            else:
                self._send(state.files[self.path])

        def _send(self, content: bytes) -> None:
            start = 0
            asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            if asked and self.headers.get("If-Range") == state.tag:
                start = int(asked[1])
                if start >= len(content):
                    self.send_error(416)
                    return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            if state.with_length:
                self.send_header(
                    "Content-Length", state.length.encode().decode("latin-1") or str(len(content) - start)
                )
            if state.tag:
                self.send_header("ETag", state.tag)
            self.end_headers()
            part = content[start : start + state.break_after.pop(0)] if state.break_after else content[start:]
            self.wfile.write(part)
            state.sent += len(part)

    return Handler


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server({"/x.bin": CONTENT})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler(state)) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        state.url = f"http://127.0.0.1:{running.server_address[1]}"
        yield state
        running.shutdown()
        thread.join()


def fetch(server: Server, target: Path, name: str = "/x.bin", **options: object) -> bool:
    return download(server.url + name, target, pause_s=0.01, **options)  # type: ignore[arg-type]


def test_a_file_is_fetched_once(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "x.bin"
    assert fetch(server, target, sha256=hashlib.sha256(CONTENT).hexdigest())
    assert target.read_bytes() == CONTENT
    assert not fetch(server, target)
    assert server.asked == [None]
    assert [path.name for path in target.parent.iterdir()] == ["x.bin"]


def test_a_broken_connection_is_continued(server: Server, tmp_path: Path) -> None:
    server.break_after = [1_100_000, 700_000]
    fetch(server, tmp_path / "x.bin")
    assert (tmp_path / "x.bin").read_bytes() == CONTENT
    assert server.asked == [None, "bytes=1100000-", "bytes=1800000-"]
    assert server.sent == len(CONTENT)


def test_a_later_run_continues_what_an_earlier_left(server: Server, tmp_path: Path) -> None:
    server.break_after = [1_000_000]
    with pytest.raises(InputError, match="1,000,000 bytes are kept; the same command continues there"):
        fetch(server, tmp_path / "x.bin", attempts=1)
    assert not (tmp_path / "x.bin").exists()
    fetch(server, tmp_path / "x.bin", attempts=1)
    assert (tmp_path / "x.bin").read_bytes() == CONTENT
    assert server.sent == len(CONTENT)


@pytest.mark.parametrize("tag", ['"two"', None, 'W/"one"'])
def test_what_may_have_changed_meanwhile_is_fetched_again(
    server: Server, tmp_path: Path, tag: str | None
) -> None:
    server.break_after = [1_000_000]
    if tag != '"two"':
        server.tag = tag
    with pytest.raises(InputError, match="bytes are kept"):
        fetch(server, tmp_path / "x.bin", attempts=1)
    server.files["/x.bin"], server.tag = CONTENT[::-1], tag
    fetch(server, tmp_path / "x.bin")
    assert (tmp_path / "x.bin").read_bytes() == CONTENT[::-1]


def test_a_part_of_another_address_is_not_continued(server: Server, tmp_path: Path) -> None:
    server.files["/y.bin"] = CONTENT[::-1]
    server.break_after = [1_000_000]
    with pytest.raises(InputError, match="bytes are kept"):
        fetch(server, tmp_path / "x.bin", attempts=1)
    fetch(server, tmp_path / "x.bin", "/y.bin")
    assert (tmp_path / "x.bin").read_bytes() == CONTENT[::-1]


def test_a_complete_part_is_taken(server: Server, tmp_path: Path) -> None:
    """Killed between the last byte and the renaming: the server has nothing behind it (416)."""
    server.break_after = [len(CONTENT) - 1]
    with pytest.raises(InputError, match="bytes are kept"):
        fetch(server, tmp_path / "x.bin", attempts=1)
    with open(tmp_path / "x.bin.part", "ab") as part:
        part.write(CONTENT[-1:])
    fetch(server, tmp_path / "x.bin")
    assert (tmp_path / "x.bin").read_bytes() == CONTENT


def test_a_busy_server_is_asked_again(server: Server, tmp_path: Path) -> None:
    server.fail_first = 3
    assert fetch(server, tmp_path / "x.bin")
    server.fail_first = 10
    with pytest.raises(InputError, match="the connection fails"):
        fetch(server, tmp_path / "y.bin", attempts=3)
    assert len(server.asked) == 4 + 3


def test_a_server_that_knows_no_range_at_all_is_refused(server: Server, tmp_path: Path) -> None:
    server.break_after = [1_000_000]
    with pytest.raises(InputError, match="bytes are kept"):
        fetch(server, tmp_path / "x.bin", attempts=1)
    server.refuse_with = 416
    with pytest.raises(InputError, match="the server answers 416"):
        fetch(server, tmp_path / "x.bin")
    assert server.asked == [None, "bytes=1000000-", None]


def test_a_wrong_checksum_leaves_nothing(server: Server, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"x.bin.part: SHA-256 is \w{64}, expected 0000"):
        fetch(server, tmp_path / "x.bin", sha256="0" * 64)
    assert not (tmp_path / "x.bin").exists()
    assert (tmp_path / "x.bin.part").stat().st_size == 0
    (tmp_path / "x.bin").write_bytes(b"older")
    with pytest.raises(InputError, match=r"x.bin: SHA-256 is .*; remove the file to fetch it again"):
        fetch(server, tmp_path / "x.bin", sha256=hashlib.sha256(CONTENT).hexdigest())


def test_a_page_in_place_of_the_file_is_refused(server: Server, tmp_path: Path) -> None:
    server.files["/x.gz"] = b"<html>please log in</html>"
    with pytest.raises(InputError, match="not gzip data"):
        fetch(server, tmp_path / "x.gz", "/x.gz")
    assert not (tmp_path / "x.gz").exists()


@pytest.mark.parametrize("place", ["file:///etc/passwd", "ftp://127.0.0.1/x"])
def test_redirects_to_other_kinds_of_addresses_are_refused(
    server: Server, tmp_path: Path, place: str
) -> None:
    server.redirect = place
    with pytest.raises(InputError, match=r"sends us on to|is not allowed"):
        fetch(server, tmp_path / "x.bin")


def test_other_mistakes_are_reported(server: Server, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the server answers 404"):
        fetch(server, tmp_path / "x", "/nothing")
    with pytest.raises(ConfigError, match="does not begin with http"):
        download("file:///etc/passwd", tmp_path / "x")


def test_a_file_without_announced_length_is_taken(server: Server, tmp_path: Path) -> None:
    server.with_length = False
    assert fetch(server, tmp_path / "x.bin")
    assert (tmp_path / "x.bin").read_bytes() == CONTENT


def test_two_processes_do_not_write_one_file(server: Server, tmp_path: Path) -> None:
    lock = {"token": "x", "since": "just now", "processes": [{"host": "elsewhere", "pid": 7, "start": 5}]}
    (tmp_path / "x.bin.part.lock").write_text(json.dumps(lock))
    with pytest.raises(CheckpointError, match=r"process 7 on elsewhere \(rank 0, since just now\)"):
        fetch(server, tmp_path / "x.bin")


@pytest.mark.parametrize("length", ["abc", "-5", "1e3", "5, 5", "9" * 5000, "\u0663"])
def test_a_length_that_is_not_a_number_is_reported(server: Server, tmp_path: Path, length: str) -> None:
    server.length = length
    with pytest.raises(InputError, match="the server announces a Content-Length of"):
        fetch(server, tmp_path / "x.bin")


def test_an_address_in_an_answer_that_is_none_is_reported(server: Server, tmp_path: Path) -> None:
    server.redirect = "http://[::1/x"
    with pytest.raises(InputError, match="cannot be read"):
        fetch(server, tmp_path / "x.bin", attempts=1)


def test_the_command_fetches_keys_where_data_sets_are_looked_for(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    server.files |= {
        "/biencoder-nq.json.gz": gzip.compress(b"[]"),
        "/v_0": b"a",
        "/v_1": b"b",
        "/LICENSE": b"free",
    }
    (tmp_path / "my" / "resources").mkdir(parents=True)
    (tmp_path / "my" / "resources" / "mine.yaml").write_text(
        f"data.retriever.nq-train:\n  url: {server.url}/biencoder-nq.json.gz\n  also: {server.url}/LICENSE\n"
        f"data.vectors.wiki:\n  url: {server.url}/v_{{}}\n  parts: 2\n  suffix: .pkl\n"
    )
    arguments = ["--config-dir", "my", "resources=mine"]
    assert main(["download", "data.retriever.nq-train", *arguments]) == 0, capsys.readouterr().err
    folder = tmp_path / "downloads" / "data"
    assert sorted(path.name for path in (folder / "retriever").iterdir()) == ["LICENSE", "nq-train.json.gz"]
    assert main(["download", "data", *arguments]) == 0  # all that begin so
    assert "nq-train.json.gz: there already" in capsys.readouterr().out
    assert [(folder / "vectors" / f"wiki_{number}.pkl").read_bytes() for number in range(2)] == [b"a", b"b"]
    assert main(["download", "data.retriever.nq-trian", *arguments]) == 2
    assert "did you mean data.retriever.nq-train?" in capsys.readouterr().err


def test_the_catalogue_is_listed_and_leads_to_the_data_sets(capsys: pytest.CaptureFixture[str]) -> None:
    import yaml

    from dpr.cli.keys import conf_folder
    from dpr.jobs.download import files_of
    from dpr.preparation.settings import ResourceConfig

    assert main(["download"]) == 0
    listed = capsys.readouterr().out
    catalogue = yaml.safe_load((conf_folder() / "resources" / "dpr.yaml").read_text())
    targets = {}
    for key, entry in catalogue.items():
        assert f"{key} " in listed
        targets |= {url: str(file) for url, file in files_of(key, ResourceConfig(**entry), Path("downloads"))}
    for name in (
        "datasets/encoder_train_default",
        "datasets/retriever_default",
        "ctx_sources/default_sources",
    ):
        for key, entry in yaml.safe_load((conf_folder() / f"{name}.yaml").read_text()).items():
            assert targets[entry["source"]].removesuffix(".gz") == entry["file"], key
