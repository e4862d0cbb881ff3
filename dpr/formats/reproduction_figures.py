"""The figures of ``dpr reproduce``: read from the files that a run left behind."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.errors import InputError
from dpr.formats.original.vectors import PickledVectors
from dpr.formats.reproductions import OUT, Number
from dpr.formats.vector_shards import open_shards
from dpr.storage.durable import read_json


def value_of(number: Number, out: Path) -> float | None:
    """The figure in the files of a run; None where it is not there yet.

    Raises:
        InputError: the file is damaged, or has no such key.
    """
    if number.difference:
        own, others = (pattern.replace(OUT, str(out)) for pattern in number.difference)
        return largest_difference(own, others) if glob.glob(own) and glob.glob(others) else None
    name, _, key = number.read.partition(":")
    file = out / name
    if not file.is_file():
        return None
    if file.suffix == ".jsonl":
        found = next((line[key] for line in _lines(file) if line.get("step", -1) >= number.step and line.get(key) is not None), None)
    else:
        try:
            found = float(reduce(lambda value, part: value[part], key.split("."), read_json(file)))
        except (KeyError, TypeError, ValueError):
            raise InputError(f"has no number {key}", file=file) from None
    return None if found is None else number.times * float(found)


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    for line in file.read_text(encoding="utf-8").splitlines():
        with suppress(ValueError):  # the last line may be half written
            if isinstance(entry := json.loads(line), dict):
                yield entry


def largest_difference(own: str, others: str) -> float:
    """The largest difference between a number of one's own vectors and the same number of the vectors of the same passage among others,
    which are shards or embedding files of the original. What stands before the colon of an id (wiki:1) does not count.

    Raises:
        InputError: a passage is not among the others, or the vectors are of another width.
    """
    parts = [part for shard in open_shards([own], allow_missing=True) for part in shard.chunks()]
    ids, vectors = _bare(np.concatenate([part[0] for part in parts])), np.concatenate([part[1] for part in parts])
    order, largest, found = np.argsort(ids), 0.0, 0
    files = [Path(name) for name in glob.glob(others)]
    for shard in (
        [PickledVectors(file) for file in files] if all(file.is_file() for file in files) else open_shards([others], allow_missing=True)
    ):
        for names, values in ((_bare(names), values) for names, values in shard.chunks()):
            place = order[np.minimum(np.searchsorted(ids, names, sorter=order), len(ids) - 1)]
            same = ids[place] == names
            found += int(same.sum())
            if values.shape[1] != vectors.shape[1]:
                raise InputError(f"vectors of {values.shape[1]} numbers", file=others, expected=f"{vectors.shape[1]}, as in {own}")
            if same.any():
                largest = max(largest, float(np.abs(values[same] - vectors[place[same]]).max()))
    if found < len(ids):
        raise InputError(f"{len(ids) - found} of {len(ids)} passages are not there", file=others, expected=f"all of {own}")
    return largest


def _bare(ids: np.ndarray) -> np.ndarray:
    return np.array([name.rpartition(b":")[2] for name in ids.tolist()])


def missed(numbers: Sequence[Number], out: Path) -> Number | None:
    """The first of these numbers that is there and FAILs."""
    return next((number for number in numbers if (value := value_of(number, out)) is not None and number.outcome(value) == "FAIL"), None)
