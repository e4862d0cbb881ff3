"""A folder becomes passages and questions; no text is lost, no held-out question stands in its answer."""

import json
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path
from unicodedata import normalize

import pytest

from dpr.cli.main import main
from dpr.core.errors import ConfigError, InputError
from dpr.core.records import Origin
from dpr.formats.corpora import read_passages
from dpr.formats.documents.document import Block, Section
from dpr.formats.question_sets import read_qrels, read_questions
from dpr.formats.training_sets import open_training_set
from dpr.preparation.document_questions import made_questions, without_questions, words_of
from dpr.preparation.folder_data import prepare_folder
from dpr.preparation.given_questions import GivenRow, find_answers
from dpr.preparation.passages import Piece, cut_section
from dpr.preparation.settings import FolderSettings
from tests.helpers.tiny import sentence


def write_folder(folder: Path, *, files: int = 6, sections: int = 12) -> Path:
    """Markdown with sections of three sentences each, no two of which are alike."""
    rng = random.Random(7)
    for number in range(files):
        (folder / f"part {number % 2}").mkdir(parents=True, exist_ok=True)
        text = f"# The {sentence(rng, 5)} guide\n"
        for _ in range(sections):
            body = " ".join(f"{sentence(rng, 9).capitalize()}." for _ in range(3))
            text += f"\n## How {sentence(rng, 4)}\n\n{body}\n"
        (folder / f"part {number % 2}" / f"page{number}.md").write_text(text)
    (folder / "bad.md").write_bytes(b"\0")
    (folder / ".hidden.md").write_text("# Not read\n\nthis at all")
    return folder


def made(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("folder")
    write_folder(folder / "docs")
    assert main(["prepare", str(folder / "docs"), f"out={folder / 'data'}"]) == 0
    return folder


def test_passages_keep_every_word_in_order_and_never_cross_a_heading(prepared: Path) -> None:
    passages = list(read_passages(prepared / "data" / "corpus.jsonl"))
    text = (prepared / "docs" / "part 0" / "page0.md").read_text()
    of_file = [passage for passage in passages if str(passage.id).startswith("part%200/page0.md#")]
    assert len(of_file) == 12
    for passage, section in zip(of_file, text.split("\n## ")[1:], strict=True):
        heading, body = section.split("\n\n", 1)
        assert passage.text.split() == body.split()
        assert passage.title.endswith(f" > {heading}")
    first = json.loads((prepared / "data" / "corpus.jsonl").read_text().splitlines()[0])
    heading = first["title"].split(" > ")[1]
    assert first["metadata"] == {"file": "part 0/page0.md", "heading": heading, "line": 3}


def test_a_long_section_is_cut_at_sentences_with_the_overlap_that_was_asked_for() -> None:
    rng = random.Random(0)
    told = [f"{sentence(rng, 10).capitalize()}." for _ in range(20)]
    pieces = cut_section(Section((), (Block(" ".join(told)),)), words=35, overlap=12)
    assert [piece.overlap for piece in pieces] == ["", *(told[place] for place in range(2, 18, 3))]
    assert " ".join(f"{piece.first} {piece.rest}" for piece in pieces) == " ".join(told)
    assert all(len(piece.passage().text.split()) <= 35 + 12 for piece in pieces)
    pieces = cut_section(Section((), (Block("word " * 100),)), words=40, overlap=0)
    assert pieces[2].rest == ""
    assert sum(len(piece.passage().text.split()) for piece in pieces) == 100


def test_held_out_questions_are_hidden_where_they_are_searched_and_nowhere_else(prepared: Path) -> None:
    data = prepared / "data"
    whole = {str(one.id): one for one in read_passages(data / "corpus.jsonl")}
    searched = {str(one.id): one for one in read_passages(data / "evaluation_corpus.jsonl")}
    assert whole.keys() == searched.keys()
    relevant: set[str] = set()
    for split in ("dev", "test"):
        qrels = read_qrels(data / f"{split}_qrels.tsv")
        for question in read_questions(data / f"{split}_questions.jsonl"):
            for key in qrels[question.id]:
                relevant.add(key)
                assert words_of(question.text) in words_of(f"{whole[key].title} {whole[key].text}")
                assert words_of(question.text) not in words_of(f"{searched[key].title} {searched[key].text}")
    assert {key for key in whole if whole[key] != searched[key]} == relevant
    train = open_training_set([data / "train.jsonl"], name="train")
    assert not {str(train[place].positives[0].id) for place in range(len(train))} & relevant
    for place in range(len(train)):
        positive = train[place].positives[0]
        assert words_of(train[place].question) not in words_of(f"{positive.title} {positive.text}")


def test_bad_files_are_listed_and_a_folder_gives_the_same_bytes(prepared: Path, tmp_path: Path) -> None:
    unread = [json.loads(line) for line in (prepared / "data" / "unread.jsonl").read_text().splitlines()]
    assert unread == [{"file": "bad.md", "reason": "not text: it holds the byte 0x00"}]
    counts = prepare_folder(prepared / "docs", tmp_path / "again", FolderSettings())
    assert made(tmp_path / "again") == made(prepared / "data")
    assert prepare_folder(prepared / "docs", tmp_path / "again", FolderSettings()) == counts
    assert (counts["files"], counts["unread files"], counts["passages"]) == (6, 1, 72)
    with pytest.raises(InputError, match="another seed"):
        prepare_folder(prepared / "docs", tmp_path / "again", FolderSettings(seed=1))


def test_unread_files_are_named_in_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path / "docs", files=1)
    shutil.copy(Path(__file__).parents[2] / "fixtures" / "documents" / "guide.docx", folder / "guide.docx")
    assert main(["prepare", str(folder), f"out={tmp_path / 'out'}"]) == 0
    assert "bad.md is not read: not text: it holds the byte 0x00" in capsys.readouterr().err
    of_word = [p for p in read_passages(tmp_path / "out" / "corpus.jsonl") if p.origin.file == "guide.docx"]
    assert {one.origin.place for one in of_word} == {"guide.docx"}
    assert Origin("coffee.docx", "", 0).place == "coffee.docx"  # as earlier corpora have it


