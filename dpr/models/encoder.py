"""One tower: a Hugging Face encoder, pooling, an optional projection."""

from __future__ import annotations

import copy
import inspect
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpr.core.batch import TokenBatch
from dpr.core.errors import InputError
from dpr.core.logs import get_logger
from dpr.data.packing import plan_packs
from dpr.models.attention import PackedLayout, enable_packing
from dpr.models.pooling import pool_packed, pool_padded

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class EncoderSettings:
    """What, besides the backbone's own config, decides the vector of a text. Stored in every checkpoint."""

    pooling: str = "cls"
    projection_dim: int = 0
    normalize: bool = False
    shared: bool = False
    sequence_length: int = 256
    question_length: int = 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


# Tokens per forward on a CPU: activations of a layer then stay in its cache. A GPU takes a whole batch at once.
CPU_FORWARD_TOKENS = 2048


class Encoder(nn.Module):
    """Token sequences -> vectors (N, D) in fp32 (or the weights' precision if that is higher).

    The backbone is any Hugging Face encoder without its pooler. ``cls`` pooling reads the last hidden state at position 0. With
    ``packed`` (where the backbone allows it) no padding is computed; otherwise sequences are padded to the longest of the batch.
    """

    def __init__(
        self, backbone: Any, *, pooling: str = "cls", projection_dim: int = 0, normalize: bool = False, packed: bool = True
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.config: Any = backbone.config
        self.pooling, self.normalize = pooling, normalize
        hidden_size = int(self.config.hidden_size)
        self.encode_proj = nn.Linear(hidden_size, projection_dim) if projection_dim else None
        self.dimension = projection_dim or hidden_size
        self.pad_id = int(self.config.pad_token_id or 0)
        self.first_position = enable_packing(backbone) if packed else None
        """Number of the first position in a packed forward; None where the backbone cannot be packed."""

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
        input_ids, mask = batch.padded(self.pad_id)
        hidden = self.backbone(input_ids=input_ids, attention_mask=mask.to(torch.int64)).last_hidden_state
        return pool_padded(hidden, mask, batch.position, self.pooling)

    def _pooled_packed(self, batch: TokenBatch, first_position: int) -> Tensor:
        """Sequences sorted by length, cut into packs; each pack is one row of tokens whose positions start again with every sequence."""
        lengths = batch.lengths.tolist()
        order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
        device = batch.tokens.device
        limit = CPU_FORWARD_TOKENS if device.type == "cpu" else sum(lengths)
        pooled = []
        for rows in plan_packs([lengths[row] for row in order], limit):
            part = batch.select(torch.tensor(order[rows], device=device))
            layout = PackedLayout.build([lengths[row] for row in order[rows]], device)
            starts = torch.cumsum(part.lengths, 0) - part.lengths
            within = torch.arange(part.tokens.shape[0], device=device) - torch.repeat_interleave(starts, part.lengths)
            hidden = self.backbone(
                input_ids=part.tokens[None], position_ids=within[None] + first_position, packed_layout=layout
            ).last_hidden_state[0]
            pooled.append(pool_packed(hidden, part.lengths, starts + part.position, self.pooling))
        back = torch.empty(len(order), dtype=torch.int64)
        back[torch.tensor(order)] = torch.arange(len(order))
        return torch.cat(pooled)[back.to(device)]


def load_backbone(name_or_folder: str, *, pretrained: bool = True, dropout: float | None = None) -> nn.Module:
    """Loads a Hugging Face encoder in fp32, or with random weights from its config.

    ``dropout`` sets hidden and attention dropout (0 included; the original read 0 as "the model's own"). Code in the folder is never run.

    Raises:
        InputError: the model cannot be loaded, is no encoder, or weights it needs are missing from the file.
    """
    from transformers import AutoConfig, AutoModel

    try:
        config = AutoConfig.from_pretrained(name_or_folder, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise InputError(
            f"no model config could be loaded ({str(error).splitlines()[0]})",
            file=name_or_folder,
            hint="set encoder.pretrained_model_cfg to a local model folder or to a model name that is in the Hugging Face cache",
        ) from error
    if not pretrained:
        return backbone_from_config(config, dropout=dropout)
    set_dropout(config, dropout)
    try:
        backbone, info = AutoModel.from_pretrained(
            name_or_folder,
            config=config,
            dtype=torch.float32,
            trust_remote_code=False,
            output_loading_info=True,
            **_without_pooler(type(config)),
        )
    except (OSError, ValueError) as error:
        raise InputError(
            f"the weights could not be loaded ({str(error).splitlines()[0]})",
            file=name_or_folder,
            hint="encoder.pretrained=false starts from random weights",
        ) from error
    missing = sorted(info["missing_keys"])
    if missing or info.get("mismatched_keys"):
        raise InputError(
            f"{len(missing)} weights of {type(backbone).__name__} are missing or of another shape (first: {', '.join(missing[:3])})",
            file=name_or_folder,
            expected="a file with all weights of that model",
        )
    return backbone


def backbone_from_config(config: Any, *, dropout: float | None = None) -> nn.Module:
    """Random weights. Each call gets its own copy of the config, since models keep settings on it."""
    from transformers import AutoModel

    config = copy.deepcopy(config)
    set_dropout(config, dropout)
    return AutoModel.from_config(config, dtype=torch.float32, trust_remote_code=False, **_without_pooler(type(config)))


def set_dropout(config: Any, dropout: float | None) -> None:
    """Sets every dropout probability the config names; families call them differently."""
    if dropout is None:
        return
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout", "embedding_dropout", "mlp_dropout"):
        if hasattr(config, name):
            setattr(config, name, dropout)


def _without_pooler(config_class: type) -> dict[str, bool]:
    """The pooler is never used; leaving it out keeps data-parallel training free of unused parameters."""
    from transformers import AutoModel

    model_class: Any = AutoModel._model_mapping.get(config_class, None)
    if isinstance(model_class, tuple):
        model_class = model_class[0]
    if model_class is not None and "add_pooling_layer" in inspect.signature(model_class).parameters:
        return {"add_pooling_layer": False}
    return {}


def config_from_folder(folder: Path) -> Any:
    """The backbone's config stored in a checkpoint folder."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(str(folder), trust_remote_code=False)
