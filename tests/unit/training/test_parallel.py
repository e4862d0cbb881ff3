"""Data-parallel training is bit for bit, parameters that no vector depends on have no part in it, and what cannot be sharded is refused."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, LongformerConfig, XLNetConfig

from dpr.core.distributed import Ranks, current_ranks
from dpr.core.errors import ConfigError
from dpr.models.backbones import backbone_from_config
from dpr.models.biencoder import BiEncoder, TowerOptions
from dpr.models.encoder import Encoder
from dpr.training.compute import data_parallel, freeze_unneeded, shard, sharded_towers
from dpr.training.optimizer import optimizer_tensors
from tests.helpers.processes import run_on_ranks
from tests.helpers.tiny import VOCABULARY, ListSource, encoder_folder, make_samples, tiny_model
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


SIZE: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZE["vocab_size"] = len(VOCABULARY)
LAYERS: dict[str, Any] = {**SIZE, "intermediate_size": 32, "max_position_embeddings": 64, "pad_token_id": 0}
CONFIGS: dict[str, Any] = {
    "longformer": LongformerConfig(**LAYERS, attention_window=[8, 8]),
    "xlnet": XLNetConfig(
        vocab_size=len(VOCABULARY), d_model=16, n_layer=2, n_head=2, d_inner=32, pad_token_id=0
    ),
    "bert": BertConfig(**LAYERS),
}


def model_of(folder: Path, name: str, *, shared: bool = False) -> BiEncoder:
    plain = tiny_model(folder, dtype=torch.float32, shared=shared)
    torch.manual_seed(0)
    towers = [Encoder(backbone_from_config(CONFIGS[name], dropout=0.1)) for _ in range(1 if shared else 2)]
    return BiEncoder(towers[0], towers[-1], plain.tensorizer, plain.settings)


def resumed(folder: Path, name: str) -> list[dict[str, torch.Tensor]]:
    """The weights of a run of 3 steps, without and with a stop after the first."""
    found = []
    for run, stops in (("whole", [3]), ("stopped", [1, 3])):
        for stop in stops:
            model = model_of(folder / "encoder", name)
            sets = [ListSource(make_samples(24))]
            make_trainer(model, sets, [], folder / run, global_batch_size=8, max_steps=stop).train()
        found.append(model.weights())
    return found


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "bert"])
def test_unneeded_parameters(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    encoder_folder(tmp_path / "encoder")
    with caplog.at_level("INFO", logger="dpr"):
        whole, stopped = resumed(tmp_path, name)
    assert "parameters have no part in any vector" in caplog.text
    assert all(torch.equal(whole[key], stopped[key]) for key in whole)


def test_a_model_with_unneeded_parameters_trains_on_two_ranks(tmp_path: Path) -> None:
    encoder_folder(tmp_path / "encoder")
    first, second = run_on_ranks(resumed, 2, tmp_path, "longformer")
    assert all(torch.equal(first[0][key], weights[key]) for weights in (*first, *second) for key in weights)


@pytest.mark.parametrize(
    "options", [TowerOptions(), TowerOptions(fix_ctx_encoder=True), TowerOptions(learn_temperature=True)]
)
def test_what_vectors_depend_on_keeps_learning(
    tmp_path: Path, options: TowerOptions, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_model(encoder_folder(tmp_path / "encoder"), options=options, projection_dim=4)
    before = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    state = torch.get_rng_state()
    with caplog.at_level("INFO", logger="dpr"):
        freeze_unneeded(model)
    assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == before
    assert not caplog.text
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_tables_that_learn_by_rows_and_adapters_are_refused(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "encoder")
    model.question_model.backbone.get_input_embeddings().sparse = True
    with pytest.raises(ConfigError, match="learns by rows"):
        shard(model, Ranks(0, 2))
    model.question_model.adapter = object()  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="adapter=lora are mutually"):
        shard(model, Ranks(0, 2))


def test_one_process_is_told_that_it_shares_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_model(tmp_path / "encoder")
    with caplog.at_level(logging.WARNING):
        shard(model, Ranks())
    assert "has no effect on one process" in caplog.text and not sharded_towers(model)
