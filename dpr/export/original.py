"""Models as checkpoint files that the original DPR loads, and the embedding files of the original as vector folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import counted, get_logger
from dpr.export.towers import refuse
from dpr.formats.original.checkpoints import write_dpr_checkpoint
from dpr.formats.original.vectors import PickledVectors
from dpr.formats.text_input import expand_files
from dpr.formats.vector_shards import Metadata, VectorShardWriter
from dpr.models.biencoder import BiEncoder
from dpr.models.folders.dpr import TOWERS
from dpr.storage.outputs import output

logger = get_logger(__name__)
EXPECTED = "BERT towers read at their first token, as DPR's were"
_CHUNK_ROWS = 8192


def unlike_dpr(model: BiEncoder) -> dict[str, bool]:
    """Returns the properties that DPR's towers do not have, and whether the model has them."""
    settings = model.settings
    kind = model.question_model.config.model_type
    return {
        f"its backbone is {kind}": kind != "bert",
        f"pooling is {settings.pooling}": settings.pooling != "cls",
        "its vectors are normalised": settings.normalize,
        "its projection has an activation": settings.projection_activation != "none",
    }


def other_texts(model: BiEncoder) -> dict[str, bool]:
    """Returns the changes of texts before encoding that DPR does not make, and whether the model makes them."""
    return {
        "it puts prompts before texts": model.tensorizer.text.has_prompts,
        "it joins title and text by a template": bool(model.settings.title_template),
    }


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
    the model was loaded with. The export is refused if texts would get other vectors in the original.

    Raises:
        InputError: the original has no such towers, or would compute other vectors and
            ``allow_other_vectors`` is not set; or ``target`` exists and is not this model in this format.
        OutputError: ``target`` cannot be written.
    """
    settings = model.settings
    config = model.question_model.config
    refuse(unlike_dpr(model), source, expected=EXPECTED)
    differing = other_texts(model) | {
        "it was trained without the [SEP] that the original puts at the end of every window": (
            not settings.dpr_trailing_sep
        ),
        f"its questions end at {settings.question_length} tokens": (
            settings.question_length not in (0, settings.sequence_length)
        ),
        "it keeps typographic apostrophes": not settings.plain_apostrophes,
    }
    if not allow_other_vectors and (found := [what for what, is_so in differing.items() if is_so]):
        raise InputError(
            f"the original would give other vectors: {' and '.join(found)}",
            file=source,
            hint="allow_other_vectors=true writes the file anyway; models trained with"
            " encoder.dpr_trailing_sep=true have the same vectors there",
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
                target, _file_weights(model.weights(), shared=settings.shared), params, note=made_of
            )
            logger.info("%s written", target)


def _file_weights(weights: Mapping[str, Tensor], *, shared: bool) -> dict[str, Tensor]:
    """Renames weights for the original's loader, which requires both towers and their poolers. The poolers
    are zero; nothing uses them."""
    named = {
        name.replace("_model.backbone.", "_model.", 1): tensor
        for name, tensor in weights.items()
        if name.startswith(TOWERS)
    }
    if shared:
        named |= {
            name.replace("question_model.", "ctx_model.", 1): tensor.clone() for name, tensor in named.items()
        }
    for tower in TOWERS:
        words = named[f"{tower}.embeddings.word_embeddings.weight"]
        named[f"{tower}.pooler.dense.weight"] = words.new_zeros(words.shape[1], words.shape[1])
        named[f"{tower}.pooler.dense.bias"] = words.new_zeros(words.shape[1])
    return named


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
            logger.info("%s already exists, made of the same inputs: nothing to do", folder)
        else:
            ids = [str(key, "utf-8", "replace") for key in vectors.ids.tolist()]
            starts = counted(range(0, len(ids), _CHUNK_ROWS), f"writing {folder.name}", unit="vectors")
            for chunk, start in enumerate(starts):
                writer.write_chunk(
                    chunk, ids[start : start + _CHUNK_ROWS], vectors.vectors[start : start + _CHUNK_ROWS]
                )
            writer.finish()
            logger.info("%s written", folder)
