"""A LangChain retriever over the LanceDB table that ``dpr export to=lancedb`` fills."""

from __future__ import annotations

from typing import Any

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever


class DprRetriever(BaseRetriever):
    """``DprRetriever(model=BiEncoder.load("runs/first"), table=lancedb.connect("store").open_table("passages")).invoke("a question")``."""

    model: Any
    table: Any
    k: int = 10

    def _get_relevant_documents(self, query: str, **_: Any) -> list[Document]:
        vector = self.model.encode_questions(query)
        rows = self.table.search(vector).distance_type("dot").limit(self.k).to_list()
        facts = [{"title": row["title"], "score": 1 - row["_distance"]} for row in rows]
        return [Document(row["text"], id=row["id"], metadata=fact) for row, fact in zip(rows, facts, strict=True)]
