"""The side of a search that ranks by vectors: those of questions by a bi-encoder, and an index of the passages'."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from dpr.core.batch import TokenBatch
from dpr.core.errors import InputError
from dpr.core.logs import ProgressBar
from dpr.embedding.encode import encode_tokens
from dpr.formats.vector_shards import VectorShard
from dpr.indexer.ranking import Ranking, to_rankings
from dpr.indexer.registry import Index
from dpr.models.biencoder import BATCH_TOKENS, BiEncoder
from dpr.retrieval.question_form import QuestionForm

_LOOKED_AT = 1000  # questions


def question_batch(model: BiEncoder, questions: Sequence[str], form: QuestionForm) -> TokenBatch:
    """Returns the tokens of questions; ``form`` has been agreed with the model."""
    sequences = model.tensorizer.question_tokens(
        questions, prompt=form.prompt, prefix=form.before_questions, suffix=form.suffix
    )
    return TokenBatch.from_lists(
        sequences, model.tensorizer.representation_positions(sequences, form.selector)
    )


def encode_questions(
    model: BiEncoder,
    questions: Sequence[str],
    form: QuestionForm,
    *,
    batch_size: int = 128,
    seconds: defaultdict[str, float] | None = None,
) -> np.ndarray:
    """Returns question vectors (Q, D) float32, in the order given. ``form`` has been agreed with the model.
    Times are added to ``seconds``."""
    if not questions:
        return np.zeros((0, model.dimension), dtype=np.float32)
    start = time.perf_counter()
    tokens = question_batch(model, questions, form)
    tokenised = time.perf_counter()
    progress = ProgressBar("encoding questions", len(questions), unit="questions")
    try:
        vectors = encode_tokens(
            model,
            tokens,
            encoder_type=form.encoder_type,
            batch_tokens=BATCH_TOKENS,
            batch_size=batch_size,
            on_batch=progress.advance,
        )
    finally:
        progress.close()
    if seconds is not None:
        seconds["tokenise"] += tokenised - start
        seconds["inference"] += time.perf_counter() - tokenised
    return vectors


class DenseSide:
    """A bi-encoder's question tower and an index of its passage vectors. ``seconds`` are spent in ``tokenise``
    and ``inference``."""

    def __init__(
        self,
        model: BiEncoder,
        index: Index,
        *,
        form: QuestionForm | None = None,
        batch_size: int = 128,
    ) -> None:
        self.model = model
        self.index = index
        self.form = (form or QuestionForm()).agreed(model.tensorizer.text)
        self.batch_size = batch_size
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def encode(self, questions: Sequence[str]) -> np.ndarray:
        """Returns question vectors (Q, D) float32, in the order given."""
        return encode_questions(
            self.model, questions, self.form, batch_size=self.batch_size, seconds=self.seconds
        )

    def retrieve(self, questions: Sequence[str], k: int) -> list[Ranking]:
        """Returns up to ``k`` passages for each question, best first."""
        return to_rankings(self.index.search(self.encode(questions), k))

    def warn_of_unknown_words(self, questions: Sequence[str], source: str) -> None:
        """Warns if the model lacks many words of the questions, judged by the first ones."""
        tokens = question_batch(self.model, questions[:_LOOKED_AT], self.form).tokens
        self.model.tensorizer.check_known(tokens.numpy(), source, refuse=False)


def fit_to_vectors(model: BiEncoder, shards: Sequence[VectorShard], *, model_file: str = "the model") -> None:
    """Cuts the model's vectors to the width of the passages'.

    Raises:
        InputError: the passage vectors were made by another model, with other settings of it, or for another
            similarity.
    """
    if shards and shards[0].dimension < model.dimension:
        model.keep_dimensions(shards[0].dimension)
    fingerprint = model.fingerprint
    for shard in shards:
        stored = shard.metadata.get("model_fingerprint")
        if stored != fingerprint:
            raise InputError(
                f"vectors of another model (model_fingerprint {stored!r})",
                file=shard.path,
                expected=f"those of {model_file} ({fingerprint!r})",
                hint="embed the corpus with this model, or set model_file to the one they were made with",
            )
        if shard.metadata.get("similarity", "dot") != "dot":
            raise InputError(
                f"vectors for similarity {shard.metadata['similarity']!r}", file=shard.path, expected="'dot'"
            )
