"""A model, or stored vectors, that another model learns (``loss.teacher``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from glob import has_magic as has_pattern
from pathlib import Path
from typing import Any

from torch import Tensor

from dpr.core.batch import BiEncoderBatch
from dpr.core.errors import ConfigError
from dpr.core.settings import listed
from dpr.data.settings import TextSettings
from dpr.losses.terms import Teacher
from dpr.models.biencoder import BiEncoder


def open_teacher(given: Any, model: BiEncoder | None, namespaces: Sequence[str]) -> Teacher:
    """The teacher that ``loss.teacher`` names: a model, or shards of vectors by path, pattern or a list of
    these.

    Raises:
        ConfigError: nothing could learn from it.
        InputError: the shards cannot be read, or do not fit together.
    """
    if model is None:
        raise ConfigError("loss.teacher needs the model that learns from it; give make_loss one")
    named = [str(each) for each in listed(given)]
    if len(named) == 1 and not has_pattern(named[0]) and not any(Path(named[0]).glob("vectors-*.npy")):
        return ModelTeacher(named[0], model)
    from dpr.training.stored_vectors import StoredTeacher, read_vectors

    return StoredTeacher(read_vectors(named, namespaces, setting="loss.teacher"), namespaces, model)


class ModelTeacher:
    """Encodes what the model in training encodes, token by token the same, without gradient, dropout and
    autocast.

    Raises:
        ConfigError: a vector of the model in training could never be the teacher's: another tokenizer, width,
        prompt or normalisation.
    """

    def __init__(self, folder: str, model: BiEncoder) -> None:
        self._teacher = teacher = BiEncoder.load(folder, model.device).to(next(model.parameters()).dtype)
        self.fingerprint, self.teaches_passages = teacher.fingerprint, not model.options.fix_ctx_encoder
        teacher.requires_grad_(False)
        ours, theirs = (_facts(each) for each in (model, teacher))
        if differing := [name for name in ours if ours[name] != theirs[name]]:
            name = differing[0]
            raise ConfigError(
                f"loss.teacher={folder}: its {name} is {theirs[name]!r}, the model's is {ours[name]!r};"
                f" {_MENDED_BY[name]}"
            )
        for side in ("question", "sequence"):
            length, longest = (getattr(each.tensorizer, f"{side}_length") for each in (model, teacher))
            if length > longest:
                raise ConfigError(
                    f"loss.teacher={folder} takes {longest} tokens, but encoder.{side}_length is {length};"
                    f" set it to {longest} or less"
                )

    def questions(self, batch: BiEncoderBatch) -> Tensor:
        """Of each question the vector (B, D)."""
        return self._teacher.encode_batch(batch.questions, encoder_type=batch.encoder_type or "question")

    def slots(self, batch: BiEncoderBatch) -> Tensor:
        """Of each context slot the vector (N, D) of its passage."""
        return self._teacher.encode_batch(batch.contexts, encoder_type=batch.encoder_type or "ctx")[
            batch.context_row
        ]


_OF_TEXTS = "give both the same"
_MENDED_BY = {
    "tokenizer": "make the model with the teacher's (dpr new-encoder tokenizer=FOLDER)",
    "number of dimensions": "set encoder.projection_dim to the teacher's",
    "normalize": "set encoder.normalize to the teacher's",
    **dict.fromkeys(asdict(TextSettings()), _OF_TEXTS),
}


def _facts(model: BiEncoder) -> dict[str, object]:
    return {
        "tokenizer": model.tensorizer.vocabulary_fingerprint,
        "number of dimensions": model.dimension,
        "normalize": model.settings.normalize,
        **asdict(model.settings.part(TextSettings)),
    }
