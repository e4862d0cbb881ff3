"""What a file names is never looked up on the network; only what a person typed may be."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from dpr.core.errors import InputError
from dpr.core.records import Passage
from dpr.data.tensorizer import Tensorizer
from dpr.formats.corpora import write_passages
from dpr.models.backbones import load_backbone
from dpr.models.biencoder import BiEncoder
from dpr.models.cross_encoder import CrossEncoder
from dpr.models.settings import EncoderSettings
from dpr.retrieval.retriever import Retriever
from tests.helpers.original import flat_params, nested_params, original_extras, original_names, write_original
from tests.helpers.tiny import tiny_model, transformers_folder


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The hosts that were looked up or connected to, with nothing else in the way of it."""
    from huggingface_hub import constants

    found: list[Any] = []

    def refuse(*address: Any, **_: Any) -> Any:
        found.append(address)
        raise OSError("no network here")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return found


def original(tmp_path: Path, params: Any) -> Path:
    made = tiny_model(tmp_path / "bert", dtype=torch.float32)
    return write_original(tmp_path / "x.cp", original_extras(original_names(made.weights()), 16), params)


def test_a_typed_name_is_looked_up(asked: list[Any]) -> None:
    """Else the tests below would pass whatever is asked."""
    with pytest.raises(InputError):
        load_backbone("some/typed-name")
    assert asked


@pytest.mark.parametrize("params", [flat_params, nested_params])
def test_the_encoder_that_a_checkpoint_of_the_original_names_is_not(
    tmp_path: Path, asked: list[Any], params: Any
) -> None:
    file = original(tmp_path, params("bert-base-uncased"))
    with pytest.raises(InputError, match="it builds on bert-base-uncased, which cannot be loaded"):
        BiEncoder.load(file)
    assert not asked
    with pytest.raises(InputError):
        BiEncoder.load(file, pretrained_model_cfg="some/typed-name")
    assert asked


def test_models_that_a_search_folder_names_are_not_nor_by_a_path(
    tmp_path: Path, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = original(tmp_path, flat_params("bert-base-uncased"))
    write_passages(Path("c.tsv"), [Passage("a", "b", "1")])
    Path("x").mkdir()
    columns = {"id_col": 0, "text_col": 1, "title_col": 2}
    source = {"file": str(tmp_path / "c.tsv"), "name": "c", **columns, "id_prefix": "", "normalize": False}
    stored = {"schema": 1, "encoded_ctx_files": ["v_*"], "indexer": {"kind": "exact"}, "passages": [source]}
    for model in (
        {"model_file": str(file), "pretrained_model_cfg": "org/from-the-file"},
        {"model_file": "org/from-the-file"},
        {"model_file": "../org/from-the-file"},
    ):
        Path("x", "search.json").write_text(json.dumps(stored | model))
        with pytest.raises(
            InputError, match="from-the-file: there is no such" if "../" in str(model) else None
        ):
            Retriever.open("x", corpus="c.tsv")
    assert not asked
    with pytest.raises(InputError, match="no such file or folder here"):
        Retriever.open("x", corpus="c.tsv", model="org/typed-name")
    assert asked


EVIL_CONFIG = {
    "attn_implementation": "org/kernel",
    "_attn_implementation": "org/kernel",
    "_attn_implementation_internal": "org/kernel",
    "experts_implementation": "org/kernel",
    "_experts_implementation": "org/kernel",
    "use_kernels": True,
    "kernel_config": {"RMSNorm": "org/kernel:RMSNorm"},
    "quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True},
    "fusion_config": {"patch_embeddings": True},
    "tp_plan": "auto",
    "base_model_tp_plan": {"layers.*": "colwise"},
    "device_map": "auto",
    "distributed_config": {"tp_size": 2},
    "auto_map": {
        "AutoConfig": "org/code--code.Config",
        "AutoModel": "org/code--code.Model",
        "AutoTokenizer": ["code.T", None],
    },
    "_name_or_path": "org/from-the-file",
    "output_attentions": True,
    "return_dict": False,
}


def evil_folder(folder: Path, kind: str, values: dict[str, Any]) -> Path:
    transformers_folder(folder, kind)
    for name in ("config.json", "tokenizer_config.json"):
        state = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(state | values))
    (folder / "code.py").write_text("raise SystemExit('was run')")
    adapter = {"base_model_name_or_path": "org/from-the-file", "peft_type": "LORA"}
    (folder / "adapter_config.json").write_text(json.dumps(adapter))
    return folder


@pytest.mark.parametrize("key", ["all", "output_attentions"])
def test_a_folder_chooses_neither_kernels_nor_quantisation_nor_code(
    tmp_path: Path, asked: list[Any], key: str
) -> None:
    # The tokenizer's loader reads the config too, and refuses the two together.
    values = (
        {name: value for name, value in EVIL_CONFIG.items() if name != "output_attentions"}
        if key == "all"
        else {key: EVIL_CONFIG[key]}
    )
    clean, evil = (
        evil_folder(tmp_path / name, "AutoModel", given) for name, given in (("clean", {}), ("evil", values))
    )
    vectors = [BiEncoder.load(folder).encode_questions(["ba be"]) for folder in (clean, evil)]
    assert vectors[0].tobytes() == vectors[1].tobytes()
    load_backbone(str(evil))
    Tensorizer.load(evil, sequence_length=8)
    random = BiEncoder.from_pretrained(str(evil), EncoderSettings(sequence_length=24), pretrained=False)
    assert random.question_model.config._attn_implementation in ("sdpa", "eager", "dpr_packed")
    assert random.encode_questions(["ba be"]).shape == (1, 16)
    classifiers = [
        evil_folder(tmp_path / f"{name}-c", "AutoModelForSequenceClassification", given)
        for name, given in (("a", {}), ("b", values))
    ]
    scores = [CrossEncoder.load(folder).log_odds([("ba be", Passage("bi bo"))]) for folder in classifiers]
    assert scores[0] == scores[1]
    assert not asked
