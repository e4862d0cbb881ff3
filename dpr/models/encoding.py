"""Texts to vectors: what a bi-encoder does outside of training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypedDict, Unpack, overload

import numpy as np
import torch
from torch import Tensor, nn

from dpr.core.batch import TokenBatch
from dpr.core.distributed import largest_over_ranks
from dpr.core.errors import ConfigError
from dpr.core.progress import Progress
from dpr.core.records import Passage
from dpr.data.packing import plan_token_batches
from dpr.data.tensorizer import Tensorizer
from dpr.data.text import checked_items
from dpr.models.encoder import Encoder, filler_tokens
from dpr.models.settings import EncoderSettings

BATCH_TOKENS = 8192
"""Tokens of a forward pass without gradient, where the caller does not say."""

PassageLike = str | Passage


class EncodingOptions(TypedDict, total=False):
    """How texts are encoded: what the ``encode`` methods share."""

    batch_tokens: int
    """Tokens of a forward pass at most, else ``BATCH_TOKENS``; texts of similar length are encoded
    together."""
    batch_size: int
    """Texts of a forward pass at most; 0 is no limit."""
    show_progress_bar: bool
    """A bar on a terminal, lines in the log elsewhere."""
    convert_to_tensor: Literal[False]
    """True: a tensor on the model's device, in place of an array."""
    convert_to_numpy: bool
    """The default; False needs ``convert_to_tensor``."""


