"""A profiler sees the parts of a step by their names."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from torch.profiler import ProfilerActivity, profile

from tests.helpers.tiny import ListSource, encoder_folder, make_samples, tiny_model
from tests.helpers.training import make_trainer


@pytest.mark.parametrize("grad_cache_tokens", [0, 60])
def test_every_part_of_a_step_has_a_range(tmp_path: Path, grad_cache_tokens: int) -> None:
    steps, accumulation = 2, 2
    model = tiny_model(encoder_folder(tmp_path / "encoder"))
    source, options = ListSource(make_samples(32)), {"grad_cache_tokens": grad_cache_tokens, "sanity_pools": 0}
    trainer = make_trainer(
        model, [source], [], tmp_path / "run", max_steps=steps, gradient_accumulation_steps=accumulation, batch_size=4, **options
    )
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        trainer.train()
    counts = Counter(event.name for event in seen.events() if event.name.startswith("dpr/"))
    batches = steps * accumulation
    assert counts == {"dpr/data": batches, "dpr/encode": batches, "dpr/loss": batches, "dpr/backward": batches, "dpr/update": steps}
