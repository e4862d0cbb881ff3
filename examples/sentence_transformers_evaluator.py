"""Evaluates an exported model with the evaluator of sentence-transformers.

    python -m examples.sentence_transformers_evaluator MODEL CORPUS QUESTIONS QRELS

MODEL is a folder of ``dpr export to=sentence-transformers``; the other three are files as ``dpr retrieve``
reads them. The metrics are those of ``dpr retrieve``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from dpr import read_passages, read_qrels, read_questions


def evaluate(model: str, corpus: str, questions: str, qrels: str) -> dict[str, float]:
    """Returns the evaluator's metrics by name (``dot_ndcg@10``, ...)."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    documents: dict[str, Any] = {
        str(passage.id): (passage.title, passage.text.strip()) if passage.title else passage.text.strip()
        for passage in read_passages(corpus)
    }
    relevant = {
        question: {key for key, grade in judged.items() if grade > 0}
        for question, judged in read_qrels(qrels).items()
    }
    asked = {question.id: question.text for question in read_questions(questions)}
    depths = [1, 5, 10, 20, 100]
    evaluator = InformationRetrievalEvaluator(
        asked,
        documents,
        relevant,
        accuracy_at_k=depths,
        precision_recall_at_k=depths,
        ndcg_at_k=[10, 100],
        write_csv=False,
    )
    found: dict[str, float] = evaluator(SentenceTransformer(model, device="cpu", local_files_only=True))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    print(json.dumps(evaluate(*(sys.argv[1:] if argv is None else argv)), indent=2))


if __name__ == "__main__":
    main()
