"""Exact search of arrays, the reference for other indexes; saved indexes with other content."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpr.formats.arrays import ArraySource
from dpr.indexer.exact import ExactIndex
from dpr.indexer.ranking import encode_ids
from dpr.storage.durable import MANIFEST, read_manifest, write_manifest


def exact_index(ids: Sequence[str], vectors: np.ndarray, **options: Any) -> ExactIndex:
    """An index of vectors in memory."""
    return ExactIndex([ArraySource(encode_ids(ids), vectors)], **options)


def rewrite(folder: Path, name: str, content: bytes) -> None:
    """Another file, with a manifest that fits it."""
    metadata = read_manifest(folder)["metadata"]
    (folder / name).write_bytes(content)
    (folder / MANIFEST).unlink()
    write_manifest(folder, metadata)
