"""A store returns what reading the whole file returns, from any row and for any id."""

import gzip
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpr.core.errors import InputError
from dpr.core.records import Passage
from dpr.embedding.source import PassageSource, StoredSource, with_store
from dpr.formats import text_store
from dpr.formats.corpora import write_passages
from dpr.formats.text_store import open_store
from dpr.retrieval.passages import PassageLookup, find_passages

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
def test_a_store_gives_what_the_whole_file_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
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


def test_a_store_is_made_once_and_only_for_the_same_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    path.write_text(
        "".join(json.dumps({"_id": str(n), "text": 5 if n == 40 else "x"}) + "\n" for n in range(50))
    )
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


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
