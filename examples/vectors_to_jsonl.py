"""Writes vectors of ``dpr embed`` with their passages as JSON lines, for import into any vector store.

    python examples/vectors_to_jsonl.py "runs/first/vectors_*" corpus.jsonl out.jsonl

A line is ``{"id": ..., "vector": [...], "title": ..., "text": ...}``, one for each vector; compare by dot
product. Qdrant takes integers and UUIDs as ids alone: give it ``uuid.uuid5(uuid.NAMESPACE_URL, id)``, and the
id in the payload. Milvus holds texts of at most 65,535 bytes. Memory does not grow with the corpus.
"""

from __future__ import annotations

import argparse
import glob
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import dpr


def vectors_of(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yields id and vector of each row of a shard, in the order of the corpus (docs/file_formats.md)."""
    if not (folder / "manifest.json").is_file() or list(folder.glob("scales-*.npy")):
        raise SystemExit(f"{folder}: not a finished shard of float32 or float16")
    for file in sorted(folder.glob("vectors-*.npy")):
        ids = np.load(file.with_name(file.name.replace("vectors", "ids")))
        keys = ids.tolist()
        if ids.dtype == np.uint8:  # offsets, then the bytes of all ids
            data = ids.tobytes()
            count = int.from_bytes(data[:4], "little") // 4
            ends = np.frombuffer(data, "<u4", count=count).tolist()
            keys = [data[start:end] for start, end in pairwise(ends)]
        for key, vector in zip(keys, np.load(file, mmap_mode="r"), strict=True):
            yield key.decode(), vector


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("vectors", help="folders that dpr embed wrote, all shards: a pattern")
    parser.add_argument("corpus", help="the passages that were embedded")
    parser.add_argument("out", help="file to write")
    given = parser.parse_args()

    passages = dpr.read_passages(given.corpus)
    shards = sorted(map(Path, glob.glob(given.vectors)), key=lambda each: int(each.name.rpartition("_")[2]))
    with open(given.out, "w", encoding="utf-8") as out:
        for folder in shards:
            for key, vector in vectors_of(folder):
                passage = next((each for each in passages if each.id == key), None)
                if passage is None:
                    raise SystemExit(
                        f"{given.corpus}: no passage {key!r} after those of the vectors before it"
                    )
                line = {"id": key, "vector": vector.tolist(), "title": passage.title, "text": passage.text}
                out.write(json.dumps(line, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
