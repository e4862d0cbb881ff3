"""Whole runs on a GPU: they are those of a CPU by every path, resume bit for bit, and repeat their bits where
these are asked for.

On a CPU the same runs rehearse the tests.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dpr.models.biencoder import TowerOptions
from dpr.training import grad_cache
from dpr.training.callbacks import Callback
from tests.helpers.tiny import ListSource, encoder_folder, make_samples, tiny_model
from tests.helpers.training import StopAfter, assert_same_bits, make_trainer
from tests.invariants.test_fast_paths import PATHS, TOWERS, trained

pytestmark = pytest.mark.gpu

# Sums in another order, carried through six updates.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-4}


@pytest.fixture(autouse=True)
def _several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grad_cache, "MIN_CHUNK_TOKENS", 1)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("towers", TOWERS)
def test_every_path_trains_as_the_slow_one_of_a_cpu(tmp_path: Path, dtype: torch.dtype, towers: str) -> None:
    """Packed and padded, direct and cached, loss in blocks: candidates and the tokens read in the last layer
    are the same ones."""
    slow, weights = trained(tmp_path, TOWERS[towers], packed=False)
    for name, path in PATHS.items():
        curve, found = trained(tmp_path, TOWERS[towers], dtype=dtype, device="cuda", **path)
        assert curve.losses == pytest.approx(slow.losses, rel=0, abs=TOLERANCES[dtype]), name
        assert curve.norms == pytest.approx(slow.norms, rel=10 * TOLERANCES[dtype]), name
        for key, expected in (
            weights.items() if dtype == torch.float64 else ()
        ):  # Adam divides fp32's error by gradients that are near 0
            torch.testing.assert_close(
                found[key], expected, rtol=0, atol=TOLERANCES[dtype], msg=f"{name}, {key}"
            )


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_learns_the_same_packed_padded_and_cached(tmp_path: Path, precision: str) -> None:
    exact, _ = trained(tmp_path, {}, dtype=torch.float32, device="cuda")
    for name in ("packed", "some chunks cached", "padded, cached in chunks"):
        curve, _ = trained(
            tmp_path, {}, dtype=torch.float32, device="cuda", precision=precision, **PATHS[name]
        )
        assert curve.losses == pytest.approx(exact.losses, rel=0.02), name
        assert curve.losses != exact.losses, "otherwise nothing was computed in half precision"


@pytest.fixture
def _torch_as_it_was() -> Iterator[None]:
    before = torch.backends.cudnn.benchmark
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = before


@pytest.mark.usefixtures("_torch_as_it_was")
@pytest.mark.parametrize(("packed", "grad_cache_tokens"), [(True, 0), (False, 0), (True, 120)])
def test_with_deterministic_a_resumed_run_has_the_bits_of_an_uninterrupted_one(
    tmp_path: Path, packed: bool, grad_cache_tokens: int
) -> None:
    def run(name: str, seed: int = 1, *callbacks: Callback) -> dict[str, torch.Tensor]:
        options = TowerOptions(packed=packed)
        model = tiny_model(
            encoder_folder(tmp_path / "encoder"), dtype=torch.float32, dropout=0.1, options=options
        ).to("cuda")
        settings: dict[str, Any] = {
            "deterministic": True,
            "grad_cache_tokens": grad_cache_tokens,
            "learning_rate": 1e-3,
            "seed": seed,
        }
        job = make_trainer(model, [ListSource(make_samples(32))], [], tmp_path / name, *callbacks, **settings)
        job.resume()
        job.train()
        return {key: weight.cpu().clone() for key, weight in model.weights().items()}

    whole, again = run("whole"), run("again")
    assert_same_bits(again, whole)  # the same run twice
    half = run("stopped", 1, StopAfter(3))
    assert not all(torch.equal(half[key], weight) for key, weight in whole.items()), "it was not stopped"
    assert_same_bits(run("stopped"), whole)  # resumed
    other = run("other seed", 2)
    assert not all(torch.equal(other[key], weight) for key, weight in whole.items()), (
        "dropout and order depend on the seed"
    )
