"""Results of a retrieval read back."""

import gzip
import json
from pathlib import Path

from dpr.formats.results import Hit, RetrievedQuestion


def read_results(path: Path) -> list[RetrievedQuestion]:
    """The questions of a results JSON, plain or packed, with their hits."""
    content = path.read_bytes()
    records = json.loads(gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content)
    return [
        RetrievedQuestion(
            record["question"],
            record["id"],
            tuple(record["answers"]),
            [Hit(**{"title": "", "text": "", **hit, "score": float(hit["score"])}) for hit in record["ctxs"]],
        )
        for record in records
    ]
