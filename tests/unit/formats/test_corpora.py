"""Passages are read from every format; a store returns what reading the whole file returns."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpr.core.errors import InputError
from dpr.core.records import Origin, Passage
from dpr.embedding.source import PassageSource, StoredSource, with_store
from dpr.formats import text_store
from dpr.formats.corpora import check_unique_ids, read_passages, write_passages
from dpr.formats.passage_records import origin_record
from dpr.formats.text_store import open_store
from dpr.retrieval.passages import PassageLookup, find_passages
from tests.helpers.examples import examples

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=15)
IDS = st.lists(TEXT.filter(bool), unique=True, max_size=5)
ORIGINS = st.none() | st.builds(
    Origin,
    TEXT.filter(bool),
    TEXT,
    st.none() | st.integers(0, 9),
    st.sampled_from(["", "https://example.org/"]),
)
FIELDS = st.none() | st.fixed_dictionaries({"year": st.none() | st.integers()})


def tsv(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


@settings(
    max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(ids=IDS, data=st.data(), name=st.sampled_from(["c.tsv", "c.tsv.gz", "c.jsonl", "c.jsonl.gz"]))
def test_what_is_written_is_read_back(
    tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch, ids: list[str], data: Any, name: str
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    passages = [
        Passage(data.draw(TEXT), data.draw(TEXT), key, origin=data.draw(ORIGINS), metadata=data.draw(FIELDS))
        for key in ids
    ]
    path = tmp_path_factory.mktemp("round") / name
    rows = [(p.id, p.text, p.title) for p in passages]
    cannot = any(
        row == ("id", "text", "title")
        or row[1] != row[1].strip('"')
        or any("\r" in field or ("\t" in field and "\n" in field) for field in map(str, row))
        for row in rows
    )
    if "tsv" in name and cannot:
        with pytest.raises(InputError, match=r"write \.jsonl instead"):  # instead of changing it silently
            write_passages(path, passages)
        return
    assert write_passages(path, passages) == len(passages)
    read = list(read_passages(path))
    assert read == passages
    assert [passage.origin for passage in read] == [
        passage.origin if "json" in name else None for passage in passages
    ]
    fields = [{**(p.metadata or {}), **(origin_record(p.origin) if p.origin else {})} for p in passages]
    assert [passage.metadata or {} for passage in read] == (fields if "json" in name else [{}] * len(read))
    assert check_unique_ids(path) == len(passages)


TRAPS = (
    "id\ttext\ttitle\r\n"
    '1\t"Aaron ""the"" prophet"\tAaron\r\n'
    '2\t"""Quoted"" all around"""\t"Ti""tle"""\r\n'
    '3\t"two\nlines\tand a tab"\t\r\n'
    "id\ttext\ttitle\r\n"
    "\r\n"
    "4\tit's \u2019plain\"\t T \r\n"
    '5\t""\tempty\r\n'
    '6\ta single " inside\tT'
)


