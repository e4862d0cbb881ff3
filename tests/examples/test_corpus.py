"""The prepared folder: readable by every command, without leaks between splits, the same bytes every time."""

import json
import random
from pathlib import Path

import pytest

from dpr.core.errors import ConfigError, InputError
from dpr.formats.corpora import read_passages
from dpr.formats.documents.document import name_as_words
from dpr.formats.question_sets import read_qrels, read_questions
from dpr.preparation.document_questions import TRAIN, split_by_group
from dpr.storage.durable import verify_folder
from examples.docstring_corpus.__main__ import main
from examples.docstring_corpus.corpus import drop_repeats, prepare_docstrings
from examples.docstring_corpus.docstrings import Docstring

WORDS = (
    "array file index merge column window socket thread matrix vector symbol parser tree graph node edge"
    " query cache".split()
)


def some_docstrings(number: int, seed: int = 0) -> list[Docstring]:
    generator = random.Random(seed)

    def text(length: int) -> str:
        return " ".join(generator.choice(WORDS) + str(generator.randrange(30)) for _ in range(length))

    return [
        Docstring(
            f"pack{row % 7}.mod{row % 31}.part{row % 3}.f{row}",
            f"pack{row % 7}.mod{row % 31}.part{row % 3}",
            text(6),
            text(30),
        )
        for row in range(number)
    ]


def group_of(docstring_id: str | None) -> str:
    return ".".join(str(docstring_id).split(".")[:2])


def test_groups_stay_together_and_small_sets_are_not_used_up() -> None:
    groups = [f"g{row % 100}" for row in range(1000)]
    before = split_by_group(groups, {"test": 100}, seed=3)
    after = split_by_group([*groups, *["new"] * 5], {"test": 100}, seed=3)
    moved = {group for group, old, new in zip(groups, before, after, strict=False) if old != new}
    assert len(moved) <= 1  # the group at the border, if the new one came before it
    assert split_by_group(groups, {"test": 100}, seed=4) != before
    splits = split_by_group(["large"] * 500 + groups[:500], {"test": 100, "dev": 50}, seed=0)
    assert set(splits[:500]) == {TRAIN} and (splits.count("test"), splits.count("dev")) == (100, 50)


def test_repeated_names_questions_and_passages_are_dropped_and_the_first_is_kept() -> None:
    first, second, third, fourth = some_docstrings(4)
    same_name = Docstring(first.name, first.module, second.summary + " x", second.body)
    same_question = Docstring("a.b", "a", first.summary.upper() + "!", third.body)
    same_passage = Docstring("a.c", "a", fourth.summary, first.body.replace(" ", "\n"))
    assert drop_repeats([first, same_name, same_question, second, same_passage]) == [first, second]


def test_names_become_words() -> None:
    assert name_as_words("pandas.io.TextFileReader.get_chunk") == "pandas io Text File Reader get chunk"


def test_the_folder_is_whole_consistent_and_byte_identical_from_run_to_run(tmp_path: Path) -> None:
    def prepare(name: str, **options: int) -> dict[str, int]:
        packages = ["fsspec", "hydra", "jinja2"]
        return prepare_docstrings(tmp_path / name, packages=packages, num_dev=50, num_test=100, **options)

    counts = prepare("first", processes=1)
    prepare("second", processes=2)
    files = sorted(path.name for path in (tmp_path / "first").iterdir())
    expected = (
        "corpus.tsv dev.json dev_qrels.tsv dev_questions.jsonl manifest.json test_qrels.tsv"
        " test_questions.jsonl train.json"
    )
    assert files == expected.split()
    for name in files:
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes(), name
    assert verify_folder(tmp_path / "first") == []

    folder = tmp_path / "first"
    corpus = {passage.id: passage for passage in read_passages(folder / "corpus.tsv")}
    assert len(corpus) == counts["passages"] > 300
    train = json.loads((folder / "train.json").read_text())
    dev = json.loads((folder / "dev.json").read_text())
    assert (len(train), len(dev)) == (counts["train questions"], counts["dev questions"])
    for split in ("dev", "test"):
        questions = read_questions(folder / f"{split}_questions.jsonl")
        qrels = read_qrels(folder / f"{split}_qrels.tsv")
        assert len(questions) == counts[f"{split} questions"]
        assert {question.id for question in questions} == set(qrels)
        assert all(passage in corpus for grades in qrels.values() for passage in grades)
    held_out = {
        passage
        for split in ("dev", "test")
        for grades in read_qrels(folder / f"{split}_qrels.tsv").values()
        for passage in grades
    }
    in_train = {
        passage["passage_id"]
        for row in train
        for key in ("positive_ctxs", "hard_negative_ctxs")
        for passage in row[key]
    }
    assert in_train and held_out.isdisjoint(in_train)
    assert {group_of(passage) for passage in held_out}.isdisjoint(
        group_of(row["positive_ctxs"][0]["passage_id"]) for row in train
    )
    assert sum(bool(row["hard_negative_ctxs"]) for row in train) > 0.9 * len(train)
    for row in train:
        (positive,) = row["positive_ctxs"]
        assert all(other["text"] != positive["text"] for other in row["hard_negative_ctxs"])

    assert prepare("first") == counts  # there already
    with pytest.raises(InputError, match="already exists, made with another seed"):
        prepare("first", seed=1)


def test_the_command_prints_counts_and_refuses_unknown_packages_and_too_few_docstrings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match="do not suffice"):
        prepare_docstrings(tmp_path / "data", packages=["typing_extensions"], num_dev=1, num_test=1)
    with pytest.raises(ConfigError, match="--packages websites: no Python source of that name"):
        main(["--packages", "websites", "--out", str(tmp_path / "x")])
    assert list(tmp_path.iterdir()) == []
    arguments = "--packages hydra omegaconf --dev 20 --test 20 --processes 1 --out".split()
    assert main([*arguments, str(tmp_path / "data")]) == 0
    assert "train questions" in capsys.readouterr().out
    assert (tmp_path / "data" / "corpus.tsv").is_file()
