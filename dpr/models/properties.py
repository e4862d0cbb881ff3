"""Properties of a backbone: those that its config and its modules show, and those that only running it shows, on
a few random tokens, once when a tower is made."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpr.core.batch import TokenBatch
from dpr.core.errors import CheckpointError
from dpr.core.logs import get_logger

logger = get_logger(__name__)

LENGTHS = (11, 7, 4)
# Errors of model classes that are called in a way that they do not support.
FAILURES = (
    TypeError,
    ValueError,
    RuntimeError,
    IndexError,
    AttributeError,
    AssertionError,
    NotImplementedError,
    KeyError,
)
TOLERANCE = 1e-3
# Keys of a config that say how a model is run, not what it is.
_RUNNING = re.compile(
    r"_?(attn|experts)_implementation(_internal)?|auto_map|quantization_config|fusion_config|kernel_config|use_kernels|hub_kernels"
    r"|distributed_config|device_map|tp_size|(base_model_)?(tp|pp|ep)_plan"
    r"|transformers_weights|output_attentions|output_hidden_states|return_dict|use_return_dict|torchscript|chunk_size_feed_forward|_name_or_path|name_or_path"
)
# Probabilities of heads, which no vector passes through, and of skipping whole layers.
_NO_DROPOUT_OF_TOWERS = re.compile("classif|summary|pooler|qa_|layer_?drop|path|token")
# Keys of a config that affect no vector: of heads, of how files are written, and of dropout, which has
# settings.
_UNDECIDING = re.compile(
    r"architectures|(torch_)?dtype|transformers_version|(id2)?label(2id)?|problem_type|use_cache|.*drop.*|_.*"
)


@contextmanager
def trial(backbone: Any) -> Iterator[None]:
    """Runs the block in evaluation mode without gradients, with small weights scaled up so that every layer
    shows in the output; restores everything at the end.

    Freshly initialised weights are so small that a deep backbone does little more than pass its input on, and
    errors would go unseen. Factors are powers of two, so that the weights are restored bit for bit.
    """
    scaled: list[tuple[Tensor, float]] = []
    training = backbone.training
    with torch.no_grad():
        try:
            backbone.eval()
            for weight, factor in _small_weights(backbone):
                weight.mul_(factor)
                scaled.append((weight, factor))
            yield
        finally:
            for weight, factor in scaled:
                weight.div_(factor)
            backbone.train(training)


def _small_weights(backbone: Any) -> Iterator[tuple[Tensor, float]]:
    """Yields each matrix that makes its input smaller, with a power of two that prevents it. Embedding tables
    are judged by their values."""
    words = backbone.get_input_embeddings().weight
    for module in backbone.modules():
        for weight in module.parameters(recurse=False):
            if weight.dim() != 2 or weight is words:
                continue
            # A sample of its values; a prime stride covers every column.
            size = float(weight.flatten()[:: 97 if weight.numel() > 1 << 16 else 1].square().mean().sqrt())
            gain = size * (1.0 if isinstance(module, nn.Embedding) else weight.shape[1] ** 0.5)
            if 0 < gain < 1:
                yield weight, 2.0 ** float(torch.tensor(1 / gain).log2().ceil())


def sample_batch(backbone: Any, lengths: Sequence[int] = LENGTHS) -> TokenBatch:
    """Draws random tokens, none of them padding, on the backbone's device."""
    config = backbone.config
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, int(config.vocab_size), (sum(lengths),), generator=generator)
    pad = pad_id(config)
    tokens[tokens == pad] = pad + 1 if pad + 1 < int(config.vocab_size) else pad - 1
    return TokenBatch(tokens, torch.tensor(lengths), torch.zeros(len(lengths), dtype=torch.int64)).to(
        backbone.device
    )


def pad_id(config: Any) -> int:
    """Returns the padding token, or 0 if a model names none, since nothing reads it."""
    return int(config.pad_token_id or 0)


def padded_states(backbone: Any, batch: TokenBatch, **options: Any) -> Tensor:
    """Returns the last hidden states of a padded forward without those of padding: (T, D)."""
    input_ids, mask = batch.padded(pad_id(backbone.config))
    states: Tensor = backbone(
        input_ids=input_ids, attention_mask=mask.to(torch.int64), **options
    ).last_hidden_state[mask]
    return states


def agree(found: Tensor, expected: Tensor) -> bool:
    """True if states (T, D) are the same up to rounding, relative to how much they vary from token to token."""
    if found.shape != expected.shape:
        return False
    spread = (expected - expected.mean(0)).square().mean().sqrt()
    return bool((found - expected).abs().max() <= TOLERANCE * spread)


def first_position(backbone: Any) -> int | None:
    """Returns the number of the first position if a padded forward is given explicit positions; None if the
    backbone does not support that."""
    batch = sample_batch(backbone, LENGTHS[:1])
    with suppress(*FAILURES), trial(backbone):
        expected = padded_states(backbone, batch)
        for first in (0, pad_id(backbone.config) + 1):
            if agree(padded_states(backbone, batch, position_ids=batch.positions()[None] + first), expected):
                return first
    return None


