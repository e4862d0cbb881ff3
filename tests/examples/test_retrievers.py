"""The retrievers for LangChain and LlamaIndex answer as ``dpr.Retriever`` does, with texts and titles."""

import random

import pytest

from dpr import Passage, Retriever
from tests.helpers.tiny import sentence


@pytest.fixture(scope="module")
def retriever() -> Retriever:
    rng = random.Random(0)
    return Retriever.build(
        None, [Passage(sentence(rng, 10), sentence(rng, 2), f"p{number}") for number in range(30)]
    )


def test_langchain(retriever: Retriever) -> None:
    pytest.importorskip("langchain_core", reason="langchain-core is not installed")
    from examples.langchain_retriever import DprRetriever

    expected = retriever.search("ba be bi", 5, ids=["p1", "p2", "p3", "p4"])
    found = DprRetriever(retriever=retriever, k=5, options={"ids": ["p1", "p2", "p3", "p4"]}).invoke(
        "ba be bi"
    )
    assert expected and [(item.id, item.page_content) for item in found] == [
        (hit.id, hit.text) for hit in expected
    ]
    assert [item.metadata for item in found] == [{"title": hit.title, "score": hit.score} for hit in expected]


def test_llama_index(retriever: Retriever) -> None:
    pytest.importorskip("llama_index.core", reason="llama-index-core is not installed")
    from examples.llama_index_retriever import DprRetriever

    expected = retriever.search("ba be bi", 5, mode="bm25")
    found = DprRetriever(retriever, k=5, mode="bm25").retrieve("ba be bi")
    assert expected and [(item.node_id, item.node.text, item.score) for item in found] == [
        (hit.id, hit.text, hit.score) for hit in expected
    ]
    assert [item.node.metadata for item in found] == [{"title": hit.title} for hit in expected]
