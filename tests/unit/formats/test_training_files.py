"""Every format of training data: what is written is read back, and bad rows are reported one by one."""

import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpr.core.errors import ConfigError, InputError
from dpr.core.records import Passage, TrainingSample
from dpr.formats.text_store import open_store
from dpr.formats.training_files.registry import READERS, WRITERS, format_of
from dpr.formats.training_files.rows import ReadOptions, SourceRow, content_id
from dpr.formats.training_sets import open_training_set
from tests.helpers.examples import examples

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
SOLID = TEXT.filter(lambda text: bool(text.strip()))
PASSAGES = st.lists(st.builds(Passage, SOLID, TEXT), max_size=3).map(tuple)
ANSWERS = st.lists(TEXT, max_size=2, unique=True).map(tuple)
SAMPLES = st.lists(
    st.builds(TrainingSample, SOLID, PASSAGES.filter(bool), PASSAGES, PASSAGES, ANSWERS),
    min_size=1,
    max_size=4,
)
QUICK = settings(
    max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def rows_of(path: Path, format_name: str = "", **options: Any) -> list[SourceRow]:
    given = ReadOptions(partial(open_store, cache_dir=path.parent / "cache"), **options)
    return list(READERS[format_of(path, given, name=format_name)](path, given))


def samples_of(path: Path, format_name: str = "", **options: Any) -> list[TrainingSample]:
    rows = rows_of(path, format_name, **options)
    assert not [row.error for row in rows if row.error]
    return [row.sample for row in rows if row.sample]


def lines(path: Path, *records: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join((item if isinstance(item, str) else json.dumps(item)) + "\n" for item in records),
        encoding="utf-8",
    )
    return path


def with_ids(sample: TrainingSample) -> TrainingSample:
    """Negatives of one kind, every passage with the id that it is written with."""

    def named(passages: tuple[Passage, ...]) -> tuple[Passage, ...]:
        return tuple(Passage(passage.text, passage.title, content_id(passage)) for passage in passages)

    return replace(
        sample,
        positives=named(sample.positives),
        hard_negatives=named(sample.hard_negatives + sample.other_negatives),
        other_negatives=(),
    )


def as_flag(sample: TrainingSample) -> TrainingSample:
    def plain(passages: tuple[Passage, ...]) -> tuple[Passage, ...]:
        return tuple(
            Passage(f"{passage.title} {passage.text}" if passage.title else passage.text)
            for passage in passages
        )

    return TrainingSample(
        sample.question, plain(sample.positives), plain(sample.hard_negatives + sample.other_negatives)
    )


def as_beir(sample: TrainingSample) -> TrainingSample:
    """A passage is judged once per question, so a negative that is a positive too stays a positive."""
    sample = with_ids(sample)
    positives = tuple(dict.fromkeys(sample.positives))
    hard = tuple(dict.fromkeys(passage for passage in sample.hard_negatives if passage not in positives))
    answers = tuple(dict.fromkeys(sample.answers))
    return replace(sample, positives=positives, hard_negatives=hard, answers=answers)


@pytest.mark.parametrize(
    ("name", "file", "expected"),
    [("tevatron", "x.jsonl", with_ids), ("flagembedding", "x.jsonl", as_flag), ("beir", "x", as_beir)],
)
def test_what_is_written_is_read_back(
    name: str, file: str, expected: Any, tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)

    @QUICK
    @given(samples=SAMPLES)
    def check(samples: list[TrainingSample]) -> None:
        path = tmp_path_factory.mktemp("round") / file
        assert WRITERS[name](path, samples, None) == len(samples)
        assert format_of(path, ReadOptions(open_store)) == name
        assert samples_of(path) == [expected(sample) for sample in samples]

    check()


@pytest.mark.parametrize("indent", [None, 1])
def test_squad_paragraphs_are_read(tmp_path: Path, indent: int | None) -> None:
    answers = [{"text": text, "answer_start": 0} for text in ("x", "", "x", "y")]
    asked = [{"question": "q", "id": "1", "answers": answers}, {"question": "r", "id": "2", "answers": []}]
    paragraphs = [{"context": "p", "qas": asked}, {"context": "unasked", "qas": []}]
    articles = [{"title": "A_title", "paragraphs": paragraphs}, {"title": "", "paragraphs": []}]
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"data": articles, "version": ["1.1", {"a": 2}]}, indent=indent))
    positives = (Passage("p", "A title"),)
    first, second = TrainingSample("q", positives, answers=("x", "y")), TrainingSample("r", positives)
    assert samples_of(path) == [first, second]


