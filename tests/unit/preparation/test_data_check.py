"""``dpr check-data`` finds what was put in, and nothing else."""

import json
from pathlib import Path

import pytest

from dpr.cli.main import main
from dpr.core.records import Passage, TrainingSample
from dpr.data.near_duplicates import jaccard
from dpr.data.words import look_swapped, words_of
from dpr.formats.text_store import open_store
from dpr.formats.training_files.dpr import write_training_set
from dpr.formats.training_files.rows import ReadOptions
from dpr.preparation import data_check
from dpr.preparation.data_check import check_files
from tests.helpers.tiny import encoder_folder

WORDS = "ba be bi bo bu ca ce ci co cu da de di do du fa fe fi fo fu".split()


def sample(number: int, **changes: object) -> TrainingSample:
    base = {
        "positives": (Passage(f"right {number}", "T"),),
        "hard_negatives": (Passage(f"other thing {number}"),),
    }
    return TrainingSample(f"question {number}", **(base | changes))  # type: ignore[arg-type]


def written(path: Path, *samples: TrainingSample) -> Path:
    write_training_set(path, samples)
    return path


def test_clean_data_have_no_findings(tmp_path: Path) -> None:
    check = check_files(
        [written(tmp_path / "t.jsonl", *(sample(number) for number in range(30)))], ReadOptions(open_store)
    )
    assert not any(finding.count for finding in check.findings.values())
    seen = [check.texts[kind].seen for kind in ("positive", "hard negative")]
    assert [check.rows, check.records, *seen, check.without_hard] == [30, 30, 30, 30, 0]


def test_each_problem_is_found_with_its_line(tmp_path: Path) -> None:
    gold = Passage("right 1", "T")
    twenty = " ".join(WORDS)
    path = written(
        tmp_path / "t.jsonl",
        sample(1),
        sample(2, hard_negatives=(Passage("Right  2", "T", "other id"),)),  # its own positive
        sample(3, positives=()),
        sample(1),  # repeats line 1
        # the positive of line 1 is its negative
        TrainingSample("Question  1", (Passage("another right one"),), (gold,)),
        sample(
            6,
            positives=(Passage(twenty),),
            hard_negatives=(Passage(twenty.replace("fu", "xx")), Passage(" ".join(WORDS[:10]))),
        ),
    )
    with path.open("a") as file:
        file.write('{"question": "q"}\n')
    check = check_files([path], ReadOptions(open_store))
    assert check.findings[data_check.BAD_ROWS].places == [
        f"{path}:7: positive_ctxs is missing, expected a list of passages; the keys are question"
    ]
    assert check.findings[data_check.NO_POSITIVE].places == [f"{path}:3"]
    assert check.findings[data_check.REPEATED].places == [f"{path}:4"]
    assert check.findings[data_check.CONTRADICTED].places == [f"{path}:2", f"{path}:5"]
    # 19 of 21 words; the other half is no repeat
    near = check.findings[data_check.NEAR]
    assert (near.count, near.places) == (1, [f"{path}:6"])
    assert jaccard(words_of(twenty), words_of(twenty.replace("fu", "xx"))) == 19 / 21


def test_swapped_columns_are_said_here_and_in_training() -> None:
    passages = [f"The {word} lies in the north, and nobody has ever seen it there." for word in WORDS]
    questions = [f"where is the {word}" for word in WORDS]
    assert "swapped (13 and 4 words" in look_swapped(passages, questions)
    assert "swapped" in look_swapped(passages, [f"\u5317\u4eac{n}\uff1f" for n in range(9)])
    assert "swapped" in look_swapped([f"{each} " * 3 for each in passages], [f"{each} up" for each in WORDS])
    for fine in (questions, WORDS, passages):
        assert not look_swapped(fine, passages)
    assert not look_swapped([f"{text}?" * 9 for text in questions], WORDS), "short answers"


