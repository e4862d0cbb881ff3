"""A checkpoint or model folder leads nowhere else, by links or by names in its files; its texts are bounded."""

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dpr.core.errors import CheckpointError, InputError
from dpr.models.backbones import load_backbone
from dpr.models.biencoder import BiEncoder
from dpr.models.cross_encoder import CrossEncoder
from dpr.models.settings import EncoderSettings
from dpr.storage.durable import MANIFEST, describe_file, durable_folder, verify_folder
from tests.helpers.tiny import VOCABULARY, encoder_folder, tiny_model, transformers_folder

Change = Callable[[Path, Path], object]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of sentence-transformers around a BERT, which is a Hugging Face folder too."""
    folder = transformers_folder(tmp_path_factory.mktemp("good") / "model")
    types = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense"}
    listed = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in types.items()]
    (folder / "modules.json").write_text(json.dumps(listed))
    for path, text in (
        ("1_Pooling", '{"pooling_mode": "mean"}'),
        ("2_Dense", '{"activation_function": "torch.nn.modules.linear.Identity"}'),
    ):
        (folder / path).mkdir()
        (folder / path / "config.json").write_text(text)
    save_file({"linear.weight": torch.randn(5, 16)}, str(folder / "2_Dense" / "model.safetensors"))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"similarity_fn_name": "dot"}))
    transformers_folder(folder.parent / "classifier", "AutoModelForSequenceClassification")
    return folder


def linked(name: str) -> Change:
    """A file, or a whole folder, is a link to the same content elsewhere, so that every hash agrees."""

    def change(folder: Path, outside: Path) -> None:
        shutil.move(str(folder / name), outside / "moved")
        (folder / name).symlink_to(outside / "moved")

    return change


def sharded(*, name: str = "model.safetensors.index.json", **files: str) -> Change:
    """The weights in two files, by an index that finds some of them elsewhere, beside a decoy."""

    def change(folder: Path, outside: Path) -> None:
        weights = load_file(str(folder / "model.safetensors"))
        save_file(weights, str(outside / "w2.safetensors"))
        torch.save(weights, folder / "evil.bin")
        (folder / "model.safetensors").rename(folder / "w1.safetensors")
        places = dict.fromkeys(weights, "w1.safetensors") | {
            next(iter(weights)): files["other"].replace("ELSEWHERE", str(outside))
        }
        (folder / name).write_text(json.dumps({"metadata": {}, "weight_map": places}))

    return change


def stated(name: str, **values: Any) -> Change:
    def change(folder: Path, outside: Path) -> None:
        file = folder / name
        state = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(state | values))

    return change


def normalizer(folder: Path, outside: Path) -> None:
    """Every space becomes a hundred thousand letters."""
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "x" * 100_000}
    stated("tokenizer.json", normalizer={"type": "Sequence", "normalizers": [replace]})(folder, outside)


LEADS_OUT: dict[str, Change] = {
    **{
        f"link: {name}": linked(name)
        for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    },
    "index: above": sharded(other="../w2.safetensors"),
    "index: absolute": sharded(other="ELSEWHERE/w2.safetensors"),
    "index: a pickle": sharded(other="evil.bin"),
    "index: of pickles": sharded(other="evil.bin", name="pytorch_model.bin.index.json"),
    "tokenizer: a file that the map of special tokens names": stated(
        "special_tokens_map.json", vocab_file="/etc/hostname"
    ),
    "tokenizer: a version elsewhere": stated(
        "tokenizer_config.json", fast_tokenizer_files=["../tokenizer.4.0.0.json"]
    ),
    "long: settings of the tokenizer": stated("tokenizer_config.json", chat_template="x" * (33 << 20)),
    "long: a text of the tokenizer": normalizer,
}
OF_MODULES: dict[str, Change] = {
    **{f"link: {name}": linked(name) for name in ("modules.json", "config_sentence_transformers.json")},
    **{
        f"link: {name}": linked(name)
        for name in ("1_Pooling", "1_Pooling/config.json", "2_Dense", "2_Dense/model.safetensors")
    },
    "long: a prompt": stated("config_sentence_transformers.json", prompts={"query": "ba be " * 10_000_000}),
    "long: a prompt below the size of the file": stated(
        "config_sentence_transformers.json", prompts={"query": "ba be " * 100_000}
    ),
}


def refused(good: Path, tmp_path: Path, change: Change, load: Callable[[Path], object]) -> str:
    folder, outside = tmp_path / "model", tmp_path / "elsewhere"
    shutil.copytree(good, folder)
    load(folder)
    outside.mkdir()
    change(folder, outside)
    started = time.process_time()
    with pytest.raises(InputError) as caught:
        load(folder)
    assert time.process_time() - started < 5
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 600
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        *(("bi-encoder", case) for case in LEADS_OUT),
        *(
            (kind, case)
            for kind in ("backbone and tokenizer", "cross-encoder")
            for case in ("link: model.safetensors", "index: above", "tokenizer: a version elsewhere")
        ),
    ],
)
def test_a_model_stays_in_its_folder(kind: str, case: str, good: Path, tmp_path: Path) -> None:
    from dpr.data.tokenizer_files import load_tokenizer

    loads: dict[str, Callable[[Path], object]] = {
        "bi-encoder": BiEncoder.load,
        "backbone and tokenizer": lambda folder: (load_tokenizer(folder), load_backbone(str(folder))),
        "cross-encoder": CrossEncoder.load,
    }
    source = good if kind != "cross-encoder" else good.parent / "classifier"
    found = refused(source, tmp_path, LEADS_OUT[case], loads[kind])
    expected = {
        "link": "is a link",
        "index": "expected safetensors files beside it|inside its own folder|has no model.safetensors",
        "long": "bytes|characters",
        "tokenizer": "no path of another file|inside its own folder",
    }
    assert any(part in found for part in expected[case.partition(":")[0]].split("|")), found


@pytest.mark.parametrize("case", OF_MODULES)
def test_modules_stay_in_their_folder(case: str, good: Path, tmp_path: Path) -> None:
    found = refused(good, tmp_path, OF_MODULES[case], BiEncoder.load)
    assert any(part in found for part in ("is a link", "bytes", "characters")), found


def test_a_hubs_cache_is_read(good: Path, tmp_path: Path) -> None:
    """Its files are links to blobs beside the snapshot, which a person may reach by a link of theirs."""
    repository = tmp_path / "models--me--it"
    snapshot = repository / "snapshots" / "0123"
    shutil.copytree(good, snapshot)
    (repository / "blobs").mkdir()
    for number, file in enumerate(sorted(path for path in snapshot.rglob("*") if path.is_file())):
        blob = repository / "blobs" / f"{number:040}"
        file.rename(blob)
        file.symlink_to(Path(*[".."] * len(file.relative_to(repository).parts[:-1]), "blobs", blob.name))
    (tmp_path / "mine").symlink_to(snapshot)
    expected = BiEncoder.load(good).encode_questions(["ba be"])
    for folder in (snapshot, tmp_path / "mine"):
        np.testing.assert_array_equal(BiEncoder.load(folder).encode_questions(["ba be"]), expected)

    # A blob that leads on is none, and neither is another repository's.
    (repository / "blobs" / f"{0:040}").rename(tmp_path / "secret")
    (repository / "blobs" / f"{0:040}").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match="is a link"):
        BiEncoder.load(snapshot)


def test_a_bad_pickle_is_not_answered_with_advice_to_run_it(good: Path, tmp_path: Path) -> None:
    folder = encoder_folder(tmp_path / "model")
    (folder / "pytorch_model.bin").write_bytes(b"nonsense" * 100)
    with pytest.raises(InputError) as caught:
        load_backbone(str(folder))
    assert "weights_only" not in str(caught.value)
    assert "save the model as safetensors" in str(caught.value)


DISAGREE: dict[str, Change] = {
    "more tokens than rows": lambda folder, _: (folder / "vocab.txt").write_text(
        "\n".join([*VOCABULARY, "xa", "xe"]) + "\n"
    ),
    "no unknown token": lambda folder, _: (folder / "vocab.txt").write_text(
        "\n".join(VOCABULARY).replace("[UNK]", "[NUN]") + "\n"
    ),
}


@pytest.mark.parametrize("kind", ["bi-encoder", "cross-encoder", "new"])
@pytest.mark.parametrize("case", DISAGREE)
def test_a_tokenizer_of_another_model_is_one_line(case: str, kind: str, good: Path, tmp_path: Path) -> None:
    source = good if kind != "cross-encoder" else good.parent / "classifier"

    def change(folder: Path, outside: Path) -> None:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).unlink()
        DISAGREE[case](folder, outside)

    loads: dict[str, Callable[[Path], Any]] = {
        "bi-encoder": BiEncoder.load,
        "cross-encoder": CrossEncoder.load,
        "new": lambda folder: BiEncoder.from_pretrained(
            str(folder), EncoderSettings(sequence_length=32), pretrained=False
        ),
    }
    found = refused(source, tmp_path, change, loads[kind])
    assert "its tokenizer has tokens up to number" in found or "UNK" in found


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
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    with durable_folder(folder / "c") as target:
        tiny_model(folder / "encoder", dtype=torch.float32).write_to(target)
    return folder / "c"


def listed(name: str) -> Change:
    """The manifest lists one more file, with the size and hash of the secret."""

    def change(folder: Path, outside: Path) -> None:
        secret = outside / "secret"
        manifest = json.loads((folder / MANIFEST).read_text())
        manifest["files"][name.replace("SECRET", str(secret))] = describe_file(secret)
        (folder / MANIFEST).write_text(json.dumps(manifest))

    return change


def added(name: str, *, link: bool = False) -> Change:
    """A file that the manifest does not know."""

    def change(folder: Path, outside: Path) -> None:
        secret = outside / "secret"
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to(secret) if link else shutil.copy(secret, folder / name)

    return change


EVIL: dict[str, Change] = {
    **{
        f"manifest lists {name!r}": listed(name)
        for name in (
            *("../secret", "SECRET", "a/../../secret", "encoder/../../secret", "..", ".", ""),
            *("..\\secret", "secret\0", "/", "//secret", "nowhere", "x/" * 500),
        )
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


def test_files_opened_are_seen(checkpoint: Path) -> None:
    with files_opened() as opened:
        BiEncoder.load(checkpoint)
    assert {str(checkpoint / MANIFEST), str(checkpoint / "encoder_settings.json")} <= set(opened)


@pytest.mark.parametrize("case", EVIL)
def test_it_is_refused_and_nothing_outside_is_opened(case: str, checkpoint: Path, tmp_path: Path) -> None:
    folder, secret = tmp_path / "c", tmp_path / "outside" / "secret"
    shutil.copytree(checkpoint, folder)
    (folder / "encoder" / "vocab.txt").unlink(missing_ok=True) if "vocab" in case else None
    secret.parent.mkdir()
    secret.write_text("secret")
    (tmp_path / "secret").write_text("secret")
    EVIL[case](folder, secret.parent)
    with files_opened() as opened, pytest.raises(CheckpointError):
        BiEncoder.load(folder)
    assert verify_folder(folder)
    assert not [path for path in opened if path.startswith((str(secret.parent), str(tmp_path / "secret")))]


@pytest.mark.parametrize("name", ["..", "../other", "/etc", "a/b", ".", "x\0", 3, ["c"], {"a": 1}, True])
def test_a_run_cannot_name_a_checkpoint_elsewhere(name: Any, checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    shutil.copytree(checkpoint, tmp_path / "other")
    (tmp_path / "run" / "run.json").write_text(json.dumps({"best_checkpoint": name, "last_checkpoint": name}))
    with pytest.raises(CheckpointError):
        BiEncoder.load(tmp_path / "run")
