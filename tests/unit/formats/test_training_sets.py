import json
import logging
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpr.core.errors import ConfigError, InputError
from dpr.core.records import Passage, TrainingSample
from dpr.formats.stored_training_set import TrainingSet
from dpr.formats.training_files import rows as row_readers
from dpr.formats.training_files.dpr import write_training_set
from dpr.formats.training_files.rows import Counts
from dpr.formats.training_sets import open_training_set
from tests.unit.formats.test_training_files import QUICK, SOLID, TEXT, lines

PASSAGES = st.lists(st.builds(Passage, SOLID, TEXT, st.none() | TEXT, st.booleans()), max_size=3).map(tuple)
ANSWERS = st.lists(TEXT, max_size=2).map(tuple)
SAMPLES = st.lists(
    st.builds(TrainingSample, SOLID, PASSAGES.filter(bool), PASSAGES, PASSAGES, ANSWERS),
    min_size=1,
    max_size=4,
)


def opened(path: Path | list[Path], **options: Any) -> TrainingSet:
    return open_training_set(
        path, name="set", cache_dir=(path[0] if isinstance(path, list) else path).parent / "cache", **options
    )


def rows(data: TrainingSet) -> list[TrainingSample]:
    return [data[row] for row in range(len(data))]


def record(question: str = "q", **more: Any) -> dict[str, Any]:
    return {"question": question, "positive_ctxs": [{"text": "p"}], **more}