def test_columns_are_read_from_folders_with_splits(tmp_path: Path) -> None:
    import datasets

    listed = [{"text": "p", "title": "T"}, {"text": "p 2", "title": ""}]
    row = {"positive": listed, "negative": ["n"], "answers": ["a"]}
    rows = [{"query": question, **row} for question in ("q", "r")]
    positives = (Passage("p", "T"), Passage("p 2"))
    expected = [
        TrainingSample(question, positives, (Passage("n"),), answers=("a",)) for question in ("q", "r")
    ]
    data = datasets.Dataset.from_list(rows)
    datasets.DatasetDict(train=data, test=data.select([0])).save_to_disk(str(tmp_path / "splits"))
    (tmp_path / "hub" / "data").mkdir(parents=True)
    arrow = pa.Table.from_pylist(rows)
    pq.write_table(arrow, tmp_path / "hub" / "data" / "train-00000-of-00001.parquet")
    pq.write_table(arrow.slice(0, 1), tmp_path / "hub" / "data" / "test-00000-of-00001.parquet")
    for folder in (tmp_path / "splits", tmp_path / "hub"):
        assert format_of(folder, ReadOptions(open_store)) == "columns"
        assert samples_of(folder) == expected
        assert samples_of(folder, split="test") == expected[:1]


CORPUS = [{"_id": f"d{number}", "title": f"T{number}", "text": f"text {number}"} for number in range(6)]


def beir_folder(folder: Path, *judgements: str, name: str = "train") -> Path:
    lines(folder / "corpus.jsonl", *CORPUS)
    lines(
        folder / "queries.jsonl",
        {"_id": "1", "text": "one"},
        {"_id": "2", "text": "two", "metadata": {"answers": ["b"]}},
    )
    (folder / "qrels").mkdir(exist_ok=True)
    lines(folder / "qrels" / f"{name}.tsv", "query-id\tcorpus-id\tscore", *judgements)
    return folder


def ids(passages: tuple[Passage, ...]) -> list[str | None]:
    return [passage.id for passage in passages]


def test_grades_decide_what_a_passage_is(tmp_path: Path) -> None:
    folder = beir_folder(tmp_path / "b", "1\td1\t1", "1\td2\t3", "1\td3\t0", "1\td4\t-1", "2\td5\t2")
    one, two = samples_of(folder)
    assert (ids(one.positives), ids(one.hard_negatives)) == (["d2", "d1"], ["d3", "d4"])
    assert two == TrainingSample("two", (Passage("text 5", "T5", "d5"),), answers=("b",))
    strict, _ = samples_of(folder, min_grade=2)
    assert (ids(strict.positives), ids(strict.hard_negatives)) == (["d2"], ["d3", "d4"])


def test_judgements_of_unknown_passages_are_bad_rows(tmp_path: Path) -> None:
    bad = ("1\tnowhere\t1", "9\td1\t1", "1\td2\tx\t1\t2", "2\td2\tmuch")
    folder = beir_folder(tmp_path / "b", "1\td1\t1", *bad)
    rows = rows_of(folder)
    errors = {row.line: str(row.error) for row in rows if row.error}
    assert set(errors) == {3, 4, 5, 6}
    assert f"{folder / 'qrels' / 'train.tsv'}:3: the passage id 'nowhere' is not in " in errors[3]
    assert "the question id '9' is not in" in errors[4]
    assert [row.sample.question for row in rows if row.sample] == ["one"]


