"""``dpr quickstart`` makes a folder of documents searchable; rerun, it does only what has changed."""

import json
import random
from pathlib import Path

import pytest

from dpr.cli.main import main
from tests.helpers.tiny import sentence

STAGES = ["prepare", "new-encoder", "train", "embed", "embed", *["retrieve"] * 4]


def write_documents(folder: Path) -> None:
    rng = random.Random(5)
    folder.mkdir()
    for number in range(6):
        sections = (
            f"## {sentence(rng, 4)}\n\n" + " ".join(f"{sentence(rng, 9).capitalize()}." for _ in range(3))
            for _ in range(12)
        )
        (folder / f"page{number}.md").write_text(f"# {sentence(rng, 4)}\n\n" + "\n\n".join(sections))
    (folder / "broken.txt").write_bytes(b"\0")


def test_a_folder_becomes_a_run_that_can_be_searched_and_only_what_changes_is_made_again(
    commands: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_documents(tmp_path / "docs")
    line = ["quickstart", "docs", "device=cpu"]
    assert main(line) == 0
    assert commands == STAGES
    said = capsys.readouterr()
    assert len((said.out + said.err).splitlines()) < 40
    log = (tmp_path / "runs" / "docs" / "log.txt").read_text()
    for command in ("prepare", "new-encoder", "train", "embed", "retrieve"):
        assert f" D $ dpr {command} " in log
    assert "epoch 0 step " in log and "epoch 0 step " not in said.err
    told = said.out
    for expected in ("1 files could not be read", "uses the hybrid by default", "dpr search runs/docs"):
        assert expected in told, expected
    assert told.index("favours the encoder") < told.index("MRR@10"), "before the figures"
    run = tmp_path / "runs" / "docs"
    compared = json.loads((run / "compared.json").read_text())
    assert compared["num_questions"] == 18 and set(compared["runs"]) == {"BM25", "encoder", "hybrid"}
    assert "favours the encoder" in (run / "report.html").read_text()

    passage = json.loads((run / "data" / "texts" / "corpus.jsonl").read_text().splitlines()[17])
    assert main(["search", str(run), passage["text"]]) == 0
    assert capsys.readouterr().out.splitlines()[0].lstrip().startswith("1.")
    assert main(["search", str(run), "--mode", "bm25", "--top", "1", passage["text"]]) == 0
    assert passage["title"] in capsys.readouterr().out

    commands.clear()
    assert main(line) == 0
    assert commands == []
    capsys.readouterr()
    (tmp_path / "docs" / "broken.txt").write_text("Now it says something of use to those who look for it.")
    assert main(line) == 0
    assert commands == STAGES
    told = capsys.readouterr()
    assert "could not be read" not in told.out
    assert "and all later stages: " in told.err


def test_what_cannot_work_is_said_before_any_work(
    commands: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    cases = {
        "none": "no such folder",
        "empty": "holds no documents",
        "empty out=empty/run": "whose files are read",
        "empty questions=no.tsv": "questions=no.tsv does not exist",
        "empty words=5": "words=5 is out of range; it must be at least 20",
    }
    for words, expected in cases.items():
        assert main(["quickstart", *words.split()]) in (2, 3)
        assert expected in capsys.readouterr().err, words
    assert commands == []


def test_a_folder_with_too_few_questions_is_searched_by_bm25(
    commands: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    for name in ("one", "two", "three"):
        (tmp_path / "docs" / f"{name}.md").write_text(
            f"# Page {name}\n\nThis page tells of {name} and of nothing else at all.\n"
        )
    assert (
        main(["quickstart", str(tmp_path / "docs" / "one.md")]) == 3
        and "is a file" in capsys.readouterr().err
    )
    (tmp_path / "runs" / "docs" / "data" / "texts").mkdir(parents=True)
    assert (
        main(["search", "runs/docs", "two"]) == 3 and "unfinished dpr quickstart" in capsys.readouterr().err
    )
    (tmp_path / "runs" / "docs" / "data" / "texts").rmdir()
    assert main(["quickstart", "docs"]) == 0 and commands == ["prepare"]
    assert "BM25 searches them" in capsys.readouterr().out
    assert main(["search", "runs/docs", "tells of two"]) == 0
    assert "two.md" in capsys.readouterr().out
    commands.clear()
    assert main(["quickstart", "docs"]) == 0 and not commands
