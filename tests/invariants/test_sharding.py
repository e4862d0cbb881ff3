"""A model spread over several processes computes what one process does that holds all of it."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from dpr.core.distributed import barrier, current_ranks
from dpr.models.biencoder import BiEncoder, TowerOptions
from dpr.models.fast import packed
from dpr.storage.durable import verify_folder
from dpr.training.validations import dev_sets
from tests.helpers.processes import run_on_ranks
from tests.helpers.tiny import ListSource, encoder_folder, make_samples, tiny_model
from tests.helpers.training import StopAfter, assert_near, assert_same_bits, make_trainer, newest, stored
from tests.invariants.test_one_gradient import CASES as WHOLE_CASES
from tests.invariants.test_one_gradient import gradient_of_a_step

TOLERANCE = 1e-12

CASES: dict[str, dict[str, Any]] = {
    "two towers": {},
    "a shared tower, cosine, mean pooling": WHOLE_CASES["shared tower, cosine, mean pooling"],
    "a learned temperature": WHOLE_CASES["learned temperature"],
    "a frozen context tower, a projection": WHOLE_CASES["frozen context tower, projection"],
    "one tower of two for both sides": {"encoder_type": "question"},
    "learned weights of tokens": {"settings": {"pooling": "idf"}},
}
# Ranks differ in the number of their chunks, and with 150 tokens in what they keep.
CACHED = {40: ["a learned temperature", "a frozen context tower, a projection"], 150: ["two towers"]}
CASES |= {
    f"{name}, {tokens} tokens cached": {**CASES[name], "grad_cache_tokens": tokens}
    for tokens, names in CACHED.items()
    for name in names
}


def every_case(folder: Path, sharding: str) -> dict[str, dict[str, torch.Tensor]]:
    with pytest.MonkeyPatch.context() as patch:
        # a batch would be several packs, their number another one on each rank
        patch.setattr(packed, "CPU_FORWARD_TOKENS", 60)
        return {
            key: gradient_of_a_step(folder, {**case, "sharding": sharding}) for key, case in CASES.items()
        }


@pytest.fixture(scope="module")
def by_world_size(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[int, list[dict[str, dict[str, torch.Tensor]]]]:
    folder = encoder_folder(tmp_path_factory.mktemp("model") / "encoder")
    alone = every_case(folder, "none")
    return {1: [alone]} | {2: run_on_ranks(every_case, 2, folder, "fsdp2")}


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_are_those_of_one_process(by_world_size: dict[int, Any], name: str) -> None:
    alone = by_world_size[1][0][name]
    for rank, results in enumerate(by_world_size[2]):
        assert_near(results[name], alone, TOLERANCE, f"on rank {rank}")


LAST_STEP, STOP_AT = 4, 2
RUN: dict[str, Any] = {"global_batch_size": 12, "gradient_accumulation_steps": 2, "keep_last": 0}
RUN |= {"learning_rate": 1e-3, "weight_decay": 0.1, "max_grad_norm": 0.5, "eval_every_steps": 2}
RUN |= {"dev_batch_size": 7, "val_av_rank_start_epoch": 1, "val_av_rank_hard_neg": 2}


def train(
    folder: Path, out: Path, *, stop_after: int = 0, dtype: torch.dtype = torch.float64, **options: Any
) -> None:
    """A run that resumes what it finds in ``out``."""
    towers = TowerOptions(learn_temperature=True, temperature=0.5)
    model = tiny_model(folder, dtype=dtype, options=towers, pooling="mean", normalize=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dev_sets, "QUESTIONS_AT_ONCE", 2)  # so that ranks read several times
        train_sets, dev = [ListSource(make_samples(60))], [ListSource(make_samples(10, seed=1), "dev")]
        make_trainer(
            model, train_sets, dev, out, *([StopAfter(stop_after)] if stop_after else []), **RUN, **options
        ).train()


def on_two(folder: Path, runs: Path) -> None:
    train(folder, runs / "two", sharding="fsdp2", gradient_checkpointing=True)
    train(folder, runs / "half", sharding="fsdp2", gradient_checkpointing=True, stop_after=STOP_AT)
    if current_ranks().is_main:
        for name in ("half-two", "half-one"):
            shutil.copytree(runs / "half", runs / name, ignore=shutil.ignore_patterns("run.lock"))
    barrier()
    for name, sharding in (("fp16", "fsdp2"), ("whole-fp16", "none")):
        train(folder, runs / name, sharding=sharding, precision="fp16", dtype=torch.float32)
    train(folder, runs / "half-two", sharding="fsdp2", gradient_checkpointing=True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whole runs of 1 and 2 processes, and a sharded run that is stopped and resumed on 2, and on one."""
    folder, runs = (
        encoder_folder(tmp_path_factory.mktemp("model") / "encoder"),
        tmp_path_factory.mktemp("runs"),
    )
    run_on_ranks(on_two, 2, folder, runs)
    train(folder, runs / "one")
    train(folder, runs / "half-one")
    return runs


def final_state(run: Path) -> dict[str, torch.Tensor]:
    """Weights, and the state of the optimizer."""
    assert newest(run).name.endswith(f"step{LAST_STEP}") and not verify_folder(newest(run))
    return stored(run)


@pytest.mark.parametrize("name", ["two", "half-two", "half-one"])
def test_a_run_is_that_of_one_process_that_holds_the_whole_model(runs: Path, name: str) -> None:
    expected = final_state(runs / "one")
    assert len(expected) > 100
    assert_near(final_state(runs / name), expected, 1e-9, name)
    figures = [json.loads((runs / which / "metrics.json").read_text()) for which in ("one", name)]
    assert figures[0].keys() == figures[1].keys() and "eval/avg_rank" in figures[0]
    for key, value in figures[0].items():
        assert figures[1][key] == (value if isinstance(value, str) else pytest.approx(value, abs=1e-9)), key


def test_a_run_that_is_resumed_on_as_many_processes_is_bitwise_the_same(runs: Path) -> None:
    assert_same_bits(final_state(runs / "half-two"), final_state(runs / "two"))


def test_fp16_scales_the_loss_and_skips_updates_as_it_does_on_whole_models(runs: Path) -> None:
    assert_near(final_state(runs / "fp16"), final_state(runs / "whole-fp16"), 1e-4)
    logs = [(runs / name / "metrics.jsonl").read_text().splitlines() for name in ("whole-fp16", "fp16")]
    scales = [
        [json.loads(row)["optim/loss_scale"] for row in log if "optim/loss_scale" in row] for log in logs
    ]
    assert scales[0] == scales[1] and len(scales[0]) == LAST_STEP


def test_a_checkpoint_of_a_sharded_run_is_a_model_like_any_other(runs: Path) -> None:
    vectors = [BiEncoder.load(runs / name).encode_questions(["bade cafe", "dige"]) for name in ("one", "two")]
    assert numpy.abs(vectors[0] - vectors[1]).max() < 1e-6
