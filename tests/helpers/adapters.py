"""Base models with weights, and adapters that are no longer zero."""

from pathlib import Path

import torch
from torch import nn

from tests.helpers.decoders import decoder_folder
from tests.helpers.tiny import encoder_folder


def base_folder(folder: Path, kind: str = "bert", *, seed: int = 7) -> Path:
    """A model folder with weights."""
    from transformers import AutoConfig, AutoModel

    if not (folder / "config.json").exists():
        encoder_folder(folder) if kind == "bert" else decoder_folder(folder)
    torch.manual_seed(seed)
    options = {"add_pooling_layer": False} if kind == "bert" else {}
    AutoModel.from_config(AutoConfig.from_pretrained(str(folder)), **options).save_pretrained(str(folder))
    return folder


def randomize_adapters(model: nn.Module) -> None:
    """Gives the matrices that begin as zero, which hide the gradient of the others, random values."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
