"""Haystack components: embedders by a ``dpr.BiEncoder`` for any document store, and a retriever over a
``dpr.Retriever``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from haystack import Document, component

from dpr import BiEncoder, Passage, Retriever


@component
class DprTextEmbedder:
    """Embeds questions: ``pipeline.add_component("embedder", DprTextEmbedder(dpr.BiEncoder("runs/first")))``."""

    def __init__(self, model: BiEncoder) -> None:
        self.model = model

    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, list[float]]:
        return {"embedding": self.model.encode_questions(text).tolist()}


@component
class DprDocumentEmbedder:
    """Embeds documents, with ``meta["title"]`` as their title, before they are written to a document store."""

    def __init__(self, model: BiEncoder) -> None:
        self.model = model

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, list[Document]]:
        passages = [Passage(each.content or "", each.meta.get("title") or "") for each in documents]
        vectors = self.model.encode_passages(passages).tolist()
        embedded = [replace(each, embedding=vector) for each, vector in zip(documents, vectors, strict=True)]
        return {"documents": embedded}


@component
class DprRetriever:
    """Searches a run folder: ``DprRetriever(dpr.Retriever.open("runs/first"), k=5)``; ``options`` as of
    ``Retriever.search``."""

    def __init__(self, retriever: Retriever, *, k: int = 10, **options: Any) -> None:
        self.retriever = retriever
        self.k = k
        self.options = options

    @component.output_types(documents=list[Document])
    def run(self, query: str) -> dict[str, list[Document]]:
        documents = []
        for hit in self.retriever.search(query, self.k, **self.options):
            meta = {**hit.metadata, "title": hit.title}
            documents.append(Document(id=hit.id, content=hit.text, meta=meta, score=hit.score))
        return {"documents": documents}
