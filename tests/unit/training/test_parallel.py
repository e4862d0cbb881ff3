"""Data-parallel training over 3 ranks, where sums depend on the order of their terms (with 2 they do not)."""

from pathlib import Path
from typing import Any

import torch

from dpr.core.distributed import current_ranks
from dpr.models.biencoder import TowerOptions
from dpr.training.compute import data_parallel
from dpr.training.optimizer import optimizer_tensors
from tests.helpers.processes import run_on_ranks
from tests.helpers.tiny import ListSource, encoder_folder, make_samples, tiny_model
from tests.helpers.training import make_trainer

CASES: dict[str, dict[str, Any]] = {
    "one tower, accumulated": {"settings": {"shared": True}, "gradient_accumulation_steps": 2},
    "temperature, cached": {"options": TowerOptions(learn_temperature=True), "grad_cache_tokens": 60},
}


def weights_after(folder: Path, name: str, stops: list[int], case: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Weights and optimizer state of a run of 4 steps that was stopped after ``stops``."""
    case = dict(case)
    settings, options = case.pop("settings", {}), case.pop("options", None)
    for stop in [*stops, 4]:
        model = tiny_model(folder / "encoder", dtype=torch.float32, dropout=0.1, options=options, **settings)
        source = ListSource(make_samples(60))
        sizes = {"global_batch_size": 6, "max_steps": stop, "num_train_epochs": 3}
        job = make_trainer(model, [source], [], folder / name, lr_schedule="constant", **sizes, **case)
        job.train()
    return model.weights() | optimizer_tensors(model, job.optimizer)


def left_by_wrapping(folder: Path) -> list[str]:
    """What making the model data-parallel changes: weights, gradients, the mode, random numbers."""
    model = tiny_model(folder, dtype=torch.float32, dropout=0.1).train()
    before = {name: tensor.clone() for name, tensor in model.weights().items()}
    torch.manual_seed(7)
    data_parallel(model, current_ranks(), torch.device("cpu"))
    drawn = torch.rand(())
    torch.manual_seed(7)
    found = [name for name, tensor in model.weights().items() if not torch.equal(tensor, before[name])]
    found += [name for name, parameter in model.named_parameters() if parameter.grad is not None]
    found += ["mode"] * (not model.training)
    return found + ["random numbers"] * (not torch.equal(drawn, torch.rand(())))


def stopped_and_whole(folder: Path) -> tuple[list[str], dict[str, bool]]:
    """What wrapping a model has left, and for each case whether both runs ended with the same bits."""
    left = left_by_wrapping(folder / "encoder")
    results = {}
    for number, (name, case) in enumerate(CASES.items()):
        whole = weights_after(folder, f"whole-{number}", [], case)
        stopped = weights_after(folder, f"stopped-{number}", [1], case)
        results[name] = all(torch.equal(whole[key], stopped[key]) for key in whole | stopped)
    return left, results


def test_a_run_on_three_ranks_that_is_resumed_ends_with_the_same_bits(tmp_path: Path) -> None:
    encoder_folder(tmp_path / "encoder", hidden_size=64, intermediate_size=128)
    for left, results in run_on_ranks(stopped_and_whole, 3, tmp_path):
        assert not left, "making a model data-parallel leaves no trace"
        assert results == dict.fromkeys(CASES, True)
