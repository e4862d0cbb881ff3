"""Folders of published embedding models give the vectors of sentence-transformers, as they are, after training and
after export; those that need code of their own are refused."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from dpr.core.errors import CheckpointError, ConfigError
from dpr.core.records import Passage
from dpr.export.folders import export_folder
from dpr.models.biencoder import BiEncoder
from dpr.models.settings import EncoderSettings, GivenTextSettings
from tests.helpers.published import (
    BERT,
    FOLDERS,
    ROBERTA,
    publish,
    sentence_pieces,
    word_pieces,
    write_backbone,
    write_json,
)
from tests.helpers.tiny import WORDS, ListSource, make_samples
from tests.helpers.training import make_trainer

library = pytest.importorskip("sentence_transformers", reason="its vectors are the expected ones")

TEXTS = ["ba be bi", "don\u2019t CA ce?", "\u00e9t\u00e9 - d\u00fc du", " ".join(WORDS[:40]), "ga"]


def opened(folder: Path) -> Any:
    return library.SentenceTransformer(str(folder), device="cpu", local_files_only=True)


def difference(model: BiEncoder, theirs: Any, **prompts: str) -> float:
    """The largest difference of a number of the vectors of questions and passages."""
    scaled = model.settings.normalize
    questions = theirs.encode_query(TEXTS, prompt=prompts.get("query_prompt"), normalize_embeddings=scaled)
    found = theirs.encode_document(TEXTS, prompt=prompts.get("passage_prompt"), normalize_embeddings=scaled)
    pairs = [(model.encode_questions(TEXTS), questions), (model.encode_passages(TEXTS), found)]
    scale = max(1.0, *(float(np.abs(expected).max()) for _, expected in pairs))
    return max(float(np.abs(ours - expected).max()) for ours, expected in pairs) / scale


@pytest.mark.parametrize("name", FOLDERS)
def test_a_published_model_is_read_trained_and_exported(name: str, tmp_path: Path) -> None:
    spec = publish(tmp_path / "published", name)
    model = BiEncoder.load(tmp_path / "published", text=GivenTextSettings(**spec.given))
    theirs = opened(tmp_path / "published")
    assert model.max_seq_length == theirs.max_seq_length == spec.length
    assert model.question_model.is_packed
    assert difference(model, theirs, **spec.given) < 1e-5
    before = model.encode_passages(TEXTS)
    samples = ListSource(make_samples(16))
    make_trainer(model, [samples], [samples], tmp_path / "run", max_steps=2, learning_rate=1e-3).train()
    assert np.abs(model.encode_passages(TEXTS) - before).max() > 1e-3
    export_folder(model, tmp_path / "exported", "sentence-transformers", source=name)
    assert difference(model, opened(tmp_path / "exported")) < 1e-5  # the exported folder states its prompts


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_side_of_padding_changes_no_vector(side: str, tmp_path: Path) -> None:
    publish(tmp_path, "Qwen/Qwen3-Embedding-0.6B")
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"padding_side": side}))
    theirs = opened(tmp_path)
    assert theirs.tokenizer.padding_side == side
    assert difference(BiEncoder.load(tmp_path), theirs) < 1e-5


def test_titles_take_the_place_of_none_in_the_prompt_of_embeddinggemma(tmp_path: Path) -> None:
    publish(tmp_path, "google/embeddinggemma-300m")
    template = GivenTextSettings(
        passage_prompt="title: ", title_template="{title} | text: {text}", allow_other_prompts=True
    )
    model = BiEncoder.load(tmp_path, text=template)
    ours = model.encode_passages([Passage(text, "bi bo") for text in TEXTS])
    expected = opened(tmp_path).encode_document([f"title: bi bo | text: {text}" for text in TEXTS], prompt="")
    np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_a_token_without_a_row_is_read_as_its_letters(tmp_path: Path) -> None:
    publish(tmp_path / "published", "google/embeddinggemma-300m")
    model = BiEncoder.load(tmp_path / "published")
    rows = len(model.token_embeddings()[0])
    assert len(opened(tmp_path / "published").tokenizer) == rows + 1
    tokens = model.tensorizer.question_tokens(["<image_soft_token> ba"])[0]
    assert len(tokens) > 20 and max(tokens) < rows
    model.save(tmp_path / "saved")
    assert BiEncoder.load(tmp_path / "saved").fingerprint == model.fingerprint


def test_a_token_of_every_sequence_needs_a_row(tmp_path: Path) -> None:
    publish(tmp_path, "intfloat/e5-base-v2")
    tokenizer = word_pieces(48)
    tokenizer.add_special_tokens({"cls_token": "[NEW]"})
    tokenizer.save_pretrained(str(tmp_path))
    with pytest.raises(CheckpointError, match="its tokenizer has tokens up to number"):
        BiEncoder.load(tmp_path)


def test_an_adapter_of_embeddinggemma_has_the_tokens_of_its_base(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    publish(tmp_path / "base", "google/embeddinggemma-300m")
    theirs = opened(tmp_path / "base")
    theirs.add_adapter(peft.LoraConfig(r=2, target_modules=["q_proj"]))
    theirs.save_pretrained(str(tmp_path / "adapter"), create_model_card=False)
    assert difference(BiEncoder.load(tmp_path / "adapter"), theirs) < 1e-5


@pytest.mark.parametrize("added", [{}, {"<new>": 184}])
def test_a_tokenizer_without_a_fast_version_is_refused(added: dict[str, int], tmp_path: Path) -> None:
    publish(tmp_path, "BAAI/bge-base-en-v1.5")
    vocabulary = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary))
    kind = {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "basic"}
    write_json(tmp_path / "tokenizer_config.json", kind)
    write_json(tmp_path / "added_tokens.json", added)
    with pytest.raises(ConfigError, match="has no fast version"):
        BiEncoder.load(tmp_path)


@pytest.mark.parametrize("family", ["JinaEmbeddingsV3", "Gte"])
def test_a_backbone_that_transformers_has_needs_no_code(family: str, tmp_path: Path) -> None:
    write_backbone(tmp_path, family, sentence_pieces(64), ROBERTA)
    settings = EncoderSettings(pooling="mean", normalize=True, sequence_length=64)
    model = BiEncoder.load(tmp_path, settings=settings)
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    pooling = modules.Pooling(32, pooling_mode="mean")
    parts = [modules.Transformer(str(tmp_path)), pooling, modules.Normalize()]
    assert difference(model, library.SentenceTransformer(modules=parts, device="cpu")) < 1e-5


def stated(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def jina_v2(folder: Path) -> None:
    """JinaBERT: named bert, without table of positions, with gated layers."""
    write_backbone(folder, "Bert", word_pieces(64), BERT)
    code = {"AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"}
    stated(folder, auto_map=code, position_embedding_type="alibi", feed_forward_type="geglu")
    file = str(folder / "model.safetensors")
    weights = load_file(file)
    del weights["embeddings.position_embeddings.weight"]
    renamed = {name.replace("intermediate.dense", "mlp.gated_layers"): weights[name] for name in weights}
    save_file(renamed, file, metadata={"format": "pt"})


def jina_v3(folder: Path) -> None:
    write_backbone(folder, "XLMRoberta", sentence_pieces(64), ROBERTA)
    kinds = ("custom_st.Transformer", "sentence_transformers.models.Pooling")
    write_json(folder / "modules.json", [{"path": "", "type": kind} for kind in kinds])


def gte_v15(folder: Path) -> None:
    write_backbone(folder, "Bert", word_pieces(64), BERT)
    stated(folder, auto_map={"AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel"}, model_type="new")


REFUSED: dict[Callable[[Path], None], str] = {
    jina_v2: r"5 weights of BertModel are missing or of another shape",
    jina_v3: r"the modules are custom_st\.Transformer, Pooling, expected",
    gte_v15: r"model_type is the string 'new', expected a model family of transformers",
}


@pytest.mark.parametrize("make", REFUSED)
def test_a_model_that_needs_code_of_its_own_is_refused(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(CheckpointError, match=REFUSED[make]):
        BiEncoder.load(tmp_path)


def test_code_that_is_not_run_is_mentioned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    publish(tmp_path, "nomic-ai/nomic-embed-text-v1.5")
    stated(tmp_path, auto_map={"AutoModel": "nomic-ai/nomic-bert-2048--modeling.NomicBertModel"})
    with caplog.at_level(logging.WARNING, logger="dpr"):
        BiEncoder.load(tmp_path)
    assert "names code for the model (auto_map), which is not run" in caplog.text


def test_upper_case_that_the_library_would_drop_is_refused(tmp_path: Path) -> None:
    publish(tmp_path, "BAAI/bge-m3")
    write_json(tmp_path / "sentence_bert_config.json", {"max_seq_length": 64, "do_lower_case": True})
    with pytest.raises(CheckpointError, match="do_lower_case is true, but its tokenizer keeps upper case"):
        BiEncoder.load(tmp_path)
