"""Damaged files of every kind are read, or refused with an InputError; nothing else comes out."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpr.core.errors import InputError
from dpr.formats.corpora import check_unique_ids, read_passages
from dpr.formats.durable import read_json, read_manifest
from dpr.formats.question_sets import read_qrels, read_questions
from dpr.formats.results import read_results, read_trec_run
from dpr.formats.training_files.registry import read_rows
from dpr.formats.training_files.rows import ReadOptions
from dpr.formats.training_sets import open_training_set

CASES = 40

_SAMPLE = {
    "question": "who wrote it",
    "answers": ["Ann", 7],
    "positive_ctxs": [{"title": "T\u00e9", "text": 'Ann wrote "it"\n twice.', "passage_id": "1", "score": 3.5}],
    "negative_ctxs": [{"text": "Bob read it.", "id": 12}],
    "hard_negative_ctxs": None,
}
_RESULT = {
    "question": "q",
    "id": "0",
    "answers": ["a"],
    "ctxs": [{"id": "1", "title": "", "text": "x", "score": "1.5", "has_answer": True}],
}


_SQUAD = {
    "version": "1",
    "data": [{"title": "A_b", "paragraphs": [{"context": "c", "qas": [{"question": "q", "answers": [{"text": "a"}]}]}]}],
}
_TEVATRON = {"query_id": "1", "query": "q", "positive_passages": [{"docid": 1, "title": None, "text": "t"}], "negative_passages": []}


def _parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"query": ["q"] * 9, "positive": [["a", "b"]] * 9}), sink)
    return bytes(sink.getvalue().to_pybytes())


def _lines(*records: Any) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


FILES: dict[str, tuple[str, bytes]] = {
    "training array": ("t.json", json.dumps([_SAMPLE] * 3, indent=1, ensure_ascii=False).encode()),
    "training lines": ("t.jsonl", _lines(*[_SAMPLE] * 3)),
    "training gzip": ("t.jsonl.gz", gzip.compress(_lines(*[_SAMPLE] * 3), mtime=0)),
    "foreign squad": ("s.json", json.dumps(_SQUAD, indent=1).encode()),
    "foreign tevatron": ("v.jsonl", _lines(*[_TEVATRON] * 3)),
    "foreign flagembedding": ("f.jsonl.gz", gzip.compress(_lines(*[{"query": "q", "pos": ["a", "b"], "neg": ["c"]}] * 3), mtime=0)),
    "foreign triples": ("t.tsv", 'who\u2019s it?\tAnn\tBob\nwho?\tAnn\t"Bob\n'.encode()),
    "foreign columns": ("c.jsonl", _lines(*[{"anchor": "q", "positive": "a", "negative_1": "b", "score": 1.5}] * 3)),
    "foreign parquet": ("c.parquet", _parquet()),
    "foreign beir": ("qrels/train.tsv", b"query-id\tcorpus-id\tscore\n1\td1\t2\n2\td2\t0\n2\td1\t1\n"),
    "passages tsv": ("p.tsv", 'id\ttext\ttitle\n1\t"a ""quoted"" text\nin two lines"\tT\n2\tplain\t\u00e9\n'.encode()),
    "passages lines": ("p.jsonl", _lines({"_id": "1", "title": "t", "text": "x"}, {"_id": 2, "text": "y"})),
    "questions csv": ("q.csv", b"who?\t['Ann', 'Bob\\'s']\nwhat?\t[\"x\", 3]\n"),
    "questions lines": ("q.jsonl", _lines({"question": "a", "answers": ["b"], "id": 1}, {"_id": "x", "text": "y"})),
    "qrels tsv": ("r.tsv", b"query-id\tcorpus-id\tscore\n1\td1\t2\n2\td2\t1\n"),
    "qrels trec": ("r.txt", b"1 0 d1 2\n2 0 d2 1\n"),
    "run": ("run.trec", b"1 Q0 d1 1 3.5 dpr\n1 Q0 d2 2 1e-3 dpr\n"),
    "results": ("res.json", json.dumps([_RESULT] * 2, indent=4).encode()),
    "json": ("m/manifest.json", b'{"schema": 1, "metadata": {}, "files": {"a": {"bytes": 1, "sha256": "0"}}}'),
}


def _read(kind: str, path: Path) -> None:
    readers: dict[str, Callable[[], Any]] = {
        "training": lambda: open_training_set([path], name="t", cache_dir=path.parent / "cache", on_bad_row="skip", max_bad_rows=2),
        "foreign": lambda: _read_foreign(path),
        "passages": lambda: (list(read_passages(path)), check_unique_ids(path)),
        "questions": lambda: read_questions(path),
        "qrels": lambda: read_qrels(path),
        "run": lambda: read_trec_run(path),
        "results": lambda: read_results(path),
        "json": lambda: (read_json(path), read_manifest(path.parent)),
    }
    readers[kind.partition(" ")[0]]()


def _read_foreign(path: Path) -> None:
    """Every row comes out good or bad; what no format fits is refused."""
    for name in ("corpus", "queries"):
        (path.parent.parent / f"{name}.jsonl").write_bytes(_lines({"_id": "1", "text": "x"}, {"_id": "d1", "text": "y"}))
    errors = [row.error for row in read_rows(path, ReadOptions(cache_dir=path.parent / "cache")) if row.error]
    assert all(isinstance(error, InputError) and str(path.parent.name) in str(error) for error in errors)


_INSERTS = (
    *(b"\0", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r", b"\r\n", b"\n\n", b'"', b"\\", b"\t", b"[", b"}", b",", b"'", b"\\u0000"),
    *(b"\\ud800", b"NaN", b"-Infinity", b"1e999", b"9" * 5000, b"[" * 3000, b'{"a":' * 3000, b"null", b"true", b"{}", b"\xe2\x80\xa8"),
)


def mutate(data: bytes, rng: random.Random) -> bytes:
    """One to three changes: a flipped, lost or repeated piece, a cut, or something inserted that readers stumble over."""
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(data) + 1)
        kind = rng.randrange(5)
        if kind == 0 and place < len(data):
            data = data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]
        elif kind == 1:
            data = data[:place]
        elif kind == 2:
            data = data[:place] + rng.choice(_INSERTS) + data[place:]
        elif kind == 3:
            data = data[:place] + data[place + rng.randint(1, 8) :]
        else:
            data = data[:place] + data[max(0, place - rng.randint(1, 40)) :]
    return data


@pytest.mark.parametrize("kind", FILES)
def test_an_undamaged_file_is_read(kind: str, tmp_path: Path) -> None:
    """Without it the test below could pass because every file is refused."""
    name, data = FILES[kind]
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    _read(kind, path)


@pytest.mark.parametrize("kind", FILES)
def test_damaged_files_are_read_or_refused(kind: str, tmp_path: Path) -> None:
    name, data = FILES[kind]
    rng = random.Random(kind)
    messages = []
    for case in range(CASES):
        path = tmp_path / str(case) / name
        path.parent.mkdir(parents=True)
        path.write_bytes(mutate(data, rng))
        try:
            _read(kind, path)
        except InputError as error:
            messages.append((path, str(error)))
    # Rows of foreign formats are set aside one by one, so fewer files are refused as a whole.
    assert len(messages) > (0 if kind.startswith("foreign") else CASES // 10), "the mutations hardly damage anything"
    for path, message in messages:
        assert str(path.parent) in message
        assert len(message) < 600