def test_what_is_no_file_is_listed_as_unread_and_names_need_not_be_utf8(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "docs")
    os.mkfifo(folder / "pipe.txt")
    os.mkfifo(os.fsencode(folder) + b"/\xe9.html")
    (folder / "device.md").symlink_to("/dev/zero")  # links are left out, as ever
    Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.md")).write_text(
        "# Hours\n\nThe cafe is open all day and all night.\n"
    )
    assert main(["prepare", str(folder), f"out={tmp_path / 'out'}"]) == 0
    unread = [json.loads(line) for line in (tmp_path / "out" / "unread.jsonl").read_text().splitlines()]
    assert [one["file"] for one in unread] == ["\\xe9.html", "bad.md", "pipe.txt"]
    assert "is a pipe, not a file" in unread[2]["reason"]
    (cafe,) = [one for one in read_passages(tmp_path / "out" / "corpus.jsonl") if "cafe" in one.text]
    assert cafe.origin is not None
    assert cafe.origin.file == "caf\\xe9.md"


def test_given_questions_find_their_answers_and_alone_are_held_out(prepared: Path, tmp_path: Path) -> None:
    passages = list(read_passages(prepared / "data" / "corpus.jsonl"))
    rng = random.Random(3)
    rows = ["question\tanswer", "which page one?\tpage1.md"]
    rows += [f"{sentence(rng, 6)}?\t{passage.text.split('. ')[1]}" for passage in passages[20:60]]
    rows += ["nowhere?\tThis answer is in no file of the folder."]
    (tmp_path / "faq.tsv").write_text("\n".join(rows) + "\n")
    prepare_folder(prepared / "docs", tmp_path / "data", FolderSettings(questions=str(tmp_path / "faq.tsv")))
    train = open_training_set([tmp_path / "data" / "train.jsonl"], name="train")
    asked = {train[place].question: str(train[place].positives[0].id) for place in range(len(train))}
    for split in ("dev", "test"):
        qrels = read_qrels(tmp_path / "data" / f"{split}_qrels.tsv")
        for question in read_questions(tmp_path / "data" / f"{split}_questions.jsonl"):
            assert question.text not in asked
            asked[question.text] = " ".join(qrels[question.id])
    assert asked["which page one?"].split()[0] == "part%201/page1.md#1"
    assert asked["nowhere?"] == "faq.tsv#1"
    for row, passage in zip(rows[2:], passages[20:60], strict=False):
        assert asked[row.split("\t")[0]] == passage.id
    corpus = (tmp_path / "data" / "corpus.jsonl").read_text()
    assert corpus == (tmp_path / "data" / "evaluation_corpus.jsonl").read_text()


def test_an_answer_names_a_file_whose_name_a_mac_has_written(tmp_path: Path) -> None:
    name = "\xc9t\xe9.md"
    passage = Piece("1", normalize("NFD", name), 1, ((0, ""),), "", "", "in june", 0)
    rows = [GivenRow("when is summer?", name, 1)]
    (pair,), added = find_answers(rows, [passage], name="faq.tsv", words=50, overlap=5)
    assert (pair.pieces, added) == ((passage,), [])


