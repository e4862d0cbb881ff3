"""A folder goes to the hub whole, once, and as it was written, or not at all; the hub is a small server on this machine."""

from __future__ import annotations

import base64
import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from dpr.export.folders import ATTRIBUTES, LARGE_FILES
from dpr.storage.durable import durable_folder
from tests.helpers.jobs import push as main

TOKEN = "hf_of_the_test"


class Hub(ThreadingHTTPServer):
    """What the client asks of a hub when it commits a few small files."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.calls: list[str] = []
        self.created: dict[str, Any] = {}
        self.files: dict[str, bytes] = {}
        self.message = ""
        self.is_refusing = False

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.calls.append(self.path)
        if self.server.is_refusing or self.headers["Authorization"] != f"Bearer {TOKEN}":
            self._answer({"error": "You have no permission"}, 403)
        elif self.path == "/api/repos/create":
            self.server.created = json.loads(body)
            self._answer({"url": f"{self.server.address}/me/model", "name": "me/model", "id": "me/model"})
        elif self.path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
        elif self.path == "/api/models/me/model/preupload/main":
            files = [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in json.loads(body)["files"]]
            self._answer({"files": files})
        elif self.path == "/api/models/me/model/commit/main":
            for line in body.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    self.server.files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
                else:
                    self.server.message = entry["value"]["summary"]
            self._answer({"commitUrl": f"{self.server.address}/me/model/commit/1", "commitOid": "1" * 40, "success": True})
        else:
            self._answer({"error": "not found"}, 404)

    def do_GET(self) -> None:
        self._answer({"id": "me/model", "sha": "0" * 40})

    def _answer(self, value: Any, code: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with durable_folder(tmp_path / "exported") as temporary:
        (temporary / "README.md").write_text("---\ntags:\n- dense-retrieval\n---\n\n# A model\n")
        (temporary / "onnx").mkdir()
        (temporary / "onnx" / "encoder.onnx").write_bytes(b"weights")
        (temporary / ATTRIBUTES).write_text(LARGE_FILES)
    return tmp_path / "exported"


def test_the_files_of_the_folder_are_uploaded_as_they_are(hub: Hub, folder: Path) -> None:
    (folder / "README.md").write_text("---\nlicense: mit\n---\n\n# A model\n")  # a card may be edited
    (folder / "notes.txt").write_text("private")
    assert main([f"folder={folder}", "repo=me/model", "message=First"]) == 0
    assert sorted(hub.files) == [".gitattributes", "README.md", "manifest.json", "onnx/encoder.onnx"]
    assert all((folder / name).read_bytes() == content for name, content in hub.files.items())
    assert (hub.created["name"], hub.created["organization"], hub.created["visibility"]) == ("model", "me", "private")
    assert hub.message == "First"


def test_nothing_is_sent_without_a_login_or_a_name(
    hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder.parent / "no-token"))
    assert main([f"folder={folder}", "repo=me/model"]) == 2
    assert "hf auth login" in capsys.readouterr().err
    assert main([f"folder={folder}", "repo=model"]) == 2
    assert main([f"folder={folder}"]) == 0
    assert "onnx/encoder.onnx" in capsys.readouterr().out
    assert not hub.calls


def test_what_the_hub_refuses_is_one_sentence(
    hub: Hub, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # These handlers keep the stderr of another test, in which its library was imported or Hydra's logging set up.
    for name in (None, "huggingface_hub"):
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])
    hub.is_refusing = True
    assert main([f"folder={folder}", "repo=me/model"]) == 3
    message = capsys.readouterr().err
    assert "was not uploaded to me/model" in message and "Traceback" not in message


def test_a_changed_folder_is_not_uploaded(hub: Hub, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "onnx" / "encoder.onnx").write_bytes(b"other")
    assert main([f"folder={folder}", "repo=me/model"]) == 3
    assert "onnx/encoder.onnx" in capsys.readouterr().err and not hub.calls


@pytest.mark.parametrize("name", ["README.md", "onnx/encoder.onnx", "onnx", ".gitattributes", "manifest.json"])
def test_no_link_out_of_the_folder_is_uploaded(name: str, hub: Hub, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outside = folder.parent / "outside"
    (folder / name).rename(outside)  # what it points to is what was written, and would pass every checksum
    (folder / name).symlink_to(outside)
    for arguments in ([], ["repo=me/model"]):
        assert main([f"folder={folder}", *arguments]) == 3
    message = capsys.readouterr().err
    assert name in message and "Traceback" not in message and not hub.calls


def test_a_name_in_the_manifest_is_no_pattern(hub: Hub, folder: Path) -> None:
    (folder.parent / "secret").write_text("private")
    with durable_folder(folder.parent / "odd") as odd:
        (odd / "README.md").write_text("# A model\n")
        (odd / "*").write_text("a file of this name")
    (folder.parent / "odd" / "notes.txt").write_text("private")
    (folder.parent / "odd" / "README.md:").symlink_to(folder.parent / "secret")
    assert main([f"folder={folder.parent / 'odd'}", "repo=me/model"]) == 3
    (folder.parent / "odd" / "README.md:").unlink()
    assert main([f"folder={folder.parent / 'odd'}", "repo=me/model"]) == 0
    assert sorted(hub.files) == ["*", "README.md", "manifest.json"]
