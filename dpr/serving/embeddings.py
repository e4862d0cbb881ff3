"""Vectors of texts, in the shapes that clients of OpenAI's service and of text-embeddings-inference
expect."""

from __future__ import annotations

import base64
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dpr.core.batch import TokenBatch
from dpr.core.records import Passage
from dpr.embedding.encode import encode_tokens
from dpr.models.biencoder import BiEncoder
from dpr.models.encoding import BATCH_TOKENS
from dpr.retrieval.retrievers import DenseRetriever, QuestionForm, question_batch

_QUESTION, _PASSAGE = ("query", "question", "search_query"), ("passage", "document", "search_document")


@dataclass
class ModelAlone:
    """A model without passages: it embeds as one that is searched with."""

    model: BiEncoder
    form: QuestionForm = field(default_factory=QuestionForm)
    batch_size: int = 128
    batch_tokens: int = BATCH_TOKENS
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))


class BadRequest(Exception):
    """What the model cannot do, or cannot do without being told more, as a sentence."""


def answers(dense: DenseRetriever | ModelAlone, index: str, jobs: Sequence[Mapping[str, Any]]) -> list[Any]:
    """What is answered to requests to the model of ``index`` that embed on the same ``side``.

    Raises:
        BadRequest: the model has no such prompt, or as many numbers as asked for, or needs to know the side.
    """
    vectors, lengths = _embedded(dense, [text for job in jobs for text in job["inputs"]], jobs[0]["side"])
    ends = np.cumsum([len(job["inputs"]) for job in jobs])[:-1]
    is_unit = dense.model.similarity == "cosine"
    parts = zip(jobs, np.split(vectors, ends), np.split(lengths, ends), strict=True)
    return [_shaped(job, index, _cut(rows, job, is_unit), int(tokens.sum())) for job, rows, tokens in parts]


def _embedded(
    dense: DenseRetriever | ModelAlone, texts: list[str], side: str | None
) -> tuple[np.ndarray, np.ndarray]:
    """Vectors (N, D) float32, and lengths (N,) in tokens: as questions are embedded for a search, or passages
    without title."""
    model, form = dense.model, dense.form
    if side is None and (model.sides_differ or form != QuestionForm()):
        raise BadRequest(
            "the model embeds questions and passages differently; say which these are by input_type"
            " (prompt_name): query or passage"
        )
    start = time.perf_counter()
    if side is None or side in _PASSAGE:
        tower, tokens = (
            "ctx",
            TokenBatch.from_lists(model.tensorizer.passage_tokens([Passage(text) for text in texts])),
        )
    else:
        prompts = model.tensorizer.text.prompts
        if side not in (*_QUESTION, *prompts):
            known = ", ".join([_QUESTION[0], _PASSAGE[0], *sorted(prompts)])
            raise BadRequest(f"input_type (prompt_name) {side[:200]!r} is not known; choose of {known}")
        form = replace(form, prompt=side) if side in prompts else form
        tower, tokens = form.encoder_type, question_batch(model, texts, form)
    tokenised = time.perf_counter()
    vectors = encode_tokens(
        model, tokens, encoder_type=tower, batch_tokens=dense.batch_tokens, batch_size=dense.batch_size
    )
    dense.seconds["tokenise"] += tokenised - start
    dense.seconds["inference"] += time.perf_counter() - tokenised
    return vectors, tokens.lengths.numpy()


def _cut(vectors: np.ndarray, job: Mapping[str, Any], is_unit: bool) -> np.ndarray:
    """The first ``dimensions`` numbers, of length 1 where the model's are, or where the request wants it."""
    wanted = job["dimensions"] or vectors.shape[1]
    if wanted > vectors.shape[1]:
        raise BadRequest(f"dimensions={wanted}, but the vectors have {vectors.shape[1]}")
    vectors = vectors[:, :wanted]
    if is_unit or job.get("normalize"):
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return vectors


def _shaped(job: Mapping[str, Any], index: str, vectors: np.ndarray, num_tokens: int) -> Any:
    if job["do"] == "embed":
        return vectors.tolist()
    is_text = job["format"] == "base64"
    values = (
        [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in vectors]
        if is_text
        else vectors.tolist()
    )
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": number, "embedding": value}
            for number, value in enumerate(values)
        ],
        "model": index,
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }
