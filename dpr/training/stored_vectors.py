"""Vectors of ``dpr embed`` that training reads, by the identities of their passages."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dpr.core.batch import BiEncoderBatch, on_device
from dpr.core.errors import ConfigError, InputError
from dpr.core.hashes import text_sha256
from dpr.core.records import Passage
from dpr.data.collator import judgement_identity
from dpr.formats.vector_shards import open_shards
from dpr.losses.guide import StoredVectors
from dpr.models.biencoder import BiEncoder
from dpr.storage.durable import read_manifest


def read_vectors(patterns: Sequence[str], namespaces: Sequence[str], *, setting: str) -> StoredVectors:
    """The vectors that a setting names, which stay in the mapped files, by the identities of their passages
    within each of ``namespaces``.

    Raises:
        InputError: the shards cannot be read, are not as they were written, or do not fit together.
        ConfigError: they hold no vectors.
    """
    shards = open_shards(patterns)
    chunks, keys, size = list[np.ndarray](), list[int](), 0
    for ids, vectors in (chunk for shard in shards for chunk in shard.chunks()):
        passages = [Passage("", id=key.decode()) for key in ids]
        keys += [
            judgement_identity(passage, namespace)[0] for passage in passages for namespace in namespaces
        ]
        chunks.append(vectors)
        size += len(ids)
    if not size:
        raise ConfigError(f"{setting}={list(patterns)} holds no vectors")
    files = [read_manifest(shard.path)["files"] for shard in shards]
    fingerprint = text_sha256(json.dumps(files, sort_keys=True))
    return StoredVectors(
        chunks,
        np.array(keys, dtype=np.int64),
        np.repeat(np.arange(size), len(namespaces)),
        fingerprint=fingerprint,
    )


class StoredTeacher:
    """Stored vectors that passages learn, whatever model made them. ``namespaces`` are the names of the data
    sets, by their numbers.

    Raises:
        ConfigError: no passage of the model in training could ever have such a vector.
    """

    teaches_passages = True

    def __init__(self, vectors: StoredVectors, namespaces: Sequence[str], model: BiEncoder) -> None:
        self._vectors, self._namespaces, self.fingerprint = vectors, namespaces, vectors.fingerprint
        if model.options.fix_ctx_encoder:
            raise ConfigError(
                "loss.teacher names vectors of passages, whose tower does not learn with"
                " encoder.fix_ctx_encoder=true; leave one of them out, or name the folder of a model, whose"
                " vectors of questions are learned"
            )
        if vectors.dimension != model.dimension:
            width = f"vectors of {vectors.dimension} dimensions, but the model's have {model.dimension}"
            raise ConfigError(f"loss.teacher names {width}; set encoder.projection_dim={vectors.dimension}")
        if model.settings.normalize and abs((length := vectors.usual_length()) - 1) > 0.01:
            raise ConfigError(
                f"loss.teacher names vectors of length {length:.3g}, which the model never has; set"
                " encoder.normalize=false"
            )

    def slots(self, batch: BiEncoderBatch) -> Tensor:
        """Of each context slot its passage's vector (N, D); zeros where it only pads.

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
        """It has no vectors of questions."""
