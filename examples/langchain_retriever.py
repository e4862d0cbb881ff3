"""A LangChain retriever over a ``dpr.Retriever``. A ``dpr.BiEncoder`` is LangChain's embeddings as it is:
``InMemoryVectorStore(dpr.BiEncoder("runs/first"))``."""

from __future__ import annotations

from typing import Any

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import Field


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
