"""Vectors are joined with their passages: every row once, in order, whatever the chunks and shards."""

import json
from pathlib import Path

import numpy as np
import pytest

from dpr.core.errors import InputError
from dpr.core.records import Passage
from dpr.embedding.source import PassageSource
from dpr.formats.corpora import write_passages
from tests.helpers.stores import METADATA, all_batches, fields_of, open_rows, passages, vectors, write_inputs


def test_every_row_has_its_vector_texts_and_metadata(tmp_path: Path) -> None:
    write_inputs(tmp_path, count=100)
    batches = all_batches(open_rows(tmp_path))
    assert [key for batch in batches for key in batch.ids] == [item.id for item in passages(100)]
    np.testing.assert_array_equal(np.concatenate([batch.vectors for batch in batches]), vectors(100, 16))
    for name in ("title", "text", *METADATA):
        found = [value for batch in batches for value in batch.columns[name]]
        assert found == [row[name] for row in fields_of(100)], name


@pytest.mark.parametrize(
    ("dtype", "expected"), [("float16", np.float16), ("float32", np.float32), ("int8", np.float32)]
)
def test_vectors_keep_half_precision_and_codes_are_decoded(
    tmp_path: Path, dtype: str, expected: type
) -> None:
    write_inputs(tmp_path, count=50, dtype=dtype)
    found = np.concatenate([batch.vectors for batch in all_batches(open_rows(tmp_path))])
    assert found.dtype == expected
    np.testing.assert_allclose(found, vectors(50, 16), rtol=0, atol=0 if dtype != "int8" else 0.01)


def test_passages_without_a_vector_are_left_out_and_prefixes_are_added(tmp_path: Path) -> None:
    write_inputs(tmp_path, count=50)
    more = [
        item
        for passage in passages(50)
        for item in (passage, Passage("not embedded", "", f"other {passage.id}"))
    ]
    write_passages(tmp_path / "more.jsonl", more)
    rows = open_rows(
        tmp_path, sources=[PassageSource(tmp_path / "more.jsonl", id_prefix="wiki:")], metadata={}
    )
    assert [key for batch in all_batches(rows) for key in batch.ids] == [
        f"wiki:{item.id}" for item in passages(50)
    ]


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("int", "1999", "year is the string '1999', expected int"),
        ("int", True, "year is the boolean True, expected int"),
        ("int", 2**63, "year is the number 9223372036854775808, expected int"),
        ("text", 3, "year is the number 3, expected text"),
        ("float", "x", "expected float"),
        ("bool", 1, "expected bool"),
    ],
)
def test_metadata_of_another_kind_names_the_line(
    tmp_path: Path, kind: str, value: object, message: str
) -> None:
    write_inputs(tmp_path, count=5, shards=1)
    lines = [json.loads(line) for line in (tmp_path / "corpus.jsonl").read_text().splitlines()]
    for line in lines:
        del line["year"]
    lines[3]["year"] = value
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(InputError, match=f"corpus.jsonl:4: .*{message}"):
        all_batches(open_rows(tmp_path, metadata={"year": kind}))
