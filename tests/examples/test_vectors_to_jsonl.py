"""examples/vectors_to_jsonl.py: a line for each vector, with its passage."""

import json
from pathlib import Path

import numpy as np
import pytest

from examples.vectors_to_jsonl import main
from tests.helpers.stores import passages, vectors, write_inputs


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_each_vector_is_a_line_with_its_passage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    write_inputs(tmp_path, count=50, dtype=dtype)
    given = [str(tmp_path / name) for name in ("vectors_*", "corpus.jsonl", "out.jsonl")]
    monkeypatch.setattr("sys.argv", ["vectors_to_jsonl.py", *given])
    main()
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["id"] for line in lines] == [item.id for item in passages(50)]
    assert [(row["title"], row["text"]) for row in lines] == [(one.title, one.text) for one in passages(50)]
    np.testing.assert_array_equal(np.array([line["vector"] for line in lines], np.float32), vectors(50, 16))
