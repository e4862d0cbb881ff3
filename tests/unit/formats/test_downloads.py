"""Downloads are checked and appear whole, from a server on this machine; archives unpack inside their folder or not at all."""

import gzip
import hashlib
import io
import random
import stat
import struct
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dpr.cli.main import main
from dpr.core.errors import ConfigError, InputError
from dpr.formats.downloads import download, unpack

CONTENT = random.Random(0).randbytes(3_000_000)


@dataclass
class Server:
    """What the server does; ``asked`` are the paths it was asked for."""

    files: dict[str, bytes] = field(default_factory=dict)
    break_after: list[int] = field(default_factory=list)
    fail_first: int = 0
    redirect: str = ""
    with_length: bool = True
    length: str = ""
    asked: list[str] = field(default_factory=list)
    url: str = ""


def handler(state: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            state.asked.append(self.path)
            if state.fail_first > 0:
                state.fail_first -= 1
                self.send_error(503)
            elif state.redirect:
                self.send_response(302)
                self.send_header("Location", state.redirect)
                self.end_headers()
            elif self.path not in state.files:
                self.send_error(404)
            else:
                self._send(state.files[self.path])

        def _send(self, content: bytes) -> None:
            self.send_response(200)
            if state.with_length:
                length = state.length.encode().decode("latin-1")
                self.send_header("Content-Length", length or str(len(content)))
            self.end_headers()
            with suppress(ConnectionError):  # of a client that has read enough
                self.wfile.write(content[: state.break_after.pop(0)] if state.break_after else content)

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
    assert server.asked == ["/x.bin"]
    assert [path.name for path in target.parent.iterdir()] == ["x.bin"]


def test_a_broken_connection_begins_anew(server: Server, tmp_path: Path) -> None:
    server.break_after = [1_100_000, 700_000]
    fetch(server, tmp_path / "x.bin")
    assert (tmp_path / "x.bin").read_bytes() == CONTENT
    assert len(server.asked) == 3


def test_nothing_half_is_left_and_a_later_run_begins_anew(server: Server, tmp_path: Path) -> None:
    server.break_after = [1_000_000]
    with pytest.raises(InputError, match=r"the connection fails .*; the same command tries again"):
        fetch(server, tmp_path / "x.bin", attempts=1)
    assert list(tmp_path.iterdir()) == []
    fetch(server, tmp_path / "x.bin", attempts=1)
    assert (tmp_path / "x.bin").read_bytes() == CONTENT


def test_a_busy_server_is_asked_again(server: Server, tmp_path: Path) -> None:
    server.fail_first = 3
    assert fetch(server, tmp_path / "x.bin")
    server.fail_first = 10
    with pytest.raises(InputError, match="the connection fails"):
        fetch(server, tmp_path / "y.bin", attempts=3)
    assert len(server.asked) == 4 + 3


def test_a_wrong_checksum_leaves_nothing(server: Server, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"x.bin: SHA-256 is \w{64}, expected 0000"):
        fetch(server, tmp_path / "x.bin", sha256="0" * 64)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "x.bin").write_bytes(b"older")
    with pytest.raises(InputError, match=r"x.bin: SHA-256 is .*; remove the file to fetch it again"):
        fetch(server, tmp_path / "x.bin", sha256=hashlib.sha256(CONTENT).hexdigest())


def test_a_page_in_place_of_the_file_is_refused(server: Server, tmp_path: Path) -> None:
    server.files["/x.gz"] = b"<html>please log in</html>"
    with pytest.raises(InputError, match="not gzip data"):
        fetch(server, tmp_path / "x.gz", "/x.gz")
    assert not (tmp_path / "x.gz").exists()


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("file:///etc/passwd", "redirects to|is not allowed"),
        ("ftp://127.0.0.1/x", "redirects to|is not allowed"),
        ("http://[::1/x", "cannot be read"),
    ],
)
def test_other_redirects_are_refused(server: Server, tmp_path: Path, place: str, message: str) -> None:
    server.redirect = place
    with pytest.raises(InputError, match=message):
        fetch(server, tmp_path / "x.bin", attempts=1)


