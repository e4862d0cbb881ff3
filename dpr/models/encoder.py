"""One tower: a Hugging Face encoder, pooling, an optional projection."""

from __future__ import annotations

import copy
import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dpr.core.batch import TokenBatch, spread
from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.data.packing import plan_packs
from dpr.models.dropout import replace_dropout
from dpr.models.fast import varlen
from dpr.models.fast.attention import Layout, Mixing, PackedLayout, enable_packing
from dpr.models.fast.gelu import replace_gelu
from dpr.models.fast.last_layer import ReadLayout, enable_reading
from dpr.models.fast.varlen import VarlenLayout
from dpr.models.pooling import pool_packed, pool_padded
from dpr.models.pretrained import load_weights, read_config
from dpr.models.settings import EncoderSettings as EncoderSettings  # users import it from here
from dpr.models.trials import first_position

logger = get_logger(__name__)


class _LastToken(NamedTuple):
    """``token`` at ``position`` (counted from 0), in a backbone that numbers positions from ``first`` on."""

    token: int
    position: int
    first: int


# Tokens per forward on a CPU: activations of a layer then stay in its cache. A GPU takes a whole batch at once.
CPU_FORWARD_TOKENS = 2048
# Without dropout a CPU takes less time for attention over a single sequence of so many tokens than for its padding.
CPU_UNPADDED = 64


class Encoder(nn.Module):
    """Token sequences -> vectors (N, D) in fp32 (or the weights' precision if that is higher).

    The backbone is any Hugging Face encoder without its pooler. ``cls`` pooling reads the last hidden state at position 0. With
    ``packed`` (where the backbone allows it) no padding is computed; otherwise sequences are padded to the longest of the batch.
    ``attention`` sdpa is torch's everywhere; with varlen packs go through ``dpr.models.fast.varlen`` where that has a kernel.
    ``attend_to_last`` turns the original's stray [SEP] on; ``mean`` pooling leaves that token out.
    """

    def __init__(
        self,
        backbone: Any,
        *,
        pooling: str = "cls",
        projection_dim: int = 0,
        normalize: bool = False,
        packed: bool = True,
        attention: str = "sdpa",
    ) -> None:
        super().__init__()
        if attention not in varlen.KERNELS:
            raise ConfigError(f"encoder.attention={attention} is not one of {', '.join(varlen.KERNELS)}")
        self.backbone, self.attention = backbone, attention
        self.config: Any = backbone.config
        self.pooling, self.normalize = pooling, normalize
        hidden_size = int(self.config.hidden_size)
        self.encode_proj = nn.Linear(hidden_size, projection_dim) if projection_dim else None
        self.dimension = projection_dim or hidden_size
        self.pad_id = int(self.config.pad_token_id or 0)
        replace_dropout(backbone)
        replace_gelu(backbone)
        self.first_position = enable_packing(backbone) if packed else None
        """Number of the first position in a packed forward; None where the backbone cannot be packed."""
        self.reads_tokens = pooling == "cls" and self.first_position is not None and enable_reading(backbone, self.first_position)
        """Whether the last layer computes only the tokens that vectors are read at."""
        self._last: _LastToken | None = None

    def attend_to_last(self, token: int, position: int) -> None:
        """From now on every sequence shorter than ``position`` + 1 is followed by ``token`` with that position, as in the original DPR.

        Raises:
            ConfigError: the backbone takes no position numbers, has none that high, or attends to near tokens only.
        """
        first = self.first_position if self.first_position is not None else first_position(self.backbone)
        sees_near_only = any(getattr(self.config, name, None) for name in ("local_attention", "sliding_window", "attention_window"))
        if first is None or sees_near_only:
            raise ConfigError(f"encoder.dpr_trailing_sep=true: {type(self.backbone).__name__} cannot see that far; set it to false")
        limit = getattr(self.config, "max_position_embeddings", None)
        if limit is not None and position + first >= limit:
            raise ConfigError(
                f"encoder.dpr_trailing_sep=true with encoder.sequence_length={position + 1}, but the model has {limit - first} positions"
            )
        self._last = _LastToken(token, position, first)

    @property
    def is_packed(self) -> bool:
        return self.first_position is not None

    def forward(self, batch: TokenBatch) -> Tensor:
        vectors = self._pooled_padded(batch) if self.first_position is None else self._pooled_packed(batch, self.first_position)
        if self.encode_proj is not None:
            vectors = self.encode_proj(vectors)
        vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
        return nn.functional.normalize(vectors, dim=-1) if self.normalize else vectors

    def _pooled_padded(self, batch: TokenBatch) -> Tensor:
        if self._last is None:
            input_ids, mask = batch.padded(self.pad_id)
            hidden = self.backbone(input_ids=input_ids, attention_mask=mask.to(torch.int64)).last_hidden_state
            return pool_padded(hidden, mask, batch.position, self.pooling)
        longer = batch.with_last_token(self._last.token, self._last.position)
        input_ids, mask = longer.batch.padded(self.pad_id)
        positions, own = torch.zeros_like(input_ids), torch.zeros_like(mask)
        positions[mask], own[mask] = longer.positions + self._last.first, longer.is_own
        hidden = self.backbone(input_ids=input_ids, attention_mask=mask.to(torch.int64), position_ids=positions).last_hidden_state
        return pool_padded(hidden, own, batch.position, self.pooling)

    def _pooled_packed(self, batch: TokenBatch, first_position: int) -> Tensor:
        """Sequences sorted by length, cut into packs; each pack is one row of tokens whose positions start again with every sequence."""
        device, last = batch.tokens.device, self._last
        lengths = batch.lengths.cpu()
        order = torch.argsort(lengths if last is None else lengths + (lengths <= last.position), descending=True, stable=True)
        own = batch.select(order)
        batch, positions = own, own.within()
        if last is not None:
            batch, positions, _ = own.with_last_token(last.token, last.position)
        starts = torch.cumsum(batch.lengths, 0) - batch.lengths
        first_tokens = starts.to(device, non_blocking=True)
        # All packs' words are looked up at once: the gradient of the table is as large as the table, however few words are read.
        words, positions = self.backbone.get_input_embeddings()(batch.tokens), positions + first_position
        of_packs = batch.lengths.tolist()
        packs = plan_packs(of_packs, CPU_FORWARD_TOKENS if device.type == "cpu" else sum(of_packs))
        sizes = [sum(of_packs[rows]) for rows in packs]
        states, start = [], 0
        for rows, pack_words, pack_positions in zip(packs, words.split(sizes), positions.split(sizes), strict=True):
            pack = self._layout(of_packs[rows], pack_words)
            layout: Mixing = pack
            if self.reads_tokens:
                layout = ReadLayout(pack, (first_tokens + batch.position)[rows] - start, batch.position[rows])
            output = self.backbone(inputs_embeds=pack_words[None], position_ids=pack_positions[None], packed_layout=layout)
            states.append(output.last_hidden_state[0])
            start += len(pack_words)
        hidden = torch.cat(states)
        if last is not None and self.pooling == "mean":
            hidden = hidden[own.within() + spread(starts, own.lengths, device)]
        if not self.reads_tokens:
            hidden = pool_packed(hidden, own.lengths.to(device, non_blocking=True), first_tokens + batch.position, self.pooling)
        return hidden[torch.argsort(order).to(device, non_blocking=True)]

    def _layout(self, lengths: list[int], words: Tensor) -> Layout:
        if self.attention == "varlen" and varlen.is_usable(self.config, words.device, words.dtype):
            return VarlenLayout.build(lengths, words.device)
        is_unpadded = words.device.type == "cpu" and not self.training
        return PackedLayout.build(lengths, words.device, min_unpadded=CPU_UNPADDED if is_unpadded else None)


