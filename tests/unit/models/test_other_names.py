"""What people who know sentence-transformers write works here, or is answered by the line to write instead."""

import copy
from abc import ABC
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dpr
from dpr import BiEncoder, ConfigError, DprError, EncoderSettings, Retriever, TowerOptions
from tests.helpers.tiny import tiny_model

TEXTS = ["ba be", "bi bo bu", "ca"]


class SentenceTransformer:
    """Has the name of the library's class."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with one tower whose vectors are scaled."""
    path = tmp_path_factory.mktemp("model")
    model = tiny_model(path / "encoder", dtype=torch.float32, shared=True, pooling="mean", normalize=True)
    model.save(path / "saved")
    return path / "saved"


def test_a_model_is_made_by_its_folder(folder: Path) -> None:
    loaded = BiEncoder.load(folder)
    for model in (BiEncoder(str(folder)), BiEncoder(folder, device="cpu", options=TowerOptions())):
        assert model.fingerprint == loaded.fingerprint and not model.training
        assert list(model.state_dict()) == list(loaded.state_dict())
    towers = BiEncoder(loaded.question_model, loaded.ctx_model, loaded.tensorizer, loaded.settings)
    assert towers.fingerprint == loaded.fingerprint
    assert copy.deepcopy(BiEncoder(folder)).fingerprint == loaded.fingerprint

    class Own(BiEncoder):
        pass

    assert type(Own(folder)) is type(Own.load(folder)) is Own and isinstance(Own(folder), BiEncoder)
    prompted = BiEncoder(folder, prompts={"query": "ba: ", "document": "be: ", "web": "bi: "})
    assert prompted.settings.passage_prompt == "be: " and prompted.settings.prompts == {"web": "bi: "}
    for name, text in (("query", "ba: "), ("document", "be: "), ("web", "bi: ")):
        found = prompted.encode("ca", prompt_name=name)
        np.testing.assert_allclose(found, loaded.encode(f"{text}ca"), atol=1e-6)
    with pytest.raises(ConfigError, match="encodes questions and passages differently"):
        prompted.encode("ca")


def test_similarity_and_names_of_encoding(folder: Path) -> None:
    model = BiEncoder(folder)
    assert (
        model.embed_documents(TEXTS) == model.encode(TEXTS).tolist() and type(model.embed_query("ba")) is list
    )
    own = EncoderSettings(sequence_length=24)
    name = str(folder.parent / "encoder")
    encoder = BiEncoder.from_pretrained(
        name, own, pretrained=False, prompts={"query": "ba: "}, truncate_dim=8
    )
    assert encoder.settings.query_prompt == "ba: " and encoder.get_embedding_dimension() == 8
    questions = model.encode_query(TEXTS, prompt=None, prompt_name=None, truncate_dim=None, batch_size=2)
    passages = model.encode_document(TEXTS, convert_to_tensor=True, device="cpu", precision="float32")
    scores = model.similarity(questions, passages)
    np.testing.assert_allclose(scores, questions @ passages.numpy().T, atol=1e-6)
    pairs = model.similarity_pairwise(3 * questions, passages)
    np.testing.assert_allclose(pairs, scores.diagonal(), atol=1e-6)
    assert model.similarity(questions[0], passages).shape == (1, 3)
    halves = passages.half()
    torch.testing.assert_close(model.similarity(questions, halves), scores, atol=1e-3, rtol=0)
    listed = model.encode_document(TEXTS, convert_to_numpy=False)
    for given in (listed, [vector.numpy() for vector in listed], [vector.tolist() for vector in listed]):
        torch.testing.assert_close(model.similarity(questions, given), scores)

    plain = tiny_model(folder.parent / "encoder", dtype=torch.float32, shared=True)
    vectors = plain.encode(TEXTS)
    assert (plain.similarity_fn_name, model.similarity_fn_name) == ("dot", "cosine")
    np.testing.assert_allclose(plain.similarity(vectors, vectors), vectors @ vectors.T, rtol=1e-5)
    scaled = plain.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(np.linalg.norm(scaled, axis=1), 1, atol=1e-6)


def test_the_longest_text_is_set_for_both_sides(folder: Path, tmp_path: Path) -> None:
    model = BiEncoder(folder)
    assert model.max_seq_length == 24 and model.get_sentence_embedding_dimension() == 16
    long = "ba be bi bo bu ca ce ci co cu"
    model.max_seq_length = 6
    for encode in (model.encode_questions, model.encode_passages):
        np.testing.assert_array_equal(encode(long), encode("ba be bi bo"))
    assert len(model.tokenizer(long)["input_ids"]) == 12
    model.save(tmp_path / "short")
    assert BiEncoder(tmp_path / "short").max_seq_length == 6
    with pytest.raises(ConfigError, match="max_seq_length=1000, but a BertModel has 64 positions"):
        model.max_seq_length = 1000


