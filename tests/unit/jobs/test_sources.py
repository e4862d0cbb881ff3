"""What a user may write for ``train_datasets``, and what they read when it is not there."""

import gzip
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpr.cli.keys import conf_folder
from dpr.core.errors import ConfigError, InputError
from dpr.retrieval.sources import resolve_question_set
from dpr.training.data_sets import resolve_training_files


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def touch(*names: str) -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()


def names_and_files(given: Any, catalogue: dict[str, Any] | None = None) -> list[tuple[str, list[str]]]:
    return [
        (source.name, [str(file) for file in source.files])
        for source in resolve_training_files(given, catalogue or {})
    ]


@pytest.mark.parametrize(
    ("given", "catalogue", "expected"),
    [
        (None, {}, []),
        (
            ["a/nq train.json.gz", "part-*.jsonl", "mine"],
            {"mine": {"file": "a.json"}},
            [
                ("nq train", ["a/nq train.json.gz"]),
                ("part", ["part-10.jsonl", "part-2.jsonl"]),
                ("mine", ["a.json"]),
            ],
        ),
        (["x/dev.json", "y/dev.jsonl"], {}, [("dev", ["x/dev.json"]), ("dev_2", ["y/dev.jsonl"])]),
        ("nq", {"nq": {"file": "a.json"}}, [("nq", ["nq"])]),
        ("folder", {"folder": {"file": "a.json"}}, [("folder", ["a.json"])]),
        (
            "s",
            {"s": {"file": ["a.json", "part-*.jsonl"]}},
            [("s", ["a.json", "part-10.jsonl", "part-2.jsonl"])],
        ),
        ("scifact", {}, [("scifact", ["scifact"])]),
    ],
    ids=[
        "none is no data",
        "paths, globs and names",
        "names are unique",
        "a file wins over a key",
        "a key wins over a folder",
        "an entry of several files",
        "a folder that is training data",
    ],
)
def test_what_may_be_written_for_training_sets(
    given: Any, catalogue: dict[str, Any], expected: list[tuple[str, list[str]]]
) -> None:
    touch("a/nq train.json.gz", "part-2.jsonl", "part-10.jsonl", "a.json", "x/dev.json", "y/dev.jsonl", "nq")
    touch("folder/readme", "scifact/corpus.jsonl", "scifact/queries.jsonl", "scifact/qrels/train.tsv")
    assert names_and_files(given, catalogue) == expected


def test_an_entry_may_stand_in_place_of_its_name() -> None:
    touch("a.json", "corpus.jsonl", "corpus")  # a file of the name that it gets changes nothing
    entry = {"file": "corpus.jsonl", "pairs": "crops"}
    assert names_and_files(entry) == [("corpus", ["corpus.jsonl"])]
    assert names_and_files(["a.json", entry, entry]) == [
        ("a", ["a.json"]),
        ("corpus", ["corpus.jsonl"]),
        ("corpus_2", ["corpus.jsonl"]),
    ]
    assert resolve_training_files([entry], {"corpus": {"file": "a.json"}})[0].options.pairs == "crops"
    for wrong, expected in (
        ({"pairs": "crops"}, "is not a data set"),
        ({**entry, "pair": 1}, "did you mean pairs"),
        ({"file": "b"}, "does not exist"),
    ):
        with pytest.raises(ConfigError, match=expected):
            names_and_files([wrong])


@pytest.mark.parametrize(
    "published", ["nq-train.json.gz", "biencoder-nq-train.json.gz", "biencoder-nq-train.json"]
)
def test_a_published_file_is_found_as_it_was_downloaded(published: str) -> None:
    catalogue = yaml.safe_load((conf_folder() / "datasets" / "encoder_train_default.yaml").read_text())
    touch(f"downloads/data/retriever/{published}")
    assert names_and_files("nq_train", catalogue) == [("nq_train", [f"downloads/data/retriever/{published}"])]


def test_every_dpr_name_says_where_it_is_published() -> None:
    catalogue = yaml.safe_load((conf_folder() / "datasets" / "encoder_train_default.yaml").read_text())
    expected = {"nq_train", "nq_train_hn1", "nq_dev"} | {
        f"{s}_{part}" for s in ("trivia", "squad1", "webq", "curatedtrec") for part in ("train", "dev")
    }
    assert set(catalogue) == expected
    for name in catalogue:
        with pytest.raises(ConfigError) as error:
            resolve_training_files(name, catalogue)
        assert "published at https://dl.fbaipublicfiles.com/dpr/data/retriever/biencoder-" in str(error.value)
        assert f"datasets.{name}.file=<path>" in str(error.value)


@pytest.mark.parametrize(
    ("given", "catalogue", "expected"),
    [
        ("nq_trian", {"nq_train": {"file": "x"}}, "did you mean nq_train?"),
        ("*.nothing", {}, "no file matches *.nothing"),
        ("data", {}, "data is a folder; name its files, e.g. 'data/*.json'"),
        (
            "s",
            {"s": {"file": "missing.json"}},
            "missing.json does not exist\nput it there, or name your copy: ",
        ),
        ("s", {"s": {"file": "a", "fil": "b"}}, "unknown setting datasets.s.fil; did you mean file?"),
        ([3], {}, "is not a data set"),
    ],
)
def test_mistakes_are_reported_with_a_way_out(given: Any, catalogue: dict[str, Any], expected: str) -> None:
    touch("data/train.json")
    with pytest.raises(ConfigError) as error:
        resolve_training_files(given, catalogue)
    assert expected in str(error.value)


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
    assert [(one.id, one.text, one.answers) for one in chosen] == [("1", "what", ("b", "c"))]
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
