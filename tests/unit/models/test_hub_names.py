"""Models by their names on the hub: fetched once, without pickles and code, then found in the cache."""

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import constants

from dpr import BiEncoder, CheckpointError, EncoderSettings, to_sentence_transformer
from dpr.cli.main import main
from dpr.models.sources import snapshot_of
from tests.helpers.published import publish
from tests.helpers.tiny import tiny_model

TEXTS = ["ba be", "bi bo bu"]
COMMIT = "1" * 40


class Hub(BaseHTTPRequestHandler):
    """One repository, by the routes that the client of the hub asks for."""

    protocol_version = "HTTP/1.1"
    name = "sentence-transformers/tiny"
    files: dict[str, bytes]
    asked: list[str]

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def answer(self, *, with_body: bool) -> None:
        self.asked.append(self.path)
        path = self.path.partition("?")[0]
        status = 200
        headers = {"X-Repo-Commit": COMMIT}
        body = b"{}"
        if path == f"/api/models/{self.name}/revision/main":
            siblings = [{"rfilename": name} for name in self.files]
            body = json.dumps({"id": self.name, "sha": COMMIT, "siblings": siblings}).encode()
        elif path.startswith(f"/api/models/{self.name}/tree/"):
            listed = [
                {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for name, content in self.files.items()
            ]
            body = json.dumps(listed).encode()
        elif path.startswith(f"/{self.name}/resolve/"):
            file = path.split("/", 5)[5]
            status = 200 if file in self.files else 404
            body = self.files.get(file, b"")
            headers["ETag"] = f'"{hashlib.sha1(body).hexdigest()}"'
            if status == 404:
                headers["X-Error-Code"] = "EntryNotFound"
        elif path != "/":
            status = 404
            headers["X-Error-Code"] = "RepoNotFound"
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def model(tmp_path: Path) -> BiEncoder:
    """A model whose folder of sentence-transformers the hub has, with a pickle and code beside it."""
    pytest.importorskip("sentence_transformers")
    stated = {"shared": True, "pooling": "mean", "normalize": True, "plain_apostrophes": False}
    model = tiny_model(tmp_path / "encoder", dtype=torch.float32, **stated)
    to_sentence_transformer(model).save_pretrained(str(tmp_path / "st"), create_model_card=False)
    folder = tmp_path / "st"
    Hub.asked = []
    stored = [file for file in folder.rglob("*") if file.is_file()]
    Hub.files = {str(file.relative_to(folder)): file.read_bytes() for file in stored}
    Hub.files |= {"pytorch_model.bin": b"pickle", "modeling.py": b"raise SystemExit"}
    return model


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A hub on this machine, with an empty cache, in an empty folder."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.chdir(tmp_path)
    snapshot_of.cache_clear()
    yield
    snapshot_of.cache_clear()
    server.shutdown()
    server.server_close()


def test_a_name_is_fetched_and_then_found_without_a_network(
    model: BiEncoder, hub: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = model.encode(TEXTS)
    np.testing.assert_allclose(BiEncoder("tiny").encode(TEXTS), expected, atol=1e-6)
    fetched = {file.name for file in (tmp_path / "cache").rglob("snapshots/*/*")}
    assert {"modules.json", "model.safetensors", "1_Pooling"} <= fetched
    assert not {"pytorch_model.bin", "modeling.py"} & fetched
    count = len(Hub.asked)
    BiEncoder.load("tiny")
    assert len(Hub.asked) == count, "a process asks for a model once"
    towers = BiEncoder.from_pretrained("sentence-transformers/tiny", EncoderSettings())
    assert (towers.settings.pooling, towers.settings.normalize) == ("mean", True)

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    snapshot_of.cache_clear()
    Hub.asked.clear()
    for name in ("tiny", "sentence-transformers/tiny"):
        np.testing.assert_allclose(BiEncoder.load(name).encode(TEXTS), expected, atol=1e-6)
    assert BiEncoder.from_pretrained("sentence-transformers/tiny").similarity_fn_name == "cosine"
    assert not Hub.asked


def test_a_name_has_the_tokens_of_its_folder(hub: None, tmp_path: Path) -> None:
    folder = tmp_path / "published"
    publish(folder, "google/embeddinggemma-300m")  # with a token that has no row
    Hub.asked = []
    stored = [file for file in folder.rglob("*") if file.is_file()]
    Hub.files = {str(file.relative_to(folder)): file.read_bytes() for file in stored}
    names = ("sentence-transformers/tiny", str(folder))
    models = [BiEncoder.from_pretrained(name, EncoderSettings()) for name in names]
    assert models[0].fingerprint == models[1].fingerprint


def test_unknown_names(model: BiEncoder, hub: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match="no such file or folder here, and the hub gives no such model"):
        BiEncoder.load("nobody/nothing")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match=r"no network; download it .*\(hf download nobody/nothing\)"):
        BiEncoder("nobody/nothing")

    # a misspelt run beside others is not looked up
    (tmp_path / "runs").mkdir()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    Hub.asked.clear()
    for name in ("runs/frist", "./nothing", "a/b/c"):
        with pytest.raises(CheckpointError, match="there is no such file or folder"):
            BiEncoder.load(name)
    assert not Hub.asked


def test_commands(model: BiEncoder, hub: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The short ones of sentence-transformers, too; once fetched, without a network."""
    words = ["ba be bi", "bo bu ba", "be be bo", "bi bu bu"]
    texts = [f"{words[row % 4].capitalize()}. Be {row % 7} bi." for row in range(40)]
    lines = [{"_id": str(row), "text": text} for row, text in enumerate(texts)]
    Path("corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    adapt = ["adapt", "corpus.jsonl", "model=tiny", "out=adapted"]
    assert main(adapt) == 0
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    snapshot_of.cache_clear()
    assert main(adapt) == 0
    assert main(["merge", "base=tiny", "tuned=adapted/model", "weights=0.5", "out=merged"]) != 0
    assert main(["merge", "base=tiny", "tuned=tiny", "weights=0.5", "out=merged"]) == 0

    with_adapters = BiEncoder.load("tiny", settings=EncoderSettings(adapter="lora", lora_rank=4))
    with_adapters.save("adapters")
    np.testing.assert_allclose(BiEncoder.load("adapters").encode(TEXTS), model.encode(TEXTS), atol=1e-6)