def test_keys_that_are_not_read_are_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.jsonl"
    wrong = {"question": "q", "positive_ctxs": [{"text": "a passage"}], "hard_negatives_ctxs": []}
    right = {"question": "r", "positive_ctxs": [{"text": "another"}], "hard_negative_ctxs": [{"text": "0.1"}]}
    path.write_text(f"{json.dumps(wrong)}\n{json.dumps(right)}\n")
    assert main(["check-data", str(path), "strict=true"]) == 3
    text = capsys.readouterr().out
    assert "1 train: keys that are not read, or are read differently" in " ".join(text.split())
    assert f"{path}:1: the key 'hard_negatives_ctxs' is not read; did you mean hard_negative_ctxs?" in text


def test_labelled_rows_are_checked_as_trained_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.tsv"
    path.write_text("query\tpassage\tlabel\nq\ta passage\t1\nr\tno passage\t0\n")
    assert main(["check-data", str(path)]) == 0
    assert "questions without a positive" in capsys.readouterr().out


def test_lengths_are_in_tokens_and_rows_as_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encoder_folder(tmp_path / "model")
    samples = [TrainingSample("ba be", (Passage(" ".join(WORDS[:count]), "ca"),)) for count in (2, 4, 6, 20)]
    path = written(tmp_path / "t.jsonl", *samples)
    arguments = [f"encoder.pretrained_model_cfg={tmp_path / 'model'}", "encoder.sequence_length=9"]
    assert main(["check-data", str(path), *arguments]) == 0
    text = capsys.readouterr().out
    # [CLS] title [SEP] text [SEP]: four more than the text has
    (line,) = [line for line in text.splitlines() if line.strip().startswith("positive ")][:1]
    assert line.split() == ["positive", "6", "8", "10", "24", "24", "24", "24", "50.0%", "at", "9"]
    (line,) = [line for line in text.splitlines() if line.strip().startswith("question ")][:1]
    assert line.split()[1:] == ["4"] * 7 + ["0.0%", "at", "9"]
    assert "(9) [CLS] ca [SEP] ba be bi bo bu [SEP]" in text
    assert "(4) [CLS] ba be [SEP]" in text


def test_strict_ends_with_three(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = written(tmp_path / "t.jsonl", sample(1), sample(2))
    dev = written(tmp_path / "d.jsonl", sample(1))
    assert main(["check-data", str(good), "--strict"]) == 0
    assert "problems: none" in capsys.readouterr().out
    assert main(["check-data", str(good), f"dev={dev}"]) == 0
    assert main(["check-data", str(good), f"dev={dev}", "strict=true"]) == 3
    assert "1  dev: questions that are also in train" in capsys.readouterr().out


def test_data_without_a_usable_row_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"question": "q", "positive_ctxs": null}\n')
    assert main(["check-data", str(path)]) == 3
    assert (
        f"none of 1 rows can be used; the first problem: {path}:1: positive_ctxs is null"
        in capsys.readouterr().err
    )


def test_many_negatives_do_not_make_it_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpr.preparation.data_check._COMPARISONS", 100)
    near = Passage(" ".join(WORDS).replace("fu", "xx"))
    rows = (sample(n, positives=(Passage(" ".join(WORDS)),), hard_negatives=(near,) * 10) for n in range(50))
    check = check_files([written(tmp_path / "t.jsonl", *rows)], ReadOptions(open_store))
    assert check.texts["hard negative"].seen == 500
    assert check.findings[data_check.NEAR].count == 110


@pytest.mark.parametrize(
    ("name", "told"), [("./runs/none", "no such folder;"), ("runs/none", "no such folder, and no tokenizer")]
)
def test_a_model_folder_that_is_not_there_is_said_to_be_missing(
    tmp_path: Path, name: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["check-data", str(written(tmp_path / "t.jsonl", sample(1))), f"model_file={name}"]) == 3
    assert f"{name}: {told}" in capsys.readouterr().err


def test_empty_answers_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "t.jsonl", sample(1, answers=("x",)), sample(2, answers=(" ", "x")))
    assert main(["check-data", str(path), "strict=true"]) == 3
    assert f"1 train: rows with an empty answer {path}:2" in " ".join(capsys.readouterr().out.split())
