"""The retrievers for LangChain and LlamaIndex answer as exact search does, with texts and titles."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from dpr.cli.jobs import embed, export
from dpr.core.records import Passage
from dpr.formats.corpora import write_passages
from dpr.models.biencoder import BiEncoder
from dpr.storage.durable import durable_folder
from tests.helpers.tiny import sentence, tiny_model

lancedb = pytest.importorskip("lancedb", reason="lancedb is in the extra stores")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[BiEncoder, Any, dict[str, Passage]]:
    """A model, the table of its vectors, and the passages by id."""
    folder = tmp_path_factory.mktemp("store")
    rng = random.Random(0)
    passages = [Passage(sentence(rng, 10), sentence(rng, 2), f"p{number}") for number in range(30)]
    write_passages(folder / "corpus.tsv", passages)
    with durable_folder(folder / "model") as target:
        tiny_model(folder / "encoder", dtype=torch.float32).write_to(target)
    model = f"model_file={folder / 'model'}"
    assert embed([model, f"ctx_src={folder / 'corpus.tsv'}", f"out_file={folder / 'vectors'}", "no_cuda=true"]) == 0
    named = [f"vectors={folder / 'vectors_*'}", f"ctx_datasets={folder / 'corpus.tsv'}", f"out={folder / 'store'}"]
    assert export(["to=lancedb", *named]) == 0
    table = lancedb.connect(str(folder / "store")).open_table("passages")
    return BiEncoder.load(folder / "model"), table, {str(passage.id): passage for passage in passages}


def best(model: BiEncoder, passages: dict[str, Passage], question: str) -> list[tuple[str, float]]:
    scores = model.encode_passages(list(passages.values())) @ model.encode_questions(question)
    return sorted(zip(passages, scores.tolist(), strict=True), key=lambda item: -item[1])[:5]


def test_langchain(store: tuple[BiEncoder, Any, dict[str, Passage]]) -> None:
    pytest.importorskip("langchain_core", reason="langchain-core is not installed")
    from examples.langchain_retriever import DprRetriever

    model, table, passages = store
    found = DprRetriever(model=model, table=table, k=5).invoke("ba be bi")
    expected = best(model, passages, "ba be bi")
    assert [item.id for item in found] == [key for key, _ in expected]
    shown = [(item.page_content, item.metadata["title"]) for item in found]
    assert shown == [(passages[key].text, passages[key].title) for key, _ in expected]
    np.testing.assert_allclose([item.metadata["score"] for item in found], [score for _, score in expected], rtol=0, atol=1e-4)


def test_llama_index(store: tuple[BiEncoder, Any, dict[str, Passage]]) -> None:
    pytest.importorskip("llama_index.core", reason="llama-index-core is not installed")
    from examples.llama_index_retriever import DprRetriever

    model, table, passages = store
    found = DprRetriever(model, table, k=5).retrieve("ba be bi")
    expected = best(model, passages, "ba be bi")
    assert [(item.node_id, item.node.text) for item in found] == [(key, passages[key].text) for key, _ in expected]
    np.testing.assert_allclose([item.score for item in found], [score for _, score in expected], rtol=0, atol=1e-4)
