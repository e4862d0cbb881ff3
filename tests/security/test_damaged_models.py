"""Model folders damaged in any way end in one line that names the file."""

import base64
import json
import os
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dpr.core.errors import InputError
from dpr.data.tensorizer import Tensorizer
from dpr.models.backbones import load_backbone
from dpr.models.biencoder import BiEncoder
from dpr.models.cross_encoder import CrossEncoder
from dpr.storage.durable import MANIFEST, durable_folder, write_manifest
from tests.helpers.tiny import tiny_model, transformers_folder

Damage = Callable[[Path], None]
CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"


def content(name: str, data: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(data) and None


def cut(name: str, share: float) -> Damage:
    def damage(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(len(data) * share)])

    return damage


def changed(file: str, **values: Any) -> Damage:
    def damage(folder: Path) -> None:
        state = json.loads((folder / file).read_text())
        for path, value in values.items():
            *parents, last = path.split("__")
            place = state
            for parent in parents:
                place = place[parent]
            place[last] = value
        (folder / file).write_text(json.dumps(state))

    return damage


def header(change: Callable[[dict[str, Any]], Any], *, length: int | None = None) -> Damage:
    """A safetensors file with another header."""

    def damage(folder: Path) -> None:
        data = (folder / WEIGHTS).read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        entries = json.loads(data[8 : 8 + size])
        change(entries)
        text = json.dumps(entries).encode()
        (folder / WEIGHTS).write_bytes(
            struct.pack("<Q", len(text) if length is None else length) + text + data[8 + size :]
        )

    return damage


def replacing(text: str, content: str, kind: str = "String") -> dict[str, Any]:
    """A step of a tokenizer."""
    return {"type": "Replace", "pattern": {kind: text}, "content": content}