def load_backbone(
    name_or_folder: str, *, pretrained: bool = True, dropout: float | None = None, attention_dropout: float | None = None
) -> nn.Module:
    """Loads a Hugging Face encoder in fp32, or with random weights from its config.

    ``dropout`` sets hidden and attention dropout (0 included; the original read 0 as "the model's own"), ``attention_dropout`` the latter
    alone. Code in the folder is never run.

    Raises:
        InputError: the model cannot be loaded, is no encoder, or weights it needs are missing from the file.
    """
    from transformers import AutoModel

    config = read_config(name_or_folder)
    if not pretrained:
        return backbone_from_config(config, dropout=dropout, attention_dropout=attention_dropout)
    set_dropout(config, dropout, attention_dropout)
    backbone: nn.Module = load_weights(AutoModel, name_or_folder, config, **_without_pooler(type(config)))
    return backbone


def backbone_from_config(config: Any, *, dropout: float | None = None, attention_dropout: float | None = None) -> nn.Module:
    """Random weights. Each call gets its own copy of the config, since models keep settings on it."""
    from transformers import AutoModel

    config = copy.deepcopy(config)
    set_dropout(config, dropout, attention_dropout)
    return AutoModel.from_config(config, dtype=torch.float32, trust_remote_code=False, **_without_pooler(type(config)))


_HIDDEN_DROPOUT = ("hidden_dropout_prob", "dropout", "embedding_dropout", "mlp_dropout")
_ATTENTION_DROPOUT = ("attention_probs_dropout_prob", "attention_dropout")


def set_dropout(config: Any, dropout: float | None, attention_dropout: float | None = None) -> None:
    """Sets every dropout probability the config names, those of attention to ``attention_dropout`` where it is given; families call them
    differently."""
    of_attention = dropout if attention_dropout is None else attention_dropout
    for names, probability in ((_HIDDEN_DROPOUT, dropout), (_ATTENTION_DROPOUT, of_attention)):
        for name in names:
            if probability is not None and hasattr(config, name):
                setattr(config, name, probability)


def dropout_of(config: Any) -> dict[str, float]:
    """What ``set_dropout`` has set, by the names of the settings; the largest where a config names several."""
    found = {"encoder.dropout": _HIDDEN_DROPOUT, "encoder.attention_dropout": _ATTENTION_DROPOUT}
    return {key: max([getattr(config, name, None) or 0.0 for name in names]) for key, names in found.items()}


def _without_pooler(config_class: type) -> dict[str, bool]:
    """The pooler is never used; leaving it out keeps data-parallel training free of unused parameters."""
    from transformers import AutoModel

    model_class: Any = AutoModel._model_mapping.get(config_class, None)
    if isinstance(model_class, tuple):
        model_class = model_class[0]
    if model_class is not None and "add_pooling_layer" in inspect.signature(model_class).parameters:
        return {"add_pooling_layer": False}
    return {}
