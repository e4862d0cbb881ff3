"""Rows that name questions and passages by id, in every format and with every form of corpus, against a
dictionary."""

from __future__ import annotations

import json
import os
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpr.core.errors import InputError
from dpr.core.records import Passage, TrainingSample
from dpr.formats.corpora import write_passages
from dpr.formats.field_names import ALL_NAMES, normal_name
from dpr.formats.text_store import open_store
from dpr.formats.training_files.registry import read_rows
from dpr.formats.training_files.rows import ReadOptions
from tests.helpers.examples import examples

NAME = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"], exclude_characters='\ufeff"'),
    min_size=1,
    max_size=4,
)
IDS = NAME | st.integers(0, 999).map(str)
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='"'), max_size=12)
# A first row of known names would be a header.
SOLID = TEXT.filter(lambda text: bool(text.strip()) and normal_name(text) not in ALL_NAMES)
PASSAGES = st.dictionaries(IDS, st.tuples(SOLID, TEXT), min_size=1, max_size=6)
QUESTIONS = st.dictionaries(
    IDS, st.tuples(SOLID, st.lists(TEXT, max_size=2, unique=True).map(tuple)), min_size=1, max_size=4
)
NOWHERE = "nowhere"  # longer than an id above
QUICK = settings(max_examples=examples(20), deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True)
def quick_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class World:
    """A corpus and questions, as files and as dictionaries, and rows that name them."""

    def __init__(self, folder: Path, data: st.DataObject) -> None:
        self.folder, self._data = folder, data
        passages, questions = data.draw(PASSAGES), data.draw(QUESTIONS)
        form = data.draw(st.sampled_from(["two columns", "tsv", "jsonl", "parquet"]))
        with_answers = data.draw(st.booleans())
        self.passages = {
            key: Passage(text, "" if form == "two columns" else title, key)
            for key, (text, title) in passages.items()
        }
        self.questions = {
            key: (text, answers if with_answers else ()) for key, (text, answers) in questions.items()
        }
        self.corpus, self.queries = self._write_corpus(form), self._write_questions(with_answers)

    def some(self, known: dict[str, Any]) -> str:
        """An id, now and then one that is nowhere."""
        return self._data.draw(st.sampled_from([*known] * 8 + [NOWHERE]))

    def read(self, path: Path, format_name: str, **options: Any) -> tuple[list[TrainingSample], list[int]]:
        """Samples, and lines of bad rows."""
        given = ReadOptions(partial(open_store, cache_dir=self.folder / "cache"), corpus=self.corpus, **options)
        rows = list(read_rows(path, given, name=format_name))
        assert all(NOWHERE in str(row.error) for row in rows if row.error)
        return [row.sample for row in rows if row.sample], sorted(row.line for row in rows if row.error)

    def row(self, question: str, positives: list[str], negatives: list[str]) -> TrainingSample | None:
        """What a row of ids stands for; None where one of them is nowhere."""
        if question not in self.questions or not {*positives, *negatives} <= self.passages.keys():
            return None
        text, answers = self.questions[question]
        return TrainingSample(text, self.named(positives), self.named(negatives), answers=answers)

    def named(self, keys: list[str]) -> tuple[Passage, ...]:
        return tuple(self.passages[key] for key in keys)

    def key(self, key: str) -> str | int:
        """JSON has ids as numbers too."""
        return (
            int(key)
            if key.isascii() and key.isdigit() and str(int(key)) == key and self._data.draw(st.booleans())
            else key
        )

    def _write_corpus(self, form: str) -> Path:
        listed = list(self.passages.values())
        if form == "two columns":
            return write_lines(
                self.folder / "collection.tsv", *(f"{passage.id}\t{passage.text}" for passage in listed)
            )
        if form == "parquet":
            columns = {
                "docid": [p.id for p in listed],
                "title": [p.title for p in listed],
                "text": [p.text for p in listed],
            }
            pq.write_table(pa.table(columns), self.folder / "corpus.parquet", row_group_size=2)
            return self.folder / "corpus.parquet"
        if form == "tsv":
            write_passages(self.folder / "corpus.tsv", listed)
            return self.folder / "corpus.tsv"
        records = ({"_id": self.key(str(p.id)), "title": p.title or None, "text": p.text} for p in listed)
        return write_lines(self.folder / "corpus.jsonl", *(json.dumps(record) for record in records))

    def _write_questions(self, with_answers: bool) -> Path:
        if not with_answers:
            return write_lines(
                self.folder / "queries.tsv", *(f"{key}\t{text}" for key, (text, _) in self.questions.items())
            )
        records = (
            {"_id": self.key(key), "text": text, "metadata": {"answers": a}}
            for key, (text, a) in self.questions.items()
        )
        return write_lines(
            self.folder / "queries.jsonl", *(json.dumps(record, ensure_ascii=False) for record in records)
        )


