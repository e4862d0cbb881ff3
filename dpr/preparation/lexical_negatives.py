"""Hard negatives by words: passages that BM25 takes for the answer and that are not."""

from __future__ import annotations

from collections.abc import Sequence

from dpr.core.records import Passage
from dpr.indexer.bm25 import Bm25Index
from dpr.indexer.registry import Texts


def lexical_negatives(
    questions: Sequence[str], positives: Sequence[Passage], pool: Sequence[Passage], *, num_negatives: int
) -> list[list[Passage]]:
    """For each question the ``num_negatives`` best passages of ``pool`` by BM25 that are not its positive, best first.

    A passage with the positive's id, or with its very text, is never a negative. Lists are shorter where fewer passages share a word with
    the question. Passages need ids.
    """
    by_id = {str(passage.id): passage for passage in pool}
    index = Bm25Index.build(Texts(list(by_id), [f"{passage.title} {passage.text}" for passage in by_id.values()]))
    # One more than asked, for the positive; texts that repeat it are rare enough to cost a negative.
    _, found = index.search(questions, num_negatives + 1)
    negatives = []
    for positive, hits in zip(positives, found, strict=True):
        candidates = (by_id[hit] for hit in hits if hit != positive.id)
        negatives.append([passage for passage in candidates if passage.text != positive.text][:num_negatives])
    return negatives
