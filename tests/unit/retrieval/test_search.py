"""``dpr search``: a run folder answers by itself, also after it was moved."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest

from dpr.assembly.search import FoundPassage
from dpr.cli.main import main as dpr
from dpr.cli.retrieve import main as retrieve
from dpr.cli.search import format_hit
from dpr.core.errors import InputError
from dpr.core.records import Passage
from dpr.embedding.source import PassageSource
from dpr.retrieval.passages import PassageLookup
from dpr.retrieval.retrievers import QuestionForm
from dpr.retrieval.search_folder import SearchSettings
from tests.unit.retrieval.conftest import World


@pytest.fixture
def run_folder(world: World, tmp_path: Path) -> Path:
    """A copy of the world with a search.json: hybrid, words only."""
    folder = tmp_path / "run"
    shutil.copytree(world.folder, folder)
    arguments = [
        f"model_file={folder / 'model'}",
        f"encoded_ctx_files=[{folder / 'vectors_*'}]",
        f"qa_dataset={folder / 'questions.jsonl'}",
        f"ctx_datasets=[{folder / 'corpus.tsv'}]",
    ]
    assert retrieve([*arguments, "hybrid=linear", "hybrid_weight=0", "n_docs=5", f"search_folder={folder}"]) == 0
    return folder


def main(arguments: list[str]) -> int:
    return dpr(["search", *arguments])


def shown_ids(output: str) -> list[str]:
    return [line.rpartition("[")[2].rstrip("]") for line in output.splitlines() if line.endswith("]")]


def test_one_question_is_answered(run_folder: Path, world: World, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main([str(run_folder), world.questions[3].text, "-k", "2"]) == 0
    output = capsys.readouterr().out
    assert shown_ids(output)[0] == "p003"
    assert len(shown_ids(output)) == 2
    assert world.passages[3].title in output
    assert world.passages[3].text[:20] in output


def test_a_moved_folder_still_answers(run_folder: Path, world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert str(tmp_path) not in (run_folder / "search.json").read_text(), "paths are relative"
    moved = run_folder.rename(tmp_path / "elsewhere")
    capsys.readouterr()
    assert main([str(moved), world.questions[5].text, "--top", "1"]) == 0
    assert shown_ids(capsys.readouterr().out) == ["p005"]


def test_modes_search_differently(run_folder: Path, world: World, capsys: pytest.CaptureFixture[str]) -> None:
    answers = {}
    for mode in ("dense", "bm25", "hybrid"):
        capsys.readouterr()
        assert main([str(run_folder), world.questions[0].text, "--mode", mode, "-k", "3"]) == 0
        answers[mode] = shown_ids(capsys.readouterr().out)
    assert answers["bm25"] == answers["hybrid"] != answers["dense"]
    assert main([str(run_folder), world.questions[0].text, "--weight", "1", "-k", "1"]) == 0
    assert shown_ids(capsys.readouterr().out) == answers["dense"][:1]


def test_without_a_question_it_reads_them_one_by_one(
    run_folder: Path, world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{world.questions[1].text}\n{world.questions[2].text}\n"))
    capsys.readouterr()
    assert main([str(run_folder), "-k", "1"]) == 0
    assert shown_ids(capsys.readouterr().out) == ["p001", "p002"]


def test_a_corpus_alone_is_searched_by_words(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--corpus", world.path("corpus.tsv"), world.questions[7].text, "-k", "1"]) == 0
    assert shown_ids(capsys.readouterr().out) == ["p007"]
    assert main(["--corpus", world.path("corpus.tsv"), "zebra"]) == 0
    assert capsys.readouterr().out == "nothing found\n"


def test_a_folder_without_search_settings_says_how_to_get_them(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(world.folder), "anything"]) == 3
    assert "search_folder=" in capsys.readouterr().err
    assert main(["--corpus", world.path("corpus.tsv"), "--mode", "dense", "anything"]) == 2
    assert "--model" in capsys.readouterr().err


def test_search_settings_survive_writing_and_reading(tmp_path: Path) -> None:
    settings = SearchSettings(
        model_file=str(tmp_path / "run" / "model"),
        encoded_ctx_files=[str(tmp_path / "vectors_*")],
        passages=[PassageSource(tmp_path / "corpus.tsv", "c", title_col=-1, id_prefix="w:", normalize=True)],
        index_path=str(tmp_path / "index"),
        hybrid="linear",
        hybrid_weight=0.25,
        form=QuestionForm(prefix="[Q]", suffix="?", selector=3, encoder_type="ctx"),
    )
    settings.write(tmp_path / "run")
    assert SearchSettings.read(tmp_path / "run") == settings


@pytest.mark.parametrize("change", [{"schema": 9}, {"passages": 3}, {"form": None}, {"passages": [{"nofile": 1}]}, {"unknown": 1}])
def test_foreign_search_settings_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    SearchSettings().write(tmp_path)
    stored = json.loads((tmp_path / "search.json").read_text())
    (tmp_path / "search.json").write_text(json.dumps(stored | change))
    with pytest.raises(InputError, match="not search settings"):
        SearchSettings.read(tmp_path)


def test_a_corpus_cannot_drive_the_terminal() -> None:
    shown = format_hit(1, FoundPassage(0.5, Passage("bad \x1b[2J text\n\n" + "word " * 200, "ti\x07tle", "i\x1bd")), width=60)
    assert all(letter.isprintable() or letter == "\n" for letter in shown)
    assert len(shown.splitlines()) == 4
    assert shown.endswith("...")


def test_large_corpora_are_looked_up_without_holding_them(world: World) -> None:
    sources = [PassageSource(world.folder / "corpus.tsv")]
    held, streamed = PassageLookup(sources), PassageLookup(sources, in_memory_bytes=10)
    ids = ["p007", "p000", "absent"]
    assert streamed.get(ids) == held.get(ids) == {name: world.passages[int(name[1:])] for name in ids[:2]}
    assert streamed._held is None