@pytest.mark.parametrize("packed", [False, True])
def test_dpr_tsv_with_traps_is_read_as_stated(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "psgs.tsv"
    path.write_bytes(gzip.compress(TRAPS.encode()) if packed else TRAPS.encode())
    assert [(p.id, p.text, p.title) for p in read_passages(path, id_prefix="wiki:")] == [
        ("wiki:1", 'Aaron "the" prophet', "Aaron"),
        # quotes at both ends of a text go, also when they belong to it; a title keeps its
        ("wiki:2", 'Quoted" all around', 'Ti"tle"'),
        ("wiki:3", "two\nlines\tand a tab", ""),
        ("wiki:4", "it's \u2019plain", " T "),
        ("wiki:5", "", "empty"),
        ("wiki:6", 'a single " inside', "T"),
    ]
    assert [p.id for p in read_passages(path, start=2, stop=4)] == ["3", "4"]
    assert [p.id for p in read_passages(path, start=4)] == ["5", "6"]
    assert list(read_passages(path, start=6)) == list(read_passages(path, start=3, stop=3)) == []
    assert check_unique_ids(path) == 6


def test_long_fields_and_missing_titles_are_read(tmp_path: Path) -> None:
    path = tsv(tmp_path / "c.tsv", "1\t" + "x" * 200_000 + "\n2\ty\n")  # csv's own limit is 131072
    assert [(len(p.text), p.title) for p in read_passages(path)] == [(200_000, ""), (1, "")]
    path = tsv(tmp_path / "d.tsv", "Title\t1\ttext\n")
    (passage,) = read_passages(path, id_col=1, text_col=2, title_col=0)
    assert passage == Passage("text", "Title", "1")
    (passage,) = read_passages(path, id_col=1, text_col=2, title_col=-1)
    assert passage.title == ""


def test_beir_corpus_is_read(tmp_path: Path) -> None:
    path = tsv(
        tmp_path / "corpus.jsonl",
        '{"_id": 7, "title": null, "text": "a", "metadata": {}}\n{"_id": "x", "text": ""}\n',
    )
    assert list(read_passages(path, id_prefix="p-")) == [Passage("a", "", "p-7"), Passage("", "", "p-x")]
    assert [p.id for p in read_passages(path, start=1)] == ["x"]


@pytest.mark.parametrize(
    ("fields", "origin"),
    [
        ({"metadata": {"file": "a.md", "heading": "H", "line": 3}}, Origin("a.md", "H", 3)),
        ({"file": "a.md", "metadata": {"file": "b.md", "line": True}}, Origin("a.md")),
        ({"file": ["a.md"], "metadata": {"url": " https://x.example"}}, None),
        ({"metadata": {"url": "HTTPS://x.example/?a=<b>"}}, Origin(url="HTTPS://x.example/?a=<b>")),
        ({"url": "javascript:alert(1)//http://x.example", "line": 3, "heading": "H"}, None),
        ({"url": "https://[x", "file": "a\ud800"}, None),
        ({"url": "https://x.example/\x1b[2J"}, None),
        ({"metadata": "file"}, None),
    ],
)
def test_records_say_where_from(tmp_path: Path, fields: dict[str, Any], origin: Origin | None) -> None:
    (passage,) = read_passages(tsv(tmp_path / "c.jsonl", json.dumps({"_id": "1", "text": "", **fields})))
    assert passage.origin == origin


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.tsv", "1\ttext\ttitle\n2\ttext\n", "c.tsv:2: 2 columns, expected 3, as in the first row"),
        ("c.tsv", "1 text\n", "c.tsv:1: 1 columns, expected at least 2; columns are separated by tabs"),
        ("c.tsv", "1\ta\tt\n\tb\tt\n", "c.tsv:2: empty passage id"),
        (
            "c.jsonl",
            '{"_id": "%s", "text": "a"}\n' % ("\u00e9" * 513),
            "c.jsonl:1: a passage id of 1026 bytes",
        ),
        ("c.tsv", "1\t\xff\tt\n", None),
        ("c.jsonl", '{"_id": "1", "text": 5}\n', "c.jsonl:1: text is the number 5"),
        ("c.jsonl", '{"_id": "1", "text": "a", "title": []}\n', "c.jsonl:1: title is an empty list"),
        ("c.jsonl", '{"_id": true, "text": "a"}\n', "c.jsonl:1: _id is the boolean True"),
    ],
)
def test_bad_rows_are_refused_by_line(tmp_path: Path, name: str, text: str, message: str | None) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode("latin-1" if message is None else "utf-8"))
    with pytest.raises(InputError) as caught:
        list(read_passages(path))
    assert str(caught.value).startswith(
        f"{tmp_path}/{message or 'c.tsv:1: byte 3 of the line (0xff) is not UTF-8'}"
    )