def test_a_split_is_chosen_or_asked_for(tmp_path: Path) -> None:
    folder = beir_folder(tmp_path / "b", "1\td1\t1", name="dev")
    assert [sample.question for sample in samples_of(folder)] == ["one"]
    beir_folder(folder, "2\td1\t1", name="test")
    with pytest.raises(ConfigError, match="has the splits dev, test; choose with split=NAME"):
        rows_of(folder)
    assert [sample.question for sample in samples_of(folder, split="test")] == ["two"]
    assert [sample.question for sample in samples_of(folder / "qrels" / "dev.tsv", "beir")] == ["one"]
    with pytest.raises(InputError, match="no split 'train', expected one of dev, test"):
        rows_of(folder, split="train")


def test_a_test_set_alone_is_never_trained_on_unasked(tmp_path: Path) -> None:
    folder = beir_folder(tmp_path / "b", "1\td1\t1", name="test")
    parquet = tmp_path / "p" / "test-00000-of-00001.parquet"
    parquet.parent.mkdir()
    pq.write_table(pa.table({"query": ["one"], "positive": ["p"]}), parquet)
    for path, file in ((folder, folder / "qrels" / "test.tsv"), (parquet.parent, parquet)):
        with pytest.raises(
            ConfigError, match="only the split test, which is reserved for evaluation; choose with split=NAME"
        ):
            open_training_set(path, name="t", cache_dir=tmp_path / "cache")
        assert [sample.question for sample in samples_of(path, split="test")] == ["one"]
        assert open_training_set(file, name="t", cache_dir=tmp_path / "cache")[0].question == "one"


def test_rows_of_ids_are_looked_up(tmp_path: Path) -> None:
    texts = {"7": 'a "quoted text', "8": "b", "x9": "c"}
    corpus = lines(tmp_path / "collection.tsv", *(f"{key}\t{text}" for key, text in texts.items()))
    queries = lines(tmp_path / "queries.tsv", "1\tfirst", "2\tsecond")
    expected = [
        TrainingSample(
            "first", (Passage(texts["7"], "", "7"),), (Passage("b", "", "8"), Passage("c", "", "x9"))
        )
    ]
    triples = lines(tmp_path / "triples.tsv", "1\t7\t8", "1\t7\tx9")
    assert samples_of(triples, "triples", corpus=corpus, queries=queries) == expected
    by_ids = {"positive_document_ids": ["7"], "negative_document_ids": ["8", "x9"]}
    tevatron = lines(tmp_path / "v2.jsonl", {"query_id": "1", "query_text": "first", **by_ids})
    assert samples_of(tevatron, corpus=corpus) == expected
    named = tmp_path / "ids.parquet"
    pq.write_table(pa.table({"query_id": [1, 1], "positive_id": [7, 7], "negative_id": ["8", "x9"]}), named)
    assert samples_of(named, corpus=corpus, queries=queries) == expected
    (row,) = rows_of(lines(tmp_path / "bad.tsv", "1\t7\t99"), "triples", corpus=corpus, queries=queries)
    assert "the passage id '99' is not in" in str(row.error)


def test_ids_without_a_corpus_say_what_is_missing(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "v2.jsonl",
        {"query_id": "1", "query_text": "q", "positive_document_ids": ["7"], "negative_document_ids": []},
    )
    (row,) = rows_of(path)
    assert "corpus=corpus.jsonl" in str(row.error)
    with pytest.raises(ConfigError, match=r"queries=.* corpus="):
        rows_of(lines(tmp_path / "t.tsv", "a\tb\tc"), corpus=lines(tmp_path / "c.tsv", "7\tx"))


def test_rows_of_one_question_become_one_sample(tmp_path: Path) -> None:
    path = lines(tmp_path / "p.tsv", "question\tpassage", "q\ta", "q\tb", "q\ta", "r\tc", "q\td")
    rows = rows_of(path)
    assert [(row.line, row.num_rows) for row in rows] == [(2, 3), (5, 1), (6, 1)]
    assert rows[0].sample == TrainingSample("q", (Passage("a"), Passage("b")))
    bad, whole = rows_of(lines(tmp_path / "b.tsv", "question\tpassage", "q\ta", "only one", "q\tb"))
    assert bad.error and whole.sample == rows[0].sample


