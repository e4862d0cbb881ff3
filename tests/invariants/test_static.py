"""Static encoders have one gradient and one model on any number of processes, and resume bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dpr.models.biencoder import BiEncoder, TowerOptions
from dpr.training.callbacks import Callback
from tests.helpers.processes import run_on_ranks
from tests.helpers.tiny import ListSource, encoder_folder, make_samples, static_folder, tiny_model
from tests.helpers.training import StopAfter, assert_near, assert_same_bits, make_trainer
from tests.invariants.test_one_gradient import gradient_of_a_step

SHARED: dict[str, Any] = {"shared": True, "normalize": True, "pooling": "idf"}
CASES: dict[str, dict[str, Any]] = {
    "packed": {"settings": SHARED, "options": {"temperature": 0.05}},
    "two towers": {
        "settings": {"pooling": "mean", "projection_dim": 6},
        "options": {"temperature": 0.05, "learn_temperature": True},
    },
    "one side through the other's tower": {"settings": {"pooling": "mean"}, "encoder_type": "question"},
}
BESIDE: dict[str, Any] = {"static_questions": True, "pooling": "mean", "projection_dim": 6}
FROZEN: dict[str, Any] = {"temperature": 0.5, "fix_ctx_encoder": True}
CASES |= {
    "beside a transformer": {"settings": BESIDE, "options": {"temperature": 0.5, "learn_temperature": True}},
    "beside a frozen transformer": {"settings": BESIDE, "options": FROZEN},
    "beside a frozen transformer, padded": {"settings": BESIDE, "options": FROZEN | {"packed": False}},
}
CACHED = ("packed", "two towers", "beside a transformer")
CASES |= {f"{name}, cached": {**CASES[name], "grad_cache_tokens": 40} for name in CACHED}


def every_gradient_and_model(folder: Path) -> dict[str, dict[str, Tensor]]:
    places = {
        name: folder / "bert" if case.get("settings", {}).get("static_questions") else folder
        for name, case in CASES.items()
    }
    found = {name: gradient_of_a_step(places[name], case) for name, case in CASES.items()}
    found["run"] = trained(folder, folder / "runs" / "direct")
    found["run, cached"] = trained(folder, folder / "runs" / "cached", grad_cache_tokens=40)
    return found


def trained(
    folder: Path,
    out: Path,
    *callbacks: Callback,
    settings: dict[str, Any] = SHARED,
    dropout: float = 0.0,
    **options: Any,
) -> dict[str, Tensor]:
    """Weights after 8 updates of 2 global batches of 8."""
    model = tiny_model(folder, options=TowerOptions(temperature=0.05), dropout=dropout, **settings)
    # The largest gradients are about 1: updates then do not magnify the rounding of small ones.
    options |= {"global_batch_size": 8, "gradient_accumulation_steps": 2, "max_steps": 8}
    options |= {"adam_eps": 0.01, "learning_rate": 0.05, "weight_decay": 0.1}
    make_trainer(model, [ListSource(make_samples(70))], [], out, *callbacks, **options).train()
    return {name: weight.detach().clone() for name, weight in model.weights().items()}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, dict[str, Tensor]]]]:
    results = {}
    for world_size in (1, 2):
        folder = static_folder(tmp_path_factory.mktemp(f"ranks{world_size}"))
        encoder_folder(folder / "bert", num_hidden_layers=1)
        results[world_size] = run_on_ranks(every_gradient_and_model, world_size, folder)
    return results


@pytest.mark.parametrize("name", [*CASES, "run", "run, cached"])
def test_gradients_and_weights_do_not_depend_on_processes_or_chunks(found: dict[int, Any], name: str) -> None:
    expected = found[1][0][name.partition(",")[0]]
    assert (
        max(float(tensor.abs().max()) for key, tensor in expected.items() if key not in ("loss", "correct"))
        > 1e-3
    )
    for world_size, ranks in found.items():
        for results in ranks:
            assert_near(results[name], expected, 1e-10, f"on {world_size} ranks")


@pytest.mark.parametrize("settings", [SHARED, BESIDE], ids=["static", "beside a transformer"])
def test_a_run_is_resumed_bit_for_bit(tmp_path: Path, settings: dict[str, Any]) -> None:
    how: dict[str, Any] = {"settings": settings, "dropout": 0.1}
    folder = (static_folder if settings is SHARED else encoder_folder)(tmp_path / "encoder")
    whole = trained(folder, tmp_path / "whole", **how)
    trained(folder, tmp_path / "halves", StopAfter(3), **how)
    resumed = trained(folder, tmp_path / "halves", **how)
    assert_same_bits(resumed, whole)
    start = tiny_model(folder, **settings).weights()
    assert all(not torch.equal(weight, start[name]) for name, weight in whole.items())
    stored = BiEncoder.load(tmp_path / "whole").weights()
    assert_same_bits(stored, {name: weight.float() for name, weight in whole.items()})
