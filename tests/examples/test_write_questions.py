"""examples/write_questions.py: a model writes questions for passages, as training data."""

from pathlib import Path

import pytest

from dpr.core.records import Passage
from dpr.formats.corpora import write_passages
from dpr.formats.training_sets import open_training_set
from examples.write_questions import main
from tests.helpers.exports import question_writer
from tests.helpers.tiny import encoder_folder


def test_each_passage_gets_its_questions_and_the_seed_decides_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passages = [
        Passage(f"ba be bi {word}", "", f"p{number}")
        for number, word in enumerate(("bo", "bu", "ca", "ce", "ci"))
    ]
    write_passages(tmp_path / "corpus.tsv", passages)
    folder = question_writer(encoder_folder(tmp_path / "model"))

    def questions(name: str, seed: int) -> list[tuple[str, str]]:
        out = tmp_path / name
        given = [
            f"{tmp_path}/corpus.tsv",
            str(folder),
            str(out),
            "--questions=2",
            "--batch=2",
            f"--seed={seed}",
        ]
        monkeypatch.setattr("sys.argv", ["write_questions.py", *given])
        main()
        data = open_training_set(out, name="written")
        return [(one.question, str(one.positives[0].id)) for one in (data[row] for row in range(len(data)))]

    first = questions("first.jsonl", 0)
    assert {key for _, key in first} == {item.id for item in passages} and len(first) == len(set(first)) <= 10
    assert questions("again.jsonl", 0) == first
    assert questions("other.jsonl", 1) != first