@pytest.mark.parametrize(
    ("first", "is_data"), [("query\tA query is a question.", True), ("query\tpassage", False)]
)
def test_a_first_row_about_queries_is_told_from_a_header(tmp_path: Path, first: str, is_data: bool) -> None:
    samples = samples_of(lines(tmp_path / "data.tsv", first, "q of words\tp"), "pairs")
    assert [sample.question for sample in samples] == ["query"] * is_data + ["q of words"]


LABELLED = {
    "labels": [{"query": "q", "passage": "p", "label": 1}, {"query": "q", "passage": "n", "label": 0}],
    "booleans": [
        {"query": "q", "passage": "p", "label": True},
        {"query": "q", "passage": "n", "label": False},
    ],
    "scores": [{"query": "q", "passage": "p", "score": 1.0}, {"query": "q", "passage": "n", "score": 0.0}],
    "lists": [{"query": "q", "passage": ["n", "p"], "labels": [0, 1]}],
    "table": ["q of words\tp\t1", "q of words\tn\t0"],
    "table with header": ["Question\tPassage\tLabel", "q\tp\t1", "q\tn\t0"],
    "commas": ["question,passage,label", 'q,"p",2', "q,n,-1"],
}


@pytest.mark.parametrize("name", LABELLED)
def test_labels_and_scores_say_which_passage_is_a_negative(tmp_path: Path, name: str) -> None:
    (sample,) = samples_of(lines(tmp_path / "data", *LABELLED[name]))
    assert [p.text for p in sample.positives] == ["p"]
    assert [p.text for p in sample.hard_negatives] == ["n"]


def test_a_negative_whose_question_has_no_positive_is_counted_and_not_used(tmp_path: Path) -> None:
    rows = [{"query": "q", "passage": "p", "label": 1}, {"query": "r", "passage": "n", "label": 0}]
    data = open_training_set(lines(tmp_path / "data", *rows), name="t", cache_dir=tmp_path / "cache")
    assert (len(data), data.counts.kept, data.counts.dropped) == (1, 1, 1)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"query": "q", "passage": "p", "score": 0.134}, "score is the score 0.134, expected a whole grade"),
        ("some question\tsome passage\t0.134", "column 3 is the score 0.134, expected a whole grade"),
        ({"query": "q", "passage": "p", "label": "entailment"}, "label is the string 'entailment'"),
        ({"query": "q", "passage": "p", "label": 10**400}, "label is the number .1000"),
        ("some question\tsome passage\t1e400", "column 3 is the string '1e400'"),
        ({"query": "q", "passage": ["a", "b"], "labels": [1]}, "labels has 1 values for 2 passages"),
    ],
)
def test_an_unclear_score_is_refused_with_the_way_out(tmp_path: Path, row: Any, message: str) -> None:
    path = lines(
        tmp_path / "data",
        "who is it\tp q\t1" if isinstance(row, str) else {"query": "r", "passage": "p"},
        row,
    )
    with pytest.raises(InputError, match=message):
        open_training_set(path, name="t", cache_dir=tmp_path / "cache")
    if "score" in message:
        assert [[p.text for p in sample.positives] for sample in samples_of(path, min_grade=0.1)][-1][
            0
        ].endswith(("p", "passage", "one"))
        # neither a positive nor surely a negative
        assert samples_of(path, min_grade=0.2)[-1].hard_negatives == ()


def test_column_of_the_label_can_be_named(tmp_path: Path) -> None:
    rows = [{"query": "q", "body": text, "judged": {"by": label}} for text, label in (("p", 1), ("n", 0))]
    path = lines(tmp_path / "data", *rows)
    (sample,) = samples_of(path, columns={"positive": "body", "label": "judged.by"})
    assert [p.text for p in sample.hard_negatives] == ["n"]