def test_other_mistakes_are_reported(server: Server, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the server answers 404"):
        fetch(server, tmp_path / "x", "/nothing")
    with pytest.raises(ConfigError, match="does not begin with http"):
        download("file:///etc/passwd", tmp_path / "x")


def test_a_file_without_announced_length_is_taken(server: Server, tmp_path: Path) -> None:
    server.with_length = False
    assert fetch(server, tmp_path / "x.bin")
    assert (tmp_path / "x.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("length", ["abc", "1e3", "5, 5", "9" * 5000, "\u0663"])
def test_a_length_that_is_not_a_number_is_reported(server: Server, tmp_path: Path, length: str) -> None:
    server.length = length
    with pytest.raises(InputError, match="the server's answer cannot be read"):
        fetch(server, tmp_path / "x.bin", attempts=1)
    assert list(tmp_path.iterdir()) == []


def test_the_command_fetches_keys_where_data_sets_are_looked_for(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    server.files |= {"/biencoder-nq.json.gz": gzip.compress(b"[]"), "/LICENSE": b"free"}
    server.files |= {"/v_0": b"a", "/v_1": b"b"}
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
    names = "datasets/encoder_train_default datasets/retriever_default ctx_sources/default_sources"
    for name in names.split():
        for key, entry in yaml.safe_load((conf_folder() / f"{name}.yaml").read_text()).items():
            assert targets[entry["source"]].removesuffix(".gz") == entry["file"], key


def zipped(*members: tuple[str, int, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, mode, content in members:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, content)
    return out.getvalue()


def lying_zip() -> bytes:
    """The directory states 10 bytes, the data unpack to 5 MB."""
    data = bytearray(zipped(("a", 0o100644, b"0" * 5_000_000)))
    place = data.rindex(b"PK\x01\x02")
    data[place + 24 : place + 28] = struct.pack("<I", 10)
    return bytes(data)


def encrypted_zip() -> bytes:
    data = bytearray(zipped(("a", 0o100644, b"abc")))
    place = data.rindex(b"PK\x01\x02")
    data[place + 8] |= 1
    return bytes(data)


EVIL: dict[str, Callable[[], bytes]] = {
    "zip parent": lambda: zipped(("../out", 0o100644, b"x")),
    "zip absolute": lambda: zipped(("/tmp/out", 0o100644, b"x")),
    "zip symbolic link": lambda: zipped(("a", stat.S_IFLNK | 0o777, b"/etc")),
    "zip device": lambda: zipped(("a", stat.S_IFCHR | 0o666, b"")),
    "zip drive letter": lambda: zipped(("C:/out", 0o100644, b"x")),
    "zip bomb": lambda: zipped(("a", 0o100644, b"0" * 5_000_000)),
    "zip lying about its size": lying_zip,
    "zip encrypted": encrypted_zip,
    "zip our own manifest": lambda: zipped(("manifest.json", 0o100644, b"{}")),
    "cut off": lambda: zipped(("a", 0o100644, bytes(range(256)) * 400))[:-40],
    "the same file twice": lambda: zipped(("a", 0o100644, b"x"), ("./a", 0o100644, b"y")),
    "backslash": lambda: zipped(("..\\out", 0o100644, b"x")),
    "too many files": lambda: zipped(*((str(number), 0o100644, b"x") for number in range(60))),
    "no archive": lambda: b"PK or not",
}


@pytest.mark.parametrize("name", EVIL)
def test_evil_archives_are_refused_and_leave_nothing(tmp_path: Path, name: str) -> None:
    file = "x.zip"
    inside = tmp_path / "deep" / "inside"
    inside.mkdir(parents=True)
    (inside / file).write_bytes(EVIL[name]())
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError) as caught:
        unpack(inside / file, inside / "out", max_files=50, max_bytes=1_000_000)
    assert str(inside / file) in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_good_archive_is_unpacked(tmp_path: Path) -> None:
    """Without it the test above could pass because everything is refused."""
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("sub")
        archive.writestr("a.txt", "a")
        archive.writestr("sub/b.txt", "b" * 100_000)
    assert unpack(tmp_path / "x.zip", tmp_path / "out") == 2
    assert (tmp_path / "out" / "a.txt").read_text() == "a"
    assert (tmp_path / "out" / "sub" / "b.txt").read_text() == "b" * 100_000
    with pytest.raises(InputError, match="already exists"):
        unpack(tmp_path / "x.zip", tmp_path / "out")
