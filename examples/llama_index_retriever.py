"""A LlamaIndex retriever over a run folder, or over any ``dpr.Retriever``."""

from __future__ import annotations

from typing import Any

from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from dpr import Retriever


class DprRetriever(BaseRetriever):
    """``DprRetriever(Retriever.open("runs/first"), k=5).retrieve("a question")``; ``options`` as of
    ``Retriever.search``."""

    def __init__(self, retriever: Retriever, *, k: int = 10, **options: Any) -> None:
        super().__init__()
        self.retriever = retriever
        self.k = k
        self.options = options

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        nodes = []
        for hit in self.retriever.search(query_bundle.query_str, self.k, **self.options):
            node = TextNode(id_=hit.id, text=hit.text, metadata={**hit.metadata, "title": hit.title})
            nodes.append(NodeWithScore(node=node, score=hit.score))
        return nodes