def test_what_cannot_work_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    docs = write_folder(tmp_path / "docs", files=1, sections=3)
    assert main(["prepare", str(docs), f"out={tmp_path / 'few'}"]) == 0
    assert "only 6 questions were found, too few to train on" in capsys.readouterr().err
    assert (tmp_path / "few" / "corpus.jsonl").exists() and not (tmp_path / "few" / "train.jsonl").exists()
    for folder, types, expected in (
        (tmp_path / "none", [], "no such folder"),
        (docs, ["pdf"], "holds no documents"),
    ):
        with pytest.raises(InputError, match=expected):
            prepare_folder(folder, tmp_path / "data", FolderSettings(types=types))
    with pytest.raises(ConfigError, match="types=doc is not supported; choose from md"):
        prepare_folder(docs, tmp_path / "data", FolderSettings(types=["doc"]))
    with pytest.raises(ConfigError, match="choose a folder beside it"):
        prepare_folder(docs, docs / "data", FolderSettings())
    with pytest.raises(ConfigError, match="overlap"):
        prepare_folder(docs, tmp_path / "data", FolderSettings(words=30, overlap=30))
    (tmp_path / "faq.tsv").write_text("a question\t\n")
    with pytest.raises(InputError, match=r"faq\.tsv:1: a row without"):
        prepare_folder(docs, tmp_path / "data", FolderSettings(questions=str(tmp_path / "faq.tsv")))
    assert not (tmp_path / "data").exists()


def test_a_question_of_a_first_sentence_is_hidden_in_its_passage_alone() -> None:
    told = (
        "What a passage says first. Then it says twelve more words of use, one after the other, until the"
        " end."
    )
    first, other = (
        replace(
            cut_section(Section((), (Block(told),)), words=50, overlap=0)[0], id=name, headings=((1, "T"),)
        )
        for name in "ab"
    )
    (asked,) = made_questions([first])
    assert (asked.text, asked.kind) == ("What a passage says first.", "sentence")
    hidden, whole = without_questions([first, other], [asked])
    assert hidden.text == told.partition(". ")[2] == asked.positive().text
    assert whole.text.split() == told.split()


def test_what_does_not_read_like_a_question_is_not_asked() -> None:
    rest = " It goes on with twelve more words of use, one after the other, until the end."
    told = {
        "The index is built once.": "The index is built once.",
        "It is built once.": None,  # needs what stands before it
        "However, the index is built once.": None,
        "The index is set by these values:": None,
        "dpr train lr=$lr model=a/b out=runs/x.": None,
        f"The index {'and another ' * 12}are built once.": None,
    }
    for number, (first, asked) in enumerate(told.items()):
        block = Block(first + rest)
        (piece,) = cut_section(Section((), (block,)), words=80, overlap=0)
        if not first.endswith("."):
            piece = replace(piece, first=first, rest=rest)
        made = made_questions([replace(piece, id=f"p{number}", headings=((1, "T"),))])
        assert [one.text for one in made] == ([asked] if asked else []), first

    (piece,) = cut_section(Section(("Vectors",), (Block("It is so." + rest),)), words=80, overlap=0)
    for heading, asked in {
        "Basic usage": "The numpy manual: Basic usage",
        "How vectors are stored": "How vectors are stored",
    }.items():
        headings = ((1, "The numpy manual"), (2, heading))
        assert [one.text for one in made_questions([replace(piece, id="p", headings=headings)])] == [asked]


def test_one_large_file_among_few_small_ones_is_split_inside_it(tmp_path: Path) -> None:
    write_folder(tmp_path / "docs", files=3, sections=4)
    rng = random.Random(1)
    paragraphs = (" ".join(f"{sentence(rng, 9).capitalize()}." for _ in range(4)) for _ in range(300))
    (tmp_path / "docs" / "large.txt").write_text("\n\n".join(paragraphs))  # a single section
    counts = prepare_folder(tmp_path / "docs", tmp_path / "data", FolderSettings(words=40, overlap=0))
    questions = [counts[f"{split} questions"] for split in ("train", "dev", "test")]
    assert min(questions) > 20 and questions[0] > sum(questions) / 2
    sides = {}
    for split in ("dev", "test"):
        for keys in read_qrels(tmp_path / "data" / f"{split}_qrels.tsv").values():
            sides.update(dict.fromkeys(keys, split))
    train = open_training_set([tmp_path / "data" / "train.jsonl"], name="train")
    assert not sides.keys() & {str(train[row].positives[0].id) for row in range(len(train))}
    blocks: dict[int, set[str]] = {}
    for row in range(len(train)):
        sides[str(train[row].positives[0].id)] = "train"
    for key, side in sides.items():
        if key.startswith("large.txt#"):
            blocks.setdefault((int(key.partition("#")[2]) - 1) // 20, set()).add(side)
    assert all(len(block) == 1 for block in blocks.values())  # neighbours are on one side