@pytest.mark.parametrize(
    ("asks", "line"),
    [
        (lambda model, _: model.save_pretrained("a"), "dpr.to_sentence_transformer(model).save_pretrained"),
        (lambda model, _: model.encode("ba", precision="int8"), "quantize_embeddings(vectors, 'int8')"),
        (lambda _, folder: BiEncoder(folder, trust_remote_code=True), "code in model folders is never run"),
        (lambda _, folder: BiEncoder(folder, pooling="mean"), "settings=EncoderSettings(pooling=...)"),
        (lambda model, _: Retriever(model, ["ba"]), "Retriever.build(model, passages) makes one"),
        (lambda model, _: Retriever.build(model, ["ba"]).remove(["0"]), "delete(ids) deletes passages"),
        (lambda *_: dpr.TrainingArguments, "BiEncoderTrainer(model, train_sets=..."),
        (lambda *_: BiEncoder("a", query_prefix="query: "), 'BiEncoder.load(name, prompts={"query"'),
        (
            lambda model, _: model.encode("ba", pool=1, chunk_size=2),
            "'pool', 'chunk_size': encode(texts, devices=",
        ),
        (lambda *_: BiEncoder("a", prompts={"query": 3}), "prompts is an object; give texts by name"),
        (lambda *_: EncoderSettings(query_prefix="query: "), 'EncoderSettings(query_prompt="query: "'),
        (lambda model, _: model.add_adapter(None), 'EncoderSettings(adapter="lora", lora_rank=16)'),
        (lambda model, _: Retriever.build(model, ["ba"], ids=["a"]), '\'ids\': passages=[{"id": "a"'),
        (lambda model, _: Retriever.build(None, ["ba"]).add(["be"], metadatas=[{}]), '"year": 2020}'),
        (lambda *_: Retriever.load("a"), "Retriever.open(folder) opens one"),
        (lambda *_: Retriever.build(None, ["ba"]).invoke("ba"), ".search(question, k=5)"),
        (lambda *_: Retriever.build(None, ["ba"]).search("ba", n=3, nothing=1), "'n': k=3; nor 'nothing'"),
        (
            lambda model, _: dpr.evaluate(model, {}, batch_size=8, show_progress_bar=True, top_k=20),
            "'batch_size', 'show_progress_bar': leave it out: batches are chosen to fit into memory;"
            ' logging.getLogger("dpr").setLevel("WARNING") hides progress; nor \'top_k\': k=20',
        ),
        (lambda *_: dpr.mine_hard_negatives([], num_negatives=3), "per_question=3"),
        (lambda *_: dpr.evaluate({"q": {"p": 1}}, {}), "model is of type dict: dpr.evaluate(model, queries"),
        (lambda *_: Retriever.build(None, ["ba"]).search("ba", hybrid=True), 'mode="hybrid", weight=0.5'),
        (lambda *_: BiEncoder(), "BiEncoder() takes the name or the folder of a model, not NoneType"),
        (lambda *_: BiEncoder(SentenceTransformer()), "dpr.BiEncoder.from_sentence_transformers(model)"),
        (
            lambda _, folder: BiEncoder(folder, normalize_embeddings=True),
            "encode(texts, normalize_embeddings=True)",
        ),
        (
            lambda _, folder: BiEncoder(folder, truncate_dim=-1),
            "dimensions=-1, but the model's vectors have 16",
        ),
        (lambda model, _: setattr(model, "prompts", {"query": "query: "}), "property 'prompts'"),
        (lambda model, _: model.prompts, 'BiEncoder.load(name, prompts={"query": "query: "'),
        (lambda *_: dpr.CrossEncoder, "cross_encoder=FOLDER) scores with a cross-encoder"),
        (lambda *_: dpr.mine_hard_negatives([], "bm25", None, None), 'columns={"question": "query"'),
        (
            lambda *_: dpr.mine_hard_negatives([], top_k=3, k=3),
            "'k': search(question, k=3) returns as many hits; mine_hard",
        ),
        (lambda model, _: Retriever.build(model, ["ba"], index="HNSW32"), 'indexer="hnsw32"'),
        (lambda *_: Retriever.build(None, ["ba"]).search("ba", threshold=0.3), "hit.score > 0.3"),
        (
            lambda *_: Retriever.build(None, ["ba"]).search("ba", where={"$or": [{"a": 1}]}),
            "or an operator: {'gte': 2000}",
        ),
    ],
)
def test_a_name_of_sentence_transformers_is_answered(folder: Path, asks: Any, line: str) -> None:
    with pytest.raises((AttributeError, DprError, ImportError, TypeError)) as error:
        asks(BiEncoder(folder), folder)
    assert line in str(error.value) and "\n" not in str(error.value)


def test_classes_that_answer_stay_ordinary_classes() -> None:
    class Mixed(Retriever, ABC):
        pass

    class Own(TowerOptions):
        def __init__(self, mine: int = 1) -> None:
            super().__init__(packed=mine > 1)

    assert issubclass(Mixed, Retriever)
    assert not Own(mine=1).packed
    assert {"pooling", "shared"} <= set(signature(EncoderSettings).parameters)


def test_what_is_answered_is_there(folder: Path) -> None:
    """Other names are missing as ever, and those that are answered are not seen by hasattr."""
    model = BiEncoder(folder)
    assert not hasattr(model, "save_pretrained") and not hasattr(model, "nothing")
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing'$"):
        _ = model.nothing
    with pytest.raises(AttributeError, match=r"module 'dpr' has no attribute 'nothing'$"):
        _ = dpr.nothing
    encoder = str(folder.parent / "encoder")
    assert BiEncoder.from_pretrained(encoder, EncoderSettings(sequence_length=24), pretrained=False)
