"""Question sets by path, by name, as published, and in part."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from dpr.core.errors import ConfigError, InputError
from dpr.retrieval.sources import resolve_question_set

ROWS = "who\t['a']\nwhat\t['b', 'c']\nwhere\t[]\n"


def questions(name: str, catalogue: dict[str, Any]) -> list[str]:
    return [question.text for question in resolve_question_set(name, catalogue).read()]


def test_a_path_is_a_set_and_wins_over_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nq_test").write_text(ROWS)
    assert questions("nq_test", {"nq_test": {"file": "absent.csv"}}) == ["who", "what", "where"]
    assert resolve_question_set(str(tmp_path / "nq_test"), {}).name == "nq_test"


@pytest.mark.parametrize("present", ["set.csv", "set.csv.gz", "published.qa.csv.gz", "published.qa.csv"])
def test_a_named_set_is_found_as_it_is_published(tmp_path: Path, present: str) -> None:
    content = ROWS.encode()
    (tmp_path / present).write_bytes(gzip.compress(content) if present.endswith(".gz") else content)
    entry = {"file": str(tmp_path / "set.csv"), "source": "https://somewhere/published.qa.csv.gz"}
    entry["_target_"] = "dpr.data.retriever_data.CsvQASrc"
    assert questions("mine", {"mine": entry}) == ["who", "what", "where"]


def test_a_range_of_questions_keeps_their_ids(tmp_path: Path) -> None:
    (tmp_path / "set.csv").write_text(ROWS)
    entry = {"file": str(tmp_path / "set.csv"), "data_range_start": 1, "data_size": 1}
    chosen = resolve_question_set("mine", {"mine": entry}).read()
    assert [(question.id, question.text, question.answers) for question in chosen] == [
        ("1", "what", ("b", "c"))
    ]
    assert questions("mine", {"mine": entry | {"data_size": -1}}) == ["what", "where"]
    with pytest.raises(InputError, match="has 3 questions"):
        questions("mine", {"mine": entry | {"data_range_start": 3}})


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"file": "x.csv", "fille": "y"}, "unknown setting datasets.mine.fille; did you mean file"),
        ({"file": "x.csv", "id_col": "two"}, "datasets.mine.id_col='two' is not a whole number"),
        ({"id_col": 1}, "datasets.mine.file is not set"),
    ],
)
def test_mistakes_in_an_entry_are_named(entry: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_question_set("mine", {"mine": entry})
