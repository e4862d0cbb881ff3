"""The start of a transformer from scratch: words reach the pooling past all layers, whose own part begins at
zero."""

from __future__ import annotations

from typing import Any

from torch import nn


def add_residual_words(backbone: Any) -> None:
    """Makes ``backbone`` give its words, too.

    From now on ``backbone`` gives E x + s W h in place of h: x the token, E the word table, W (D, D) zero at
    first, so that an untrained tower gives the vectors of a static encoder with the same table and pooling,
    and training adds what the layers know. s = ``initializer_range`` / sqrt(D) brings W h, as W grows, to the
    size of the words: AdamW moves all entries of W at once, and h, which layers normalise, has length
    sqrt(D).
    """
    width = backbone.config.hidden_size
    backbone.word_residual = nn.Linear(width, width, bias=False)
    nn.init.zeros_(backbone.word_residual.weight)
    backbone.register_forward_hook(_add_words, with_kwargs=True)


def _add_words(backbone: Any, arguments: tuple[Any, ...], options: dict[str, Any], output: Any) -> Any:
    words = options.get("inputs_embeds")
    if words is None:
        words = backbone.get_input_embeddings()(options["input_ids"])
    scale = getattr(backbone.config, "initializer_range", 0.02) / backbone.config.hidden_size**0.5
    output.last_hidden_state = words + scale * backbone.word_residual(output.last_hidden_state)
    return output
