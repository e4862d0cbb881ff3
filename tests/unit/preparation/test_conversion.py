"""``dpr prepare SOURCE``: from any format to DPR's and back, with every row accounted for."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from dpr.cli.main import main
from dpr.core.records import TrainingSample
from dpr.formats.training_sets import open_training_set
from dpr.preparation.conversion import convert
from dpr.preparation.settings import PrepareSettings


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))


def rows(path: Path) -> list[TrainingSample]:
    data = open_training_set(path, name="x")
    return [data[row] for row in range(len(data))]


def pairs(path: Path, good: int, bad: int = 0, *, text: str = "p") -> Path:
    path.write_text("".join(f"q{number}\t{text}{number}\n" for number in range(good)) + "bad\n" * bad)
    return path


def test_last_line_accounts_for_every_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "x.tsv"
    source.write_text("q\ta\nq\tb\nbad\nr\tc\n")
    out = tmp_path / "x.jsonl"
    assert main(["prepare", str(source), f"out={out}"]) == 3
    assert "x.tsv:3: 1 columns, expected 2, as in the first row; on_bad_row=skip" in capsys.readouterr().err
    assert not out.exists()
    assert main(["prepare", str(source), f"out={out}", "on_bad_row=skip"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"{out}: read 4, kept 3 as 2 questions, dropped 0 without positives, rejected 1"
    (reject,) = map(json.loads, (tmp_path / "x.jsonl.rejected.jsonl").read_text().splitlines())
    assert (reject["file"], reject["line"]) == (str(source), 3)
    assert reject["reason"] == "1 columns, expected 2, as in the first row"
    assert len(open_training_set(out, name="x")) == 2


def test_skipping_has_a_cap(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "x.jsonl"
    line = ["prepare", str(pairs(tmp_path / "a.tsv", 50, 101)), f"out={out}", "on_bad_row=skip"]
    assert main(line) == 3
    assert "more than max_bad_rows=100 bad rows" in capsys.readouterr().err
    assert len((tmp_path / "x.jsonl.rejected.jsonl").read_text().splitlines()) == 101
    assert main([*line, "max_bad_rows=101"]) == 0
    assert main([*line, "max_bad_rows=7", "overwrite=true"]) == 3
    assert ":58: more than max_bad_rows=7 bad rows" in capsys.readouterr().err


def test_there_and_back_through_all_formats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = tmp_path / "first.jsonl"
    assert main(["prepare", str(pairs(tmp_path / "p.tsv", 20, 0)), f"out={first}"]) == 0
    before = [(s.question, [p.text for p in s.positives]) for s in rows(first)]
    last = first
    for name in ("beir", "tevatron", "flagembedding", "dpr"):
        following = tmp_path / f"{name}.jsonl"
        assert main(["prepare", str(last), f"to={name}", f"out={following}"]) == 0, capsys.readouterr().err
        last = following
    assert [(s.question, [p.text for p in s.positives]) for s in rows(last)] == before


def parquet_file(path: Path, count: int, *, text: str) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    questions, texts = ([f"{word}{number}" for number in range(count)] for word in ("q", text))
    pq.write_table(pa.table({"query": questions, "positive": texts}), path)
    return path


@pytest.mark.parametrize("make", [pairs, parquet_file])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, make: Callable[..., Path]) -> None:
    """What Python holds at most, for a file of 3 MB and one of 6 MB."""
    peaks = []
    for count in (4_000, 8_000):
        source = make(tmp_path / f"{count}.data", count, text="word " * 150)
        config = PrepareSettings(sources=[str(source)], out=str(tmp_path / f"{count}.jsonl"))
        tracemalloc.start()
        told = convert(config)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert f"as {count:,} questions" in told
    assert peaks[1] < peaks[0] + 2**20
    assert peaks[1] < 12 * 2**20


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["fromat=dpr"], 2, "unknown setting fromat; did you mean format"),
        (["to=squad"], 2, "to=squad is not a format that can be written; choose one of dpr, beir, tevatron,"),
        (["format=sqad"], 2, "format sqad is not known"),
        (["overwrite=perhaps"], 2, "overwrite=perhaps is not true or false"),
        (["missing.tsv"], 3, "missing.tsv: no such file"),
        (["corpus=nothing.tsv", "queries=nothing.tsv"], 3, "nothing.tsv: cannot be read: No such file"),
    ],
)
def test_mistakes_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    source = pairs(tmp_path / "p.tsv", 2, 0)
    assert main(["prepare", str(source), f"out={tmp_path / 'out.jsonl'}", *arguments]) == code
    assert message in capsys.readouterr().err


def test_help_shows_every_format_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    from dpr.formats.training_files.registry import READERS

    assert main(["prepare", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in READERS)


REAL = {
    "qed/qed-dev.jsonl.gz": (
        "question=question_text positive=paragraph_text title=title_text answers=original_nq_answers.string".split(),
        "read 1,355, kept 1,355",
    ),
    "cranfield": (
        ["split=test", "on_bad_row=skip"],
        "read 1,612, kept 1,611 as 225 questions, dropped 0 without positives, rejected 1",
    ),
}


@pytest.mark.parametrize("name", REAL)
def test_real_data_become_training_sets(
    tmp_path: Path, shared_data: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    arguments, message = REAL[name]
    out = tmp_path / "train.jsonl"
    assert main(["prepare", str(shared_data / name), f"out={out}", *arguments]) == 0
    assert message in capsys.readouterr().out
    data = open_training_set(out, name="train")
    assert len(data) == data.counts.read
    assert all(data[row].positives[0].text for row in range(0, len(data), 97))
