"""A model as a checkpoint file that the original DPR loads, and the original's embedding files as vector
folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpr.core.errors import ConfigError, InputError
from dpr.formats.original.checkpoints import write_dpr_checkpoint
from dpr.formats.original.vectors import PickledVectors
from dpr.formats.text_input import matching_paths
from dpr.formats.vector_shards import Metadata, VectorShardWriter
from dpr.models.biencoder import BiEncoder
from dpr.models.model_folders import file_weights
from dpr.storage.outputs import output

_CHUNK_ROWS = 8192


def export_dpr_file(
    model: BiEncoder,
    target: Path,
    *,
    source: str,
    pretrained_model_cfg: str | None = None,
    allow_other_vectors: bool = False,
) -> None:
    """Writes ``model`` (loaded from ``source``) to ``target``.

    The file names the encoder whose config and tokenizer belong to it: ``pretrained_model_cfg``, else the one
    the model was loaded with. Texts get the same vectors in the original, or the export is refused.

    Raises:
        InputError: the original has no such towers, or would compute other vectors and
            ``allow_other_vectors`` is not set; or ``target`` exists and is not this model in this format.
        OutputError: ``target`` cannot be written.
    """
    settings = model.settings
    config = model.question_model.config
    impossible = {
        f"its backbone is {config.model_type}": config.model_type != "bert",
        f"pooling is {settings.pooling}": settings.pooling != "cls",
        "its vectors are normalised": settings.normalize,
        "its projection has an activation": settings.projection_activation != "none",
    }
    if found := [what for what, is_so in impossible.items() if is_so]:
        raise InputError(
            ", ".join(found),
            file=source,
            expected="two BERT towers read at their first token; the original has no others",
        )
    differing = {
        "it was trained without the [SEP] that the original puts at the end of every window": (
            not settings.dpr_trailing_sep
        ),
        f"its questions end at {settings.question_length} tokens": (
            settings.question_length not in (0, settings.sequence_length)
        ),
        "it puts prompts before texts": model.tensorizer.text.has_prompts,
        "it joins title and text by a template": bool(settings.title_template),
        "it keeps typographic apostrophes": not settings.plain_apostrophes,
    }
    if not allow_other_vectors and (found := [what for what, is_so in differing.items() if is_so]):
        hint = (
            "allow_other_vectors=true writes the file anyway; models trained with"
            " encoder.dpr_trailing_sep=true are the same there"
        )
        raise InputError(
            f"the original would give other vectors: {' and '.join(found)}", file=source, hint=hint
        )
    name = pretrained_model_cfg or str(getattr(config, "_name_or_path", "") or "")
    if not name:
        raise ConfigError(
            "encoder.pretrained_model_cfg is not set; the file has to name the encoder whose tokenizer"
            " belongs to it"
        )
    encoder = {
        "encoder_model_type": "hf_bert",
        "pretrained_model_cfg": name,
        "pretrained_file": None,
        "pretrained": False,  # the file has the weights; the original need not load others first
        "projection_dim": settings.projection_dim,
        "sequence_length": settings.sequence_length,
        "dropout": float(getattr(config, "hidden_dropout_prob", 0.1)),
        "fix_ctx_encoder": False,
    }
    params = {"do_lower_case": model.tensorizer.do_lower_case, "encoder": encoder}
    made_of = {"kind": "DPR checkpoint", "model": model.fingerprint, "params": params}
    with output(target, made_of, overwrite=None) as is_missing:
        if is_missing:
            write_dpr_checkpoint(
                target, file_weights(model.weights(), shared=settings.shared), params, note=made_of
            )


def export_vector_folders(model: BiEncoder, patterns: Sequence[str], out_file: str) -> list[Path]:
    """Writes each embedding file that ``patterns`` name as ``<out_file>_<n>``; complete folders are left as
    they are.

    The caller vouches that ``model`` made the vectors; only their dimension is compared.

    Raises:
        InputError: nothing matches, a file is not an embedding file or has another dimension, a folder holds
        something else.
    """
    paths: list[Path] = []
    for pattern in patterns:
        matches = matching_paths(pattern)
        if not matches:
            raise InputError("no embedding files found", file=pattern)
        paths += matches
    folders = []
    for number, path in enumerate(dict.fromkeys(paths)):
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
        if not writer.is_complete():
            ids = [str(key, "utf-8", "replace") for key in vectors.ids.tolist()]
            for chunk, start in enumerate(range(0, len(ids), _CHUNK_ROWS)):
                writer.write_chunk(
                    chunk, ids[start : start + _CHUNK_ROWS], vectors.vectors[start : start + _CHUNK_ROWS]
                )
            writer.finish()
        folders.append(folder)
    return folders