def longest_sequence(backbone: Any, length: int) -> int:
    """Returns the most tokens, up to ``length``, for which the backbone has positions, and at which the
    vector of a text does not depend on the longest text in its batch.

    Rotary positions continue beyond those that the config names. With some kinds of them (dynamic, longrope),
    the vectors of all texts in a batch change once one text is longer than the model's original length.
    """
    positions = getattr(backbone.config, "max_position_embeddings", None) or length
    rotary = getattr(backbone.config, "rope_parameters", None) or {}
    # some families number positions from the padding token's + 1 or + 2
    if not rotary and 0 < positions < length + pad_id(backbone.config) + 3:
        length = min(length, positions - (first_position(backbone) or 0))
    for part in (rotary, *rotary.values()):  # each kind of layer may have its own
        kind = str(part.get("rope_type")) if isinstance(part, dict) else ""
        if "dynamic" in kind:
            length = min(length, positions)
        elif kind == "longrope":
            length = min(length, part["original_max_position_embeddings"])
    return length


def is_static(backbone: Any) -> bool:
    """True if a token's state is its row of a table (``dpr.models.static``)."""
    return bool(backbone.config.model_type == "static")


def layers_of(backbone: nn.Module) -> list[nn.Module]:
    """Returns the repeated layers: the members of the backbone's longest list of modules."""
    return list(
        max(
            (module for module in backbone.modules() if isinstance(module, nn.ModuleList)),
            key=len,
            default=[],
        )
    )


def mention_bf16(backbone: Any, device: torch.device, precision: str, *, key: str) -> None:
    """Logs a hint if layers run in fp32 on a processor with instructions for bf16; ``key`` is the setting."""
    if device.type == "cpu" and precision == "fp32" and not is_static(backbone) and is_faster_in_bf16(device):
        logger.info("this processor computes faster in bf16 than in fp32; %s=bf16 uses it", key)


def is_faster_in_bf16(device: torch.device) -> bool:
    """True if the device has instructions for products of bf16 matrices."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    return torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()


def without_running(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of a config, nested ones included, without those that say how a model is run."""
    kept = {name: value for name, value in values.items() if not _RUNNING.fullmatch(name)}
    return {
        name: without_running(value) if isinstance(value, dict) else value for name, value in kept.items()
    }


def set_dropout(config: Any, dropout: float | None, attention_dropout: float | None = None) -> None:
    """Sets every dropout probability of a config, those of attention to ``attention_dropout`` if given."""
    of_attention = dropout if attention_dropout is None else attention_dropout
    for key, probability in (("encoder.dropout", dropout), ("encoder.attention_dropout", of_attention)):
        for name in _dropout_names(config)[key] if probability is not None else ():
            setattr(config, name, probability)


def dropout_of(config: Any) -> dict[str, float]:
    """Returns the probabilities of a config by setting, the largest if a config has several."""
    return {
        key: max([getattr(config, name) or 0.0 for name in names], default=0.0)
        for key, names in _dropout_names(config).items()
    }


def deciding_config(config: Any) -> dict[str, Any]:
    """Returns the keys of a config that affect a vector, with their values, where these are not the default
    of its family.

    A version of transformers that adds a key with a default does not change the result.
    """
    defaults: dict[str, Any] = {}
    with suppress(Exception):  # some families have no default
        defaults = type(config)().to_dict()
    values = without_running(
        {name: value for name, value in config.to_dict().items() if not _UNDECIDING.fullmatch(name)}
    )
    return {name: value for name, value in values.items() if value != defaults.get(name)}


def _dropout_names(config: Any) -> dict[str, list[str]]:
    """Returns the names of a config's dropout probabilities by setting; families differ (``resid_pdrop``,
    ``dropout_rate``, ...)."""
    names: dict[str, list[str]] = {"encoder.dropout": [], "encoder.attention_dropout": []}
    for name, value in config.to_dict().items():
        if (
            "drop" in name
            and not _NO_DROPOUT_OF_TOWERS.search(name)
            and (value is None or type(value) in (int, float))
        ):
            names["encoder.attention_dropout" if "att" in name else "encoder.dropout"].append(name)
    return names


def distinct_weights(module: nn.Module) -> dict[str, Tensor]:
    """Returns the state of a module with each shared tensor once, under its first name."""
    names = {name for named in (module.named_parameters(), module.named_buffers()) for name, _ in named}
    return {name: tensor for name, tensor in module.state_dict().items() if name in names}


def check_vocabulary(tokenizer: Any, model: Any, file: str | Path | None) -> None:
    """Raises CheckpointError if a tokenizer has tokens that its model has no row for."""
    rows = len(model.get_input_embeddings().weight)
    largest = max(tokenizer.get_vocab().values())
    if largest >= rows:
        raise CheckpointError(
            f"its tokenizer has tokens up to number {largest}, but the model has embeddings of {rows}",
            file=file,
            hint="copy the tokenizer that belongs to the model into its folder",
        )


def check_weights(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], source: Path) -> None:
    """Raises CheckpointError unless the weights found in ``source`` have the names and shapes of the expected
    ones."""
    shared = expected.keys() & found.keys()
    wrong = {
        "missing": sorted(expected.keys() - shared),
        "not known": sorted(found.keys() - shared),
        "of another shape": sorted(name for name in shared if expected[name].shape != found[name].shape),
    }
    if problems := [f"{len(names)} {what}: {', '.join(names[:3])}" for what, names in wrong.items() if names]:
        raise CheckpointError(
            f"the weights do not fit this model ({'; '.join(problems)})",
            file=source,
            hint="was it written with other encoder.* settings?",
        )
