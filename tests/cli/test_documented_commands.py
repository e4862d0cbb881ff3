"""Every command in the documents, in ``--help`` and in what the quickstart prints is understood."""

import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from dpr.cli import composed
from dpr.cli.main import COMMANDS, main
from dpr.core.errors import ConfigError
from dpr.core.records import Passage
from dpr.formats.corpora import write_passages
from examples.quickstart import __main__ as the_quickstart
from tests.architecture.source_files import REPOSITORY
from tests.helpers.command_lines import check_keys_of, different_ones

SCRIPTS = {
    "train_dense_encoder.py": "train",
    "generate_embeddings.py": "embed",
    "generate_dense_embeddings.py": "embed",
    "dense_retriever.py": "retrieve",
}
DOCUMENTS = [
    REPOSITORY / "README.md",
    REPOSITORY / "SECURITY.md",
    *sorted((REPOSITORY / "docs").glob("*.md")),
    *sorted((REPOSITORY / "benchmarks" / "results").glob("*.md")),
]
# Placeholders of a reader's own: the command is looked at without them.
PLACEHOLDER = re.compile(r"\.\.\.|<|\$|^(?:PATH|KEY|COMMAND|FILE)$|=N$|=T$|=$")


def words_behind_dpr(line: str) -> list[str] | None:
    """The arguments of ``dpr`` in a shell line; None where it is something else."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # a part of a longer line
        return None
    for place, word in enumerate(words):
        if word in SCRIPTS:
            return [SCRIPTS[word], *words[place + 1 :]]
        if word == "dpr" or word.endswith("/dpr"):
            return words[place + 1 :]
    return None


def lines_of(text: str) -> Iterator[str]:
    """Lines of code, continuation lines joined, and code spans in sentences, which need not be whole."""
    joined = text.replace("\\\n", " ")
    yield from re.findall(
        r"(?m)^ *(?:\$ )?((?:\.venv/bin/)?(?:dpr|python \w+\.py|torchrun|srun torchrun) [^|`\n]+)$", joined
    )
    yield from (
        " ".join([*span.split(), "..."])
        for span in re.findall(r"`((?:dpr|torchrun|python \w+\.py) [^`]+)`", text)
    )


def quickstart(folder: Path) -> Iterator[str]:
    """The commands that the quickstart runs, and those that it prints for the reader, with nothing done."""

    def nothing(words: list[str]) -> int:
        if "tune_hybrid_weight=true" in words:
            metrics = next(Path(word.partition("=")[2]) for word in words if word.startswith("metrics_file="))
            metrics.parent.mkdir(parents=True)
            metrics.write_text('{"hybrid_weight": 0.5}')
        return 0

    printed = StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.chdir(folder)
        for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
            patch.setenv(name, "1")
        patch.setattr(the_quickstart, "dpr", nothing)
        patch.setattr(the_quickstart, "docstring_corpus", nothing)
        the_quickstart.main()
    for line in printed.getvalue().splitlines():
        if found := re.search(r"(?:\$ |: +|^ +)((?:dpr|python \w+\.py) .+?)(?:  +\(.*)?$", line):
            yield found[1]


@pytest.fixture(scope="module")
def documented(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The arguments of every command, by where it stands."""
    found = {
        f"examples/quickstart: {line}": words_behind_dpr(line)
        for line in quickstart(tmp_path_factory.mktemp("quickstart"))
    }
    texts = {str(path.relative_to(REPOSITORY)): path.read_text(encoding="utf-8") for path in DOCUMENTS}
    texts |= {
        name: str(compile((REPOSITORY / name).read_text(), name, "exec").co_consts[0]) for name in SCRIPTS
    }
    texts |= {
        f"dpr {name} --help": getattr(command.settings_class(), "EXAMPLES", "")
        for name, command in COMMANDS.items()
    }
    for where, text in texts.items():
        found |= {f"{where}: {line}": words_behind_dpr(line) for line in lines_of(text)}
    return {
        where: [word for word in words if not PLACEHOLDER.search(word)]
        for where, words in found.items()
        if words
    }


class Understood(BaseException):
    """Raised where a command would begin its work."""


def test_every_documented_command_is_understood(
    documented: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    to_object = composed.to_object

    def stop(real: Callable[..., object]) -> Callable[..., None]:
        def stopped(*arguments: object, **options: object) -> None:
            try:
                real(*arguments, **options)  # checks the values
            except ConfigError as error:
                if is_whole and not re.search("does not exist|no such file|lies in", str(error)):
                    raise
            raise Understood

        return stopped

    monkeypatch.setattr(composed, "to_object", stop(to_object))
    failed = []
    lines = {}
    for where, words in documented.items():
        is_flag = words[0].startswith("-")
        assert is_flag or words[0] in COMMANDS, where
        is_about_files = any(word in words for word in ("doctor", "verify", "--config-dir", "--config-path"))
        if is_flag or is_about_files or len(words) < 2:
            continue
        lines[tuple(words)] = where
        if words[0] in COMMANDS:
            try:
                check_keys_of(words)
            except ConfigError as error:
                failed.append(f"{where}: {error}")
    for words in different_ones(lines):
        where = lines[tuple(words)]
        is_whole = not re.search(r"\.\.\.|[<$]", where)
        try:
            is_understood = main(list(words)) == 0
        except Understood:
            is_understood = True
        if not is_understood:
            failed.append(where)
    assert len(documented) > 80
    assert not failed, "\n".join(failed)


def test_options_may_stand_between_the_folder_and_the_question(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_passages(
        tmp_path / "corpus.tsv",
        [Passage("how to read a csv file", "", "right"), Passage("something else", "", "wrong")],
    )
    assert (
        main(["search", "--corpus", str(tmp_path / "corpus.tsv"), "--mode", "bm25", "read=a csv file"]) == 0
    )
    assert "right" in capsys.readouterr().out
    (tmp_path / "search.json").write_text("{}")
    folder, mode = [str(tmp_path)], ["--mode", "bm25"]
    for order in ([*folder, *mode, "csv file"], [*mode, *folder, "csv file"], [*folder, "csv file", *mode]):
        assert main(["search", *order]) == 3  # it got as far as the file
        assert "not search settings" in capsys.readouterr().err