def piped(name: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return damage


def first_weight(entries: dict[str, Any]) -> dict[str, Any]:
    return next(value for key, value in entries.items() if "query" in key and "weight" in key)  # type: ignore[no-any-return]


def charsmap(trie: bytes, size: int) -> Damage:
    """A normalizer with this double array."""
    table = struct.pack("<I", size) + trie + b"b\0"
    value = base64.b64encode(table).decode()
    return changed(TOKENIZER, normalizer={"type": "Precompiled", "precompiled_charsmap": value})


DAMAGES: dict[str, Damage] = {
    "config: cut": cut(CONFIG, 0.5),
    "config: not UTF-8": content(CONFIG, b'{"model_type": "\xff"}'),
    "config: a list": content(CONFIG, b"[]"),
    "config: nested too deep": content(CONFIG, b'{"a":' * 5000),
    "config: NaN": content(CONFIG, b'{"model_type": "bert", "layer_norm_eps": NaN}'),
    "config: a directory": lambda folder: (folder / CONFIG).unlink() or (folder / CONFIG).mkdir(),  # type: ignore[func-returns-value]
    "config: no model_type": content(CONFIG, b'{"hidden_size": 16}'),
    "config: unknown model_type": changed(CONFIG, model_type="nonsense"),
    "config: another model_type": changed(CONFIG, model_type="distilbert"),
    "config: a million layers": changed(CONFIG, num_hidden_layers=10**6),
    "config: a million layers of another family": changed(
        CONFIG, model_type="modernbert", num_hidden_layers=10**12
    ),
    "config: layers of a part": changed(CONFIG, text_config={"num_hidden_layers": 10**12}),
    "config: negative layers": changed(CONFIG, num_hidden_layers=-1),
    "config: more layers than weights": changed(CONFIG, num_hidden_layers=900),
    "config: layers are a text": changed(CONFIG, num_hidden_layers="2"),
    "config: huge width": changed(CONFIG, hidden_size=1 << 40),
    "config: heads that do not divide": changed(CONFIG, num_attention_heads=3),
    "config: a huge vocabulary": changed(CONFIG, vocab_size=10**11),
    "config: another vocabulary": changed(CONFIG, vocab_size=10),
    "config: unknown activation": changed(CONFIG, hidden_act="nonsense"),
    "config: a billion labels": changed(CONFIG, num_labels=10**9),
    "weights: cut in the header": cut(WEIGHTS, 0.01),
    "weights: header longer than the file": header(lambda entries: None, length=1 << 40),
    "weights: no tensors": header(lambda entries: entries.clear()),
    "weights: offsets behind the end": header(
        lambda entries: first_weight(entries).update(data_offsets=[0, 1 << 40])
    ),
    "weights: another shape": header(lambda entries: first_weight(entries).update(shape=[8, 32])),
    "weights: a huge shape": header(lambda entries: first_weight(entries).update(shape=[1 << 40, 1 << 40])),
    "weights: unknown type": header(lambda entries: first_weight(entries).update(dtype="F99")),
    "weights: header is a list": header(lambda entries: entries.update(x=[])),
    "weights: missing": lambda folder: (folder / WEIGHTS).unlink(),
    "tokenizer: cut": cut(TOKENIZER, 0.5),
    "tokenizer: vocabulary is a list": changed(TOKENIZER, model__vocab=["a"]),
    "tokenizer: negative ids": changed(TOKENIZER, model__vocab={"a": -1}),
    "tokenizer: huge ids": changed(TOKENIZER, model__vocab__ba=10**9),
    "tokenizer: no vocabulary": changed(TOKENIZER, model__vocab={}, added_tokens=[]),
    "tokenizer: unknown model": changed(TOKENIZER, model__type="Nonsense"),
    "tokenizer: added tokens are a number": changed(TOKENIZER, added_tokens=7),
    "tokenizer: post-processor is broken": changed(
        TOKENIZER, post_processor={"type": "TemplateProcessing", "single": 7}
    ),
    "tokenizer: a text grows a thousandfold, twice": changed(
        TOKENIZER, normalizer={"type": "Sequence", "normalizers": [replacing("b", "b" * 1000)] * 2}
    ),
    "tokenizer: an expression beside every letter": changed(
        TOKENIZER, normalizer={"type": "Sequence", "normalizers": [replacing("", "b", "Regex")] * 12}
    ),
    "tokenizer: letters that feed each other": changed(
        TOKENIZER,
        normalizer={"type": "Sequence", "normalizers": [replacing("b", "a" * 40), replacing("a", "b" * 40)]},
    ),
    "tokenizer: a pipe": piped(TOKENIZER),
    "weights: a pipe": piped(WEIGHTS),
    "tokenizer: charsmap claims 4 GB": charsmap(bytes(2048), size=0xFFFFFFFC),
    "tokenizer: settings cut": cut("tokenizer_config.json", 0.5),
    "tokenizer: class is a number": changed("tokenizer_config.json", tokenizer_class=7),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An encoder, a classifier and one of our checkpoints."""
    top = tmp_path_factory.mktemp("good")
    transformers_folder(top / "encoder")
    transformers_folder(top / "classifier", "AutoModelForSequenceClassification")
    with durable_folder(top / "checkpoint") as target:
        tiny_model(top / "random", dtype=torch.float32).write_to(target)
    return {name: top / name for name in ("encoder", "classifier", "checkpoint")}


def damaged(good: Path, folder: Path, damage: Damage) -> Path:
    shutil.copytree(good, folder)
    damage(folder)
    return folder


def message_of(load: Callable[[], object]) -> str:
    """The message of the refusal; "" where the folder is read."""
    started = time.process_time()
    try:
        load()
    except InputError as error:
        found = str(error)
    else:
        found = ""
    assert "\n" not in found
    assert len(found) < 900
    assert time.process_time() - started < 30
    return found


def uses(folder: Path) -> Iterator[Callable[[], object]]:
    def tokenized() -> object:
        return Tensorizer.load(folder, sequence_length=8).question_tokens(["ba be"])

    yield lambda: BiEncoder.load(folder).encode_questions(["ba be"])
    yield lambda: (tokenized(), load_backbone(str(folder)))
    yield lambda: (load_backbone(str(folder)), tokenized())


# Other readers of the same files: a few damages of each.
FEW = [
    *("config: cut", "config: nested too deep", "config: unknown model_type", "config: a million layers"),
    *("weights: cut in the header", "weights: offsets behind the end", "weights: another shape"),
    *("tokenizer: cut", "tokenizer: negative ids", "tokenizer: charsmap claims 4 GB"),
]


def test_undamaged_folders_are_read(folders: dict[str, Path]) -> None:
    for use in uses(folders["encoder"]):
        use()
    CrossEncoder.load(folders["classifier"])
    BiEncoder.load(folders["checkpoint"])


@pytest.mark.parametrize("case", DAMAGES)
def test_each_damage_of_an_encoder_is_one_line(case: str, folders: dict[str, Path], tmp_path: Path) -> None:
    folder = damaged(folders["encoder"], tmp_path / "model", DAMAGES[case])
    for use in uses(folder):
        message = message_of(use)
        assert str(folder) in message, message or "read"


@pytest.mark.parametrize("case", FEW)
def test_a_damage_of_a_cross_encoder_is_one_line(case: str, folders: dict[str, Path], tmp_path: Path) -> None:
    folder = damaged(folders["classifier"], tmp_path / "model", DAMAGES[case])
    assert str(folder) in message_of(lambda: CrossEncoder.load(folder))


@pytest.mark.parametrize("case", [case for case in FEW if not case.startswith("weights")])
def test_a_damage_of_a_checkpoint_is_one_line(case: str, folders: dict[str, Path], tmp_path: Path) -> None:
    """Also where its manifest was made again."""
    folder = damaged(folders["checkpoint"], tmp_path / "model", lambda it: DAMAGES[case](it / "encoder"))
    (folder / MANIFEST).unlink()
    write_manifest(folder, {})
    assert str(folder) in message_of(lambda: BiEncoder.load(folder))
