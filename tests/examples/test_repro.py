"""repro/run.py: recipes are whole and their commands understood; what is run is compared with what is
expected.

pytest tests/examples/test_repro.py
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpr.cli.launch import launch
from dpr.cli.main import COMMANDS
from dpr.core.errors import ConfigError, InputError
from dpr.formats.training_sets import write_training_set
from dpr.formats.vector_shards import VectorShardWriter
from tests.architecture.source_files import REPOSITORY
from tests.helpers.patience import patient
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


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("data", [None, "data"], ids=["full", "mini"])
def test_commands_of_recipes_are_understood_and_lead_to_numbers(
    name: str, data: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = RUN.Recipe(*RECIPES[name], Path("out"), data=data)
    assert recipe.numbers and all(
        number["source"] and ("expected" in number) != ("band" in number) for number in recipe.numbers
    )
    steps = recipe.steps_of([])
    assert {recipe.step_of(number) for number in recipe.numbers} <= set(steps)
    for step in steps:
        words = recipe.commands[step]
        # Recipes share most of their commands, each with outputs of its own.
        command = tuple(word.replace(f"out/{name}/", "out/") for word in words[words.index("dpr") + 1 :])
        problem = problem_of(command)
        assert not problem or "does not exist" in problem or "no such file" in problem, step


@functools.cache
def problem_of(words: tuple[str, ...]) -> str:
    """Sentence with which a command line is refused; empty if it is understood."""
    name, arguments = words[0], list(words[1:])
    entry = COMMANDS[name]
    try:
        code = launch(entry.config, entry.settings_class(), lambda _: 0, arguments, program=name)
    except (ConfigError, InputError) as error:
        return str(error)
    assert code == 0
    return ""


def test_a_recipe_is_run_once_and_a_number_that_misses_ends_it_with_1(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    samples = make_samples(24)
    asked = [
        replace(sample, question=sample.positives[0].text, answers=(sample.positives[0].text,))
        for sample in samples
    ]
    write_training_set(tmp_path / "data" / "train.jsonl", asked)
    static_folder(tmp_path / "data" / "encoder")
    (tmp_path / "repro").mkdir()
    shutil.copy(FOLDER / "run.py", tmp_path / "repro")

    def run(most: int) -> tuple[int, str]:
        (tmp_path / "repro" / "own.yaml").write_text(OWN.replace("MOST", str(most)))
        command = [sys.executable, "repro/run.py", "tiny", "--mini", "data", "--out", "run"]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "DPR_CACHE": str(tmp_path / "cache")}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=patient(240)
        )
        return done.returncode, done.stdout + done.stderr

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