class TextEncoding(nn.Module):
    """The ``encode`` methods, which take ``EncodingOptions``."""

    tensorizer: Tensorizer
    settings: EncoderSettings
    question_model: Encoder
    ctx_model: Encoder

    @property
    def dimension(self) -> int:
        return self.question_model.dimension

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def sides_differ(self) -> bool:
        """Whether a text has another vector as a question than as a passage: towers of their own, or other
        prompts. Not looked at are the lengths that either is cut to, and apostrophes."""
        return (
            self.question_model is not self.ctx_model
            or self.tensorizer.text.query_prompt != self.tensorizer.text.passage_prompt
        )

    def tower(self, encoder_type: str) -> Encoder:
        """``question`` or ``ctx``."""
        return self.question_model if encoder_type == "question" else self.ctx_model

    @overload
    def encode_questions(
        self, texts: str | Sequence[str], *, convert_to_tensor: Literal[True], **options: Any
    ) -> Tensor: ...

    @overload
    def encode_questions(
        self,
        texts: str | Sequence[str],
        *,
        prompt: str | None = None,
        **options: Unpack[EncodingOptions],
    ) -> np.ndarray: ...

    def encode_questions(
        self, texts: str | Sequence[str], *, prompt: str | None = None, **options: Any
    ) -> np.ndarray | Tensor:
        """Vectors of questions, (Q, D) float32 in the given order; (D,) for a single text. Before them comes
        the model's ``query_prompt``, or the one of its ``prompts`` that ``prompt`` names. TypeError for
        anything but texts."""
        questions = checked_items(texts, (str,), "encode_questions", "a text")
        vectors = self._encoded(
            "questions", self.tensorizer.question_tokens(questions, prompt=prompt), "question", **options
        )
        return vectors[0] if isinstance(texts, str) else vectors

    @overload
    def encode_passages(
        self,
        passages: PassageLike | Sequence[PassageLike],
        *,
        convert_to_tensor: Literal[True],
        **options: Any,
    ) -> Tensor: ...

    @overload
    def encode_passages(
        self,
        passages: PassageLike | Sequence[PassageLike],
        **options: Unpack[EncodingOptions],
    ) -> np.ndarray: ...

    def encode_passages(
        self, passages: PassageLike | Sequence[PassageLike], **options: Any
    ) -> np.ndarray | Tensor:
        """Vectors of passages or of texts without a title, (P, D) float32 in the given order; (D,) for a
        single one. Before them comes the model's ``passage_prompt``. TypeError for anything but texts and
        passages."""
        given = checked_items(passages, (str, Passage), "encode_passages", "a text or a Passage")
        records = [Passage(passage) if isinstance(passage, str) else passage for passage in given]
        vectors = self._encoded("passages", self.tensorizer.passage_tokens(records), "ctx", **options)
        return vectors[0] if isinstance(passages, str | Passage) else vectors

    @overload
    def encode(
        self, texts: PassageLike | Sequence[PassageLike], *, convert_to_tensor: Literal[True], **options: Any
    ) -> Tensor: ...

    @overload
    def encode(
        self,
        texts: PassageLike | Sequence[PassageLike],
        **options: Unpack[EncodingOptions],
    ) -> np.ndarray: ...

    def encode(self, texts: PassageLike | Sequence[PassageLike], **options: Any) -> np.ndarray | Tensor:
        """``encode_passages`` under the name of sentence-transformers; ConfigError where ``sides_differ``."""
        if self.sides_differ:
            raise ConfigError(
                "this model encodes questions and passages differently; call encode_questions or"
                " encode_passages"
            )
        return self.encode_passages(texts, **options)

    def _encoded(
        self,
        what: str,
        sequences: list[list[int]],
        encoder_type: str,
        *,
        batch_tokens: int = BATCH_TOKENS,
        batch_size: int = 0,
        show_progress_bar: bool = False,
        convert_to_tensor: bool = False,
        convert_to_numpy: bool = True,
        **unknown: Any,
    ) -> np.ndarray | Tensor:
        if unknown:
            raise TypeError(
                f"there is no argument {next(iter(unknown))}; there are"
                f" {', '.join(EncodingOptions.__annotations__)}"
            )
        if not (convert_to_tensor or convert_to_numpy):
            raise ConfigError(
                "convert_to_numpy=False needs convert_to_tensor=True; vectors come as one array or one tensor"
            )
        progress = Progress(what, len(sequences), unit=what) if show_progress_bar else None
        try:
            vectors = self.encode_batch(
                TokenBatch.from_lists(sequences),
                encoder_type=encoder_type,
                batch_tokens=batch_tokens,
                max_sequences=batch_size,
                progress=progress,
            ).float()
        finally:
            if progress is not None:
                progress.close()
        return vectors if convert_to_tensor else vectors.cpu().numpy()

    def encode_tokens(
        self,
        sequences: Sequence[list[int]],
        *,
        encoder_type: str,
        batch_tokens: int = BATCH_TOKENS,
        positions: list[int] | None = None,
    ) -> np.ndarray:
        """Encodes token id lists in length-sorted batches of at most ``batch_tokens`` tokens; (N, D) float32
        in the given order."""
        tokens = TokenBatch.from_lists(list(sequences), positions)
        return (
            self.encode_batch(tokens, encoder_type=encoder_type, batch_tokens=batch_tokens)
            .float()
            .cpu()
            .numpy()
        )

    @torch.no_grad()
    def encode_batch(
        self,
        tokens: TokenBatch,
        *,
        encoder_type: str,
        batch_tokens: int = BATCH_TOKENS,
        max_sequences: int = 0,
        progress: Progress | None = None,
    ) -> Tensor:
        """As ``encode_tokens``, as a tensor on the model's device, without dropout; ``max_sequences`` = 0 is
        no limit. All ranks of a sharded model call it together, with or without texts."""
        tower, was_training = self.tower(encoder_type), self.training
        dtype = torch.promote_types(next(tower.parameters()).dtype, torch.float32)
        result = torch.empty(len(tokens), self.dimension, device=self.device, dtype=dtype)
        if (
            is_changed := was_training or tower.training
        ):  # to visit every module takes longer than to look a question up in a table
            self.eval()
        try:
            batches = plan_token_batches(
                tokens.lengths.cpu().numpy(), batch_tokens, max_sequences or len(tokens)
            )
            # known to all before the first
            most = largest_over_ranks(len(batches)) if tower.is_sharded else 0
            for rows in batches:
                index = torch.from_numpy(rows)
                part = tokens.select(index)
                if self.device.type == "cuda" and part.tokens.device.type == "cpu":
                    # the copies need not wait for the previous batch
                    index, part = (
                        index.pin_memory(),
                        part.pin_memory(),
                    )
                result[index.to(self.device, non_blocking=True)] = tower(part.to(self.device)).to(dtype)
                if progress is not None:
                    progress.advance(len(rows), len(part.tokens))
            for _ in range(len(batches), most):
                tower(filler_tokens(self.device))
        finally:
            if is_changed:
                self.train(was_training)
        return result
