"""Files by which ``dpr search`` and ``dpr serve`` open what ``dpr adapt`` and ``dpr quickstart`` have made."""

from __future__ import annotations

from pathlib import Path

from dpr.adaptation.choices import DEPTH
from dpr.adaptation.folder import AdaptFolder
from dpr.core.errors import InputError
from dpr.retrieval.indexes import index_choice, open_text_index
from dpr.retrieval.search_json import SearchSettings
from dpr.retrieval.settings import IndexerConfig
from dpr.retrieval.sources import resolve_passage_sources
from dpr.storage.durable import remove_folder


def write_search(out: Path, corpus: Path, weight: float | None) -> None:
    """Writes ``search.json`` and the index of BM25, so that ``dpr search`` and ``dpr serve`` open the folder
    ``out``. Without a weight, they search by BM25 alone."""
    passages = resolve_passage_sources([str(corpus)], {})
    words = out / "bm25_index"
    choice = index_choice(IndexerConfig(kind="bm25"))
    try:
        open_text_index(choice, passages, str(words))
    except InputError:  # an index of earlier texts, or damaged
        if not words.exists():
            raise
        remove_folder(words)
        open_text_index(choice, passages, str(words))
    if weight is None:
        search = SearchSettings(passages=passages, bm25_index_path=str(words), indexer={"kind": "bm25"})
    else:
        folder = AdaptFolder(out)
        search = SearchSettings(
            model_file=str(folder.model),
            encoded_ctx_files=[str(folder.vectors)],
            passages=passages,
            bm25_index_path=str(words),
            hybrid="linear",
            hybrid_weight=weight,
            hybrid_depth=DEPTH,
        )
    search.write(out)
