"""Vectors of ``dpr embed`` that training reads, by the identities of their passages."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from dpr.core.errors import ConfigError
from dpr.core.hashes import text_sha256
from dpr.core.records import Passage
from dpr.data.collator import judgement_identity
from dpr.formats.vector_shards import open_shards
from dpr.losses.guide import Guide
from dpr.storage.durable import read_manifest


def read_guide(patterns: Sequence[str], namespaces: Sequence[str]) -> Guide:
    """The vectors of ``loss.guide``, which stay in the mapped files, by the identities of their passages within each of ``namespaces``.

    Raises:
        InputError: the shards cannot be read, or do not fit together.
        ConfigError: they hold no vectors.
    """
    shards = open_shards(patterns, verify=False)
    chunks, keys, size = list[np.ndarray](), list[int](), 0
    for ids, vectors in (chunk for shard in shards for chunk in shard.chunks()):
        passages = [Passage("", id=key.decode()) for key in ids]
        keys += [judgement_identity(passage, namespace)[0] for passage in passages for namespace in namespaces]
        chunks.append(vectors)
        size += len(ids)
    if not size:
        raise ConfigError(f"loss.guide={list(patterns)} holds no vectors")
    files = [read_manifest(shard.path)["files"] for shard in shards]
    fingerprint = text_sha256(json.dumps(files, sort_keys=True))
    return Guide(chunks, np.array(keys, dtype=np.int64), np.repeat(np.arange(size), len(namespaces)), fingerprint=fingerprint)