UNREAD = [
    (
        {"question": "q", "positive_ctxs": [{"text": "p"}], "hard_negatives_ctxs": []},
        "hard_negatives_ctxs",
        "did you mean hard_negative_ctxs",
    ),
    ({"query": "q", "pos": ["p"], "score": 1.0}, "score", "docs/training_data.md says where scores"),
    (
        {"anchor": "q", "positive": "p", "negative": "n", "score": 0.3},
        "score",
        "a teacher's scores are a list",
    ),
]


@pytest.mark.parametrize(("record", "key", "message"), UNREAD)
def test_a_key_that_is_not_read_is_reported_at_every_opening(
    tmp_path: Path, record: dict[str, Any], key: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = lines(tmp_path / "data", record, record)
    for _ in range(2):
        caplog.clear()
        open_training_set(path, name="t", cache_dir=tmp_path / "cache")
        (warning,) = [entry.getMessage() for entry in caplog.records if entry.levelname == "WARNING"]
        assert str(path) in warning
        assert f"the key '{key}' is not read" in warning
        assert message in warning


def test_names_of_their_own_are_no_misspellings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    record = {"question": "q", "positive_ctxs": [{"text": "p"}]}
    record |= {"question_id": 1, "dataset": "nq", "position": 3, "answers_type": 1}
    open_training_set(lines(tmp_path / "data", record), name="t", cache_dir=tmp_path / "cache")
    assert not [entry for entry in caplog.records if entry.levelname == "WARNING"]


def test_comma_separated_tables_are_read_by_their_header(tmp_path: Path) -> None:
    path = lines(tmp_path / "d.csv", "question,title,positive,negative", 'who?,T,"a, b",', 'when?,,"c\nd",e')
    assert samples_of(path) == [
        TrainingSample("who?", (Passage("a, b", "T"),)),
        TrainingSample("when?", (Passage("c\nd"),), (Passage("e"),)),
    ]
    (bad,) = [
        row
        for row in rows_of(lines(tmp_path / "bad.csv", "question,passage", "who?,he", "when?"))
        if row.error
    ]
    assert "1 columns, expected 2, as in the first row" in str(bad.error)
    with pytest.raises(InputError, match="by commas under a header such as question,passage"):
        format_of(lines(tmp_path / "headless.csv", "who?,he"), ReadOptions(open_store))
    with pytest.raises(InputError, match=r"open\.csv:2: the quoting of this row"):
        samples_of(lines(tmp_path / "open.csv", "question,passage", 'who?,"he'))


def test_columns_are_named_by_role(tmp_path: Path) -> None:
    spans = [[{"string": "x"}], [{"string": "x"}, {"string": "y"}]]
    record = {"faq": {"title": "how?"}, "body": "so.", "about": "T", "spans": spans}
    path = lines(tmp_path / "f.jsonl", record)
    columns = {"question": "faq.title", "positive": "body", "title": "about", "answers": "spans.string"}
    expected = TrainingSample("how?", (Passage("so.", "T"),), answers=("x", "y"))
    assert samples_of(path, columns=columns) == [expected]
    with pytest.raises(InputError, match=r"name columns: .*dpr prepare FILE question="):
        format_of(path, ReadOptions(open_store))
    (row,) = rows_of(path, columns={"question": "faq.title", "positive": "text"})
    assert "no column 'text'" in str(row.error)


def test_squad_in_parquet_keeps_title_and_answers(tmp_path: Path) -> None:
    answers = {"text": ["x", "x", "y"], "answer_start": [0, 0, 4]}
    row = {"id": "1", "title": "T", "context": "c", "question": "q", "answers": answers}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "s.parquet")
    expected = TrainingSample("q", (Passage("c", "T"),), answers=("x", "y"))
    assert samples_of(tmp_path / "s.parquet") == [expected]


