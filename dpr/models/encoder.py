"""One tower: a Hugging Face encoder, pooling, an optional projection."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from dpr.core.batch import TokenBatch
from dpr.core.errors import ConfigError
from dpr.models.adapters import Adapter
from dpr.models.fast.packed import Capabilities, accelerate, packed_vectors
from dpr.models.pooling import check_vectors, make_pooling
from dpr.models.properties import (
    LENGTHS,
    first_position,
    is_static,
    longest_sequence,
    pad_id,
)
from dpr.models.settings import EncoderSettings as EncoderSettings  # users import it from here


def filler_tokens(device: torch.device) -> TokenBatch:
    """Returns a short text of any words, for a forward whose vector is not used."""
    return TokenBatch.from_lists([[1] * LENGTHS[-1]]).to(device)


class Encoder(nn.Module):
    """Turns token sequences into vectors (N, D) in fp32 (or the weights' precision if that is higher).

    The backbone is any Hugging Face encoder without its pooler; ``pooling`` is a name or an import path
    (``dpr.models.pooling``). With ``packed``, if the backbone supports it, no padding is computed; otherwise
    sequences are padded to the longest of the batch. ``attention`` is sdpa or varlen
    (``dpr.models.fast.varlen``). ``attend_to_last`` adds the original's stray [SEP], which poolings never
    read. A second tower over the same backbone gets ``fast`` from the first; each has its ``adapter``.
    ``dimensions`` cuts the vectors; 0 keeps them whole.

    Raises:
        ConfigError: the backbone gives no hidden states, or with this pooling the vectors do not depend on
        the text.
    """

    def __init__(
        self,
        backbone: Any,
        *,
        pooling: str = "cls",
        projection_dim: int = 0,
        projection_activation: str = "none",
        normalize: bool = False,
        packed: bool = True,
        attention: str = "sdpa",
        fast: Capabilities | None = None,
        adapter: Adapter | None = None,
        dimensions: int = 0,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.config = backbone.config
        self.config.use_cache = False  # of a decoder: a text is encoded, never continued
        self.pooling, width = make_pooling(pooling, int(self.config.hidden_size), int(self.config.vocab_size))
        self.normalize = normalize
        self.encode_proj = nn.Linear(width, projection_dim) if projection_dim else None
        self._has_tanh = projection_activation == "tanh"
        self.pooled_width = width
        self.dimension = projection_dim or width
        if dimensions:
            self.keep(dimensions)
        nothing = torch.zeros(0, dtype=torch.int64)
        reads_one_token = self.pooling.token_read(nothing, nothing) is not None
        self.fast = fast or accelerate(
            backbone, packed=packed, attention=attention, reads_one_token=reads_one_token
        )
        check_vectors(backbone, self.pooling, pooling, warn_of_padding=not self.is_packed)
        self._last: tuple[int, int] | None = None
        self._first = 0
        """Backbone's first position; ``_last`` is the token of ``attend_to_last`` and its position, from 0."""
        self.adapter = adapter
        self.is_sharded = False
        """True if its weights are spread over ranks (``dpr.training.compute``). These must call it equally
        often, in the same order."""

    def keep(self, dimensions: int) -> None:
        """Cuts vectors to their first ``dimensions`` numbers, before they are scaled. Raises ConfigError if
        they have fewer."""
        if not 0 < dimensions <= self.dimension:
            raise ConfigError(
                f"dimensions={dimensions}, but the model's vectors have {self.dimension}; give 1"
                f" to {self.dimension}"
            )
        self.dimension = dimensions

    def attend_to_last(self, token: int, position: int) -> None:
        """Appends ``token`` at ``position`` to every sequence that is not longer than ``position``, as the
        original DPR does.

        Raises:
            ConfigError: the backbone does not accept positions, has no such position, or attends only to near
            tokens.
        """
        first = self.fast.first_position if self.is_packed else first_position(self.backbone)
        windows = ("local_attention", "sliding_window", "attention_window")
        sees_near_only = any(getattr(self.config, name, None) for name in windows)
        if first is None or sees_near_only or is_static(self.backbone):
            raise ConfigError(
                f"encoder.dpr_trailing_sep=true: {type(self.backbone).__name__} does not attend that far;"
                " set it to false"
            )
        self.check_length(position + 1, "encoder.dpr_trailing_sep=true with encoder.sequence_length")
        self._last = (token, position)
        self._first = first

    def check_length(self, length: int, setting: str) -> None:
        """Raises ConfigError if the backbone has fewer positions than ``length``, or if a text of that length
        changes the vectors of those beside it."""
        longest = longest_sequence(self.backbone, length)
        if longest < length:
            raise ConfigError(
                f"{setting}={length}, but a {type(self.backbone).__name__} has {longest} positions, or a text of"
                f" more tokens changes how it encodes all others of a batch; set {setting}={longest} or less"
            )

    @property
    def is_packed(self) -> bool:
        return self.fast.first_position is not None

    @property
    def runs_in_streams(self) -> bool:
        """True if several threads may call it at once and gain by it: on a CPU, packed, with layers, and with
        weights that no other call changes."""
        return (
            self.fast.has_layers
            and self.is_packed
            and self.adapter is None
            and not self.is_sharded
            and next(self.parameters()).device.type == "cpu"
        )

    def forward(self, batch: TokenBatch) -> Tensor:
        with self.adapter.active() if self.adapter else nullcontext():
            if self.is_packed:
                vectors = packed_vectors(self.backbone, batch, self.pooling, self.fast, self._last)
            else:
                vectors = self._pooled(*batch.padded(pad_id(self.config)), batch.position)
        return self.finished(vectors)

    def of_padded(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Encodes as ``forward`` does, for sequences padded at their ends: ``input_ids`` (N, L) and ``mask``
        (N, L), True at real tokens."""
        with self.adapter.active() if self.adapter else nullcontext():
            return self.finished(self._pooled(input_ids, mask, torch.zeros_like(input_ids[:, 0])))

    def _pooled(self, input_ids: Tensor, mask: Tensor, position: Tensor) -> Tensor:
        """Returns pooled vectors (N, V) by their definition, which the packed forward is tested against.

        The shapes follow from those of the arguments alone, so that one graph computes any batch
        (``dpr.export.onnx``).
        """
        original = mask
        options = dict[str, Tensor]()
        if self._last is not None:
            token, position_of_token = self._last
            places = torch.arange(input_ids.shape[1] + 1, device=mask.device)[None]
            lengths = mask.sum(1, keepdim=True)
            is_added = (places == lengths) & (lengths <= position_of_token)
            original = nn.functional.pad(mask, (0, 1))
            input_ids = nn.functional.pad(input_ids, (0, 1))
            mask = original | is_added
            input_ids = torch.where(is_added, token, input_ids)
            positions = torch.where(is_added, position_of_token, places) + self._first
            options["position_ids"] = torch.where(mask, positions, 0)
        hidden = self.backbone(
            input_ids=input_ids, attention_mask=mask.to(torch.int64), **options
        ).last_hidden_state
        return self.pooling.padded(hidden, input_ids, original, position)

    def finished(self, vectors: Tensor) -> Tensor:
        """Projects, cuts and scales pooled vectors (N, V); returns (N, D)."""
        if self.encode_proj is not None:
            vectors = self.encode_proj(vectors)
            vectors = vectors.tanh() if self._has_tanh else vectors
        if self.dimension < vectors.shape[1]:
            vectors = vectors[:, : self.dimension]
        vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
        return nn.functional.normalize(vectors, dim=-1) if self.normalize else vectors


def checkpoint_activations(towers: Sequence[Any]) -> None:
    """Makes towers keep only the input of each layer and compute the rest again in backward; gradients stay
    the same.

    Raises:
        ConfigError: a backbone has no such mode.
    """
    for tower in towers:
        if not getattr(tower.backbone, "supports_gradient_checkpointing", False):
            raise ConfigError(
                f"train.gradient_checkpointing=true: {type(tower.backbone).__name__} has no such mode; set it"
                " to false"
            )
        options: dict[str, Any] = {"use_reentrant": False}
        if tower.adapter is not None:
            # The function is called in forward. In backward the adapter of the tower that ran last would
            # still be active.
            options["context_fn"] = tower.adapter.contexts
        # the name in later transformers 5
        renamed = getattr(tower.backbone, "activation_checkpointing_enable", None)
        (renamed or tower.backbone.gradient_checkpointing_enable)(options)
