"""Vectors of ``dpr embed`` with their passages as JSON lines, which any vector store can be filled from.

    python examples/vectors_to_jsonl.py "runs/first/vectors_*" corpus.jsonl out.jsonl

A line is ``{"id": ..., "vector": [...], "title": ..., "text": ...}``, one for each vector; compare by dot
product. Qdrant takes integers and UUIDs as ids alone: give it ``uuid.uuid5(uuid.NAMESPACE_URL, id)``, and the
id in the payload. Milvus holds texts of at most 65,535 bytes. Memory does not grow with the corpus.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from dpr.embedding.source import PassageSource
from dpr.export.stores.rows import VectorRows
from dpr.formats.vector_shards import open_shards
from dpr.storage.durable import durable_file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("vectors", help="folders that dpr embed wrote, all shards: a pattern")
    parser.add_argument("corpus", help="the passages that were embedded")
    parser.add_argument("out", help="file to write")
    given = parser.parse_args()

    rows = VectorRows(open_shards([given.vectors]), [PassageSource(Path(given.corpus))])
    with durable_file(Path(given.out)) as out:
        for _, batches in rows.steps():
            for batch in batches:
                for row, key in enumerate(batch.ids):
                    texts = {name: values[row] for name, values in batch.columns.items()}
                    line = {"id": key, "vector": batch.vectors[row].tolist(), **texts}
                    out.write(json.dumps(line, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
