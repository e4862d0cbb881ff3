"""Methods of a bi-encoder under the names of sentence-transformers; each behaves as it does there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from dpr.core.errors import ConfigError
from dpr.core.other_names import hint
from dpr.models.towers import Towers


class SentenceTransformersNames(Towers):
    """Towers that also have the method names of sentence-transformers."""

    encode_questions: Callable[..., Any]
    encode_passages: Callable[..., Any]

    def encode_query(self, texts: Any, **options: Any) -> Any:
        """Returns vectors of questions as ``encode_questions`` does."""
        return self.encode_questions(texts, **options)

    def encode_document(self, texts: Any, **options: Any) -> Any:
        """Returns vectors of passages as ``encode_passages`` does."""
        return self.encode_passages(texts, **options)

    def embed_query(self, text: str) -> list[float]:
        """Returns the vector of a question as a list, under the name of LangChain's ``Embeddings``."""
        return list(self.encode_questions(text).tolist())

    def embed_documents(self, texts: Any) -> list[list[float]]:
        """Returns the vectors of passages as lists, under the name of LangChain's ``Embeddings``."""
        return list(self.encode_passages(texts).tolist())

    @property
    def model_card_data(self) -> Any:
        """Returns an object that ignores the metrics which evaluators of sentence-transformers store."""
        return SimpleNamespace(set_evaluation_metrics=lambda *_, **__: None)

    @property
    def similarity_fn_name(self) -> str:
        """Returns ``cosine`` if vectors have length 1, else ``dot``. In both cases the score is the product
        of two vectors."""
        return "cosine" if self.settings.normalize else "dot"

    def similarity(self, questions: Any, passages: Any) -> Tensor:
        """Returns scores (Q, P) of vectors (Q, D) and (P, D), arrays or tensors, by
        ``similarity_fn_name``."""
        return self._compared(questions) @ self._compared(passages).T

    def similarity_pairwise(self, questions: Any, passages: Any) -> Tensor:
        """Returns scores (N,) of vectors (N, D) and (N, D), pair by pair."""
        return (self._compared(questions) * self._compared(passages)).sum(-1)

    def _compared(self, vectors: Any) -> Tensor:
        try:
            if isinstance(vectors, list):
                vectors = torch.stack([torch.as_tensor(vector) for vector in vectors])
            tensor = torch.atleast_2d(torch.as_tensor(vectors)).float()
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(
                f"similarity() takes vectors, not {type(vectors).__name__}; encode_questions makes them of texts"
            ) from None
        return nn.functional.normalize(tensor, dim=-1) if self.settings.normalize else tensor

    @property
    def max_seq_length(self) -> int:
        """Returns the longest text in tokens, special tokens included. Setting it changes both sides.

        Raises:
            ConfigError: the backbone has fewer positions, or the model has the original's stray [SEP].
        """
        return self.settings.sequence_length

    @max_seq_length.setter
    def max_seq_length(self, length: int) -> None:
        if self.settings.dpr_trailing_sep:
            raise ConfigError("the stray [SEP] of this model stands at a fixed position; its length stays")
        for tower in self.towers:
            tower.check_length(length, "max_seq_length")
        self.settings = replace(self.settings, sequence_length=length, question_length=0)
        self.tensorizer.sequence_length = self.tensorizer.question_length = length

    # Setting these, which would change nothing, fails; reading them shows the line to write (__getattr__).
    prompts = property()
    default_prompt_name = property()
    truncate_dim = property()

    @property
    def tokenizer(self) -> Any:
        """Returns the tokenizer, an object of transformers."""
        return self.tensorizer.tokenizer

    def get_sentence_embedding_dimension(self) -> int:
        """Returns ``dimension``, under the name of sentence-transformers."""
        return self.dimension

    get_embedding_dimension = get_sentence_embedding_dimension

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            raise AttributeError(f"{error}{hint(name)}") from None