@QUICK
@given(samples=SAMPLES, name=st.sampled_from(["x.json", "x.jsonl", "x.json.gz", "x.jsonl.gz"]))
def test_what_is_written_is_read_back(
    tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch, samples: list[TrainingSample], name: str
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    path = tmp_path_factory.mktemp("round") / name
    assert write_training_set(path, samples) == len(samples)
    data = opened(path)
    assert rows(data) == samples
    assert data.counts == Counts(len(samples), len(samples), 0, 0)
    assert len(pickle.dumps(data)) < 1000
    for row in (-1, len(samples)):
        with pytest.raises(IndexError):
            data[row]


def test_written_files_are_what_dpr_reads(tmp_path: Path) -> None:
    sample = TrainingSample("who?", (Passage("text", "title", "7", True),), (Passage("hard"),), (), ("a",))
    write_training_set(tmp_path / "x.json", [sample])
    (read,) = json.loads((tmp_path / "x.json").read_text())
    assert read == {
        "question": "who?",
        "answers": ["a"],
        "positive_ctxs": [{"title": "title", "text": "text", "passage_id": "7", "score": None}],
        "negative_ctxs": [],
        "hard_negative_ctxs": [{"title": "", "text": "hard"}],
    }
    write_training_set(tmp_path / "a.json.gz", [sample])
    write_training_set(tmp_path / "b.json.gz", [sample])
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


TRAPS = [
    {
        "dataset": "an extra key",
        "question": "  first \u2019question ",
        "answers": "one answer",
        "positive_ctxs": [
            {"title": "T", "text": "gold", "passage_id": "12", "title_score": 1},
            {"title": None, "text": "mined", "id": 13, "score": 1.5},
            {"text": " spaces stay \n", "psg_id": "14", "score": None},
        ],
        "negative_ctxs": None,
        "hard_negative_ctxs": [{"text": "hard", "passage_id": None, "id": "a"}],
    },
    {"question": "no positives", "answers": [], "positive_ctxs": [], "hard_negative_ctxs": []},
    {
        "question": "last",
        "answers": ["x", 1989, 2.5],
        "positive_ctxs": [{"text": "p", "title": ""}],
        "new_key_far_down": {"a": [1]},
    },
]


@pytest.mark.parametrize("layout", ["array", "lines"])
def test_dpr_file_with_traps_is_read_as_stated(tmp_path: Path, layout: str) -> None:
    path = tmp_path / "traps.txt"  # the name does not show the format
    path.write_text(json.dumps(TRAPS) if layout == "array" else "\n".join(map(json.dumps, TRAPS)))
    data = opened(path)
    assert data.counts == Counts(read=3, kept=2, dropped=1, rejected=0)
    assert rows(data) == [
        TrainingSample(
            "  first \u2019question ",
            (
                Passage("gold", "T", "12", False),
                Passage("mined", "", "13", True),
                Passage(" spaces stay \n", "", "14", True),
            ),
            (Passage("hard", "", "a"),),
            (),
            ("one answer",),
        ),
        TrainingSample("last", (Passage("p"),), (), (), ("x", "1989", "2.5")),
    ]


BAD = [
    ({"positive_ctxs": [{"text": "p"}]}, "question is missing, expected a string"),
    (record(" \n"), "question is empty"),
    ({"question": "q"}, "positive_ctxs is missing, expected a list"),
    ({"question": "q", "positive_ctxs": {"text": "p"}}, "positive_ctxs is an object, expected a list"),
    ({"question": "q", "positive_ctxs": ["p"]}, "positive_ctxs[0] is the string 'p', expected an object"),
    (record(negative_ctxs=[{"text": "n"}, {"title": "t"}]), "no text of negative_ctxs[1] among the keys"),
    (record(hard_negative_ctxs=[{"text": "h"}, {"text": ""}]), "hard_negative_ctxs[1].text is empty"),
    (record(negative_ctxs=[{"text": "n", "title": 5}]), "negative_ctxs[0].title is the number 5"),
    (record(negative_ctxs=[{"text": "n", "id": True}]), "negative_ctxs[0].id is the boolean True"),
    (record(answers={"a": 1}), "answers is an object"),
    (record(answers=["a", None]), "answers[1] is null"),
    ('{"question": "\\ud800", "positive_ctxs": [{"text": "p"}]}', "question holds half of a character"),
    ('{"question": "q", "positive_ctxs": [{"text": "p", "score": NaN}]}', "NaN is not a JSON number"),
    ('["question"]', "the row is a list, expected an object"),
    ("{", "not JSON: Expecting property name"),
]


@pytest.mark.parametrize(("bad", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_row_is_refused_by_file_and_line_or_set_aside(tmp_path: Path, bad: Any, message: str) -> None:
    path = lines(tmp_path / "t.jsonl", record("first"), "", bad, record("last"))
    with pytest.raises(InputError) as caught:
        opened(path)
    assert str(caught.value).startswith(f"{path}:3: {message}")
    assert "on_bad_row=skip" in str(caught.value)
    data = opened(path, on_bad_row="skip")
    assert [sample.question for sample in rows(data)] == ["first", "last"]
    assert data.counts == Counts(read=3, kept=2, dropped=0, rejected=1)
    (reject,) = map(
        json.loads, (tmp_path / "cache" / f"rejected-{data.fingerprint[:16]}.jsonl").read_text().splitlines()
    )
    assert (reject["file"], reject["line"]) == (str(path), 3)
    assert message in reject["reason"]


def test_skipping_stops_at_the_cap(tmp_path: Path) -> None:
    path = lines(tmp_path / "t.jsonl", record(), *[{}] * 3)
    assert opened(path, on_bad_row="skip", max_bad_rows=3).counts.rejected == 3
    with pytest.raises(InputError, match=r"t.jsonl:4: more than max_bad_rows=2 bad rows"):
        opened(path, on_bad_row="skip", max_bad_rows=2)
    with pytest.raises(InputError, match=r"t.jsonl:2: question is missing"):
        opened(path)  # what was parsed with skip is not reused for fail
    with pytest.raises(ConfigError, match="on_bad_row=ignore"):
        opened(path, on_bad_row="ignore")


def test_files_without_usable_rows_say_why(tmp_path: Path) -> None:
    for text in ("", " \n\n", "[]", "[ \n ]"):
        (tmp_path / "t.json").write_text(text)
        with pytest.raises(InputError, match="no rows"):
            opened(tmp_path / "t.json")
    path = lines(tmp_path / "u.jsonl", {"question": "q", "positive_ctxs": []}, "{}")
    with pytest.raises(InputError, match="be used: of 2, 1 have no positive passage and 1 are bad"):
        opened(path, on_bad_row="skip")
    assert not [entry for entry in (tmp_path / "cache").iterdir() if entry.is_dir()]


def test_several_files_and_patterns_are_one_set_in_order(tmp_path: Path) -> None:
    for name in ("b-2", "b-1", "a[1]"):
        write_training_set(tmp_path / f"{name}.json", [TrainingSample(name, (Passage("p"),))])
    data = opened([tmp_path / "a[1].json", tmp_path / "b-*.json"])  # a path that exists is not a pattern
    assert [sample.question for sample in rows(data)] == ["a[1]", "b-1", "b-2"]
    with pytest.raises(InputError, match=r"c\*\.json: this pattern matches no file"):
        opened(tmp_path / "c*.json")
    with pytest.raises(InputError, match=r"c\.json: no such file"):
        opened(tmp_path / "c.json")


def test_known_positives_join_rows_with_the_very_same_question(tmp_path: Path) -> None:
    a, b, c, d = (Passage(letter) for letter in "abcd")
    samples = [
        TrainingSample("same", (a, b)),
        TrainingSample("other", (c,)),
        TrainingSample("same", (d, a)),
        TrainingSample("Same", (c,)),
        TrainingSample("same", (c,)),
    ]
    write_training_set(tmp_path / "t.json", samples)
    data = opened(tmp_path / "t.json")
    assert [data.known_positives(row) for row in range(5)] == [
        (a, b, d, c),
        (c,),
        (d, a, b, c),
        (c,),
        (c, a, b, d),
    ]


def test_a_question_in_another_normal_form_is_the_same(tmp_path: Path) -> None:
    forms = [normalize(form, "o\xf9 est l'\xe9t\xe9") for form in ("NFC", "NFD")]
    samples = [TrainingSample(question, (Passage(question),)) for question in forms]
    write_training_set(tmp_path / "t.json", samples)
    data = opened(tmp_path / "t.json")
    assert [len(data.known_positives(row)) for row in range(2)] == [2, 2]


def test_questions_of_equal_hash_stay_distinct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpr.formats import stored_training_set

    monkeypatch.setattr(stored_training_set, "text_hash", lambda text: 1)
    samples = [TrainingSample(question, (Passage(text),)) for question, text in zip("xyxz", "abcd")]
    write_training_set(tmp_path / "t.json", samples)
    data = opened(tmp_path / "t.json")
    assert [len(data.known_positives(row)) for row in range(4)] == [2, 1, 2, 1]


def test_files_are_parsed_once_and_if_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[Path] = []
    real = row_readers.iter_json_records
    monkeypatch.setattr(
        row_readers, "iter_json_records", lambda path, *rest: parsed.append(path) or real(path, *rest)
    )
    path = lines(tmp_path / "t.jsonl", record("one"))
    first = opened(path)
    assert rows(opened(path)) == rows(first)
    assert len(parsed) == 1
    lines(path, record("two"))
    second = opened(path)
    assert len(parsed) == 2
    assert second[0].question == "two"
    assert first[0].question == "one"  # what is open stays
    assert second.fingerprint != first.fingerprint
    copied = lines(tmp_path / "copy.jsonl", record("two"))
    assert opened(copied).fingerprint == second.fingerprint


def settled(folder: Path) -> None:
    """Makes files look old, so that their hashes are remembered."""
    for file in folder.rglob("*"):
        os.utime(file, ns=(10**18, 10**18))


DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "cut": lambda data: data[: len(data) // 2],
    "flipped in a text": lambda data: (
        data.replace(b"hamlet", b"hamleu") if b"hamlet" in data else data[:-1] + bytes([data[-1] ^ 1])
    ),
    "flipped at the start": lambda data: bytes([data[0] ^ 128]) + data[1:],
    "replaced": lambda data: b"\x93NUMPY something else"[: len(data)].ljust(len(data), b"\0"),
    "removed": lambda data: None,
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["rows.arrow", "manifest.json"])
def test_a_cache_with_any_damage_is_built_again_with_one_warning(
    tmp_path: Path, name: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = lines(tmp_path / "t.jsonl", record("who wrote hamlet"), record("one"), record("who wrote hamlet"))
    whole = rows(opened(path))
    (file,) = (tmp_path / "cache").glob(f"training-*/{name}")
    settled(tmp_path / "cache")
    opened(path)
    assert not [entry for entry in caplog.records if entry.levelno >= logging.WARNING]
    before, data = file.stat(), DAMAGE[damage](file.read_bytes())
    if data is None:
        file.unlink()
    else:
        file.write_bytes(data)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # no time shows the damage
    again = opened(path)
    assert rows(again) == whole
    assert again.rows_with_same_question(2) == [0]
    (warning,) = [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.WARNING]
    assert "rebuilding it" in warning
    assert "\n" not in warning


def test_a_cache_folder_in_the_place_of_another_is_built_again(tmp_path: Path) -> None:
    first, second = lines(tmp_path / "a.jsonl", record("one")), lines(tmp_path / "b.jsonl", record("two"))
    opened(first)
    (one,) = (tmp_path / "cache").glob("training-*/")
    opened(second)
    (two,) = {*(tmp_path / "cache").glob("training-*/")} - {one}
    shutil.rmtree(two)
    shutil.copytree(one, two)
    assert opened(second)[0].question == "two"


def test_text_that_changes_while_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = lines(tmp_path / "t.jsonl", record("one"), record("two"))
    real = row_readers.iter_json_records

    def changing(file: Path) -> Any:
        for entry in real(file):
            yield entry
            lines(path, record("one"), record("six"))

    monkeypatch.setattr(row_readers, "iter_json_records", changing)
    with pytest.raises(InputError, match=r"t\.jsonl: changed while it was read"):
        opened(path)
    monkeypatch.undo()
    assert [sample.question for sample in rows(opened(path))] == ["one", "six"]


def test_rows_span_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpr.formats import arrow_files

    monkeypatch.setattr(arrow_files, "BATCH_CHARACTERS", 50)
    passages = [Passage("p" * (number % 40 + 1), id=str(number)) for number in range(101)]
    samples = [TrainingSample(f"q{passage.id}", (passage,)) for passage in passages]
    write_training_set(tmp_path / "t.jsonl", samples)
    data = opened(tmp_path / "t.jsonl")
    assert len(data.block_ends()) > 10
    assert rows(data) == samples
