"""What users of other trainers, and of DPR's first version, type is answered with this toolkit's key."""

from pathlib import Path

import pytest

from dpr.cli.launch import launch
from dpr.cli.main import main
from dpr.training.command_settings import TrainCommand
from tests.cli.dry_job import Seen
from tests.helpers.command_lines import check_keys_of


def run(*argv: str) -> tuple[int, Seen]:
    seen = Seen()
    return launch("biencoder_train_cfg", TrainCommand, seen, list(argv)), seen


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("lr=1e-5", "train.learning_rate"),
        ("bf16=true", "train.precision=bf16"),
        ("model_name_or_path=x", "encoder.pretrained_model_cfg, model_file"),
        ("per_device_train_batch_size=8", "train.batch_size"),
        ("output=runs/x", "output_dir"),
        ("learning_rate=1e-5", "train.learning_rate"),
    ],
)
def test_keys_of_other_trainers_get_the_right_suggestion(
    typed: str, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(typed)[0] == 2
    assert f"unknown setting {typed.partition('=')[0]}; did you mean {answer}" in capsys.readouterr().err


def test_names_that_are_no_setting_and_no_command_are_answered_with_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("lora=true")[0] == 2
    assert "unknown setting lora: encoder.adapter=lora" in capsys.readouterr().err
    assert main(["finetune", "model=x"]) == 2
    assert "dpr train train=finetune model=MODEL train_datasets=" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("train", "out=runs/a model=runs/b"),
        ("embed", "out=runs/a/vectors model=runs/b corpus=c.tsv"),
        ("retrieve", "out=hits.jsonl model=runs/b corpus=c.tsv questions=q.jsonl vectors=[v_*]"),
        ("evaluate", "out=runs/a model=runs/b set=scifact"),
        ("export", "out=runs/a model=runs/b corpus=c.tsv vectors=[v_*]"),
        ("mine", "out=a.jsonl model=runs/b corpus=c.tsv vectors=[v_*]"),
        ("score", "out=a.jsonl model=runs/b corpus=c.tsv"),
        ("search", "model_file=runs/b corpus=c.tsv vectors=v_*"),
        ("adapt", "out=runs/a model=runs/b corpus=c.tsv"),
        ("download", "out=data"),
    ],
)
def test_the_same_things_have_the_same_names_everywhere(command: str, words: str) -> None:
    check_keys_of([command, *words.split()])


def test_flags_of_the_first_version_are_answered_with_the_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--train_file", "train.json", "--dev_file", "dev.json", "--batch_size", "16")[0] == 2
    error = capsys.readouterr().err
    assert "--train_file is not a flag here; settings read key=value: train_datasets=..." in error
    assert "train.json" not in error and "'16'" not in error


def test_group_files_with_the_original_header_are_read(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "mine.yaml").write_text("# @package _group_\nbatch_size: 7\n")
    code, seen = run("--config-dir", str(tmp_path), "train=mine")
    assert (code, seen.only.train.batch_size, seen.only.train.num_train_epochs) == (0, 7, 3)


def test_the_original_rules_bring_the_original_defaults_unless_others_are_named() -> None:
    assert run("compat=dpr", "train_datasets=a.json")[1].only.train.batch_size == 2
    assert (
        run("compat=dpr", "train_datasets=a.json", "dev_datasets=dev.json")[1].only.val_av_rank_start_epoch
        == 30
    )
    assert run("compat=dpr", "train=biencoder_nq", "train_datasets=a.json")[1].only.train.batch_size == 16
    assert run("train_datasets=a.json")[1].only.train.batch_size == 32
