"""Vectors of other models that training reads: those of a teacher, either a model or stored vectors
(``loss.teacher``), and those of a false-negative filter (``loss.guide``). ``make_loss`` opens them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpr.core.batch import BiEncoderBatch, on_device
from dpr.core.errors import ConfigError, InputError
from dpr.core.records import Passage, json_sha256
from dpr.data.collator import passage_identity
from dpr.data.settings import TextSettings
from dpr.formats.vector_shards import open_shards
from dpr.losses.filtered_nll import StoredVectors
from dpr.models.towers import Towers
from dpr.storage.durable import read_manifest


def _decide_vectors(model: Towers) -> dict[str, Any]:
    """Returns the properties that a model and its teacher must have in common."""
    return {
        "tokenizer": model.tensorizer.vocabulary_fingerprint,
        "number of dimensions": model.dimension,
        "normalize": model.settings.normalize,
        **asdict(model.settings.part(TextSettings)),
    }


class ModelTeacher:
    """Teacher that encodes the same texts as the model in training, token by token, without gradient, dropout
    and autocast. ``folder`` is its folder, for messages.

    Raises:
        ConfigError: no vector of the model in training could ever equal the teacher's, because of another
            tokenizer, width, prompt or normalisation, or a longer limit of tokens.
    """

    def __init__(self, teacher: Towers, model: Towers, *, folder: str) -> None:
        self._teacher = teacher.to(next(model.parameters()).dtype)
        self.fingerprint = teacher.fingerprint
        self.teaches_passages = not model.options.fix_ctx_encoder
        teacher.requires_grad_(False)
        mended = {
            "tokenizer": "make the model with the teacher's (dpr new-encoder tokenizer=FOLDER)",
            "number of dimensions": "set encoder.projection_dim to the teacher's",
            "normalize": "set encoder.normalize to the teacher's",
        }
        theirs = _decide_vectors(teacher)
        for name, own in _decide_vectors(model).items():
            if own != theirs[name]:
                raise ConfigError(
                    f"loss.teacher={folder}: its {name} is {theirs[name]!r}, the model's is {own!r};"
                    f" {mended.get(name, 'give both the same')}"
                )
        for side in ("question", "sequence"):
            length, longest = (getattr(each.tensorizer, f"{side}_length") for each in (model, teacher))
            if length > longest:
                raise ConfigError(
                    f"loss.teacher={folder} takes {longest} tokens, but encoder.{side}_length is {length};"
                    f" set it to {longest} or less"
                )

    def questions(self, batch: BiEncoderBatch) -> Tensor:
        """Returns the vectors (B, D) of the questions."""
        return self._teacher.encode_batch(batch.questions, encoder_type=batch.encoder_type or "question")

    def slots(self, batch: BiEncoderBatch) -> Tensor:
        """Returns the vectors (N, D) of the passages in context slots."""
        contexts = self._teacher.encode_batch(batch.contexts, encoder_type=batch.encoder_type or "ctx")
        return contexts[batch.context_row]


def read_vectors(patterns: Sequence[str], namespaces: Sequence[str], *, setting: str) -> StoredVectors:
    """Returns the vectors that a setting names, by the identities of their passages within each of
    ``namespaces``. The vectors stay in the mapped files.

    Raises:
        InputError: the shards cannot be read, are not as they were written, or do not fit together.
        ConfigError: they hold no vectors.
    """
    shards = open_shards(patterns)
    chunks = list[np.ndarray]()
    keys = list[int]()
    for ids, vectors in (chunk for shard in shards for chunk in shard.chunks()):
        for key in ids:
            passage = Passage("", id=key.decode())
            keys += [passage_identity(passage, namespace)[0] for namespace in namespaces]
        chunks.append(vectors)
    size = sum(map(len, chunks))
    if not size:
        raise ConfigError(f"{setting}={list(patterns)} holds no vectors")
    files = [read_manifest(shard.path)["files"] for shard in shards]
    fingerprint = json_sha256(files)
    return StoredVectors(
        chunks,
        np.array(keys, dtype=np.int64),
        np.repeat(np.arange(size), len(namespaces)),
        fingerprint=fingerprint,
    )


class StoredTeacher:
    """Teacher of stored passage vectors, from any model. ``namespaces`` are the names of the data sets, by
    their numbers.

    Raises:
        ConfigError: no passage of the model in training could ever have such a vector.
    """

    teaches_passages = True

    def __init__(self, vectors: StoredVectors, namespaces: Sequence[str], model: Towers) -> None:
        self._vectors = vectors
        self._namespaces = namespaces
        self.fingerprint = vectors.fingerprint
        if model.options.fix_ctx_encoder:
            raise ConfigError(
                "loss.teacher names vectors of passages, whose tower does not learn with"
                " encoder.fix_ctx_encoder=true; leave one of them out, or name the folder of a model, whose"
                " vectors of questions are learned"
            )
        if vectors.dimension != model.dimension:
            raise ConfigError(
                f"loss.teacher names vectors of {vectors.dimension} dimensions, but the model's have"
                f" {model.dimension}; set encoder.projection_dim={vectors.dimension}"
            )
        if model.settings.normalize and abs((length := vectors.typical_length()) - 1) > 0.01:
            raise ConfigError(
                f"loss.teacher names vectors of length {length:.3g}, which the model never has; set"
                " encoder.normalize=false"
            )

    def slots(self, batch: BiEncoderBatch) -> Tensor:
        """Returns the vectors (N, D) of the passages in context slots; zeros for padding.

        Raises:
            InputError: a passage has none.
        """
        is_found, vectors = self._vectors.find(batch.context_ids)
        if len(missing := np.flatnonzero(batch.context_valid.numpy() & ~is_found)):
            question, place = divmod(int(missing[0]), len(is_found) // len(batch))
            row = f"{self._namespaces[batch.datasets[question]]}: row {batch.rows[question]}"
            raise InputError(
                f"{row}: the passage drawn for slot {place} has no vector in loss.teacher",
                expected="one by its id for every passage of the training data",
                hint=(
                    "dpr embed the passages with these ids; for pairs that are cut from a corpus, name the"
                    " folder of a model"
                ),
            )
        return on_device(torch.from_numpy(vectors), batch.context_row.device)

    def questions(self, batch: BiEncoderBatch) -> None:
        """Returns None: there are no vectors of questions."""
