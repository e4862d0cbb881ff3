"""The last layer for one token of each sequence, where a pooling reads one (``cls``, ``last``).

Nothing else of that layer's output is needed, so its queries, attention and feed-forward part are computed
for these tokens only; keys and values are those of all tokens. A hook before the layer runs it over all
tokens up to its attention, keeps the keys and values that arrive there, and then lets the layer run over the
tokens that are read. The code of the layer is unchanged.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from dpr.models.fast.attention import AttentionOptions, Layout, PackedLayout, packed_states, past_the_windows
from dpr.models.properties import FAILURES, LENGTHS, agree, layers_of, sample_batch, trial


@dataclass(frozen=True, slots=True)
class ReadLayout:
    """Pack of which one token per sequence is read at the end: ``token`` (n,) in the pack, ``position`` (n,)
    in its sequence."""

    pack: Layout
    token: Tensor
    position: Tensor

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions, read: Tensor | None = None
    ) -> Tensor:
        return self.pack.attend(query, key, value, options, read)


class _Reached(Exception):
    """The attention of the last layer was reached, with keys and values (1, H, T, d) each.

    The exception leaves the layer half-way through its forward. Keys and values stay in autograd's graph, so
    that their gradient reaches all tokens; the queries that were computed beside them are dropped with the
    frame and get none. With checkpointed activations the hook runs again in backward, inside the checkpoint.
    """


def prune(backbone: Any) -> RemovableHandle:
    """Hooks the last layer; the handle undoes it."""
    return layers_of(backbone)[-1].register_forward_pre_hook(_read_tokens, with_kwargs=True)


def enable_pruning(backbone: Any, first_position: int) -> bool:
    """Makes a packed backbone return, for a ``ReadLayout``, the last hidden states of the tokens read, (1, n,
    D). Returns whether it does.

    It is tried on random sequences, two of them longer than any window, which are read at their ends and
    within. A backbone whose states differ from those of the whole layer is left as it was.
    """
    if not layers_of(backbone):
        return False
    hook = prune(backbone)
    longest = past_the_windows(backbone)
    batch = sample_batch(backbone, (longest, longest, *LENGTHS[1:]))
    whole = PackedLayout.build(batch.lengths.tolist(), batch.tokens.device)
    position = torch.tensor([longest - 1, 0, 3, 3], device=batch.tokens.device)
    starts = torch.cumsum(batch.lengths, 0) - batch.lengths
    read = ReadLayout(whole, position + starts.to(position.device), position)
    with suppress(*FAILURES), trial(backbone):
        words = backbone.get_input_embeddings()(batch.tokens)
        positions = batch.positions() + first_position
        expected, found = (packed_states(backbone, words, positions, layout) for layout in (whole, read))
        if agree(found, expected[read.token]):
            return True
    hook.remove()
    return False


def _read_tokens(
    layer: Any, arguments: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Returns the arguments of the layer for the tokens that are read."""
    layout = options.get("packed_layout")
    if not isinstance(layout, ReadLayout):
        return None

    def stop(query: Tensor, key: Tensor, value: Tensor, how: AttentionOptions) -> Tensor:
        raise _Reached(key, value)

    def attend(query: Tensor, key: Tensor, value: Tensor, how: AttentionOptions) -> Tensor:
        return layout.attend(query, keys, values, how, layout.position)

    try:
        layer.forward(*arguments, **options | {"packed_layout": SimpleNamespace(attend=stop)})
    except _Reached as reached:
        keys, values = reached.args
    else:
        raise TypeError("the last layer has no attention")
    arguments, options = (_rows(part, layout.token, keys.shape[2]) for part in (arguments, options))
    return arguments, options | {"packed_layout": SimpleNamespace(attend=attend)}


def _rows(value: Any, token: Tensor, num_tokens: int) -> Any:
    """Selects the tokens read from anything of shape (1, T, ...): hidden states, and values that belong to
    them, such as rotary positions."""
    if isinstance(value, Tensor) and value.dim() >= 2 and value.shape[1] == num_tokens:
        return value.index_select(1, token)
    if isinstance(value, tuple):
        return tuple(_rows(part, token, num_tokens) for part in value)
    return (
        {name: _rows(part, token, num_tokens) for name, part in value.items()}
        if isinstance(value, dict)
        else value
    )
