"""JSON that is nested too deeply is refused, whatever the interpreter's recursion limit."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpr.core.errors import InputError
from dpr.formats import record_files
from dpr.formats.record_files import iter_json_records
from dpr.storage import untrusted
from dpr.storage.untrusted import MAX_DEPTH, TooDeepError, parsed, read_json, require_shallow

TEXT = st.text(st.sampled_from('[]{}"\\,: a\u00e9'), max_size=8)
VALUES = st.recursive(
    TEXT, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=12
)


@pytest.fixture(autouse=True)
def _interpreter_that_allows_more() -> Iterator[None]:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    yield
    sys.setrecursionlimit(limit)


def depth_of(value: Any) -> int:
    if not isinstance(value, list | dict):
        return 0
    return 1 + max(map(depth_of, value.values() if isinstance(value, dict) else value), default=0)


@given(VALUES, st.integers(0, 6), st.booleans())
def test_what_is_deeper_than_the_limit_alone_is_refused(value: Any, limit: int, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(untrusted, "MAX_DEPTH", limit)
        if depth_of(value) <= limit:
            assert parsed(text) == value
        else:
            with pytest.raises(TooDeepError):
                parsed(text)


@pytest.mark.parametrize("text", ["[" * 5000, '{"a":' * 5000, '"\\\\"' + "[" * 5000, '["\\""' + ",[" * 5000])
def test_unfinished_nesting_is_refused_before_it_is_parsed(text: str) -> None:
    with pytest.raises(TooDeepError):
        require_shallow(text)


DEEP = "[" * (MAX_DEPTH + 50) + "]" * (MAX_DEPTH + 50)


@pytest.mark.parametrize("window", [64, 2**20])
def test_no_reader_recurses_deeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    monkeypatch.setattr(record_files, "_WINDOW", window)
    file = tmp_path / "x.json"
    file.write_text('{"a": ' + DEEP + "}")
    (record,) = iter_json_records(file)
    assert "nested too deeply" in str(record.error)
    with pytest.raises(InputError, match=r"x\.json: not JSON: nested too deeply"):
        read_json(file)
    good = '{"a": "[[[", "b": [' + "[1]," * MAX_DEPTH + "[2]]}"
    file.write_text(f"{good}\n" + '{"a": ' + DEEP + f"}}\n{good}\n")
    assert [record.error is None for record in iter_json_records(file)] == [True, False, True]
    file.write_text(f'[{good},\n{good},\n{{"a": {DEEP}}},\n{good}]')
    assert [record.error is None for record in iter_json_records(file)] == [True, True, False, True]
