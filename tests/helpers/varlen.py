"""A stand-in for torch's kernel for attention over sequences end to end, in plain operations."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from dpr.models.fast import varlen


class Call(NamedTuple):
    """What the kernel was called with."""

    dtype: torch.dtype
    num_queries: int
    longest: tuple[int, int]
    window: tuple[int, int]


def reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Tensor:
    """(T_q, H, d) and (T_k, H or fewer, d) in, (T_q, H, d) out; windows are aligned as Flash Attention's."""
    assert cu_seq_k is not None and return_aux is None and seqused_k is None and block_table is None
    for ends, states, longest in ((cu_seq_q, query, max_q), (cu_seq_k, key, max_k)):
        assert ends.dtype == torch.int32 and ends.is_contiguous() and ends.device == query.device, (
            "int32, dense, on the device"
        )
        assert int(ends[0]) == 0 and int(ends[-1]) == states.shape[0], "from nothing to the last token"
        assert isinstance(longest, int) and longest == int(ends.diff().max()), "known on the host, and exact"
    assert len(cu_seq_q) == len(cu_seq_k)
    for states in (query, key, value):
        assert states.dim() == 3 and states.stride(-1) == 1 and states.dtype == query.dtype
        assert states.shape[-1] % 8 == 0
    assert query.shape[1] == key.shape[1] or (enable_gqa and query.shape[1] % key.shape[1] == 0)
    key, value = (states.repeat_interleave(query.shape[1] // key.shape[1], 1) for states in (key, value))
    left, right = window_size
    outputs = []
    for first_q, end_q, first_k, end_k in zip(
        *(part.tolist() for part in (cu_seq_q[:-1], cu_seq_q[1:], cu_seq_k[:-1], cu_seq_k[1:]))
    ):
        q, k, v = (
            part.transpose(0, 1) for part in (query[first_q:end_q], key[first_k:end_k], value[first_k:end_k])
        )
        scores = q @ k.transpose(1, 2) * (query.shape[-1] ** -0.5 if scale is None else scale)
        distance = (
            torch.arange(k.shape[1])[None, :] - torch.arange(q.shape[1])[:, None] - (k.shape[1] - q.shape[1])
        )
        hidden = (distance < -left if left >= 0 else distance < -k.shape[1]) | (
            distance > right if right >= 0 else distance > k.shape[1]
        )
        outputs.append((scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v).transpose(0, 1))
    return torch.cat(outputs)


@contextmanager
def on_any_device(
    patch: pytest.MonkeyPatch, *, dtypes: tuple[torch.dtype, ...] = varlen.DTYPES
) -> Iterator[list[Call]]:
    """Sends ``encoder.attention=varlen`` to ``reference`` on any device, and notes the calls."""
    calls: list[Call] = []

    @wraps(reference)
    def recorded(query: Tensor, *others: Any, **options: Any) -> Tensor:
        calls.append(Call(query.dtype, query.shape[0], (others[4], others[5]), options["window_size"]))
        return reference(query, *others, **options)

    with patch.context() as inside:
        inside.setattr("torch.nn.attention.varlen.varlen_attn", recorded)
        inside.setattr(varlen, "device_lacks", lambda device: None)
        inside.setattr(varlen, "DTYPES", dtypes)
        yield calls
