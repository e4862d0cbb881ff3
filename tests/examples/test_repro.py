"""repro/run.py: recipes are whole, their commands understood, and figures are compared with those expected."""

import importlib.util
import itertools
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpr.cli.launch import answer
from dpr.cli.main import COMMANDS, main
from dpr.core.errors import ConfigError, InputError
from dpr.formats.training_files.dpr import write_training_set
from dpr.formats.vector_shards import VectorShardWriter
from tests.architecture.source_files import REPOSITORY
from tests.helpers.command_lines import check_keys_of, different_ones
from tests.helpers.tiny import make_samples, static_folder

FOLDER = REPOSITORY / "repro"
OWN = """\
title: a tiny recipe
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
      train.num_train_epochs=${epochs} train.log_batch_step=1 train.num_workers=0 device=cpu output_dir=${to}
rows:
  tiny: {}
mini:
  with: {epochs: 1}
  numbers:
    - {name: top-1, read: "bm25/answers/m.json:metrics.accuracy@1", expected: 1.0, tolerance: 0.1, source: here}
    - {name: loss, read: "train/run/metrics.jsonl:train/loss", step: 1, band: [0, MOST], source: here}
"""


def program() -> Any:
    spec = importlib.util.spec_from_file_location("repro_run", FOLDER / "run.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RUN = program()
RECIPES = RUN.read_recipes(FOLDER)


@pytest.fixture(scope="module")
def commands() -> list[tuple[str, ...]]:
    """Of all recipes, full and mini. They share most of their commands, each with outputs of its own."""
    found: dict[tuple[str, ...], None] = {}
    for name, data in itertools.product(RECIPES, (None, "data")):
        recipe = RUN.Recipe(*RECIPES[name], Path("out"), data=data)
        for step in recipe.steps_of([]):
            words = recipe.commands[step]
            found[tuple(word.replace(f"out/{name}/", "out/") for word in words[words.index("dpr") + 1 :])] = (
                None
            )
    return list(found)


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_lead_to_numbers(name: str) -> None:
    for data in (None, "data"):
        recipe = RUN.Recipe(*RECIPES[name], Path("out"), data=data)
        assert recipe.numbers and all(
            number["source"] and ("expected" in number) != ("band" in number) for number in recipe.numbers
        )
        assert {recipe.step_of(number) for number in recipe.numbers} <= set(recipe.steps_of([]))


def test_commands_of_recipes_are_understood(
    commands: list[tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in commands:
        check_keys_of(words)
    monkeypatch.chdir(tmp_path)
    for words in different_ones(commands):
        problem = problem_of(words)
        assert not problem or "does not exist" in problem or "no such file" in problem, words


def problem_of(words: Sequence[str]) -> str:
    """Sentence with which a command line is refused; empty if it is understood."""
    entry = COMMANDS[words[0]]
    try:
        answer(entry.config, entry.settings_class(), lambda _: 0, list(words[1:]), program=words[0])
    except (ConfigError, InputError) as error:
        return str(error)
    return ""


def test_a_recipe_is_run_once_and_a_number_that_misses_ends_it_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    asked = [
        replace(sample, question=sample.positives[0].text, answers=(sample.positives[0].text,))
        for sample in make_samples(24)
    ]
    write_training_set(tmp_path / "data" / "train.jsonl", asked)
    static_folder(tmp_path / "data" / "encoder")
    (tmp_path / "repro").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(RUN, "__file__", str(tmp_path / "repro" / "run.py"))
    monkeypatch.setattr("sys.argv", ["run.py", "tiny", "--mini", "data", "--out", "run"])

    def started(command: list[str]) -> subprocess.CompletedProcess[str]:
        assert command[:3] == [sys.executable, "-m", "dpr"]
        return subprocess.CompletedProcess(command, main(command[3:]))

    monkeypatch.setattr(RUN.subprocess, "run", started)

    def run(most: int) -> tuple[int, str]:
        (tmp_path / "repro" / "own.yaml").write_text(OWN.replace("MOST", str(most)))
        return RUN.main(), capsys.readouterr().out

    code, text = run(most=9)
    assert code == 0, text
    assert (
        "bm25: top-1: expected 1.0 +- 0.1 (here), found 1.0: OK" in text
        and "train: loss: expected 0 to 9 (here)" in text
    )
    assert text.count("$ dpr") == 3
    code, text = run(most=0)
    assert (code, text.count("$ dpr"), text.count("FAIL")) == (1, 0, 1), text


@pytest.mark.parametrize(
    ("value", "outcome"),
    [(78.43, "OK"), (78.5, "within tolerance"), (80.4, "within tolerance"), (80.5, "FAIL"), (76.3, "FAIL")],
)
def test_digits_that_the_source_states_are_ok_and_the_tolerance_has_two_sides(
    value: float, outcome: str
) -> None:
    assert RUN.outcome({"expected": 78.4, "tolerance": 2.0}, value) == outcome


def test_vectors_are_compared_by_their_passages(tmp_path: Path) -> None:
    def write(name: str, ids: list[str], vectors: np.ndarray) -> str:
        writer = VectorShardWriter(
            tmp_path / name, metadata={"model_fingerprint": "x", "shard_id": 0, "num_shards": 1}, dimension=4
        )
        writer.write_chunk(0, ids, vectors.astype(np.float32))
        writer.finish()
        return str(tmp_path / name)

    vectors = np.eye(4)
    other = vectors[::-1].copy()
    other[0, 3] += 0.25
    own, others = (
        write("own_0", ["wiki:0", "wiki:1", "wiki:2", "wiki:3"], vectors),
        write("other_0", ["3", "2", "1", "0"], other),
    )
    assert RUN.largest_difference(own, others) == pytest.approx(0.25)
    with pytest.raises(SystemExit, match="2 of 4 passages are not there"):
        RUN.largest_difference(own, write("few_0", ["3", "2"], other[:2]))
