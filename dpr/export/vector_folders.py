"""The original's embedding files as vector folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpr.core.errors import InputError
from dpr.core.logs import counted, get_logger
from dpr.formats.original.vectors import PickledVectors
from dpr.formats.text_input import expand_files
from dpr.formats.vector_shards import Metadata, VectorShardWriter
from dpr.models.biencoder import BiEncoder

logger = get_logger(__name__)

_CHUNK_ROWS = 8192


def export_vector_folders(model: BiEncoder, patterns: Sequence[str], out_file: str) -> None:
    """Writes each embedding file that matches ``patterns`` as ``<out_file>_<n>``. Complete folders are left
    as they are.

    The caller vouches that ``model`` made the vectors; only their dimension is compared.

    Raises:
        InputError: nothing matches, a file is not an embedding file or has another dimension, a folder holds
        something else.
    """
    for number, path in enumerate(dict.fromkeys(expand_files(patterns))):
        vectors = PickledVectors(path)
        if vectors.dimension != model.dimension:
            raise InputError(
                f"vectors of {vectors.dimension} dimensions",
                file=path,
                expected=f"the model's {model.dimension}",
            )
        folder = Path(f"{out_file}_{number}")
        metadata: Metadata = {
            "model_fingerprint": model.fingerprint,
            "encoder_type": "ctx",
            "similarity": "dot",
            "corpus": path.name,
            "made_from_sha256": vectors.digest,
        }
        writer = VectorShardWriter(folder, metadata=metadata, dimension=vectors.dimension)
        if writer.is_complete():
            logger.info("%s exists already, made of the same inputs: nothing to do", folder)
        else:
            ids = [str(key, "utf-8", "replace") for key in vectors.ids.tolist()]
            starts = counted(range(0, len(ids), _CHUNK_ROWS), f"writing {folder.name}", unit="vectors")
            for chunk, start in enumerate(starts):
                writer.write_chunk(
                    chunk, ids[start : start + _CHUNK_ROWS], vectors.vectors[start : start + _CHUNK_ROWS]
                )
            writer.finish()
            logger.info("%s written", folder)
