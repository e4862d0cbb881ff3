"""A LangChain retriever over a ``dpr.Retriever``, and LangChain embeddings by a ``dpr.BiEncoder``."""

from __future__ import annotations

from typing import Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from pydantic import Field

from dpr import BiEncoder


class DprRetriever(BaseRetriever):
    """``DprRetriever(retriever=dpr.Retriever.open("runs/first"), k=5).invoke("a question")``; ``options`` as
    of ``Retriever.search``."""

    retriever: Any
    k: int = 10
    options: dict[str, Any] = Field(default_factory=dict)

    def _get_relevant_documents(self, query: str, **_: Any) -> list[Document]:
        return [
            Document(hit.text, id=hit.id, metadata={**hit.metadata, "title": hit.title, "score": hit.score})
            for hit in self.retriever.search(query, self.k, **self.options)
        ]


class DprEmbeddings(Embeddings):
    """``InMemoryVectorStore(DprEmbeddings(dpr.BiEncoder("runs/first")))``."""

    def __init__(self, model: BiEncoder) -> None:
        self.model = model

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self.model.encode_passages(texts).tolist()

    def embed_query(self, text: str) -> list[float]:
        return self.model.encode_questions(text).tolist()
