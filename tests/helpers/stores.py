"""A small corpus with its vectors for the tests of vector stores, and loads that are killed."""

import importlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.records import Passage
from dpr.embedding.source import PassageSource
from dpr.export.store_rows import RowBatch, VectorRows
from dpr.formats.vector_shards import Metadata, VectorShardWriter, open_shards
from tests.helpers.patience import patient

METADATA = {"year": "int", "weight": "float", "is_new": "bool", "place": "text"}
_TEXTS = (
    "It's \u201cquoted\u201d, isn't it",
    "two\nlines\tand a tab",
    'back\\slash "quotes"',
    "\u4e2d\u6587 \U0001f600",
    "",
    "caf\u00e9",
)


def passages(count: int) -> list[Passage]:
    rng = random.Random(0)
    return [
        Passage(f"{rng.choice(_TEXTS)} {number}", rng.choice(["", "A title", "It's"]), f"p\u00e9 {number}")
        for number in range(count)
    ]


def record(number: int, passage: Passage) -> dict[str, Any]:
    """A line of the corpus; some fields are missing, some stand in BEIR's object ``metadata``."""
    value: dict[str, Any] = {
        "_id": passage.id,
        "title": passage.title,
        "text": passage.text,
        "year": 1900 + number,
    }
    value |= (
        {"metadata": {"weight": number / 8, "is_new": number % 2 == 0}} if number % 5 else {"is_new": None}
    )
    return value | ({"place": f"here {number}"} if number % 3 else {})


def fields_of(count: int) -> list[dict[str, Any]]:
    """What a store should hold beside the vectors."""
    rows = []
    for number, passage in enumerate(passages(count)):
        value = record(number, passage)
        value |= value.pop("metadata", None) or {}
        rows.append({"id": passage.id, **{name: value.get(name) for name in ("title", "text", *METADATA)}})
    return rows


def vectors(count: int, dimension: int) -> np.ndarray:
    """Of few different numbers, so that many scores tie, and some vectors twice."""
    rng = np.random.default_rng(0)
    made = rng.integers(-4, 5, (count, dimension)).astype(np.float32) / 4 + np.float32(0.125)
    made[count - count // 4 :] = made[: count // 4]
    return made


def write_inputs(
    folder: Path,
    *,
    count: int = 300,
    dimension: int = 16,
    dtype: str = "float32",
    shards: int = 3,
    chunk: int = 40,
) -> None:
    """``corpus.jsonl`` and ``vectors_0`` ..., whose chunks do not fit into batches or steps."""
    folder.mkdir(parents=True, exist_ok=True)
    found, numbers = passages(count), vectors(count, dimension)
    (folder / "corpus.jsonl").write_text(
        "".join(json.dumps(record(*item)) + "\n" for item in enumerate(found)), encoding="utf-8"
    )
    size = -(-count // shards)
    for shard in range(shards):
        rows = range(shard * size, min((shard + 1) * size, count))
        metadata: Metadata = {
            "model_fingerprint": "m",
            "encoder_type": "ctx",
            "similarity": "dot",
            "shard_id": shard,
            "num_shards": shards,
        }
        writer = VectorShardWriter(
            folder / f"vectors_{shard}", metadata=metadata, dimension=dimension, dtype=dtype
        )
        for number, start in enumerate(range(rows.start, rows.stop, chunk)):
            part = slice(start, min(start + chunk, rows.stop))
            writer.write_chunk(number, [str(item.id) for item in found[part]], numbers[part])
        writer.finish()


def open_rows(folder: Path, **changes: Any) -> VectorRows:
    """The rows of ``write_inputs``."""
    given: dict[str, Any] = {
        "sources": [PassageSource(folder / "corpus.jsonl")],
        "metadata": METADATA,
        "batch_rows": 16,
    }
    return VectorRows(open_shards([folder / "vectors_*"]), **given | changes)


@dataclass(frozen=True)
class DoomedRows(VectorRows):
    """Rows whose reader kills its process once it has passed row number ``last``."""

    last: int = 0

    def batches(self) -> Iterator[RowBatch]:
        row = 0
        for batch in super().batches():
            if row > self.last:
                os.kill(os.getpid(), signal.SIGKILL)
            row += len(batch.ids)
            yield batch


def load_and_die(load: str, folder: Path, last: int, *arguments: str) -> None:
    """Calls ``load`` (module:function) in a process that is killed behind row ``last``."""
    command = [sys.executable, "-m", "tests.helpers.stores", load, str(folder), str(last), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(60))
    assert done.returncode == -signal.SIGKILL, done.stderr


def assert_same_but_for_ties(
    found: Sequence[Sequence[str]],
    expected: Sequence[Sequence[str]],
    scores: dict[str, np.ndarray],
    *,
    tolerance: float = 1e-5,
) -> None:
    """Rankings of all questions are equal but for passages whose ``scores`` (Q,) differ by ``tolerance``."""
    assert len(found) == len(expected)
    for question, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert len(set(ours)) == len(ours) == len(theirs)
        left, right = ([float(scores[key][question]) for key in keys] for keys in (ours, theirs))
        np.testing.assert_allclose(left, right, rtol=0, atol=tolerance)


if __name__ == "__main__":
    _load, _folder, _last, *_arguments = sys.argv[1:]
    _module, _, _name = _load.partition(":")
    _rows = open_rows(Path(_folder))
    _fields = {name: getattr(_rows, name) for name in ("shards", "sources", "metadata", "batch_rows")}
    getattr(importlib.import_module(_module), _name)(DoomedRows(**_fields, last=int(_last)), *_arguments)
