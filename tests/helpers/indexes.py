"""Exact search of arrays: the reference for other indexes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpr.formats.arrays import ArraySource
from dpr.indexer.exact import ExactIndex
from dpr.indexer.ranking import encode_ids


def exact_index(ids: Sequence[str], vectors: np.ndarray, **options: Any) -> ExactIndex:
    """An index of vectors in memory."""
    return ExactIndex([ArraySource(encode_ids(ids), vectors)], **options)
