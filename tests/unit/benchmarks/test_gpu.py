"""Every part of the GPU benchmark runs, on the CPU with tiny sizes, and writes what it found as it goes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from benchmarks import measuring
from benchmarks.gpu import __main__ as command
from benchmarks.gpu import checks, searching, training
from benchmarks.gpu.record import BARS, PEAK, Record
from benchmarks.gpu.workload import REHEARSAL, texts_of, tokens_of, write_bert
from benchmarks.sides import our_model
from tests.conftest import REPOSITORY
from tests.helpers.examples import some

FOUND = {
    "checks": ({"tests/gpu"}, {"failures"}),
    "training": (
        {"sdpa", "padded", "plain loop", "profile of a step", "where the host waited"},
        {"training", "synchronisations"},
    ),
    "embedding": ({"sdpa", "padded", "tokenizer", "writer", "from file to file"}, {"embedding"}),
    "search": (
        {"indexer=exact, vectors in the host's memory", "plain blocks, vectors in the device's memory"},
        {"search"},
    ),
    "caching": ({"cost", "largest batch, cached", "largest batch, direct"}, {"caching"}),
    "decoder": ({"all weights, sdpa", "LoRA, sdpa" if find_spec("peft") else "LoRA"}, set()),
    "memory": ({"step of 4 questions", "tokens of a forward, asked and found"}, set()),
}


@pytest.fixture(autouse=True)
def _peak_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer than all else."""
    for module in (measuring, searching):
        monkeypatch.setattr(module, "matrix_peak", lambda *arguments, **options: 1e12)


@pytest.mark.parametrize("part", some(command.PARTS, "training", "decoder", "memory"))
def test_a_part_is_rehearsed(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # In place of a pytest of its own.
    monkeypatch.setattr(checks, "_run", lambda paths, report: {"failed": [], "cut off": 0})
    # torch sets it when its compiler is imported
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    before = dict(os.environ)
    assert command.run(part, tmp_path, is_rehearsal=True) == 0
    assert dict(os.environ) == before
    stored = json.loads((tmp_path / f"{part}.json").read_text())
    results, bars = FOUND[part]
    assert stored["state"] == "done" and results <= set(stored["results"]) and set(stored["bars"]) == bars
    if part == "memory":
        asked, found = stored["results"]["tokens of a forward, asked and found"]
        assert found < asked and stored["results"]["vectors are those of the budget found"]
    if part == "training":
        assert stored["results"]["steps watched for synchronisations"] == 1


def test_nothing_is_saved_while_synchronisations_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An end of an epoch would bring a checkpoint, and that waits for the device."""
    saved: list[int] = []
    save = training.BiEncoderTrainer.save
    monkeypatch.setattr(
        training.BiEncoderTrainer,
        "save",
        lambda trainer: (saved.append(trainer.progress.step), save(trainer))[1],
    )
    record = Record("training", None, torch.device("cpu"), is_rehearsal=True)
    training._synchronisations(record, write_bert(tmp_path / "bert", REHEARSAL), REHEARSAL, "sdpa")
    assert saved == [REHEARSAL.sync_steps], "two epochs"


def test_a_missing_package_is_one_sentence() -> None:
    """``-S`` leaves out all packages but those of the standard library."""
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _WITHOUT_PACKAGES], capture_output=True, text=True, cwd=REPOSITORY
    )
    assert ended.returncode == 1 and ended.stdout == ""
    assert (
        ended.stderr.startswith("python -m benchmarks.gpu needs torch, which cannot be imported here")
        and ended.stderr.count("\n") == 1
    )


_WITHOUT_PACKAGES = (
    "import runpy, sys; sys.path.insert(0, '.'); runpy.run_module('benchmarks.gpu', run_name='__main__')"
)


def test_what_was_found_before_a_failure_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(record: Record, sizes: object) -> None:
        record.add("first", 1.0)
        raise ValueError("no more")

    monkeypatch.setitem(command.PARTS, "search", fails)
    assert command.run("search", tmp_path, is_rehearsal=True) == 1
    stored = json.loads((tmp_path / "search.json").read_text())
    assert stored["results"] == {"first": 1.0} and stored["state"] == "failed: ValueError: no more"


def test_a_part_that_takes_too_long_is_cut_off_and_keeps_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Record("search", tmp_path, torch.device("cpu"), is_rehearsal=True).add("first", 1.0)
    monkeypatch.setattr(command, "MOST_SECONDS", 0.01)
    assert command._apart("search", tmp_path) == 1
    stored = json.loads((tmp_path / "search.json").read_text())
    assert stored["results"] == {"first": 1.0} and stored["state"] == "cut off after 0.01 seconds"


@pytest.mark.parametrize(
    ("name", "met", "missed"), [("training", 0.5, 0.49), ("caching", 1.38, 1.39), ("synchronisations", 0, 1)]
)
def test_bars_are_met_or_missed(name: str, met: float, missed: float) -> None:
    record = Record("training", None, torch.device("cpu"))
    for found, verdict in ((met, "met"), (missed, "MISSED")):
        record.judge(name, found)
        assert record.verdicts[name]["verdict"] == verdict
    assert PEAK == 989e12 and set(BARS) >= set(FOUND["training"][1])


def test_texts_have_the_lengths_of_natural_questions(tmp_path: Path) -> None:
    model = our_model(write_bert(tmp_path / "bert", REHEARSAL), dropout=0.0, length=256)
    assert float(tokens_of(model, 200).lengths.double().mean()) == pytest.approx(150, abs=8)
    lengths = [len(tokens) for tokens in model.tensorizer.question_tokens(texts_of(200).questions)]
    assert sum(lengths) / 200 == pytest.approx(12, abs=1)


def test_gaps_between_kernels_and_their_kinds() -> None:
    events = [
        ("flash_fwd_kernel", 0.0, 10.0),
        ("sm90_xmma_gemm", 10.0, 40.0),
        ("other stream", 20.0, 30.0),
        ("gelu", 60.0, 70.0),
    ]
    found = training.shares_of(events)
    assert found["milliseconds"] == 0.07 and found["idle share"] == pytest.approx(20 / 70)
    assert found["gaps of more than 10 us"] == 1 and found["longest gap, us"] == 20.0
    assert found["shares"]["matrix products"] == 0.5 and found["shares"]["attention"] == pytest.approx(1 / 6)
