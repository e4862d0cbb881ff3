"""A corpus read by byte ranges gives the rows of one reading, wherever the ranges begin and whatever becomes
of their processes."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from dpr.core.errors import InputError
from dpr.core.hashes import text_hash
from dpr.formats import corpus_ranges, corpus_store
from dpr.formats.corpora import DEFAULT_COLUMNS, read_passages
from dpr.formats.corpus_store import open_store
from dpr.formats.text_input import LinePlace

PIECES = ["a", '"', "\n", "\t", "\r\n", "\u00e9", "x\ty\tz\n", "\n\n", ","]


def rows_of(file: Path, processes: int = 1) -> np.ndarray | str:
    """All rows, or the error of a bad one."""
    try:
        return np.concatenate(list(corpus_ranges.row_blocks(file, DEFAULT_COLUMNS, processes)))
    except InputError as error:
        return str(error)


def random_corpus(rng: random.Random, folder: Path) -> Path:
    """A file of some rows with newlines, quotes and what looks like rows inside quotes, or without quoting;
    now and then with a byte that does not belong."""
    file = folder / rng.choice(["c.tsv", "c.csv", "c.jsonl"])
    out = io.StringIO()
    write = csv.writer(
        out, delimiter="," if file.suffix == ".csv" else "\t", lineterminator=rng.choice(["\n", "\r\n"])
    ).writerow
    is_quoted = file.suffix != ".tsv" or rng.random() < 0.7
    if file.suffix != ".jsonl" and rng.random() < 0.5:
        write(("id", "text", "title"))
    for number in range(rng.randrange(1, 40)):
        key = "id" if rng.random() < 0.05 else f"d{number}"
        text = "".join(rng.choices(PIECES, k=rng.randrange(9)))
        if file.suffix == ".jsonl":
            out.write(json.dumps({"_id": key, "text": text}) + rng.choice(["\n", "\n\n", "\r\n"]))
        elif not is_quoted:
            out.write("\t".join((key, " ".join(text.split()), "t")) + "\n")
        else:
            write((key, text, "t"))
            out.write("\n" * (rng.random() < 0.1))
    content = out.getvalue()
    if rng.random() < 0.25:
        place = rng.randrange(len(content))
        mark = rng.choice('"\t\n{')
        if file.suffix == ".jsonl":  # a key that is damaged is not seen by those who read the ids alone
            place, mark = content.rfind("\n", 0, place) + 1, "{"
        content = content[:place] + mark + content[place:]
    file.write_bytes(b"\xef\xbb\xbf" * (rng.random() < 0.2) + content.encode())
    return file


@contextmanager
def in_this_process(ranges: corpus_ranges._Ranges, processes: int) -> Iterator[list[IO[bytes]]]:
    """What the processes send, without starting any."""

    def sent(first: int) -> IO[bytes]:
        out = io.BytesIO()
        for number in range(first, ranges.num_ranges, processes):
            corpus_ranges._send(ranges.found(number), out)
        out.seek(0)
        return out

    yield [sent(first) for first in range(processes)]


def divide(monkeypatch: pytest.MonkeyPatch, range_bytes: int) -> None:
    monkeypatch.setattr(corpus_ranges, "_LEAST_RANGES", 1)
    monkeypatch.setattr(corpus_ranges, "_RANGE_BYTES", range_bytes)


@pytest.mark.parametrize("seed", range(5))
def test_ranges_give_the_rows_of_one_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(corpus_ranges, "_readers", in_this_process)
    errors = 0
    for _ in range(25):
        file = random_corpus(rng, tmp_path)
        expected = rows_of(file)
        for range_bytes in (rng.randrange(1, 60), rng.randrange(10, 200)):
            with monkeypatch.context() as patch:
                divide(patch, range_bytes)
                found = rows_of(file, rng.randrange(2, 5))
            assert type(found) is type(expected)
            np.testing.assert_array_equal(found, expected)
        if isinstance(expected, str):
            errors += 1
            continue
        for row, passage in enumerate(read_passages(file)):
            assert expected[row, 0] == text_hash(str(passage.id))
            line, offset = expected[row, 1:].tolist()
            assert next(read_passages(file, place=LinePlace(line, offset) if row else None)) == passage
    assert 0 < errors < 25


def test_ranges_that_begin_inside_a_row_are_seldom_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "c.tsv"
    with file.open("w", newline="") as out:
        for number in range(500):
            csv.writer(out, delimiter="\t").writerow(
                (f"d{number}", "word\n" * (number % 7) + 'said "so"', "title")
            )
    expected = rows_of(file)
    divide(monkeypatch, 200)
    monkeypatch.setattr(corpus_ranges, "_readers", in_this_process)
    read: list[int] = []
    real = corpus_ranges._Ranges.rows
    monkeypatch.setattr(
        corpus_ranges._Ranges,
        "rows",
        lambda ranges, place, stop: read.append(place.offset) or real(ranges, place, stop),
    )
    np.testing.assert_array_equal(rows_of(file, 2), expected)
    assert len(read) == -(-file.stat().st_size // 200) > 80


@pytest.mark.parametrize("name", ["c.tsv", "c.jsonl"])
def test_the_store_has_the_same_bytes_for_any_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    file = tmp_path / name
    rows = [(f"d{number}", f'text "{number}"\nand more', "t") for number in range(1000)]
    with file.open("w", newline="") as out:
        for key, text, title in rows:
            if name == "c.tsv":
                csv.writer(out, delimiter="\t").writerow((key, text, title))
            else:
                out.write(json.dumps({"_id": key, "text": text, "title": title}) + "\n")
    divide(monkeypatch, 4096)
    made = []
    for processes in (1, 2, 3, 0):
        monkeypatch.setattr(corpus_store, "usable_cores", lambda: processes or 2)  # noqa: B023
        if not processes:  # those of which none starts
            monkeypatch.setattr(sys, "executable", "/bin/false")
        cache = tmp_path / str(processes)
        assert open_store(file, cache_dir=cache).num_passages == 1000
        made.append(
            {
                path.name: hashlib.sha256(path.read_bytes()).hexdigest()
                for path in cache.glob("corpus-*/*.npy")
            }
        )
    assert len(made[0]) == 2 and all(one == made[0] for one in made)


def test_processes_are_really_asked_and_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "c.tsv"
    file.write_text("".join(f"d{number}\tx\tt\n" for number in range(3000)))
    expected = rows_of(file)
    divide(monkeypatch, 4096)
    monkeypatch.setattr(corpus_ranges._Ranges, "rows", None)
    np.testing.assert_array_equal(rows_of(file, 2), expected)
    monkeypatch.undo()
    divide(monkeypatch, 4096)
    file.write_text(file.read_text() + "d\tx\n")
    assert (
        rows_of(file, 2)
        == f"{file}:3001: 2 columns, expected 3, as in the first row; columns are separated by tabs; check"
        " the quotes above this line"
    )
