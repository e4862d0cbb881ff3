"""Docstrings are read, never run, and come out the same whatever the number of processes."""

import sys
from pathlib import Path

import pytest

from examples.docstring_corpus.docstrings import (
    MAX_PASSAGE_WORDS,
    find_sources,
    read_docstrings,
    split_docstring,
)

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
    ) == (
        "Calls os.path.join with the site.",
        REST,
    )
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
