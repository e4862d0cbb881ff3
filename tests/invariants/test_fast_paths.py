"""Whole runs by every fast path, alone and together, against the slow one."""

from pathlib import Path
from typing import Any

import pytest
import torch

from dpr.core.batch import BiEncoderBatch
from dpr.losses.nll import BiEncoderNllLoss
from dpr.models.biencoder import TowerOptions
from dpr.training import grad_cache
from dpr.training.bi_encoder_trainer import BiEncoderTrainer
from tests.helpers.processes import run_on_ranks
from tests.helpers.tiny import ListSource, encoder_folder, make_samples, tiny_model
from tests.helpers.training import Curve, StopAfter, assert_near, assert_same_bits, make_trainer

# Float64 sums in another order, carried through four updates.
TOLERANCE = 1e-9
LIMIT = 0.05
# The limit is below the norm of every update's gradient.
CLIPPED = {"learning_rate": 3e-3, "weight_decay": 0.1, "embedding_lr_factor": 5.0, "max_grad_norm": LIMIT}

PATHS: dict[str, dict[str, Any]] = {
    "packed": {},
    "gradient checkpointing": {"gradient_checkpointing": True},
    "some chunks cached": {"grad_cache_tokens": 150},
    "loss in blocks": {"max_scores": 50},
    "padded, cached in chunks": {"packed": False, "grad_cache_tokens": 150},
    "all together": {
        "grad_cache_tokens": 150,
        "max_scores": 50,
        "gradient_checkpointing": True,
        "num_workers": 1,
    },
}
TOWERS = {"two towers": {}, "one tower": {"shared": True, "pooling": "mean", "normalize": True}}


def trained(
    folder: Path,
    settings: dict[str, Any],
    *,
    packed: bool = True,
    max_scores: int = 1 << 22,
    dtype: torch.dtype = torch.float64,
    loss_scale: float = 0.0,
    device: str = "cpu",
    **options: Any,
) -> tuple[Curve, dict[str, torch.Tensor]]:
    """Losses, norms and final weights of 4 updates of 2 global batches; ``loss_scale`` switches fp16's scaler on."""
    tower_options = TowerOptions(packed=packed, learn_temperature=True, temperature=0.3)
    model = tiny_model(encoder_folder(folder / "encoder"), dtype=dtype, options=tower_options, **settings).to(
        device
    )
    curve, run = Curve(), folder / f"run-{len(list(folder.iterdir()))}"
    given = {**CLIPPED, "warmup_steps": 2, "other_negatives": 1, "gradient_accumulation_steps": 2, **options}
    loss = BiEncoderNllLoss(max_scores=max_scores)
    job = make_trainer(model, [ListSource(make_samples(32, seed=4))], [], run, curve, loss=loss, **given)
    if loss_scale:
        job.training_step.scaler = torch.amp.GradScaler(device, init_scale=loss_scale)
    job.train()
    return curve, {name: weight.cpu() for name, weight in model.weights().items()}


@pytest.mark.parametrize("towers", TOWERS)
def test_every_fast_path_trains_as_the_slow_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, towers: str
) -> None:
    monkeypatch.setattr("dpr.models.fast.packed.CPU_FORWARD_TOKENS", 60)  # several packs
    monkeypatch.setattr(grad_cache, "MIN_CHUNK_TOKENS", 1)
    slow, weights = trained(tmp_path, TOWERS[towers], packed=False)
    assert len(slow.losses) == 4 and max(slow.losses) - min(slow.losses) > 0.01, "a flat curve proves little"
    assert min(slow.norms) > LIMIT, "every update is clipped"
    paths = PATHS if towers == "two towers" else {"all together": PATHS["all together"]}
    for name, path in paths.items():
        curve, found = trained(tmp_path, TOWERS[towers], **path)
        assert curve.losses == pytest.approx(slow.losses, rel=0, abs=TOLERANCE), name
        assert_near(found, weights, TOLERANCE, name)


def test_a_loss_scale_changes_no_bit_of_the_weights(tmp_path: Path) -> None:
    """It is a power of two: scaled and unscaled before it is clipped, the gradient is the same number."""
    results = [
        trained(tmp_path, {}, dtype=torch.float32, grad_cache_tokens=150, loss_scale=scale)
        for scale in (0.0, 2.0**10)
    ]
    (plain, expected), (scaled, found) = results
    assert min(plain.norms) > LIMIT, "every update is clipped"
    assert plain.norms == scaled.norms and plain.losses == scaled.losses
    assert_same_bits(found, expected)


def test_a_resumed_run_has_the_loss_scale_it_had(tmp_path: Path) -> None:
    encoder_folder(tmp_path / "encoder")

    def job(*callbacks: StopAfter) -> BiEncoderTrainer:
        model, sets = tiny_model(tmp_path / "encoder", dtype=torch.float32), [ListSource(make_samples(32))]
        return make_trainer(model, sets, [], tmp_path / "run", *callbacks, precision="fp16")

    first = job(StopAfter(1))
    first.training_step.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    first.train()
    again = job()
    again.resume()
    again.checkpoints.lock.release()
    assert again.training_step.scaler.state_dict() == first.training_step.scaler.state_dict()


def seeds_of(folder: Path, output_dir: Path) -> list[int]:
    """The seed of dropout in every micro-batch of this rank."""
    sets, seen = [ListSource(make_samples(32))], list[int]()
    options = {"global_batch_size": 8, "gradient_accumulation_steps": 2, "max_steps": 2}
    job = make_trainer(tiny_model(folder), sets, [], output_dir, **options)
    real = job.forward_backward

    def noted(batch: BiEncoderBatch, number: int) -> Any:
        result = real(batch, number)
        seen.append(torch.initial_seed())
        return result

    job.forward_backward = noted  # type: ignore[method-assign]
    job.train()
    return seen


def test_dropout_is_another_one_in_every_step_micro_batch_and_rank_and_the_same_again(tmp_path: Path) -> None:
    folder = encoder_folder(tmp_path / "encoder")
    first, again = (run_on_ranks(seeds_of, 2, folder, tmp_path / name) for name in ("first", "again"))
    assert first == again and len({seed for of_rank in first for seed in of_rank}) == 2 * 2 * 2