DETECTED = {
    "dpr": '[{"question": "q", "positive_ctxs": [{"text": "p"}]}]',
    "tevatron": (
        '{"query_id": "1", "query": "q", "positive_passages": [{"docid": "1", "text": "p"}],'
        ' "negative_passages": []}'
    ),
    "flagembedding": '{"query": "q", "pos": ["p"], "neg": []}',
    "squad": (
        '{\n "version": "1",\n "data": [{"title": "t", "paragraphs": [{"context": "p", "qas": [{"question":'
        ' "q", "answers": []}]}]}]}'
    ),
    "pairs": "q\tp",
    "triples": "q\tp\tn",
    "columns": '{"anchor": "q", "positive": "p", "negative_1": "n", "negative_2": "m", "score": 1}',
}


@pytest.mark.parametrize("name", DETECTED)
def test_the_content_tells_the_format(tmp_path: Path, name: str) -> None:
    path = tmp_path / "data"
    path.write_text(DETECTED[name] + "\n")
    assert format_of(path, ReadOptions(open_store)) == name
    (sample,) = samples_of(path)
    assert (sample.question, [p.text for p in sample.positives]) == ("q", ["p"])
    data = open_training_set(path, name="t", cache_dir=tmp_path / "cache")  # training takes it as it is
    assert data[0] == sample


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"question": "q", "positive_ctxs": [], "query": "q", "pos": []}',
            "fits the formats dpr and flagembedding",
        ),
        ("12\t345\t6", "fits the formats beir and triples"),
        ("id\ttext\ttitle", "not training data of a known format"),
        ("who?\t['Ann']", "not training data of a known format"),
        ('{"question": "q", "answer": ["a"]}', "not training data of a known format (keys answer, question)"),
    ],
)
def test_unclear_content_is_refused_with_the_way_out(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "data"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        format_of(path, ReadOptions(open_store))
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "format" in str(caught.value)


BAD = [
    ("tevatron", '{"query": "q"}', "no positive among the keys query, expected one of positive"),
    ("flagembedding", '{"query": "q", "pos": ["p", " "]}', "pos[1] is empty"),
    ("flagembedding", '{"query": 3, "pos": ["p"]}', "query is the number 3, expected a string"),
    ("pairs", "only one", "1 columns, expected 2"),
    ("triples", "q\tp\t ", "column 3 is empty"),
    ("columns", '{"query": "", "positive": "p"}', "query is empty"),
    ("columns", "[1]", "the row is a list"),
]


@pytest.mark.parametrize(("name", "bad", "message"), BAD)
def test_a_bad_row_is_named_and_others_are_read(tmp_path: Path, name: str, bad: str, message: str) -> None:
    good = DETECTED[name]
    path = lines(tmp_path / "data", good, bad, good.replace('"q"', '"r"').replace("q\t", "r\t"))
    rows = rows_of(path, name)
    (error,) = [row for row in rows if row.error]
    assert str(error.error).startswith(f"{path}:2: {message}")
    assert {row.sample.question for row in rows if row.sample} == {"q", "r"}


def test_a_bad_question_of_squad_is_named_by_its_place(tmp_path: Path) -> None:
    asked = [{"question": "q", "answers": []}, {"question": "r", "is_impossible": True}]
    good = {"context": "p", "qas": asked}
    bad = {"context": "p", "qas": [{"question": " "}]}
    articles = [{"title": "t", "paragraphs": [good]}, {"paragraphs": [bad, good]}, {"paragraphs": [{}]}, 7]
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"data": articles}))
    rows = rows_of(path)
    assert [str(row.error).partition("; ")[0] for row in rows if row.error] == [
        f"{path}:1: data[1].paragraphs[0].qas[0].question is empty, expected some text",
        f"{path}:1: data[2].paragraphs[0].context is null, expected a string",
        f"{path}:1: data[3] is the number 7, expected an object",
    ]
    found = [row.sample for row in rows if row.sample]
    assert [(sample.question, len(sample.positives)) for sample in found] == [("q", 1), ("r", 0)]


@pytest.mark.parametrize("content", [{"version": "1", "data": None}, {"data": {"a": 1}}])
def test_squad_without_a_list_is_refused(tmp_path: Path, content: dict[str, Any]) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match="no list 'data' in the object"):
        rows_of(path, "squad")
