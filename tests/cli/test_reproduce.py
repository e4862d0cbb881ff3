"""``dpr reproduce``: rows are whole, their commands understood; what is run is compared, recorded and stopped as promised."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from dpr.cli.launch import launch
from dpr.cli.main import COMMANDS, main
from dpr.core.errors import ConfigError, InputError
from dpr.formats.reproductions import DATA, OUT, Number, Row, read_rows
from dpr.formats.training_sets import write_training_set
from dpr.formats.yaml_files import with_values
from dpr.jobs.ladder import reproduction_record
from dpr.jobs.reproduce import repro_folder
from tests.architecture.source_files import REPOSITORY
from tests.helpers.patience import patient
from tests.helpers.tiny import make_samples, static_folder

SMALL = {row.file.stem: row for row in read_rows(repro_folder(), mini=True).values()}  # one for each family
FAMILIES = {family: row.name for family, row in SMALL.items()}
ROWS = [*read_rows(repro_folder()).values(), *SMALL.values()]
OWN = """\
# a comment that stays
title: a tiny row
with: {k: 1}
stages:
  inputs:
    corpus: dpr prepare ${data}/train.jsonl to=beir out=${to}/beir
  bm25:
    answers: >-
      dpr retrieve indexer=bm25 ctx_datasets=[${inputs/corpus}/beir/corpus.jsonl] qa_dataset=${data}/train.jsonl
      metrics_file=${to}/m.json
  train:
    run: >-
      dpr train encoder=static encoder.pretrained_model_cfg=${data}/encoder train_datasets=[${data}/train.jsonl] train.batch_size=4
      train.num_train_epochs=${epochs} train.log_batch_step=1 train.num_workers=1 device=cpu output_dir=${to}
rows:
  tiny: {}
mini:
  with: {epochs: 1}
  numbers:
    - {name: top-1, read: "bm25/answers/m.json:metrics.accuracy@1", expected: 1.0, tolerance: 1, status: unverified, source: here, why: x}
    - {name: loss, read: "train/run/metrics.jsonl:train/loss", step: 1, band: [0, 9], status: unverified, source: here, why: x}  # kept, too
