import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpr.core.errors import InputError
from dpr.formats import record_files
from dpr.formats.record_files import iter_json_records, read_json_object
from tests.helpers.examples import examples

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.lists(st.dictionaries(TEXT, VALUES, max_size=3), max_size=6)


def read(path: Path) -> list[dict[str, Any]]:
    records = list(iter_json_records(path))
    assert all(record.error is None for record in records)
    return [record.value for record in records]


def refusal(path: Path, data: bytes) -> str:
    path.write_bytes(data)

    def first_error() -> None:
        for record in iter_json_records(path):
            if record.error:
                raise record.error

    with pytest.raises(InputError) as caught:
        first_error()
    return str(caught.value).replace(str(path), path.name)


@settings(max_examples=examples(40), deadline=None)
@given(OBJECTS, st.sampled_from([None, 1]), st.integers(1, 40), st.booleans(), st.sampled_from("[l"))
def test_streaming_gives_what_json_loads_gives(
    tmp_path_factory: Any, objects: list[Any], indent: int | None, window: int, ascii_only: bool, layout: str
) -> None:
    """The window is far smaller than a record, so that every way of being cut is met."""
    path = tmp_path_factory.mktemp("json") / "x"
    if layout == "[":
        text = json.dumps(objects, indent=indent, ensure_ascii=ascii_only)
    else:
        text = "\n".join(json.dumps(value, ensure_ascii=ascii_only) for value in objects)
    path.write_text(text, encoding="utf-8", newline="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_files, "_WINDOW", window)
        assert read(path) == objects


def test_line_numbers_are_those_where_records_start(tmp_path: Path) -> None:
    (tmp_path / "x").write_text('\n\n[\n {"a":\n 1},\n\n {"b": 2}, {"c": 3},\n{"d": 4}]\n')
    found = [(record.line, *record.value) for record in iter_json_records(tmp_path / "x")]
    assert found == [(4, "a"), (7, "b"), (7, "c"), (8, "d")]
    (tmp_path / "x").write_text('\n{"a": 1}\n\n{"b": 2}')
    found = [(record.line, *record.value) for record in iter_json_records(tmp_path / "x")]
    assert found == [(2, "a"), (4, "b")]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize("packed", [False, True])
def test_bom_crlf_and_gzip_are_accepted(tmp_path: Path, newline: str, bom: str, packed: bool) -> None:
    for text in ('[\n{"a": "x"},\n{"a": "y"}\n]\n', '{"a": "x"}\n{"a": "y"}\n'):
        data = (bom + text.replace("\n", newline)).encode()
        (tmp_path / "data.bin").write_bytes(gzip.compress(data) if packed else data)
        assert read(tmp_path / "data.bin") == [{"a": "x"}, {"a": "y"}]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'[{"a": 1},\n{"a": }]', "x:2: not JSON: Expecting value"),
        (b'[{"a": 1}\n{"a": 2}]', "x:2: not JSON: '{' after a record"),
        (b'[{"a": 1}}', "x:1: not JSON: '}' after a record"),
        (b'[{"a": [1}]', "x:1: not JSON: Expecting ',' delimiter at column 10"),
        (b'[{"a": 1}', "x:1: the file ends inside the array"),
        (b'[{"a": 1},{"b', "x:1: the file ends inside the array; it may be cut off"),
        (b'[{"a": 1}]\n[]', "x:2: '[' after the end of the array"),
        (b'[{"a": 1},\n3]', "x:2: the row is the number 3, expected an object"),
        (b'{"a": 1}\n[1]\n', "x:2: the row is a list"),
        (b'{"a": 1}\n{"a": NaN}\n', "x:2: NaN is not a JSON number"),
        (b'{"a": 1, "a": 2}', "x:1: the key 'a' appears twice"),
        (b'{"a": 1}\n{bad}\n', "x:2: not JSON: Expecting property name enclosed in double quotes"),
        (b'{"a": "\xff"}', "x:1: byte 8 of the line (0xff) is not UTF-8"),
        (b'[{"a": 1},\n {"a": "\xc3"}]', "x:2: byte 9 of the line (0xc3) is not UTF-8"),
        (b'{"a": "' + b"x" * 17_000_000 + b'"}', "x:1: the line is longer than 16 MB"),
        (b'[{"a": "' + b"x" * 40_000_000, "x:1: not JSON: Unterminated string starting at column 8"),
        (b'{"a": ' + b"[" * 100_000, "x:1: nested too deep"),
        (b'{"a": ' + b"9" * 5000 + b"}", "x:1: a number of 5000 digits"),
        (b'{"a": 1}\n{"a": [-1e999]}', "x:2: the number -1e999 is too large"),
        (b'[{"a": 1},\n{"a": [1e999]}]', "x:2: the number 1e999 is too large"),
        (b'{"a ": 1, "a\\u0000": 2}', "x:1: the key 'a ' appears twice"),
        (b"question\tanswer\n", "x:1: starts with 'q', expected a JSON array"),
        (gzip.compress(b'{"a": 1}\n' * 1000)[:40], "x: gzip data is damaged or cut off"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_said_with_file_and_line(tmp_path: Path, data: bytes, message: str) -> None:
    assert refusal(tmp_path / "x", data).startswith(message)


def test_reading_continues_after_a_bad_record(tmp_path: Path) -> None:
    for text in (
        '{"a": 1}\nbad\n{"a": NaN}\n{"a": 2}\n',
        '[{"a": 1}, "bad",\n{"a": NaN, "b": [1]},\n {"a": 2}]',
    ):
        (tmp_path / "x").write_text(text)
        records = list(iter_json_records(tmp_path / "x"))
        assert [record.error is None for record in records] == [True, False, False, True]
        assert records[-1].value == {"a": 2}


def test_nul_becomes_a_space_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    contents = (b'{"a": "x\\u0000y"}\n{"a": "x\0y"}', b'[{"a": "x\\u0000y"},\n{"a": "x\0y"}]')
    for number, data in enumerate(contents):
        caplog.clear()
        file = tmp_path / str(number)
        file.write_bytes(data)
        assert read(file) == [{"a": "x y"}, {"a": "x y"}]
        assert len(caplog.records) == 1


def test_only_escapes_are_nul_wherever_a_text_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["\0", "\\u0000", "\\\0", "\\\\u0000", "a\0\0b\\"]
    (tmp_path / "x").write_text(json.dumps([{"a": text} for text in texts]))
    for window in range(1, 9):
        monkeypatch.setattr(record_files, "_WINDOW", window)
        assert [record["a"] for record in read(tmp_path / "x")] == [text.replace("\0", " ") for text in texts]


@pytest.mark.parametrize("layout", ["%s\n", "[%s]"])
def test_one_repeated_key_of_many_is_found_in_one_pass(tmp_path: Path, layout: str) -> None:
    keys = [*range(50_000), 49_999]
    (tmp_path / "x").write_text(layout % ("{" + ", ".join(f'"{key}": 0' for key in keys) + "}"))
    started = time.process_time()
    (record,) = iter_json_records(tmp_path / "x")
    assert "'49999' appears twice" in str(record.error)
    assert time.process_time() - started < 5  # comparing each key with all others takes a minute


def test_memory_does_not_grow_with_the_array(tmp_path: Path) -> None:
    import tracemalloc

    record = json.dumps({"text": "x" * 10_000})
    (tmp_path / "x").write_text("[" + ",".join([record] * 3000) + "]")  # 30 MB on one line
    tracemalloc.start()
    try:
        assert sum(1 for _ in iter_json_records(tmp_path / "x")) == 3000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12_000_000


def test_one_object_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_text('\ufeff{"version": "[",\n "data": [{"a": 1},\n{"a": 2}]}\n')
    assert read_json_object(file) == {"version": "[", "data": [{"a": 1}, {"a": 2}]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"data": [{"a": 1}', "x:1: not JSON"),
        ('{"data": 1,\n"data": 2}', "the key 'data' appears twice"),
        ('{"data" [{"a": 1}]}', "x:1: not JSON: Expecting ':' delimiter at column 9"),
        ("[1]", "x:1: the row is a list, expected an object"),
        ("[" * 300, "x:1: nested too deeply"),
    ],
)
def test_what_is_no_object_is_refused(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "x"
    file.write_text(content)
    with pytest.raises(InputError, match=message):
        read_json_object(file)


def test_an_object_of_half_a_gigabyte_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpr.formats.record_files.MAX_JSON_BYTES", 10)
    file = tmp_path / "x"
    file.write_text('{"a": "1234567"}')
    with pytest.raises(InputError, match="more than 10 bytes"):
        read_json_object(file)