def test_uniqueness_does_not_rest_on_hashes(tmp_path: Path) -> None:
    path = tsv(tmp_path / "c.tsv", "".join(f"{number}\tx\n" for number in range(1000)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.hash", lambda text: len(text))
        assert check_unique_ids(path) == 1000


def test_range_reading_does_not_parse_behind_its_end(tmp_path: Path) -> None:
    path = tsv(tmp_path / "c.tsv", "1\ta\n2\tb\nbroken\n")
    assert [p.id for p in read_passages(path, stop=2)] == ["1", "2"]


def test_real_corpora_are_read_whole(shared_data: Path) -> None:
    assert check_unique_ids(shared_data / "npl" / "corpus.jsonl.gz") == 11429
    assert sum(1 for p in read_passages(shared_data / "cranfield" / "corpus.jsonl") if not p.text) == 2


@pytest.mark.parametrize(
    ("rows", "ids"),
    [
        ("id\tAn id names a row of a table.\tDatabases\n1\tx y\tT\n", ["id", "1"]),
        ("1\tx y\tT\nid\tIdaho, a state\tId\n", ["1", "id"]),
        ("id\ttext\ttitle\nid\tIdaho\tId\nid\ttext\ttitle\n1\tx y\tT\n", ["id", "1"]),
    ],
)
def test_the_id_named_id(tmp_path: Path, caplog: pytest.LogCaptureFixture, rows: str, ids: list[str]) -> None:
    (tmp_path / "c.tsv").write_text(rows)
    assert [passage.id for passage in read_passages(tmp_path / "c.tsv")] == ids
    assert check_unique_ids(tmp_path / "c.tsv") == len(ids)
    assert not caplog.records


def test_given_columns_win_over_a_header_and_one_without_title_means_none(tmp_path: Path) -> None:
    (tmp_path / "c.tsv").write_text("id\ttitle\ttext\n1\tT\tx\n")
    assert list(read_passages(tmp_path / "c.tsv", text_col=1, title_col=0)) == [Passage("T", "1", "1")]
    (tmp_path / "d.tsv").write_text("id\turl\ttext\n1\thttps://x\tx\n")
    assert list(read_passages(tmp_path / "d.tsv")) == [Passage("x", "", "1")]


def test_commas_without_a_header_are_read_and_broken_ones_named(tmp_path: Path) -> None:
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(b'1,"a, b",T\n2,c,U\n'))
    assert list(read_passages(tmp_path / "c.csv.gz")) == [Passage("a, b", "T", "1"), Passage("c", "U", "2")]
    (tmp_path / "c.csv").write_text("1,a,T\n2,b\n")
    with pytest.raises(
        InputError, match=r"c\.csv:2: 2 columns, expected 3, .*; columns are separated by commas"
    ):
        list(read_passages(tmp_path / "c.csv"))


ROWS = 70
TEXTS = [
    f'line {number}\r\n"quoted" \u00e9\ttab' if number % 7 == 3 else f"text {number}"
    for number in range(ROWS)
]
TSV = "".join(
    f'{number}\t"{text.replace(chr(34), chr(34) * 2)}"\tT{number}\r\n' for number, text in enumerate(TEXTS)
)


def write(path: Path) -> Path:
    """The same passages in the format of the name, with a byte order mark, headers and blank lines."""
    records = [{"_id": str(number), "text": text, "title": f"T{number}"} for number, text in enumerate(TEXTS)]
    lines = [f"{json.dumps(record)}\n" for record in records]
    content = {
        ".tsv": "\ufeffid\ttext\ttitle\r\n" + TSV.replace("\r\n40\t", "\r\n\r\nid\ttext\ttitle\r\n40\t"),
        ".csv": "id,title,text\n"
        + "".join(f'{n},T{n},"{text.replace(chr(34), chr(34) * 2)}"\n' for n, text in enumerate(TEXTS)),
        ".jsonl": "\n\n" + "\n".join(lines),
        ".json": json.dumps(records, indent=1),
    }
    name = path.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        pq.write_table(pa.table({key: [record[key] for record in records] for key in records[0]}), path)
    else:
        text = content["." + name.split(".")[1]].encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.mark.parametrize(
    "name", ["c.tsv", "c.csv", "c.jsonl", "c.json", "c.tsv.gz", "c.jsonl.gz", "c.parquet"]
)
def test_stores_give_what_files_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    source = PassageSource(write(tmp_path / name), id_prefix="w:", normalize=True)
    expected = list(source.read())
    assert len(expected) == ROWS
    stored = with_store(source, least_bytes=0)
    assert isinstance(stored, StoredSource)
    assert stored.count_unique() == source.count_unique() == ROWS
    assert stored.identity() == source.identity()
    for start, stop in ((0, None), (1, 3), (15, 17), (16, 16), (33, 70), (69, 200), (70, 71), (39, 42)):
        assert list(stored.read(start, stop)) == expected[start:stop], (start, stop)
    ids = [str(passage.id) for passage in expected]
    assert stored.find([*ids, "w:absent", "5"]) == dict(zip(ids, expected, strict=True))
    assert find_passages([stored], ids[::9]) == find_passages([source], ids[::9])


def test_a_store_is_made_once_for_the_same_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    path = write(tmp_path / "c.tsv")
    first = open_store(path)
    with monkeypatch.context() as patch:
        patch.setattr(text_store, "_build", None)
        assert open_store(path).passages_with(["3"]) == first.passages_with(["3"])
    path.write_text("3\tanother text\n")
    os.utime(path, ns=(1, 1))
    with pytest.raises(InputError, match=r"c\.tsv: has changed since it was opened"):
        first.passages_with(["3"])
    assert open_store(path).passages_with(["3"]) == {"3": Passage("another text", "", "3")}
    for damaged in (tmp_path / "cache").glob("texts-*/ids.npy"):
        damaged.write_bytes(damaged.read_bytes()[:-8] + b"damaged!")
    assert open_store(path).passages_with(["3"]) == {"3": Passage("another text", "", "3")}


def test_bad_rows_are_named_with_their_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "c.jsonl"
    rows = [{"_id": str(n), "text": 5 if n == 40 else "x"} for n in range(50)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match=r"c\.jsonl:41: text is the number 5"):
        open_store(path)
    path = tmp_path / "c.tsv"
    path.write_text("".join(f"{n}\tx\n" for n in range(40)) + "40\n")
    with pytest.raises(InputError, match=r"c\.tsv:41: 1 columns"):
        open_store(path)
    assert not list((tmp_path / "cache").glob("*/*"))


def test_an_id_used_twice_is_refused_with_both_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "c.tsv"
    write_passages(path, [Passage(f"text {n}", "", str(n % 30)) for n in range(40)])
    with pytest.raises(InputError, match=r"c\.tsv:32: the id '0' is already used at line 2"):
        open_store(path)
    (tmp_path / "same.tsv").write_text("7\tx\n" * 20_000)  # each row alone, not each pair of rows
    with pytest.raises(InputError, match=r"same\.tsv:2: the id '7' is already used at line 1"):
        open_store(tmp_path / "same.tsv")
    monkeypatch.setattr(text_store, "text_hash", len)  # hashes decide nothing
    (tmp_path / "d.tsv").write_text("".join(f"{n}\tx{n}\n" for n in range(100)))
    store = open_store(tmp_path / "d.tsv")
    assert [passage.text for passage in store.passages_with(["7", "77"]).values()] == ["x7", "x77"]


def test_a_store_keeps_the_fields_of_passages(tmp_path: Path) -> None:
    rows = [
        {"_id": "a", "text": "x", "year": 1990, "metadata": {"tags": ["b", "c"]}},
        {"_id": "d", "text": "y"},
    ]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    kept = [passage.metadata for passage in open_store(tmp_path / "c.jsonl").passages(0, 2)]
    assert kept == [{"year": 1990, "tags": ["b", "c"]}, None]


def test_an_unwritable_cache_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("a file")
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    source = PassageSource(write(tmp_path / "c.tsv"))
    lookup = PassageLookup([source], in_memory_bytes=10)
    assert lookup.get(["12", "absent"]) == {"12": Passage("text 12", "T12", "12")}


@pytest.mark.parametrize("field", ["_id", "text", "title"])
def test_a_lone_surrogate_is_reported_with_its_line(tmp_path: Path, field: str) -> None:
    row = {"_id": "d2", "text": "b", "title": "c"} | {field: "\ud800"}
    (tmp_path / "corpus.jsonl").write_text(
        "\n".join(json.dumps(value) for value in ({"_id": "d1", "text": "a"}, row)) + "\n"
    )
    with pytest.raises(InputError) as reported:
        open_store(tmp_path / "corpus.jsonl", cache_dir=tmp_path / "cache")
    assert (reported.value.line, "lone surrogate" in str(reported.value)) == (2, True)


def test_a_lone_surrogate_in_another_field_does_not_keep_a_corpus_from_being_written(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text(json.dumps({"_id": "a", "text": "x", "note": "\ud800"}) + "\n")
    write_passages(tmp_path / "copy.jsonl", read_passages(tmp_path / "c.jsonl"))
    assert next(read_passages(tmp_path / "copy.jsonl")).metadata == {"note": "?"}
