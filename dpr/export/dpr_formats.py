"""DPR's formats: a model as a checkpoint file that the original loads, or as two folders of transformers' own DPR
classes, DPRQuestionEncoder and DPRContextEncoder; and the original's embedding files as vector folders.

Token types are zeros here. The tokenizers of transformers' classes number the text of a pair 1; both rows of the
table of types are written as row 0, so that the vectors do not depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import counted, get_logger
from dpr.core.machine import no_downloads
from dpr.export.folders import Format, only_here, refuse, sides, write_tower
from dpr.formats.original.checkpoints import write_dpr_checkpoint
from dpr.formats.original.vectors import PickledVectors
from dpr.formats.text_input import expand_files
from dpr.formats.vector_shards import Metadata, VectorShardWriter
from dpr.models.biencoder import BiEncoder
from dpr.models.folders.hugging_face_dpr import CTX, QUESTION
from dpr.models.folders.original_dpr import file_weights
from dpr.storage.outputs import output

logger = get_logger(__name__)

_CHUNK_ROWS = 8192
_EXPECTED = "BERT towers read at their first token, as DPR's were"


def _unlike_dpr(model: BiEncoder) -> dict[str, bool]:
    """Returns the properties that DPR's towers do not have, and whether the model has them."""
    settings = model.settings
    kind = model.question_model.config.model_type
    return {
        f"its backbone is {kind}": kind != "bert",
        f"pooling is {settings.pooling}": settings.pooling != "cls",
        "its vectors are normalised": settings.normalize,
        "its projection has an activation": settings.projection_activation != "none",
    }


def _other_texts(model: BiEncoder) -> dict[str, bool]:
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
    refuse(_unlike_dpr(model), source, expected=_EXPECTED)
    differing = _other_texts(model) | {
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
            " encoder.dpr_trailing_sep=true are the same there",
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
            logger.info("%s written", target)


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


_BATCH = 8
_TYPES = "embeddings.token_type_embeddings.weight"
_CLASSES = {QUESTION: "DPRQuestionEncoder", CTX: "DPRContextEncoder"}


def write(model: BiEncoder, folder: Path, *, source: str) -> None:
    """Writes ``question_encoder`` and ``ctx_encoder`` into ``folder``; a shared tower is written to both.

    Raises:
        InputError: the classes cannot express the model.
    """
    is_cut = bool(model.settings.dimensions) and model.question_model.encode_proj is None
    problems = _unlike_dpr(model) | only_here(model) | _other_texts(model) | {"vectors are cut": is_cut}
    refuse(problems, source, expected=_EXPECTED)
    import transformers

    known = vars(transformers.DPRConfig()).keys() - {"model_type", "architectures"}
    for side in sides(model, apart=True):
        tower = side.tower
        name = side.folder
        sizes = {key: value for key, value in tower.config.to_dict().items() if key in known}
        sizes["projection_dim"] = 0 if tower.encode_proj is None else tower.dimension
        weights = {
            f"{name}.bert_model.{key}": tensor.detach().cpu().float()
            for key, tensor in tower.backbone.state_dict().items()
        }
        types = weights[f"{name}.bert_model.{_TYPES}"]
        weights[f"{name}.bert_model.{_TYPES}"] = types[:1].expand_as(types).clone()
        if tower.encode_proj is not None:
            for key, tensor in tower.encode_proj.state_dict().items():
                weights[f"{name}.encode_proj.{key}"] = tensor[: tower.dimension].detach().cpu().float()
        with torch.device("meta"):
            wrapped = getattr(transformers, _CLASSES[name])(transformers.DPRConfig(**sizes))
        wrapped.load_state_dict(weights, assign=True)
        # for the classes' own tokenizers, which rebuild the rest from it
        write_tower(model, side, folder, wrapped, do_lower_case=model.tensorizer.do_lower_case)


def encode(folder: Path, side: str, items: Sequence[Any]) -> np.ndarray:
    """Returns vectors by the classes and their tokenizers."""
    import transformers

    name = {"question": QUESTION, "ctx": CTX}[side]
    with no_downloads():
        model: Any = getattr(transformers, _CLASSES[name]).from_pretrained(str(folder / name)).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder / name))

    texts = [list(items)]
    if side == "ctx":
        texts = [[passage.text for passage in items]]
        if items[0].title:
            texts.insert(0, [passage.title for passage in items])
    parts = []
    with torch.no_grad():
        for start in range(0, len(items), _BATCH):
            some = [listed[start : start + _BATCH] for listed in texts]
            tokens = tokenizer(*some, padding=True, truncation="longest_first", return_tensors="pt")
            parts.append(model(**tokens).pooler_output)
    return np.asarray(torch.cat(parts), np.float32)


def usage(model: BiEncoder) -> str:
    """Returns lines of Python that load the folder."""
    return """from transformers import AutoTokenizer, DPRContextEncoder, DPRQuestionEncoder

# Name the class: AutoModel makes a DPRQuestionEncoder with random weights of the context folder.
question_encoder = DPRQuestionEncoder.from_pretrained("PATH/question_encoder")
ctx_encoder = DPRContextEncoder.from_pretrained("PATH/ctx_encoder")
tokens = AutoTokenizer.from_pretrained("PATH/question_encoder")(["a question"], return_tensors="pt")
questions = question_encoder(**tokens).pooler_output
tokens = AutoTokenizer.from_pretrained("PATH/ctx_encoder")(["A title"], ["A text."], truncation=True, return_tensors="pt")
scores = questions @ ctx_encoder(**tokens).pooler_output.T
"""


FORMAT = Format(write, encode, usage, library="transformers")
