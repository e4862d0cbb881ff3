"""Every command reads the same rows of a table, loses none silently, and finds columns by their names."""

import csv
import gzip
import io
import itertools
import random
from pathlib import Path

import pytest

from dpr.core.errors import InputError
from dpr.formats.corpora import read_passages
from dpr.formats.question_sets import read_qrels, read_questions, require_judged
from dpr.formats.text_store import open_store
from dpr.formats.training_files.registry import READERS, format_of
from dpr.formats.training_files.rows import ReadOptions

PIECES = ["word", 'the "quoted" word', "\n", "\n\n", "\t", "'s", " ", '"', ",", ";", "x\ty\tz\n", 'end."']
ROWS = list[tuple[str, str, str]]


def passages_of(path: Path) -> ROWS:
    """The passages of a corpus; the whole, three shards of it and a look-up by id agree."""
    found = [(str(p.id), p.text, p.title) for p in read_passages(path)]
    store = open_store(path, cache_dir=path.parent / "cache")
    bounds = [len(found) * part // 3 for part in range(4)]
    shards = [list(store.passages(start, stop)) for start, stop in itertools.pairwise(bounds)]
    assert [(str(p.id), p.text, p.title) for shard in shards for p in shard] == found
    return found


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
@pytest.mark.parametrize("form", ["lf", "crlf with mark", "gzip", "commas", "no header"])
def test_what_a_csv_writer_writes_is_read(tmp_path: Path, quoting: int, form: str) -> None:
    rng = random.Random(f"{quoting} {form}")
    for number in range(6):
        texts = [
            "x" + "".join(rng.choices(PIECES, k=rng.randrange(6))) + "x" for _ in range(rng.randrange(4, 20))
        ]
        rows = [(f"d{index}", text, "T" + rng.choice(PIECES[:2])) for index, text in enumerate(texts)]
        out = io.StringIO()
        delimiter, end = "," if form == "commas" else "\t", "\r\n" if "crlf" in form else "\n"
        writer = csv.writer(out, delimiter=delimiter, lineterminator=end, quoting=quoting)  # type: ignore[arg-type]
        order = [0, 1, 2] if form == "no header" else rng.sample(range(3), 3)
        writer.writerows(
            [row[column] for column in order]
            for row in [("id", "text", "title")] * (form != "no header") + rows
        )
        data = out.getvalue().encode("utf-8-sig" if "mark" in form else "utf-8")
        path = tmp_path / f"{number}.tsv"
        path.write_bytes(gzip.compress(data) if form == "gzip" else data)
        assert passages_of(path) == rows


@pytest.mark.parametrize("width", [2, 3])
def test_in_a_file_without_quoting_each_line_is_a_row(tmp_path: Path, width: int) -> None:
    rng = random.Random(width)
    words = ["said", "the", "river", '"quoted"', '"open', 'close"', "it's", 'a "b" c']
    for number in range(15):
        texts = [
            '"A" is a letter',
            *(" ".join(rng.choices(words, k=rng.randrange(1, 6))) for _ in range(rng.randrange(20))),
        ]
        rows = [(f"d{index}", text, "T" * (width == 3)) for index, text in enumerate(texts)]
        path = tmp_path / f"{number}.tsv"
        path.write_text("".join("\t".join(row[:width]) + "\n" for row in rows))
        assert passages_of(path) == rows
        if width == 2:
            samples = READERS["pairs"](path, ReadOptions(open_store))
            assert [(row.sample.question, row.sample.positives[0].text) for row in samples if row.sample] == [
                row[:2] for row in rows
            ]


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ('0\tplain\n1\t"opens and never closes\n2\tsecond\n3\twhat is "this"\n4\tlast\n', "01234"),
        ('0\tplain\n1\t"opens and never closes\n2\tsecond\n', "012"),
        ("1\ta\rb\n2\tc\n".replace("\r", ' "'), "12"),
    ],
)
def test_an_open_quote_swallows_no_passage(tmp_path: Path, text: str, ids: str) -> None:
    (tmp_path / "c.tsv").write_text(text)
    assert [row[0] for row in passages_of(tmp_path / "c.tsv")] == list(ids)


def test_a_csv_file_with_wrong_quotes_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "c.tsv"
    path.write_text('id\ttext\ttitle\n1\t"opens\tT\n2\t"a ""b"" c"\tT\n3\tc\tT\n4\t"d ""e"""\tT\n')
    with pytest.raises(InputError, match=r"c\.tsv:2: the quoting of this row is not valid CSV"):
        list(read_passages(path))


def test_lines_that_a_quote_may_join_are_rows_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "c.tsv").write_text('1\t"one or\n2\ttwo"\n3\tthree\n')
    assert passages_of(tmp_path / "c.tsv") == [("1", '"one or', ""), ("2", 'two"', ""), ("3", "three", "")]


@pytest.mark.parametrize(
    "text",
    [
        "_id\ttitle\ttext\n1\tT\tx y\n",
        "docid\tcontents\ttitle\n1\tx y\tT\n",
        "pid\ttitle\tpassage\n1\tT\tx y\n",
        '"Passage-ID"\t"Title"\t"Text"\n"1"\t"T"\t"x y"\n',
        "docid\turl\ttitle\tbody\n1\thttp://a\tT\tx y\n",
        "\tid\ttext\ttitle\n0\t1\tx y\tT\n",
        "Text\tID\tTitle\nx y\t1\tT\n",
        "id,title,text\n1,T,x y\n",
    ],
)
def test_a_corpus_header_of_any_toolkit_says_where_columns_are(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.tsv").write_text(text)
    assert passages_of(tmp_path / "c.tsv") == [("1", "x y", "T")]


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("qid\tquery\n7\twho?\n", ("7", "who?", ())),
        ("question\tanswers\nwho?\t['Ann']\n", ("0", "who?", ("Ann",))),
        ("answers\tquestion\tid\n['Ann']\twho?\t7\n", ("7", "who?", ("Ann",))),
        ("id,question,answers\n7,\"who, me?\",\"['Ann', 'Bo']\"\n", ("7", "who, me?", ("Ann", "Bo"))),
    ],
)
def test_question_headers(tmp_path: Path, text: str, question: tuple[str, str, tuple[str, ...]]) -> None:
    (tmp_path / "q.csv").write_text(text)
    assert [(one.id, one.text, one.answers) for one in read_questions(tmp_path / "q.csv")] == [question]


