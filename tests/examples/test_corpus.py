"""The prepared folder: readable by every command, without leaks between splits, the same bytes every time."""

import json
import random
import sys
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
from examples.docstring_corpus.docstrings import (
    MAX_PASSAGE_WORDS,
    Docstring,
    find_sources,
    read_docstrings,
    split_docstring,
)

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


REST = (
    "The rest has more than enough words to be a passage of its own, since every one of these words is"
    " counted here."
)


def write_package(root: Path, files: dict[str, str]) -> None:
    for name, code in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code, encoding="utf-8")


def documented(kind: str, name: str, summary: str, indent: str = "") -> str:
    return f'{indent}{kind} {name}:\n{indent}    """{summary}\n\n{indent}    {REST}\n{indent}    """\n'


def test_a_module_that_raises_and_prints_at_import_is_read_but_never_run(tmp_path: Path) -> None:
    trap = tmp_path / "trap.txt"
    code = (
        f'"""Does harm to everyone who imports it.\n\n{REST}\n"""\nopen({str(trap)!r},'
        ' "w").write("ran")\nraise SystemExit(9)\n'
    )
    write_package(tmp_path, {"evil_package.py": code})
    found = read_docstrings(find_sources(roots=[(tmp_path, False)]))
    assert [docstring.summary for docstring in found] == ["Does harm to everyone who imports it."]
    assert not trap.exists()
    assert "evil_package" not in sys.modules


def test_modules_classes_functions_and_methods_are_found_with_their_qualified_names(tmp_path: Path) -> None:
    code = (
        f'"""The module says what it is.\n\n{REST}\n"""\n'
        + documented("def", "plain(x)", "Returns what was given to it.")
        + documented("async def", "later(x)", "Waits for what was given.")
        + documented("class", "Thing", "A thing with one method.")
        + documented("def", "method(self)", "Does what the method does.", "    ")
        + documented("def", "__init__(self)", "Makes a thing out of nothing.", "    ")
        + "try:\n"
        + documented("def", "guarded(x)", "Exists only under some condition.", "    ")
        + "except ImportError:\n    pass\n"
        + "def outer():\n"
        + documented("def", "inner(x)", "Cannot be reached from outside.", "    ")
    )
    write_package(tmp_path, {"pack/__init__.py": "", "pack/mod.py": code})
    found = read_docstrings(find_sources(roots=[(tmp_path, False)]))
    names = {docstring.name.removeprefix("pack.mod") for docstring in found}
    assert names == {"", ".plain", ".later", ".Thing", ".Thing.method", ".guarded"}
    assert {docstring.module for docstring in found} == {"pack.mod"}
    assert all(docstring.body == REST for docstring in found)


def test_tests_vendored_copies_own_package_and_broken_files_are_left_out(tmp_path: Path) -> None:
    good = documented("def", "f(x)", "Returns what was given to it.")
    skipped = "pack/tests/a.py pack/_vendor/b.py pack/test_c.py pack/conftest.py dpr/d.py".split()
    skipped += ["site-packages/e.py", "x-y/f.py"]
    broken = {"pack/python2.py": "print 'hello'\n", "pack/null.py": "\0", "pack/latin.py": "x = 'a'\n"}
    write_package(tmp_path, dict.fromkeys(skipped, good) | broken | {"pack/good.py": good})
    (tmp_path / "pack/latin.py").write_bytes(b"# -*- coding: utf-8 -*-\nx = '\xe9'\n")
    sources = find_sources(roots=[(tmp_path, False)])
    assert [source.module for source in sources] == ["pack.good", "pack.latin", "pack.null", "pack.python2"]
    assert [docstring.name for docstring in read_docstrings(sources)] == ["pack.good.f"]


def test_the_first_sentence_is_the_question_and_the_rest_the_passage() -> None:
    wrapped = "Read a file that\n    is wrapped. With a second sentence.\n\n    " + REST
    assert split_docstring(wrapped) == ("Read a file that is wrapped.", "With a second sentence. " + REST)
    assert split_docstring("Shortens names, e.g. Like this one, to length.\n\n" + REST) == (
        "Shortens names, e.g. Like this one, to length.",
        REST,
    )
    assert split_docstring(
        "Calls :func:`~os.path.join` with `the site <https://example.org>`_.\n\n" + REST
    ) == ("Calls os.path.join with the site.", REST)
    _, body = split_docstring("Says the same word very often.\n\n" + '"quoted" ' * 1000) or ("", "")
    assert len(body.split()) == MAX_PASSAGE_WORDS and body == body.strip('"')


@pytest.mark.parametrize(
    "text",
    [
        "One line that has no rest at all.",
        "Too short here.\n\n" + REST,
        "Parameters\n----------\nx : int\n    The first of the arguments.\n",
    ],
)
def test_docstrings_without_a_usable_question_or_passage_are_dropped(text: str) -> None:
    assert split_docstring(text) is None
