"""Adapters that peft itself saved give the vectors that peft gives, or are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpr.core.errors import CheckpointError, ConfigError
from dpr.models.biencoder import BiEncoder
from dpr.models.settings import EncoderSettings
from dpr.models.sources import files_of_model
from dpr.storage.durable import write_json
from tests.helpers.adapters import base_folder
from tests.helpers.tiny import WORDS

peft = pytest.importorskip("peft")

TEXTS = ["ba be bi", "", " ".join(WORDS[:40]), "ga"]
TARGETS = ["query", "value"]


def adapted(folder: Path, kind: str = "bert", *, seed: int = 1, **options: Any) -> Any:
    """A base model with an adapter whose matrices are all random."""
    from transformers import AutoModel

    without_pooler = {"add_pooling_layer": False} if kind == "bert" else {}
    base = AutoModel.from_pretrained(str(base_folder(folder / "base", kind)), **without_pooler)
    targets = TARGETS if kind == "bert" else ["q_proj", "down_proj"]
    config = peft.LoraConfig(**{"r": 4, "lora_alpha": 7, "target_modules": targets, **options})
    torch.manual_seed(seed)
    model = peft.get_peft_model(base, config)
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


@torch.no_grad()
def their_vectors(folder: Path, base: Path) -> np.ndarray:
    """Means of the states that peft computes with what it loads."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(base))
    model = peft.PeftModel.from_pretrained(AutoModel.from_pretrained(str(base)), str(folder)).eval()
    encoded = [tokenizer(text, truncation=True, max_length=64, return_tensors="pt") for text in TEXTS if text]
    return torch.cat([model(**tokens).last_hidden_state.mean(1) for tokens in encoded]).numpy()


@pytest.mark.parametrize(
    ("kind", "options"),
    [("bert", {}), ("bert", {"use_rslora": True}), ("qwen2, gpt2", {"lora_dropout": 0.1})],
)
def test_an_adapter_gives_the_same_vectors(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    adapted(tmp_path, kind, **options).save_pretrained(str(tmp_path / "adapter"))
    model = BiEncoder.load(tmp_path / "adapter", settings=EncoderSettings(pooling="mean", sequence_length=64))
    texts = [text for text in TEXTS if text]
    expected = their_vectors(tmp_path / "adapter", tmp_path / "base")
    atol = 2e-6 * max(1, np.abs(expected).max())
    np.testing.assert_allclose(model.encode_questions(texts), expected, atol=atol)
    assert model.base is not None and model.settings.shared and model.settings.lora_rank == 4
    model.save(tmp_path / "again")
    again = BiEncoder.load(tmp_path / "again")
    assert again.fingerprint == model.fingerprint
    np.testing.assert_array_equal(again.encode_questions(texts), model.encode_questions(texts))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"use_dora": True}, "use_dora is the boolean True"),
        ({"rank_pattern": {"query": 2}}, "rank_pattern is an object"),
        ({"bias": "lora_only"}, "bias is the string"),
        ({"modules_to_save": ["dense"]}, "modules_to_save is a list"),
        ({"layers_to_transform": [0]}, "the weights do not fit this model"),
    ],
)
def test_other_adapters_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    adapted(tmp_path, **options).save_pretrained(str(tmp_path / "adapter"))
    with pytest.raises(CheckpointError, match=message):
        BiEncoder.load(tmp_path / "adapter")


@pytest.mark.parametrize("value", [str(10**400), "true", '"7"', "null"])
def test_a_scale_that_is_no_number_is_refused(tmp_path: Path, value: str) -> None:
    adapted(tmp_path).save_pretrained(str(tmp_path / "adapter"))
    file = tmp_path / "adapter" / "adapter_config.json"
    file.write_text(file.read_text().replace('"lora_alpha": 7', f'"lora_alpha": {value}'))
    with pytest.raises(CheckpointError, match=r"and lora_alpha .*, expected numbers"):
        BiEncoder.load(tmp_path / "adapter")


def test_the_base_is_sought_where_the_folder_or_the_command_says(tmp_path: Path) -> None:
    adapted(tmp_path).save_pretrained(str(tmp_path / "adapter"))
    model = BiEncoder.load(tmp_path / "adapter", dropout=0.3)
    expected = model.encode_questions(TEXTS)
    assert model.ctx_model.config.hidden_dropout_prob == 0.3
    (tmp_path / "base").rename(tmp_path / "moved")
    with pytest.raises(CheckpointError, match=r"it builds on .*base.*encoder.pretrained_model_cfg="):
        BiEncoder.load(tmp_path / "adapter")
    found = BiEncoder.load(tmp_path / "adapter", pretrained_model_cfg=str(tmp_path / "moved"))
    np.testing.assert_array_equal(found.encode_questions(TEXTS), expected)