"""


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Data and a YAML of a row; the working directory is beside them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    (tmp_path / "yaml").mkdir()
    write_data(24)
    static_folder(Path("data/encoder"))
    Path("yaml/own.yaml").write_text(OWN)
    return tmp_path / "data"


def write_data(rows: int) -> None:
    samples = make_samples(rows, seed=rows)
    write_training_set(
        Path("data/train.jsonl"),
        [replace(sample, question=sample.positives[0].text, answers=(sample.positives[0].text,)) for sample in samples],
    )


def reproduce(*more: str) -> int:
    return main(["reproduce", "tiny", "size=mini", "data=data", "folder=yaml", "out=run", *more])


def outcomes() -> dict[str, str]:
    return {number["name"]: number["outcome"] for number in json.loads(Path("run/repro.json").read_text())["numbers"]}


def test_there_are_at_least_thirty_rows_and_whoever_doubts_a_figure_finds_where_it_was_looked_up() -> None:
    rows = read_rows(repro_folder())
    numbers = [number for row in rows.values() for number in row.numbers]
    assert len(rows) >= 30 and all(row.numbers for row in rows.values())
    assert all(number.source and number.why and number.status.startswith(("verified on ", "unverified")) for number in numbers)
    assert [number for number in numbers if number.expected is not None and not number.checked] == []


@pytest.mark.parametrize("file", sorted(repro_folder().glob("*.yaml")), ids=lambda file: file.stem)
def test_every_number_has_a_status_of_its_own_to_be_written(file: Path, tmp_path: Path) -> None:
    def numbers(folder: Path) -> list[Number]:
        read = [read_rows(folder, mini=mini).values() for mini in (False, True)]
        return [number for rows in read for row in rows for number in row.numbers if row.file.name == file.name]

    other = with_values(file.read_text(), {number.place: f"verified {number.place}" for number in numbers(file.parent)})
    (tmp_path / file.name).write_text(other)
    assert numbers(tmp_path) == [replace(number, status=f"verified {number.place}") for number in numbers(file.parent)]


def test_suites_name_tasks_that_mteb_has() -> None:
    mteb = pytest.importorskip("mteb")
    suites = {
        word for row in read_rows(repro_folder()).values() for step in row.steps for word in step.words if word.startswith("suite=mteb:")
    }
    names = {name for suite in suites for name in suite.removeprefix("suite=mteb:").split(",")}
    assert len(names) >= 20 and [name for name in names if mteb.get_task(name).metadata.name != name] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_commands_of_rows_are_understood_and_numbers_have_a_stage(row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    steps = row.of_stages([])
    assert {number.stage for number in row.numbers} <= {step.stage for step in steps}
    for step in steps:
        name, *words = [word.replace(OUT, "out").replace(DATA, "data") for word in step.words]
        command = COMMANDS[name]
        problem = ""
        try:
            assert launch(command.config, command.settings_class(), lambda _: 0, words, program=f"dpr {name}") == 0
        except (ConfigError, InputError) as error:
            problem = str(error)
        assert not problem or "does not exist" in problem or "no such file" in problem, step.name


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"dpr-single"}))  # that is in test_reproduction_faults.py
def test_the_small_form_of_a_family_reaches_its_numbers(family: str, shared_data: Path, data: Path) -> None:
    line = ["reproduce", FAMILIES[family], "size=mini", f"data={shared_data}", "out=run", "keep_going=true"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}  # a process of its own copies itself for each command
    done = subprocess.run([sys.executable, "-m", "dpr", *line], capture_output=True, text=True, env=environment, timeout=patient(600))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-500:]
    assert set(outcomes().values()) <= {"OK", "within tolerance"}
    assert main(["verify", "run/repro.json"]) == 0


def test_every_family_has_a_small_form() -> None:
    assert {file.stem for file in repro_folder().glob("*.yaml")} == set(FAMILIES)


def test_a_row_is_run_once_compared_recorded_and_its_status_written(
    data: Path, commands: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce("update_status=true") == 0
    assert commands == ["prepare", "retrieve", "train"]
    assert outcomes() == {"top-1": "OK", "loss": "OK"}
    text = Path("yaml/own.yaml").read_text()
    assert "# a comment that stays" in text and "# kept, too" in text and text.count("verified on 2") == 2
    assert [line for line in text.splitlines() if "status" not in line] == [line for line in OWN.splitlines() if "status" not in line]
    assert reproduce() == 0
    assert len(commands) == 3  # nothing again
    assert main(["verify", "run/repro.json"]) == 0
    result = json.loads(Path("run/repro.json").read_text())
    assert result["stages"]["bm25/answers"]["outputs"]["m.json"]["sha256"] and result["versions"]["torch"]
    assert main(["verify", "run"]) == 0
    capsys.readouterr()
    Path("run/repro.json").write_text(Path("run/repro.json").read_text().replace('"found": 1.0', '"found": 0.9'))
    assert main(["verify", "run/repro.json"]) == 3
    assert "content has changed" in capsys.readouterr().out
    Path("run/repro.json.sha256").unlink()  # as records of earlier versions, which stated their own
    assert main(["verify", "run/repro.json"]) == 3
    assert "no repro.json.sha256 beside it" in capsys.readouterr().out


def test_the_commit_is_that_of_the_checkout_that_the_package_lies_in_and_of_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@y.z"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    for folder, found in ((tmp_path, head), (tmp_path / "venv", None)):
        place = folder / "dpr" / "jobs" / "ladder"
        place.mkdir(parents=True)
        monkeypatch.setattr(reproduction_record, "__file__", str(place / "reproduction_record.py"))
        assert reproduction_record._commit() == found


def test_numbers_share_what_they_have_in_common_and_rows_their_variables(data: Path) -> None:
    text = OWN.replace("with: {k: 1}", "with: {k: 1, epochs: 3, set: a}\ncosts: {train: {gpus: 1, from: x}, bm25: {from: x}}")
    shared = "- &top {source: here, why: x, tolerance: 1, name: top-1, read: '${stage}/answers/${set}.json:${set}.k'}"
    numbers = "[{<<: *top, expected: 2, status: unverified}]"
    rows = f"big: {{with: {{stage: bm25, set: b-c}}, costs: {{train: {{gpus: 8, from: y}}}}, numbers: {numbers}}}"
    inputs = "inputs: {a: {file: 'made/${set}', url: null, get: 'copy ${set}'}, z: {file: data/train, url: null}}"
    text = text.replace("stages:\n", f"common:\n  {shared}\n{inputs}\nstages:\n", 1).replace("tiny: {}", rows)
    Path("yaml/own.yaml").write_text(text.replace("dpr train encoder=static", "dpr train encoder=static dev_datasets=made/${set}/x"))
    (row,) = read_rows(Path("yaml")).values()
    assert [(number.read, number.expected, number.tolerance) for number in row.numbers] == [("bm25/answers/b-c.json:b-c.k", 2, 1)]
    assert row.costs == {"train": {"gpus": 8, "from": "y"}, "bm25": {"from": "x"}}
    assert list(row.inputs) == ["a"]  # data/train is not data/train.jsonl
    assert row.inputs["a"]["file"] == "made/b-c" and row.inputs["a"]["get"] == "copy b-c"


def test_a_miss_ends_with_1_at_its_stage(data: Path, commands: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("yaml/own.yaml").write_text(OWN.replace("expected: 1.0, tolerance: 1", "expected: 0.1, tolerance: 0.2"))
    assert reproduce() == 1
    assert commands == ["prepare", "retrieve"]
    assert outcomes() == {"top-1": "FAIL", "loss": "not reached"}
    assert "FAIL in the stage bm25: top-1" in capsys.readouterr().out
    assert reproduce("keep_going=true") == 1
    assert outcomes() == {"top-1": "FAIL", "loss": "OK"}


def test_changed_inputs_are_refused_or_made_again(data: Path, commands: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce("stage=bm25") == 0
    write_data(20)
    assert reproduce("stage=bm25") == 3
    assert "train.jsonl has changed" in capsys.readouterr().err
    assert reproduce("stage=bm25", "overwrite=true") == 0
    assert commands == ["prepare", "retrieve"] * 2


def test_a_training_that_misses_is_stopped_and_stays_so(data: Path) -> None:
    text = OWN.replace("epochs: 1", "epochs: 100000").replace("band: [0, 9]", "band: [-2, -1]")
    Path("yaml/own.yaml").write_text(text.replace("step: 1,", "step: 5,"))
    start = time.monotonic()
    assert run_alone("stage=train").wait(patient(120)) == 1
    steps = json.loads(Path("run/train/run/metrics.jsonl").read_text().splitlines()[-1])["step"]
    assert 5 <= steps < 600_000
    assert outcomes() == {"loss": "FAIL"}
    assert run_alone("stage=train").wait(patient(120)) == 1
    assert json.loads(Path("run/train/run/metrics.jsonl").read_text().splitlines()[-1])["step"] == steps
    assert time.monotonic() - start < patient(120)


def test_killed_anywhere_it_ends_with_the_same_numbers(data: Path) -> None:
    Path("yaml/own.yaml").write_text(OWN.replace("epochs: 1", "epochs: 40"))
    assert reproduce() == 0
    whole = [number["found"] for number in json.loads(Path("run/repro.json").read_text())["numbers"]]
    for place in ("inputs/corpus/stage.json", "bm25/answers/stage.json", "train/run/metrics.jsonl"):
        process = run_alone("out=killed")
        while process.poll() is None and not Path("killed", place).exists():
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert run_alone("out=killed").wait(patient(120)) == 0
    assert [number["found"] for number in json.loads(Path("killed/repro.json").read_text())["numbers"]] == whole


def run_alone(*more: str) -> subprocess.Popen[bytes]:
    """The command in a process group of its own."""
    line = ["reproduce", "tiny", "size=mini", "data=data", "folder=yaml", "out=run", *more]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen([sys.executable, "-m", "dpr", *line], start_new_session=True, stdout=subprocess.DEVNULL, env=environment)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("${epochs}", "${epoch}", "epoch} is not a variable"),
        ("dpr prepare", "bash prepare", "expected dpr COMMAND"),
        ("source: here, ", "", "mini.numbers.0 has no source"),
        ("${inputs/corpus}", "${train/run}", "which comes after it"),
        ("bm25/answers/m.json:", "bm26/answers/m.json:", "a number of tiny is of bm26"),
        ("rows:\n", "row:\n", "has row"),
        ("k: 1", "k: [", "not YAML"),
        ("band: [0, 9]", "band: [a, b]", "expected what docs/reproduction.md describes"),
        ("expected: 1.0", "expected: x", "mini.numbers.0.expected='x' is not a number"),
        ("tiny: {}", "tiny: {with: [1]}", "rows.tiny: "),
    ],
)
def test_a_mistake_in_the_yaml_is_named(data: Path, old: str, new: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("yaml/own.yaml").write_text(OWN.replace(old, new))
    assert reproduce() == 3
    error = capsys.readouterr().err
    assert told in error and "own.yaml" in error and "Traceback" not in error


def test_mistakes_on_the_command_line_are_named(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more, told in (
        (["tinny"], "did you mean tiny"),
        (["tiny", "stage=bm24"], "has inputs, bm25, train"),
        (["tiny", "data=nowhere"], "does not exist"),
    ):
        assert main(["reproduce", more[0], "size=mini", "data=data", "folder=yaml", *more[1:]]) == 2
        assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "outcome"), [(78.43, "OK"), (78.5, "within tolerance"), (80.4, "within tolerance"), (80.5, "FAIL"), (76.3, "FAIL")]
)
def test_digits_that_the_source_states_are_ok_and_the_tolerance_has_two_sides(value: float, outcome: str) -> None:
    number = Number("top-20", "paper", "seeds", "unverified", read="test/m.json:k", expected=78.4, tolerance=2.0)
    assert number.outcome(value) == outcome


def test_a_dry_run_prints_commands_and_what_they_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "dpr-nq", "dry_run=true", "gpu_hour_price=2"]) == 0
    told = capsys.readouterr().out
    assert "torchrun --nproc-per-node=8 -m dpr train train=biencoder_nq compat=dpr" in told
    assert "264 GPU hours, 528 at 2 a GPU hour; 163.5 GB of disk; at most 80 GB of memory" in told
    assert re.search(r"this machine: CPU: \d+ cores of \d+; memory: [\d.]+ GB; GPU: .*; working directory: [\d.]+ GB free", told)


def test_inputs_name_the_file_that_the_download_writes() -> None:
    known = yaml.safe_load((REPOSITORY / "conf" / "resources" / "dpr.yaml").read_text())
    for row in read_rows(repro_folder()).values():
        for name, entry in row.inputs.items():
            if "dl.fbaipublicfiles.com" in (entry["url"] or ""):
                keys = [key for key, resource in known.items() if resource["url"].startswith(entry["url"].partition("{")[0])]
                assert keys and any("/".join(key.split(".")) in entry["file"] for key in keys), name
