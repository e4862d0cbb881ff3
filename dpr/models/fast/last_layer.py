"""The last layer for one token of each sequence, where a pooling reads one (``cls``, ``last``).

Of that layer's output nothing else is needed, so its queries, attention and feed-forward part are computed for these tokens alone; keys and
values are those of all tokens. A hook before the layer runs it over all tokens up to its attention, keeps the keys and values that come
there, and lets it go on over the tokens that are read. The layer's code stays as it is; what does not pass the trial stays whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dpr.models.fast.attention import Layout, PackedLayout, Sight, packed_states, past_the_windows
from dpr.models.trials import FAILURES, LENGTHS, agree, layers_of, sample_batch, trial


@dataclass(frozen=True, slots=True)
class ReadLayout:
    """A pack of which one token of each sequence is read at the end: ``token`` (n,) in the pack, ``position`` (n,) in its sequence."""

    pack: Layout
    token: Tensor
    position: Tensor

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, dropout: float, scaling: float | None, sight: Sight) -> Tensor:
        return self.pack.attend(query, key, value, dropout=dropout, scaling=scaling, sight=sight)


class _Reached(Exception):
    """Attention of the last layer: its keys and values, (1, H, T, d) each.

    It leaves the layer half-way through its forward. Keys and values stay in autograd's graph, so that their gradient reaches all tokens;
    the queries that were computed beside them are dropped with the frame and get none. With checkpointed activations the hook runs again in
    backward, inside the checkpoint. Dynamo cannot trace it, which is why the layer is not compiled.
    """


class _UpToAttention:
    """Ends the layer where its attention would begin."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, dropout: float, scaling: float | None, sight: Sight) -> Tensor:
        raise _Reached(key, value)


@dataclass(frozen=True, slots=True)
class _ReadTokens:
    """Attention of the tokens that are read, as queries, over the keys and values of all tokens."""

    layout: ReadLayout
    keys: Tensor
    values: Tensor

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, dropout: float, scaling: float | None, sight: Sight) -> Tensor:
        pack, position = self.layout.pack, self.layout.position
        return pack.attend_one(position, query, self.keys, self.values, dropout=dropout, scaling=scaling, sight=sight)


def enable_pruning(backbone: Any, first_position: int) -> bool:
    """Makes a packed backbone return, for a ``ReadLayout``, the last hidden states of the tokens read, (1, n, D); returns whether it does.

    Judged by trying: random sequences, two of them longer than any window, read at their ends and within, with and without. A backbone
    that computes something else is left as it was.
    """
    layers = layers_of(backbone)
    if not layers:
        return False
    hook = layers[-1].register_forward_pre_hook(_read_tokens, with_kwargs=True)
    longest = past_the_windows(backbone)
    batch = sample_batch(backbone, (longest, longest, *LENGTHS[1:]))
    whole = PackedLayout.build(batch.lengths.tolist(), batch.tokens.device)
    position = torch.tensor([longest - 1, 0, 3, 3], device=batch.tokens.device)
    starts = torch.cumsum(batch.lengths, 0) - batch.lengths
    read = ReadLayout(whole, position + starts.to(position.device), position)
    try:
        with trial(backbone):
            words, positions = backbone.get_input_embeddings()(batch.tokens), batch.positions() + first_position
            expected, found = (packed_states(backbone, words, positions, layout) for layout in (whole, read))
            if agree(found, expected[read.token]):
                return True
    except FAILURES:
        pass
    hook.remove()
    return False


def _read_tokens(layer: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The layer's arguments, of the tokens read alone."""
    layout = options.get("packed_layout")
    if not isinstance(layout, ReadLayout):
        return None
    keys, values = _keys_and_values(layer, arguments, options | {"packed_layout": _UpToAttention()})
    arguments, options = (_rows(part, layout.token, keys.shape[2]) for part in (arguments, options))
    return arguments, options | {"packed_layout": _ReadTokens(layout, keys, values)}


def _keys_and_values(layer: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    try:
        layer.forward(*arguments, **options)
    except _Reached as reached:
        keys, values = reached.args
        return keys, values
    raise TypeError("the last layer has no attention")


def _rows(value: Any, token: Tensor, num_tokens: int) -> Any:
    """Whatever is (1, T, ...) cut to the tokens read: hidden states, and what belongs to them, such as rotary positions."""
    if isinstance(value, Tensor) and value.dim() >= 2 and value.shape[1] == num_tokens:
        return value.index_select(1, token)
    if isinstance(value, tuple):
        return tuple(_rows(part, token, num_tokens) for part in value)
    return {name: _rows(part, token, num_tokens) for name, part in value.items()} if isinstance(value, dict) else value
