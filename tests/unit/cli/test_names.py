"""Names: as they were given, read back so; as users of other trainers type them, answered with the right key."""

from pathlib import Path
from typing import Any

import pytest

from dpr.cli.keys import check_keys
from dpr.cli.launch import launch
from dpr.cli.main import main
from dpr.core.settings import overrides, settings
from dpr.embedding.settings import EmbedConfig
from dpr.jobs.prepare import PrepareSettings
from dpr.retrieval.settings import RetrievalConfig
from dpr.training.command_settings import TrainCommand
from tests.cli.dry_job import Seen
from tests.helpers.command_lines import check_keys_of

NAMES = [
    "${oc.env:DPR_SECRET}",
    "a=1,b",
    "{x: y}",
    'it\'s "so"',
    "null",
    "-x",
    "a\\",
    "\\${seed}",
    "a b é介 ",
]


BOMB = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (row, row, b",".join([b"*%c" % (row - 1)] * 9)) for row in b"bcdefgh"
)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_neither_an_expression_nor_a_list(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPR_SECRET", "leaked")
    seen: list[Any] = []
    given = overrides(
        {"qa_dataset": name, "ctx_datasets": [name, "b"], "metrics_file": Path(name), "indexer": "bm25"}
    )
    assert launch("dense_retriever", RetrievalConfig, seen.append, given) == 0
    assert (
        launch(None, PrepareSettings, seen.append, overrides({"folder": [name], "out": Path(name, "x")})) == 0
    )
    retrieve, prepare = seen
    assert (retrieve.qa_dataset, retrieve.ctx_datasets, retrieve.metrics_file) == (name, [name, "b"], name)
    assert (prepare.sources, prepare.out) == ([name], str(Path(name, "x")))


def test_a_file_that_exists_is_a_name_and_other_references_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("${seed}.tsv").touch()
    seen: list[Any] = []
    given = [
        "qa_dataset=${seed}.tsv",
        "ctx_datasets=[${seed}.tsv,b.tsv]",
        "metrics_file=${n_docs}.json",
        "indexer=bm25",
    ]
    assert launch("dense_retriever", RetrievalConfig, seen.append, given) == 0
    (config,) = seen
    assert (config.qa_dataset, config.ctx_datasets, config.metrics_file) == (
        "${seed}.tsv",
        ["${seed}.tsv", "b.tsv"],
        "100.json",
    )


@pytest.mark.parametrize(
    ("content", "place", "found"),
    [
        (b"learning_rate:\t1e-5\n", ":1: ", "cannot start any token"),
        (b"batch_size: 2\nlearning_rate: 1e-5\nlearning_rate: 2e-5\n", ":3: ", "'learning_rate'"),
        (b"batch_size: 2\n# caf\xe9\n", ":2: ", "UTF-8"),
        (b"batch_size: 2\n---\nbatch_size: 3\n", ":2: ", "another document"),
        (b"- batch_size: 2\n", ": ", "a list"),
        (b"a: &a [*a]\n", ":1: ", "aliases"),
        (BOMB, ":5: ", "aliases"),
    ],
)
def test_a_mistake_in_a_file_of_settings_is_one_sentence(
    content: bytes, place: str, found: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "mine.yaml").write_bytes(content)
    code = launch("biencoder_train_cfg", TrainCommand, print, ["--config-dir", str(tmp_path), "train=mine"])
    said = capsys.readouterr().err.strip()
    assert code == 3 and f"mine.yaml{place}" in said and found in said and "\n" not in said, said


CONF = [Path(__file__).parents[3] / "conf"]
KEY = "encoder.pretrained_model_cfg=bert"


@pytest.mark.parametrize("job", [EmbedConfig, RetrievalConfig, TrainCommand])
def test_the_override_is_known(job: type) -> None:
    assert check_keys([KEY], {entry.key: entry for entry in settings(job)}, CONF) == ([KEY], [])


@pytest.mark.parametrize("job", [EmbedConfig, RetrievalConfig])
@pytest.mark.parametrize(
    "old", ["encoder.dropout=0.1", "encoder=hf_bert", "encoder.encoder_model_type=hf_bert"]
)
def test_the_rest_is_answered_by_a_warning(job: type, old: str) -> None:
    kept, warnings = check_keys([old], {entry.key: entry for entry in settings(job)}, CONF)
    assert kept == []
    assert warnings == [f"{old.partition('=')[0]} is ignored: the checkpoint contains its encoder"]


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
