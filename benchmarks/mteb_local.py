"""mteb's own evaluation of a model of sentence-transformers, on a collection in BEIR's layout instead of its download:

    python -m benchmarks.mteb_local models/minilm ../shared/data/scifact

It prints what ``dpr evaluate model=models/minilm set=../shared/data/scifact`` should find.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import mteb
from datasets import Dataset
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata
from sentence_transformers import SentenceTransformer

from benchmarks.adapt_trained import beir


def main() -> None:
    model = sys.argv[1]
    folder = Path(sys.argv[2])
    judged = beir(folder)

    class Collection(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name="Collection",
            description="Judged questions and the passages they are asked of.",
            dataset={"path": str(folder), "revision": "1"},
            type="Retrieval",
            eval_langs=["eng-Latn"],
            main_score="ndcg_at_10",
        )

        def load_data(self, *arguments: Any, **options: Any) -> None:
            corpus = [
                {"id": str(passage.id), "title": passage.title, "text": passage.text}
                for passage in judged.passages
            ]
            queries = [{"id": key, "text": text} for key, text in judged.questions.items()]
            data: Any = {
                "corpus": Dataset.from_list(corpus),
                "queries": Dataset.from_list(queries),
                "relevant_docs": judged.qrels,
                "top_ranked": None,
            }
            self.dataset = {"default": {"test": data}}
            self.data_loaded = True

    encoder = SentenceTransformer(model, device="cpu")
    found = mteb.evaluate(encoder, Collection(), cache=None, co2_tracker=False)
    scores = found.task_results[0].scores["test"][0]
    for name in ("ndcg_at_10", "recall_at_100", "mrr_at_10"):
        print(f"{name} {scores[name]:.5f}")


if __name__ == "__main__":
    main()