def test_a_question_that_opens_a_quote_is_one_question(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text("\"who said\t['a']\nnext\" one\t['b']\nthird\t['c']\n")
    assert [question.text for question in read_questions(path)] == ['"who said', 'next" one', "third"]


def test_ids_and_questions_name_the_overrides_that_read_them(tmp_path: Path) -> None:
    path = tmp_path / "queries.tsv"
    path.write_text("1048585\twhat is paula deen's brother\n")
    with pytest.raises(InputError) as caught:
        read_questions(path)
    for override in ("datasets.<name>.id_col=0", "question_col=1", "answers_col=-1"):
        assert override in str(caught.value)
    assert read_questions(path, id_col=0, question_col=1, answers_col=-1)[0].id == "1048585"


@pytest.mark.parametrize(
    "text",
    [
        "corpus-id\tquery-id\tscore\nd1\tq1\t2\n",
        "query_id iteration doc_id relevance\nq1 0 d1 2\n",
        "rel,docid,qid\n2,d1,q1\n",
        '"query-id"\t"corpus-id"\t"score"\n"q1"\t"d1"\t"2"\n',
        "query-id;corpus-id;score\nq1;d1;2\n",
    ],
)
def test_a_judgement_header_says_where_columns_are(tmp_path: Path, text: str) -> None:
    (tmp_path / "qrels.tsv").write_text(text)
    assert read_qrels(tmp_path / "qrels.tsv") == {"q1": {"d1": 2}}


@pytest.mark.parametrize(
    "text",
    [
        'id;title;text\n1;T;"x; y"\n',
        'sep=;\r\nid;title;text\r\n1;T;"x; y"\r\n',
        "id,title,text\n1,T,x; y\n",
        "sep=,\nid,title,text\n1,T,x; y\n",
        "1,x; y,T\n2,a; b; c; d,T\n",
        '1;"x; y";T\n2;a, b;T\n',
    ],
)
def test_a_table_of_excel_is_read_whatever_separates_its_fields(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.csv").write_text(text, newline="")
    assert passages_of(tmp_path / "c.csv")[0] == ("1", "x; y", "T")


@pytest.mark.parametrize("header", ["query\tpositive\tpositive", "query,Positive,note,note,positive"])
def test_a_header_that_names_a_column_twice_is_refused_in_one_line(tmp_path: Path, header: str) -> None:
    row = header.replace("query", "who?").replace("ositive", "he").replace("note", "x")
    (tmp_path / "t.tsv").write_text(f"{header}\n{row}\n")
    with pytest.raises(InputError, match=r"t\.tsv: the header names the column positive twice; rename"):
        list(READERS["columns"](tmp_path / "t.tsv", ReadOptions(open_store)))
    (tmp_path / "t.tsv").write_text("id\ttext\ttext\n1\ta\tb\n")
    with pytest.raises(InputError, match="the column text twice"):
        list(read_passages(tmp_path / "t.tsv"))
    (tmp_path / "t.tsv").write_text("qid\tdocid\trel\trel\nq\td\t1\t2\n")
    with pytest.raises(InputError, match="the column rel twice"):
        read_qrels(tmp_path / "t.tsv")


def test_a_repeated_column_that_nobody_reads_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "t.tsv"
    for name in ("x", "score", "question"):
        file.write_text(f"id\ttext\t{name}\t{name}\n1\ta\tb\tc\n")
        assert passages_of(file) == [("1", "a", "")]
    file.write_text("id\tquestion\ttitle\ttitle\n1\twho?\tb\tc\n")
    assert read_questions(file)[0].text == "who?"
    file.write_text("qid\tdocid\trel\ttitle\ttitle\nq\td\t1\tb\tc\n")
    assert read_qrels(file) == {"q": {"d": 1}}
    file.write_text("question\tpositive\tid\tid\nwho?\the\tb\tc\n")
    (row,) = READERS["columns"](file, ReadOptions(open_store))
    assert row.sample is not None and row.sample.question == "who?"


def test_judgements_of_no_question_are_refused() -> None:
    asked = ["q1", "q2", "q3"]
    require_judged(asked, {"q1": {"q2": 1}, "q9": {"d1": 1}}, file="qrels.tsv", of="q.jsonl")
    with pytest.raises(InputError, match=r"qrels.tsv: no question of q.jsonl has judgements"):
        require_judged(asked, {"d1": {"q1": 1}}, file="qrels.tsv", of="q.jsonl")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pairs", "passage\tquestion\nhe\twho?\n"),
        ("triples", "negative\tquery\tpositive\nit\twho?\the\n"),
        ("", "positive,query\nhe,who?\n"),
    ],
)
def test_a_training_header_says_where_columns_are(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / "rows"
    path.write_text(text)
    options = ReadOptions(open_store)
    (row,) = READERS[format_of(path, options, name=name)](path, options)
    assert row.sample is not None
    assert (row.sample.question, row.sample.positives[0].text) == ("who?", "he")
