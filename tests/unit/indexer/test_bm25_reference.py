"""BM25 reproduces published metrics on real collections (``../shared/data``; skipped where that folder is
absent)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from dpr.evaluation.ranking_metrics import evaluate_questions, mean_metrics
from dpr.formats.corpora import read_passages
from dpr.formats.question_sets import read_qrels, read_questions
from dpr.indexer.bm25 import Bm25Index
from dpr.indexer.ranking import to_rankings
from dpr.indexer.registry import IndexTexts

# nDCG@10, recall@10, recall@100, top-1. k1 0.9, b 0.4, title and text joined. Stated to three decimals; where
# passages tie, the last of them may differ.
REFERENCE = {
    "cranfield": (0.335, 0.373, 0.712, 0.267),
    "npl": (0.412, 0.201, 0.581, 0.538),
    "squad": (0.889, 0.964, 0.994, 0.805),
}
TOLERANCE = 0.0011
Collection = tuple[dict[str, str], dict[str, str], dict[str, dict[str, int]]]


def beir(folder: Path) -> Collection:
    corpus = next(path for path in (folder / "corpus.jsonl", folder / "corpus.jsonl.gz") if path.exists())
    texts = {str(passage.id): f"{passage.title} {passage.text}" for passage in read_passages(corpus)}
    questions = {question.id: question.text for question in read_questions(folder / "queries.jsonl")}
    return texts, questions, read_qrels(folder / "qrels" / "test.tsv")


def squad(folder: Path) -> Collection:
    """Every distinct paragraph is a document."""
    articles = json.loads(gzip.decompress((folder / "squad-v1.1-dev.shared-half.json.gz").read_bytes()))[
        "data"
    ]
    ids: dict[str, str] = {}
    questions, qrels = {}, {}
    for paragraph in (paragraph for article in articles for paragraph in article["paragraphs"]):
        passage_id = ids.setdefault(paragraph["context"], f"{len(ids):05d}")
        for question in paragraph["qas"]:
            questions[question["id"]] = question["question"]
            qrels[question["id"]] = {passage_id: 1}
    return {passage_id: text for text, passage_id in ids.items()}, questions, qrels


@pytest.mark.parametrize("name", list(REFERENCE))
def test_bm25_metrics_are_the_published_ones(name: str, shared_data: Path) -> None:
    texts, questions, qrels = (squad if name == "squad" else beir)(shared_data / name)
    index = Bm25Index.build(IndexTexts(list(texts), texts.values()))
    asked = [question for question in qrels if question in questions]
    rankings = to_rankings(index.search([questions[question] for question in asked], 100))
    each = evaluate_questions(
        dict(zip(asked, rankings, strict=True)),
        {question: qrels[question] for question in asked},
        (1, 10, 100),
    )
    metrics = mean_metrics(each)
    found = tuple(metrics[key] for key in ("ndcg@10", "recall@10", "recall@100", "accuracy@1"))
    assert found == pytest.approx(REFERENCE[name], abs=TOLERANCE), [round(value, 4) for value in found]
