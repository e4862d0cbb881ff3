"""What a profiler sees of a step: its parts by their names, and when gradients travel."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from torch.profiler import ProfilerActivity, profile

from dpr.training.bi_encoder_trainer import BiEncoderTrainer
from tests.helpers.processes import run_on_ranks
from tests.helpers.tiny import ListSource, encoder_folder, make_samples, tiny_model
from tests.helpers.training import make_trainer


@pytest.mark.parametrize("grad_cache_tokens", [0, 60])
def test_every_part_of_a_step_has_a_range(tmp_path: Path, grad_cache_tokens: int) -> None:
    steps, accumulation = 2, 2
    model = tiny_model(encoder_folder(tmp_path / "encoder"))
    source, options = (ListSource(make_samples(32)), {"grad_cache_tokens": grad_cache_tokens})
    trainer = make_trainer(
        model,
        [source],
        [],
        tmp_path / "run",
        max_steps=steps,
        gradient_accumulation_steps=accumulation,
        batch_size=4,
        **options,
    )
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        trainer.train()
    counts = Counter(event.name for event in seen.events() if event.name.startswith("dpr/"))
    batches = steps * accumulation
    assert counts == {
        "dpr/data": batches,
        "dpr/encode": batches,
        "dpr/loss": batches,
        "dpr/backward": batches,
        "dpr/update": steps,
    }


def elements_summed(folder: Path) -> list[tuple[list[list[int]], int]]:
    """``elements_of`` whole batches and of gradient caching."""
    return [elements_of(folder, grad_cache_tokens) for grad_cache_tokens in (0, 40)]


def elements_of(folder: Path, grad_cache_tokens: int) -> tuple[list[list[int]], int]:
    """The elements that ranks sum in two micro-batches of an update, and those of the model's gradient."""
    model = tiny_model(folder / "encoder")
    options = {"grad_cache_tokens": grad_cache_tokens, "gradient_accumulation_steps": 2, "batch_size": 2}
    trainer = make_trainer(
        model, [ListSource(make_samples(32))], [], folder / f"run-{grad_cache_tokens}", max_steps=1, **options
    )
    summed: list[list[int]] = []
    real = BiEncoderTrainer.forward_backward

    def watched(self: BiEncoderTrainer, *arguments: Any) -> Any:
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
            result = real(self, *arguments)
        summed.append(
            [math.prod(event.input_shapes[0]) for event in seen.events() if event.name == "gloo:all_reduce"]
        )
        return result

    BiEncoderTrainer.forward_backward = watched  # type: ignore[method-assign]  # this process is the test's own
    try:
        trainer.train()
    finally:
        BiEncoderTrainer.forward_backward = real  # type: ignore[method-assign]
    return summed, sum(parameter.numel() for parameter in model.parameters())


def test_gradients_travel_once_an_update(tmp_path: Path) -> None:
    """With every micro-batch travels the gradient of its vectors alone."""
    encoder_folder(tmp_path / "encoder")
    for of_rank in run_on_ranks(elements_summed, 2, tmp_path):
        for summed, whole in of_rank:
            vectors = summed[0]
            assert len(vectors) == 1 and vectors[0] < whole
            assert summed == [vectors, [*vectors, whole]]
