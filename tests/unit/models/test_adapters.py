"""Two adapters over one frozen backbone compute what two models compute; those that peft saved give its vectors."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dpr.core.batch import TokenBatch
from dpr.core.errors import CheckpointError, ConfigError
from dpr.models.adapters import BaseModel
from dpr.models.biencoder import BiEncoder, TowerOptions
from dpr.models.encoder import checkpoint_activations
from dpr.models.settings import EncoderSettings, TowerSettings
from dpr.models.sources import files_of_model
from dpr.models.tower_building import add_adapters
from dpr.storage.durable import write_json
from tests.helpers.adapters import base_folder, randomize_adapters
from tests.helpers.tiny import WORDS

pytest.importorskip("peft")

KINDS = ("bert", "qwen3")


def lora_model(
    folder: Path, kind: str = "bert", *, options: Any = None, trained: bool = True, **settings: Any
) -> BiEncoder:
    """In float64; ``trained`` adapters are no longer zero."""
    of_kind = {"pooling": "last", "append_eos": True} if kind == "qwen3" else {}
    values: dict[str, Any] = {"sequence_length": 24, "adapter": "lora", "lora_rank": 4, **of_kind, **settings}
    torch.manual_seed(0)
    lower = True if kind == "bert" else None
    how: dict[str, Any] = {"dropout": 0.0, "do_lower_case": lower, "options": options}
    base = str(base_folder(folder, kind))
    model = BiEncoder.from_pretrained(base, EncoderSettings(**values), **how).double()
    if trained:
        randomize_adapters(model)
    return model.train()


def batches() -> tuple[TokenBatch, TokenBatch]:
    generator = torch.Generator().manual_seed(0)
    sides = ([9, 3, 5], [20, 7, 12, 4])
    return tuple(
        TokenBatch.from_lists([torch.randint(11, 80, (n,), generator=generator).tolist() for n in lengths])
        for lengths in sides
    )  # type: ignore[return-value]


def step(model: Any) -> dict[str, Tensor]:
    """Vectors and gradients of a loss that joins both sides."""
    inner: BiEncoder = getattr(model, "module", model)
    inner.zero_grad()
    vectors = model(*batches())
    (vectors.questions @ vectors.contexts.T).logsumexp(1).sum().backward()
    grads = {name: value.grad.clone() for name, value in inner.named_parameters() if value.grad is not None}
    return {"questions": vectors.questions.detach(), "contexts": vectors.contexts.detach(), **grads}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], atol: float = 0.0) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=atol, msg=name)


def two_copies(model: BiEncoder) -> BiEncoder:
    """The same towers over a copy of the backbone each."""
    copies = [copy.deepcopy(tower) for tower in model.towers]
    return BiEncoder(copies[0], copies[-1], model.tensorizer, model.settings, model.options).train()


@pytest.mark.parametrize(("kind", "packed"), [("bert", False), ("qwen3", True)])
def test_one_backbone_with_two_adapters_is_two_models(kind: str, packed: bool, tmp_path: Path) -> None:
    model = lora_model(tmp_path, kind, options=TowerOptions(packed=packed), projection_dim=6)
    assert model.question_model.backbone is model.ctx_model.backbone
    assert model.question_model.is_packed == packed
    found = step(model)
    copies = two_copies(model)
    assert copies.question_model.backbone is not copies.ctx_model.backbone
    expected = step(copies)
    # The copies have their own names for the context tower's adapter.
    renamed = {}
    for name, value in expected.items():
        renamed[name.replace("ctx_model.backbone", "question_model.backbone")] = value
    assert_same(found, renamed)
    trained = {name for name in found if "." in name}
    assert all("lora_" in name or "encode_proj" in name for name in trained)
    for adapter in ("question", "ctx"):
        assert all(float(found[name].norm()) > 0 for name in trained if f"lora_A.{adapter}" in name)


@pytest.mark.parametrize("kind", KINDS)
def test_activations_that_are_computed_again_see_their_own_adapter(kind: str, tmp_path: Path) -> None:
    """In backward the adapter of the questions is the active one, also when contexts are recomputed."""
    model = lora_model(tmp_path, kind)
    plain = step(model)
    checkpoint_activations(model.towers)
    assert_same(step(model), plain, 0.0 if kind == "bert" else 1e-5)


@pytest.mark.parametrize("shared", [False, True])
def test_checkpoints_hold_adapters_alone_and_name_their_base(shared: bool, tmp_path: Path) -> None:
    model = lora_model(tmp_path / "base", shared=shared, projection_dim=6).float().eval()
    model.save(tmp_path / "saved")
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("saved", "base")]
    assert sizes[0] < sizes[1]
    assert not [name for name in model.weights() if "lora_" not in name and "encode_proj" not in name]
    loaded = BiEncoder.load(tmp_path / "saved")
    assert loaded.fingerprint == model.fingerprint and loaded.base == model.base
    for encode in ("encode_questions", "encode_passages"):
        vectors = [getattr(each, encode)(["ba be", "bi"]) for each in (loaded, model)]
        assert np.array_equal(*vectors)
    trained = [name for name, value in loaded.named_parameters() if value.requires_grad]
    assert not [name for name in trained if "lora_" not in name and "encode_proj" not in name]


def test_a_base_that_is_missing_or_another_is_refused_and_can_be_named(tmp_path: Path) -> None:
    model = lora_model(tmp_path / "base").float().eval()
    model.save(tmp_path / "saved")
    (tmp_path / "base").rename(tmp_path / "moved")
    with pytest.raises(CheckpointError, match=r"base, which cannot be loaded.*encoder\.pretrained_model_cfg"):
        BiEncoder.load(tmp_path / "saved")
    found = BiEncoder.load(tmp_path / "saved", pretrained_model_cfg=str(tmp_path / "moved"))
    assert found.fingerprint == model.fingerprint
    base_folder(tmp_path / "moved", seed=8)
    with pytest.raises(CheckpointError, match="has other weights"):
        BiEncoder.load(tmp_path / "saved", pretrained_model_cfg=str(tmp_path / "moved"))


def test_the_fingerprint_covers_the_base(tmp_path: Path) -> None:
    first, second = (lora_model(tmp_path / name) for name in ("first", "second"))
    assert first.fingerprint == second.fingerprint
    base_folder(tmp_path / "second", seed=8)
    (tmp_path / "second" / "kept").touch()
    folder = str(tmp_path / "second")
    model = BiEncoder.from_pretrained(folder, first.settings, dropout=0.0, do_lower_case=True).double()
    model.load_weights(first.weights(), source=tmp_path)
    assert model.fingerprint != first.fingerprint


@pytest.mark.parametrize("targets", ["query,value", "query, value"])
def test_targets_are_names_of_linear_layers(targets: str, tmp_path: Path) -> None:
    model = lora_model(tmp_path, lora_targets=targets)
    assert {name.split(".")[-1] for name in model.question_model.adapter.layers} == {"query", "value"}  # type: ignore[union-attr]
    assert model.settings.as_dict()["lora_targets"] == targets


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"q_proj is no linear layer of a BertModel; set it to all"):
        lora_model(tmp_path, lora_targets="q_proj")
    with pytest.raises(ConfigError, match="has no linear layers to adapt"):
        add_adapters(torch.nn.Embedding(4, 4), BaseModel("x", "y"), EncoderSettings(adapter="lora"))
    for other in ({"fix_ctx_encoder": True}, {"pretrained": False}):
        with pytest.raises(ConfigError, match="mutually exclusive"):
            TowerSettings(adapter="lora", **other).check_together("encoder.")
    plain = BiEncoder.from_pretrained(str(tmp_path), EncoderSettings(sequence_length=24), do_lower_case=True)
    plain.save(tmp_path / "plain")
    for start, advice in (
        (tmp_path, "encoder.pretrained_model_cfg="),
        (tmp_path / "plain", "dpr export to="),
    ):
        with pytest.raises(ConfigError, match=f"no adapters can be added to .*{advice}"):
            BiEncoder.load(start, settings=EncoderSettings(adapter="lora"))


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
