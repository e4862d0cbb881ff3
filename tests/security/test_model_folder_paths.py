"""A model folder leads nowhere else, by links or by names in its files, and its texts are bounded."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dpr.core.errors import InputError
from dpr.models.backbones import load_backbone
from dpr.models.biencoder import BiEncoder
from dpr.models.cross_encoder import CrossEncoder
from dpr.models.settings import EncoderSettings
from tests.helpers.tiny import VOCABULARY, encoder_folder

Change = Callable[[Path, Path], object]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of sentence-transformers around a BERT, which is a Hugging Face folder too."""
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, BertModel

    folder = tmp_path_factory.mktemp("good") / "model"
    encoder_folder(folder)
    torch.manual_seed(0)
    config = BertConfig.from_pretrained(folder)
    BertModel(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
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
    classifier = folder.parent / "classifier"
    shutil.copytree(folder, classifier)
    config.num_labels = 1
    BertForSequenceClassification(config).save_pretrained(classifier)
    return folder


def linked(name: str) -> Change:
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
