"""The Python of docs/extending.md runs as it stands there, and so do the settings beside it."""

import json
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpr.formats.training_files.dpr import write_training_set
from tests.architecture.source_files import REPOSITORY
from tests.helpers.jobs import train as main
from tests.helpers.tiny import encoder_folder, make_samples

PAGE = (REPOSITORY / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCKS: dict[str, str] = dict(re.findall(r"```python\n# (\w+\.py)\n(.+?)```", PAGE, re.DOTALL))
SMALL = (
    "encoder.pretrained_model_cfg=tiny encoder.pretrained=false encoder.sequence_length=24 train.batch_size=4"
    " train.num_workers=0 train.log_batch_step=1 train.warmup_steps=0 train.num_train_epochs=1 device=cpu"
    " train_datasets=train.json"
).split()


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    encoder_folder(Path("tiny"))
    write_training_set(Path("train.json"), make_samples(12))
    write_training_set(Path("dev.json"), make_samples(5, seed=1))
    for name, code in BLOCKS.items():
        Path(name).write_text(code)
    yield tmp_path
    for name in BLOCKS:
        sys.modules.pop(name.removesuffix(".py"), None)


def lines(folder: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]


def test_the_page_has_its_examples_each_under_twenty_lines() -> None:
    own = ["my_callbacks.py", "my_data.py", "my_loss.py", "my_pooling.py", "my_terms.py", "my_validation.py"]
    assert sorted(BLOCKS) == ["early_stopping.py", *own]
    for name, code in BLOCKS.items():
        assert len([line for line in code.splitlines() if line.strip()]) < 20, name


def test_own_callback_from_the_command_line_and_over_a_restart(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train.callbacks=[my_callbacks:CountQuestions]", "output_dir=runs/mine", *SMALL]
    assert main([*arguments, "train.max_steps=2"]) == 0
    assert main(arguments) == 0
    assert "GiB  my/questions_seen 12  ETA" in capsys.readouterr().err
    assert [line["my/questions_seen"] for line in lines("runs/mine")] == [4, 8, 12]


def test_early_stopping(capsys: pytest.CaptureFixture[str]) -> None:
    code = BLOCKS["early_stopping.py"]
    # The same lines, with a small untrained encoder in place of the published one, and an improvement nobody
    # can reach.
    wanted = '"bert-base-uncased"', "min_delta=0.01", "num_train_epochs=40,"
    assert all(word in code for word in wanted)
    code = code.replace(wanted[0], '"tiny", EncoderSettings(sequence_length=24), pretrained=False')
    code = code.replace(wanted[1], "min_delta=100.0").replace(wanted[2], "num_train_epochs=40, batch_size=4,")
    Path("early_stopping.py").write_text("from dpr import EncoderSettings\n" + code)
    variables = runpy.run_path("early_stopping.py")
    trainer = variables["trainer"]
    assert trainer.progress.step == 3 * trainer.steps_per_epoch < trainer.total_steps
    stored = sorted(path.name for path in Path("runs/stopped").glob("*.step*"))
    assert trainer.progress.best_checkpoint in stored


def test_user_defined_validation_and_loss_from_the_command_line() -> None:
    validation = "train.validation=[{use: my_validation:Neighbours, first: ba be, second: bo bu}]"
    loss = "loss.name={use: my_loss:Smoothed, smoothing: 0.05}"
    assert main([validation, loss, "output_dir=runs/mine", *SMALL, "train.best_metric=eval/alike"]) == 0
    assert -1 <= lines("runs/mine")[-1]["eval/alike"] <= 1
    assert json.loads(Path("runs/mine/metrics.json").read_text())["best_metric"] == "eval/alike"


def test_own_data_set_from_the_command_line() -> None:
    rows = [
        "question,answer,wrong",
        *(f"ba {word},be {word},bi {word}" for word in "bo bu ca ce ci co".split()),
    ]
    Path("faq.csv").write_text("\n".join(rows) + "\n")
    named = ["datasets.faq.file=faq.csv", "datasets.faq.reader=my_data:FaqTable", "train_datasets=[faq]"]
    assert main([*named, "output_dir=runs/faq", *SMALL[:-1], "train.batch_size=3"]) == 0
    assert [line["step"] for line in lines("runs/faq")] == [1, 2]
    # Other rows in the file are other data, so the run is not continued.
    Path("faq.csv").write_text("\n".join([*rows[:-1], "ba cu,be cu,bi cu"]) + "\n")
    assert main([*named, "output_dir=runs/faq", *SMALL[:-1], "train.batch_size=3"]) == 3


def test_own_term_beside_those_of_the_toolkit_from_the_command_line() -> None:
    terms = "loss.terms={use: my_terms:Repelled, weight: 0.1, margin: 0.3}"
    assert terms in PAGE
    assert main([terms, "output_dir=runs/terms", *SMALL]) == 0
    assert main([terms.replace("0.3", "0.2"), "output_dir=runs/terms", *SMALL]) == 3
    assert [line["step"] for line in lines("runs/terms")] == [1, 2, 3]
