"""Embedding files of the original DPR as vector folders, which are searched from disk and say which model they are of."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path

from dpr.core.errors import InputError
from dpr.formats.original.vectors import PickledVectors
from dpr.formats.vector_shards import VectorShardWriter
from dpr.models.biencoder import BiEncoder

CHUNK_ROWS = 8192


def export_vector_folders(model: BiEncoder, patterns: Sequence[str], out_file: str) -> list[Path]:
    """Writes each file that ``patterns`` name as ``<out_file>_<n>``, one at a time; folders that are complete are left as they are.

    That ``model`` made the vectors is the caller's word; only their width is compared.

    Raises:
        InputError: nothing matches, a file is no embedding file or of another width, a folder holds something else.
    """
    paths: list[Path] = []
    for pattern in patterns:
        item = Path(pattern).expanduser()
        found = [item] if item.exists() else [Path(match) for match in sorted(glob.glob(str(item)))]
        if not found:
            raise InputError("no embedding files found", file=pattern)
        paths += found
    folders = []
    for number, path in enumerate(dict.fromkeys(paths)):
        vectors = PickledVectors(path)
        if vectors.dimension != model.dimension:
            raise InputError(f"vectors of {vectors.dimension} dimensions", file=path, expected=f"the model's {model.dimension}")
        folder = Path(f"{out_file}_{number}")
        metadata: dict[str, str | int | float | bool] = {
            "model_fingerprint": model.fingerprint,
            "encoder_type": "ctx",
            "similarity": "dot",
            "corpus": path.name,
            "made_from_sha256": vectors.digest,
        }
        writer = VectorShardWriter(folder, metadata=metadata, dimension=vectors.dimension)
        if not writer.is_complete():
            ids = [str(key, "utf-8", "replace") for key in vectors.ids.tolist()]
            for chunk, start in enumerate(range(0, len(ids), CHUNK_ROWS)):
                writer.write_chunk(chunk, ids[start : start + CHUNK_ROWS], vectors.vectors[start : start + CHUNK_ROWS])
            writer.finish()
        folders.append(folder)
    return folders
