"""Components for LangChain, LlamaIndex and Haystack, used by those libraries."""

import os
import random
from typing import Any

import pytest
import torch

from dpr import BiEncoder, Retriever
from tests.helpers.tiny import sentence, tiny_model

QUESTION = "ba be bi"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> BiEncoder:
    return tiny_model(tmp_path_factory.mktemp("model"), dtype=torch.float32, normalize=True)


def installed(module: str) -> Any:
    """Imports a library; under CI its absence is a failure, elsewhere a skip."""
    if os.environ.get("CI"):
        return __import__(module)
    return pytest.importorskip(module, reason=f"{module} is not installed")


@pytest.fixture(scope="module")
def retriever(model: BiEncoder) -> Retriever:
    rng = random.Random(0)
    rows = [
        {"id": f"p{row}", "title": sentence(rng, 2), "text": sentence(rng, 10), "even": row % 2 == 0}
        for row in range(30)
    ]
    return Retriever.build(model, rows, mode="hybrid")


def test_langchain(retriever: Retriever, model: BiEncoder) -> None:
    installed("langchain_core")
    from langchain_core.runnables import RunnableLambda
    from langchain_core.vectorstores import InMemoryVectorStore

    from examples.langchain_retriever import DprRetriever

    options = {"mode": "bm25", "where": {"even": True}}
    expected = retriever.search(QUESTION, 5, **options)
    chain = DprRetriever(retriever=retriever, k=5, options=options) | RunnableLambda(list)
    found = chain.invoke(QUESTION)
    assert expected and [(item.id, item.page_content) for item in found] == [
        (hit.id, hit.text) for hit in expected
    ]
    assert [item.metadata for item in found] == [
        {"even": True, "title": hit.title, "score": hit.score} for hit in expected
    ]

    texts = {passage.text: passage.id for passage in retriever}
    store = InMemoryVectorStore.from_texts(list(texts), model)
    plain = Retriever.build(model, [{"id": key, "text": text} for text, key in texts.items()])
    nearest = [texts[item.page_content] for item in store.similarity_search(QUESTION, k=5)]
    assert nearest == [hit.id for hit in plain.search(QUESTION, 5)]


def test_llama_index(retriever: Retriever) -> None:
    installed("llama_index.core")
    from examples.llama_index_retriever import DprRetriever

    expected = retriever.search(QUESTION, 5, where={"even": False})
    found = DprRetriever(retriever, k=5, where={"even": False}).retrieve(QUESTION)
    assert expected and [(item.node_id, item.node.text, item.score) for item in found] == [
        (hit.id, hit.text, hit.score) for hit in expected
    ]
    assert [item.node.metadata for item in found] == [{"even": False, "title": hit.title} for hit in expected]


def test_haystack(retriever: Retriever, model: BiEncoder) -> None:
    haystack = installed("haystack")
    from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
    from haystack.document_stores.in_memory import InMemoryDocumentStore

    from examples.haystack_components import DprDocumentEmbedder, DprRetriever, DprTextEmbedder

    store = InMemoryDocumentStore(embedding_similarity_function="dot_product")
    documents = [
        haystack.Document(id=passage.id, content=passage.text, meta={"title": passage.title})
        for passage in retriever
    ]
    store.write_documents(DprDocumentEmbedder(model).run(documents)["documents"])
    pipeline = haystack.Pipeline()
    pipeline.add_component("embedder", DprTextEmbedder(model))
    pipeline.add_component("retriever", InMemoryEmbeddingRetriever(store, top_k=5, scale_score=False))
    pipeline.connect("embedder.embedding", "retriever.query_embedding")
    found = pipeline.run({"embedder": {"text": QUESTION}})["retriever"]["documents"]
    expected = retriever.search(QUESTION, 5, mode="dense")
    assert [item.id for item in found] == [hit.id for hit in expected]
    for item, hit in zip(found, expected, strict=True):
        assert item.score == pytest.approx(hit.score, abs=1e-5)

    pipeline = haystack.Pipeline()
    pipeline.add_component("retriever", DprRetriever(retriever, k=5, where={"even": True}))
    found = pipeline.run({"retriever": {"query": QUESTION}})["retriever"]["documents"]
    expected = retriever.search(QUESTION, 5, where={"even": True})
    assert [(item.id, item.content, item.score) for item in found] == [
        (hit.id, hit.text, hit.score) for hit in expected
    ]
    assert all(item.meta["even"] for item in found)
