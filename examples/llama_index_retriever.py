"""A LlamaIndex retriever over the LanceDB table that ``dpr export to=lancedb`` fills."""

from __future__ import annotations

from typing import Any

from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode


class DprRetriever(BaseRetriever):
    """``DprRetriever(BiEncoder.load("runs/first"), lancedb.connect("store").open_table("passages")).retrieve("a question")``."""

    def __init__(self, model: Any, table: Any, *, k: int = 10) -> None:
        super().__init__()
        self.model, self.table, self.k = model, table, k

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        vector = self.model.encode_questions(query_bundle.query_str)
        rows = self.table.search(vector).distance_type("dot").limit(self.k).to_list()
        nodes = [TextNode(id_=row["id"], text=row["text"], metadata={"title": row["title"]}) for row in rows]
        return [NodeWithScore(node=node, score=1 - row["_distance"]) for node, row in zip(nodes, rows, strict=True)]
