"""Files as the original DPR wrote them, made by hand: the same structure, the same OmegaConf objects."""

import tempfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def original_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of this toolkit under the names the original gave them."""
    return {name.replace("_model.backbone.", "_model."): tensor for name, tensor in weights.items()}


def original_extras(weights: Mapping[str, Tensor], hidden: int) -> dict[str, Tensor]:
    """Adds what the original's towers carry besides: unused poolers, and position numbers."""
    extras: dict[str, Tensor] = {}
    for tower in ("question_model", "ctx_model"):
        extras[f"{tower}.embeddings.position_ids"] = torch.arange(64).expand((1, -1))
        extras[f"{tower}.pooler.dense.weight"] = torch.randn(hidden, hidden)
        extras[f"{tower}.pooler.dense.bias"] = torch.randn(hidden)
    return {**weights, **extras}


def flat_params(folder: str, **changes: Any) -> dict[str, Any]:
    """``encoder_params`` of 2020."""
    return {
        "do_lower_case": True,
        "pretrained_model_cfg": folder,
        "encoder_model_type": "hf_bert",
        "pretrained_file": None,
        "projection_dim": 0,
        "sequence_length": 24,
    } | changes


def nested_params(folder: str, **changes: Any) -> dict[str, Any]:
    """Returns ``encoder_params`` of 2021: a DictConfig with its parent, the whole run configuration."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf, open_dict

    encoder = {key: value for key, value in flat_params(folder, **changes).items() if key != "do_lower_case"}
    settings = {
        "defaults": ["_self_"],
        "encoder": encoder | {"dropout": 0.1, "fix_ctx_encoder": False, "pretrained": True},
        "do_lower_case": True,
        "train_datasets": ["/secret/train.json"],
        "train": {"batch_size": 16, "learning_rate": 2e-5, "adam_betas": "(0.9, 0.999)"},
        "output_dir": "${hydra:run.dir}",
        "home": "${oc.env:HOME,nowhere}",
        "started": "${now:%Y-%m-%d}/${now:%H}",
    }
    with tempfile.TemporaryDirectory() as conf:
        OmegaConf.save(OmegaConf.create(settings), Path(conf) / "biencoder_train_cfg.yaml")
        GlobalHydra.instance().clear()
        with initialize_config_dir(conf, version_base="1.3"):
            run = compose("biencoder_train_cfg", return_hydra_config=True)
    assert all((run.started, run.home, run.hydra.run.dir))
    with open_dict(run):  # as Hydra does before it calls the program
        del run["hydra"]
    return {"do_lower_case": run.do_lower_case, "encoder": run.encoder}


def write_original(
    path: Path, weights: Mapping[str, Tensor], params: Mapping[str, Any], *, as_zip: bool = True
) -> Path:
    """A whole checkpoint, optimizer and schedule included."""
    parameters = [torch.nn.Parameter(each.clone()) for each in weights.values() if each.is_floating_point()]
    optimizer = torch.optim.AdamW(parameters, lr=2e-5)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    state = {
        "model_dict": OrderedDict(weights),
        "optimizer_dict": optimizer.state_dict(),
        "scheduler_dict": {
            "base_lrs": [2e-5, 2e-5],
            "last_epoch": 7,
            "_step_count": 8,
            "lr_lambdas": [None, None],
        },
        "offset": 7,
        "epoch": 1,
        "encoder_params": params,
    }
    torch.save(state, path, _use_new_zipfile_serialization=as_zip)
    return path