def write_lines(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="")
    return path


def merged(samples: list[TrainingSample]) -> list[TrainingSample]:
    """Samples that follow each other with one question, as one; one by itself stays as it is."""
    result = []
    for question, group in groupby(samples, key=lambda sample: sample.question):
        together = list(group)
        if len(together) == 1:
            result += together
            continue
        positives, hard, answers = (
            tuple(dict.fromkeys(item for sample in together for item in getattr(sample, name)))
            for name in ("positives", "hard_negatives", "answers")
        )
        result.append(TrainingSample(question, positives, hard, answers=answers))
    return result


def with_lines(found: list[TrainingSample | None]) -> tuple[list[TrainingSample], list[int]]:
    return [sample for sample in found if sample], [
        line for line, sample in enumerate(found, 1) if sample is None
    ]


def test_tables(tmp_path_factory: pytest.TempPathFactory) -> None:
    @QUICK
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        world = World(tmp_path_factory.mktemp("ids"), data)
        width = data.draw(st.sampled_from([2, 3]))
        rows = [
            (world.some(world.questions), *(world.some(world.passages) for _ in range(width - 1)))
            for _ in range(data.draw(st.integers(1, 6)))
        ]
        path = write_lines(world.folder / "rows.tsv", *("\t".join(row) for row in rows))
        samples, bad = with_lines([world.row(row[0], [row[1]], list(row[2:])) for row in rows])
        assert world.read(path, {2: "pairs", 3: "triples"}[width], queries=world.queries) == (
            merged(samples),
            bad,
        )

    check()


def test_judgements(tmp_path_factory: pytest.TempPathFactory) -> None:
    @QUICK
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        world = World(tmp_path_factory.mktemp("ids"), data)
        count, least = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 2))
        rows = [
            (world.some(world.questions), world.some(world.passages), data.draw(st.integers(-1, 3)))
            for _ in range(count)
        ]
        header = data.draw(st.sampled_from([["query-id\tcorpus-id\tscore"], []]))
        path = write_lines(
            world.folder / "rows.tsv",
            *header,
            *(f"{q}\t{d}\t{grade}" if header else f"{q} 0 {d} {grade}" for q, d, grade in rows),
        )
        expected = []
        for _, judged in groupby(rows, key=lambda row: row[0]):
            samples = []
            for question, passage, grade in sorted(judged, key=lambda row: -row[2]):
                sample = world.row(question, [passage] * (grade >= least), [passage] * (grade <= 0))
                samples += [sample] if sample and passage in world.passages else []
            expected += merged(samples)
        bad = [line for line, (q, d, _) in enumerate(rows, 1 + len(header)) if world.row(q, [d], []) is None]
        assert world.read(path, "beir", queries=world.queries, min_grade=least) == (expected, bad)

    check()


@pytest.mark.parametrize("field", ["_id", "text", "title"])
def test_a_lone_surrogate_is_reported_with_its_line(tmp_path: Path, field: str) -> None:
    row = {"_id": "d2", "text": "b", "title": "c"} | {field: "\ud800"}
    (tmp_path / "corpus.jsonl").write_text(
        "\n".join(json.dumps(value) for value in ({"_id": "d1", "text": "a"}, row)) + "\n"
    )
    with pytest.raises(InputError) as reported:
        open_store(tmp_path / "corpus.jsonl", cache_dir=tmp_path / "cache")
    assert (reported.value.line, "lone surrogate" in str(reported.value)) == (2, True)
