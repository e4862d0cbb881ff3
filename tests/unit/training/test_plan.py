"""The steps and global batches of a run as functions of its settings, and what the data must have for them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpr.core.distributed import Ranks
from dpr.core.errors import ConfigError
from dpr.core.records import TrainingSample
from dpr.data.settings import DataSetSettings, SamplingSettings
from dpr.training.plan import Plan, make_plan, require_teacher_scores
from dpr.training.settings import LossSettings, TrainingSettings
from tests.helpers.tiny import ListSource, make_samples, tiny_model
from tests.helpers.training import make_trainer


@pytest.mark.parametrize(("hard_negatives", "has_hard", "own"), [(1, True, 1), (0, True, 0), (1, False, 0)])
def test_negatives_are_counted_as_they_are_there(
    tmp_path: Path, hard_negatives: int, has_hard: bool, own: int, caplog: pytest.LogCaptureFixture
) -> None:
    samples = make_samples(16)
    if not has_hard:
        samples = [replace(sample, hard_negatives=(), other_negatives=()) for sample in samples]
    model = tiny_model(tmp_path / "encoder", dtype=torch.float32)
    with caplog.at_level("INFO"):
        sets = [ListSource(samples)]
        make_trainer(model, sets, [], tmp_path / "run", hard_negatives=hard_negatives, max_steps=1).train()
    width = 8 * (1 + own)
    told = f"up to {width - 1} negatives per question" if own else "7 in-batch negatives per question, no"
    assert f"8 questions x {width} passages on 1 rank ({told}" in caplog.text
    told = "have hard negatives, but train.hard_negatives=0 ignores them"
    assert caplog.text.count(told) == (has_hard and not hard_negatives)


def plan_of(folder: Path, *rows: int, ranks: Ranks | None = None, **settings: Any) -> Plan:
    tensorizer = tiny_model(folder / "encoder").tensorizer
    sets = [(ListSource(make_samples(count)), DataSetSettings()) for count in rows or (40,)]
    made = TrainingSettings.of(None, **settings)
    return make_plan(sets, tensorizer, made, global_batch_size=8, ranks=ranks or Ranks())


@pytest.mark.parametrize(
    ("settings", "counts"),
    [
        ({}, (5, 15, 15)),
        ({"gradient_accumulation_steps": 2}, (2, 6, 6)),  # a tail too short for an update is dropped
        ({"max_steps": 7}, (5, 7, 7)),
        ({"stop_at_epoch": 1}, (5, 15, 5)),
    ],
)
def test_steps_of_a_run(tmp_path: Path, settings: dict[str, int], counts: tuple[int, int, int]) -> None:
    plan = plan_of(tmp_path, **settings)
    assert (plan.steps_per_epoch, plan.total_steps, plan.last_step) == counts


def test_global_batches_of_an_update_are_those_that_the_order_has_from_it(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, gradient_accumulation_steps=2)
    every = list(plan.order_from(0))
    assert [key for step in range(plan.last_step) for key in plan.batches_of(step)] == every
    assert list(plan.order_from(3)) == every[6:]


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize(
    ("sizes", "size"), [((5,), 5), ((1,), 1), ((8,), 8), ((3, 4), (None, 7)), ((40,), 8)]
)
def test_fewer_rows_than_a_batch_are_the_batch(
    tmp_path: Path, sizes: tuple[int, ...], size: Any, mixed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        size = size[mixed] if isinstance(size, tuple) else size
        if size is None:  # several small sets are no batch
            with pytest.raises(ConfigError, match="mixed=true"):
                plan_of(tmp_path, *sizes)
            return
        plan = plan_of(tmp_path, *sizes, sampling=SamplingSettings(mixed=mixed))
    assert plan.global_batch_size == size == len(plan.dataset.iterator.global_batch(0, 0).rows)
    assert caplog.text.count(f"the training data fill only a batch of {size} questions") == (size < 8)


def test_few_rows_are_shared_by_the_ranks_alike(tmp_path: Path) -> None:
    plans = [plan_of(tmp_path, 6, ranks=Ranks(rank, 2)) for rank in range(2)]
    alone = plan_of(tmp_path, 6).dataset.iterator.global_batch(4, 0).rows
    parts = [plan.dataset.iterator.global_batch(4, 0).rows for plan in plans]
    assert np.array_equal(np.concatenate(parts), alone)
    odd = plan_of(tmp_path, 7, ranks=Ranks(0, 2))
    assert odd.global_batch_size == 6, "one row waits, another one in each epoch"
    with pytest.raises(ConfigError, match=r"1 rows do not fill.*the number of processes"):
        plan_of(tmp_path, 1, ranks=Ranks(0, 2))


def test_an_update_that_takes_more_than_an_epoch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="steps=6 is more than an epoch's 5 global batches"):
        plan_of(tmp_path, gradient_accumulation_steps=6)


@pytest.mark.parametrize("scored", [None, 0, 999])
def test_a_teacher_without_scores_is_refused(scored: int | None) -> None:
    def with_score(row: int, sample: TrainingSample) -> TrainingSample:
        if row != scored:
            return sample
        return replace(sample, positives=tuple(replace(one, teacher_score=1.0) for one in sample.positives))

    samples = [with_score(row, sample) for row, sample in enumerate(make_samples(40) * 25)]
    settings = TrainingSettings(loss=LossSettings(kl_weight=1.0, margin_mse_weight=0.5))
    if scored is not None:
        require_teacher_scores([ListSource(samples)], settings)
        return
    require_teacher_scores([ListSource(samples)], TrainingSettings())
    with pytest.raises(ConfigError, match=r"margin_mse_weight=0.5 learn.*no passage of \S+ has one"):
        require_teacher_scores([ListSource(samples)], settings)
