"""Folders give the vectors that transformers gives; what their files may say, and what a job may say beside them."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpr.core.errors import CheckpointError, InputError
from dpr.core.records import Passage
from dpr.formats import checkpoints, model_folder
from dpr.formats.checkpoints import MODEL_FILE, SETTINGS_FILE, read_tensors, write_tensors
from dpr.models.biencoder import BiEncoder
from dpr.models.encoder import EncoderSettings
from dpr.models.settings import GivenTextSettings, TowerOptions
from dpr.storage import durable
from dpr.storage.durable import write_manifest
from dpr.storage.untrusted import read_json
from tests.helpers.tiny import VOCABULARY, WORDS, encoder_folder, tiny_model

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
        sized = RobertaConfig(vocab_size=len(VOCABULARY), max_position_embeddings=64, pad_token_id=0, **sizes)
        model = AutoModel.from_config(sized)
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
def test_others_are_refused(tmp_path: Path, modules: list[str], options: dict[str, Any], found: str) -> None:
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


def opened(folder: Path, settings: EncoderSettings | None = None, **given: Any) -> BiEncoder:
    return BiEncoder.load(folder, settings=settings, **given)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    model = tiny_model(tmp_path / "encoder", pooling="mean", title_template="{title}: {text}")
    model.save(tmp_path / "model")
    return tmp_path / "model"


def restate(folder: Path, **values: Any) -> None:
    """Changes what the checkpoint says of itself."""
    state = json.loads((folder / SETTINGS_FILE).read_text())
    (folder / SETTINGS_FILE).write_text(json.dumps(state | values))
    write_manifest(folder, {})


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"pooling": "nonsense"}, "pooling=nonsense is not known"),
        ({"pooling": 1}, "pooling=1 is not a text"),
        ({"projection_activation": "relu"}, "projection_activation is relu"),
        ({"projection_dim": -1}, "projection_dim=-1 is out of range"),
        ({"projection_dim": (1 << 20) + 1}, "projection_dim is"),
        ({"sequence_length": 2}, "sequence_length=2 is out of range"),
        ({"prompts": {"web": 1}}, "prompts.web=1 is not a text"),
        ({"title_template": "{title}"}, "must have {title} and end with {text}"),
        ({"format_version": 99}, "format_version is 99"),
        ({"temperature": float("nan")}, "not JSON"),
        *[
            ({"temperature": value}, "expected a finite number above 0")
            for value in (0, -1, 10**400, True, "1")
        ],
        ({"adapter": "lora", "base": {"name": "x"}}, "base is"),
        ({"adapter": "lora", "base": {"name": "", "fingerprint": "x"}}, "base is"),
        ({"adapter": "lora", "base": {"name": "x", "fingerprint": "x"}, "lora_rank": 7}, "lora_rank is 7"),
    ],
)
def test_what_a_checkpoint_may_not_say(values: dict[str, Any], found: str, stored: Path) -> None:
    restate(stored, **values)
    with pytest.raises(InputError) as caught:
        opened(stored)
    assert found in str(caught.value).replace("the number ", "")
    assert caught.value.file == stored / SETTINGS_FILE


def test_settings_of_newer_versions_are_left_out_and_the_rest_is_as_stored(stored: Path) -> None:
    restate(stored, hyperbolic=True, sequence_length=3)
    model = opened(stored, EncoderSettings(pooling="cls"))
    assert (model.settings.pooling, model.settings.sequence_length) == ("mean", 3)
    assert model.tensorizer.sequence_length == 3
    assert model.tensorizer.text.title_template == model.settings.title_template == "{title}: {text}"


def test_a_stored_temperature_is_the_first_one_unless_the_job_has_its_own(stored: Path) -> None:
    restate(stored, temperature=0.5)
    assert opened(stored).options.temperature == 0.5
    weights = read_tensors(stored, MODEL_FILE)
    learned = {**weights, "log_temperature": next(iter(weights.values())).new_tensor(0.25).log()}
    write_tensors(stored, MODEL_FILE, learned)
    write_manifest(stored, {})
    model = opened(stored)
    assert (model.stored_temperature, float(model.temperature)) == pytest.approx((0.25, 0.25))
    still_learning = opened(stored, options=TowerOptions(learn_temperature=True))
    assert still_learning.options.temperature == 0.5  # where it began
    assert float(still_learning.temperature) == pytest.approx(0.25)
    own = opened(stored, options=TowerOptions(temperature=2.0))
    assert float(own.temperature) == 2.0 and own.stored_temperature == pytest.approx(0.25)


def test_a_learned_temperature_that_is_none_names_the_weights(stored: Path) -> None:
    weights = read_tensors(stored, MODEL_FILE)
    damaged = {"log_temperature": next(iter(weights.values())).new_tensor(1e9)}
    write_tensors(stored, MODEL_FILE, weights | damaged)
    write_manifest(stored, {})
    with pytest.raises(CheckpointError, match="expected a finite number above 0") as caught:
        opened(stored)
    assert caught.value.file == stored / MODEL_FILE


def test_what_is_no_model_is_told_what_one_is(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="is not a checkpoint") as caught:
        opened(tmp_path / "empty")
    for name in ("model.safetensors", "sentence-transformers", "peft", "original DPR"):
        assert name in str(caught.value)