def test_pickled_adapters_are_not_read(tmp_path: Path) -> None:
    adapted(tmp_path).save_pretrained(str(tmp_path / "adapter"))
    (tmp_path / "adapter" / "adapter_model.safetensors").rename(tmp_path / "adapter" / "adapter_model.bin")
    with pytest.raises(CheckpointError, match="pickles are not read"):
        BiEncoder.load(tmp_path / "adapter")


def test_peft_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    adapted(tmp_path).save_pretrained(str(tmp_path / "adapter"))
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match="pip install"):
        BiEncoder.load(tmp_path / "adapter")


def test_a_folder_of_sentence_transformers_may_hold_an_adapter(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    transformer = modules.Transformer(str(base_folder(tmp_path / "base")))
    parts = [transformer, modules.Pooling(16, pooling_mode="mean")]
    theirs = library.SentenceTransformer(modules=parts, device="cpu", similarity_fn_name="dot")
    theirs.add_adapter(peft.LoraConfig(r=4, target_modules=TARGETS))
    for name, parameter in theirs.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    theirs.save(str(tmp_path / "st"), create_model_card=False)
    model = BiEncoder.load(tmp_path / "st")
    np.testing.assert_allclose(model.encode_passages(TEXTS), theirs.encode_document(TEXTS), atol=3e-6)
    assert model.settings.adapter == "lora"


@pytest.mark.parametrize("has_dense", [False, True])
def test_adapters_are_added_to_a_model_of_sentence_transformers(tmp_path: Path, has_dense: bool) -> None:
    library = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    transformer = modules.Transformer(str(base_folder(tmp_path / "base")), max_seq_length=7)
    parts = [transformer, modules.Pooling(16, pooling_mode="mean"), modules.Normalize()]
    if has_dense:
        parts.insert(2, modules.Dense(16, 12, activation_function=torch.nn.Tanh()))
    theirs = library.SentenceTransformer(modules=parts, device="cpu", prompts={"query": "ba be: "})
    theirs.save(str(tmp_path / "st"), create_model_card=False)
    model = BiEncoder.load(tmp_path / "st", settings=EncoderSettings(adapter="lora", lora_rank=4))
    for side in ("question", "passage"):
        found = getattr(model, f"encode_{side}s")(TEXTS)
        expected = theirs.encode_query(TEXTS) if side == "question" else theirs.encode_document(TEXTS)
        np.testing.assert_allclose(found, expected, atol=3e-6)
    assert model.settings.shared and all("lora_" in name or "encode_proj" in name for name in model.weights())
    for name, weight in model.weights().items():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.3)
    model.save(tmp_path / "tuned")
    again = BiEncoder.load(tmp_path / "tuned")
    np.testing.assert_array_equal(again.encode_passages(TEXTS), model.encode_passages(TEXTS))
    assert np.abs(again.encode_passages(TEXTS) - theirs.encode_document(TEXTS)).max() > 0.01


def test_what_is_read_is_a_file_of_the_model_wherever_it_lies(tmp_path: Path) -> None:
    adapted(tmp_path).save_pretrained(str(tmp_path / "adapter"))
    base = tmp_path / "base"
    assert set(files_of_model(tmp_path / "adapter").values()) >= {
        tmp_path / "adapter" / "adapter_model.safetensors",
        *(base / name for name in ("config.json", "model.safetensors", "vocab.txt")),
    }
    for name in ("./1_Pooling", "more/2_Dense", "1_Pooling/."):
        write_json(tmp_path / "adapter" / "modules.json", [{"path": ""}, {"path": name}])
        (tmp_path / "adapter" / name).mkdir(parents=True, exist_ok=True)
        file = tmp_path / "adapter" / name / "config.json"
        file.write_text("{}")
        found = files_of_model(tmp_path / "adapter")
        assert file.resolve() == found[str(file.resolve().relative_to(tmp_path / "adapter"))].resolve()
    (tmp_path / "adapter" / "1_Pooling" / "loop").symlink_to(tmp_path / "adapter")
    write_json(tmp_path / "adapter" / "modules.json", [{"path": "1_Pooling/loop"}, {"path": "modules.json"}])
    assert len(files_of_model(tmp_path / "adapter")) == len(found) - 1
    for name in ("a", "b"):
        (base / name).symlink_to(".")
    write_json(base / "modules.json", [{"path": "", "more": ["a/modules.json", "b/modules.json"]}])
    assert len(files_of_model(base)) < 20, "links that lead back are followed once"
    (base / "modules.json").unlink()
    (base / "model.safetensors").unlink()
    assert base / "config.json" in files_of_model(tmp_path / "adapter").values()
