"""Folders of Hugging Face and sentence-transformers give the vectors that transformers gives."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpr.core.errors import CheckpointError
from dpr.core.records import Passage
from dpr.formats import checkpoints, model_folder
from dpr.models.biencoder import BiEncoder
from dpr.models.encoder import EncoderSettings
from dpr.models.settings import GivenTextSettings
from dpr.storage import durable
from dpr.storage.untrusted import read_json
from tests.helpers.tiny import VOCABULARY, WORDS, encoder_folder

PASSAGES = [
    Passage(" ".join(WORDS[start : start + 5 + start]), "ba be" if start % 2 else "", f"p{start}")
    for start in range(6)
]
POOLING = {
    "word_embedding_dimension": 16,
    "pooling_mode_cls_token": False,
    "pooling_mode_mean_tokens": True,
    "pooling_mode_max_tokens": False,
    "include_prompt": True,
}


def written(folder: Path, *, family: str = "bert") -> Path:
    """A folder as ``save_pretrained`` writes it, pooler and all."""
    from transformers import AutoModel, AutoTokenizer, BertModel, RobertaConfig

    encoder_folder(folder)
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    if family == "bert":
        model: Any = BertModel(BertModel.config_class.from_pretrained(str(folder)))
    else:
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        config = RobertaConfig(
            vocab_size=len(VOCABULARY), max_position_embeddings=64, pad_token_id=0, **sizes
        )
        model = AutoModel.from_config(config)
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return folder


def as_sentence_transformers(folder: Path, *modules: str, pooling: Any = POOLING, **texts: Any) -> Path:
    kinds = ("Transformer", *modules)
    paths = ["", *(f"{number}_{kind}" for number, kind in enumerate(modules, 1))]
    types = [f"sentence_transformers.models.{kind}" for kind in kinds]
    listed = [{"path": path, "type": kind} for path, kind in zip(paths, types, strict=True)]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    for name, value in texts.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def plain_vectors(folder: Path, *, pooling: str, normalize: bool = False, length: int = 64) -> np.ndarray:
    """Questions' and passages' vectors by transformers alone."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    model = AutoModel.from_pretrained(str(folder)).eval()
    vectors = []
    for passage in PASSAGES:
        texts = (passage.title, passage.text) if passage.title else (passage.text,)
        encoded = tokenizer(*texts, truncation="longest_first", max_length=length, return_tensors="pt")
        ids = encoded["input_ids"]
        with torch.no_grad():
            hidden = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
        vector = hidden[0] if pooling == "cls" else hidden.mean(0)
        vectors.append(torch.nn.functional.normalize(vector, dim=0) if normalize else vector)
    return torch.stack(vectors).numpy()


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_vectors_are_those_of_transformers(tmp_path: Path, family: str, pooling: str) -> None:
    folder = written(tmp_path / "hf", family=family)
    model = BiEncoder.load(folder, settings=EncoderSettings(pooling=pooling))
    assert model.question_model is model.ctx_model
    longest = 64 if family == "bert" else 63  # RoBERTa's positions begin behind that of the padding
    assert model.settings.sequence_length == longest
    expected = plain_vectors(folder, pooling=pooling, length=longest)
    np.testing.assert_allclose(model.encode_passages(PASSAGES), expected, atol=1e-6)


def test_a_folder_of_sentence_transformers_states_pooling_normalisation_and_length(tmp_path: Path) -> None:
    folder = as_sentence_transformers(
        written(tmp_path / "st"), "Pooling", "Normalize", sentence_bert_config={"max_seq_length": 9}
    )
    # titles as pairs, without the token types of the library
    model = BiEncoder.load(folder, text=GivenTextSettings(title_template=""))
    assert (model.settings.pooling, model.settings.normalize) == ("mean", True)
    assert model.settings.sequence_length == 9
    expected = plain_vectors(folder, pooling="mean", normalize=True, length=9)
    np.testing.assert_allclose(model.encode_passages(PASSAGES), expected, atol=1e-6)


def test_each_file_of_a_folder_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = as_sentence_transformers(written(tmp_path / "model"), "Pooling")
    parsed = Counter[Path]()

    def counted(path: Path) -> Any:
        parsed[path] += 1
        return read_json(path)

    for module in (checkpoints, durable, model_folder):
        monkeypatch.setattr(module, "read_json", counted)
    BiEncoder.load(folder)
    assert len(parsed) > 1 and set(parsed.values()) == {1}


@pytest.mark.parametrize(
    ("message", "pooling"),
    [
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": "weightedmean"}, "weighted_mean"),
        ({"pooling_mode_weightedmean_tokens": True}, "weighted_mean"),
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, "last"),
        ({"pooling_mode_mean_tokens": False}, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
    ],
)
def test_every_name_of_a_pooling_is_read(message: dict[str, Any], pooling: str, tmp_path: Path) -> None:
    config = {"embedding_dimension": 16, **message}
    folder = as_sentence_transformers(written(tmp_path / "st"), "Pooling", pooling=config)
    assert BiEncoder.load(folder, settings=EncoderSettings(pooling="mean")).settings.pooling == pooling


@pytest.mark.parametrize(
    ("modules", "options", "found"),
    [
        (["Pooling", "Dense"], {}, "Dense"),
        (["Pooling"], {"pooling": {"pooling_mode": "median"}}, "this Pooling is by median"),
        (["Pooling"], {"pooling": {"pooling_mode": 7}}, "this Pooling is by 7"),
        (["Pooling"], {"pooling": []}, "an empty list"),
        (["Pooling"], {"modules": "x"}, "is not a list of modules"),
        (
            ["Pooling"],
            {"modules": [{"type": "a.Transformer", "path": "../hf"}]},
            r"names the string '\.\./hf'",
        ),
        (["Pooling"], {"modules": [{"type": "a.Transformer", "path": "/tmp"}]}, "names the string '/tmp'"),
        (["Pooling"], {"config_sentence_transformers": {"prompts": {"query": 3}}}, "prompts is"),
    ],
    ids=range(8),
)
def test_other_vectors_are_refused(
    tmp_path: Path, modules: list[str], options: dict[str, Any], found: str
) -> None:
    folder = as_sentence_transformers(written(tmp_path / "st"), *modules, **options)
    with pytest.raises(CheckpointError, match=found):
        BiEncoder.load(folder)


def test_pickled_weights_are_not_read(tmp_path: Path) -> None:
    folder = written(tmp_path / "hf")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="is a pickle"):
        BiEncoder.load(folder)


def test_code_in_a_model_folder_is_never_run(tmp_path: Path) -> None:
    folder = written(tmp_path / "hf")
    witness = tmp_path / "witness"
    (folder / "evil.py").write_text(f"open({str(witness)!r}, 'w')\nEvil = None\n")
    config = json.loads((folder / "config.json").read_text())
    evil = {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil", "AutoTokenizer": ["evil.Evil", "evil.Evil"]}
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": evil}))
    tokenizer = {"tokenizer_class": "BertTokenizer", "auto_map": evil}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    assert BiEncoder.load(folder).dimension == 16
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": evil, "model_type": "evil"}))
    with pytest.raises(CheckpointError):
        BiEncoder.load(folder)
    assert not witness.exists()
