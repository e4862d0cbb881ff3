"""Rows that name passages and questions by id, and the files in which these are looked up."""

from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dpr.core.errors import InputError
from dpr.formats.text_store import open_store
from dpr.formats.training_files.registry import READERS
from dpr.formats.training_files.rows import ReadOptions
from tests.fuzz.mutations import BYTES, JSON, TABLE, Mutation
from tests.fuzz.subject import Files, Subject, lines

_TEVATRON = {
    "query_id": "1",
    "query_text": "who?",
    "positive_document_ids": ["d1"],
    "negative_document_ids": ["d2", "7"],
}
_COLUMNS = {"query_id": "1", "positive_id": "d1", "negative_ids": ["d2", 7]}


def _parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table({"docid": ["d1", "d2", "7"], "title": ["", "T", None], "text": ["x", "y", "z"]}), sink
    )
    return bytes(sink.getvalue().to_pybytes())


_CORPORA = {
    "corpus.jsonl": lines(
        {"_id": "d1", "text": "x"}, {"docid": "d2", "title": "T", "text": "y"}, {"_id": 7, "contents": "z"}
    ),
    "corpus.tsv": b'id\ttext\ttitle\nd1\tx\t\nd2\t"y ""y"""\tT\n7\tz\tU\n',
    "collection.tsv": b'd1\tx\nd2\ty\n7\t"z\n',
    "corpus.parquet": _parquet(),
}
_QUERIES = b"1\twho?\n2\twhat?\n"
_ROWS = {
    "tevatron": lines(*[_TEVATRON] * 3),
    "triples": b"1\td1\td2\n1\td1\t7\n2\t7\td1\n",
    "pairs": b"1\td1\n1\td2\n2\t7\n",
    "columns": lines(*[_COLUMNS] * 3),
}


def _lookup(
    target: str,
    kinds: tuple[Mutation, ...],
    *,
    rows: str = "triples",
    corpus: str = "corpus.jsonl",
    has_lines: bool = False,
) -> Subject:
    """``target``: rows, queries.tsv, or the name of the corpus."""

    def files() -> Files:
        return {"rows": _ROWS[rows], "queries.tsv": _QUERIES, corpus: _CORPORA[corpus]}

    def read(path: Path) -> None:
        place = {name: path if name == target else path.parent / name for name in files()}
        options = ReadOptions(
            partial(open_store, cache_dir=path.parent / "cache"),
            corpus=place[corpus],
            queries=None if rows == "tevatron" else place["queries.tsv"],
        )
        found = list(READERS[rows](place["rows"], options))
        assert all(
            isinstance(row.error, InputError) and row.file == place["rows"] for row in found if row.error
        )
        assert all(
            passage.id and passage.text is not None
            for row in found
            if row.sample
            for passage in row.sample.positives
        )

    return Subject(target, files, read, kinds, has_lines, weight=0.5)


LOOKUPS = {
    "tevatron ids": _lookup("rows", JSON, rows="tevatron"),
    "triples of ids": _lookup("rows", TABLE),
    "pairs of ids": _lookup("rows", TABLE, rows="pairs"),
    "columns of ids": _lookup("rows", JSON, rows="columns"),
    "looked up lines": _lookup("corpus.jsonl", JSON, has_lines=True),
    "looked up tsv": _lookup("corpus.tsv", TABLE, corpus="corpus.tsv", has_lines=True),
    "looked up columns": _lookup("collection.tsv", TABLE, corpus="collection.tsv", has_lines=True),
    "looked up parquet": _lookup("corpus.parquet", BYTES, corpus="corpus.parquet"),
    "looked up questions": _lookup("queries.tsv", TABLE, has_lines=True),
}
