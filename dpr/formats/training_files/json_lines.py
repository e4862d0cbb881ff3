"""Training files of one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from dpr.core.records import TrainingSample
from dpr.formats.text_output import durable_text
from dpr.formats.training_files.rows import Note


def write_lines(
    record: Callable[[int, TrainingSample], dict[str, Any]],
    path: Path,
    samples: Iterable[TrainingSample],
    note: Note = None,
) -> int:
    count = 0
    with durable_text(path, note=note) as out:
        for count, sample in enumerate(samples, 1):
            out.write(json.dumps(record(count - 1, sample), ensure_ascii=False) + "\n")
    return count
