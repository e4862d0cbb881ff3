"""How the arithmetic of a run is done, where that is a choice."""

from __future__ import annotations

import os

import torch

from dpr.core.logs import get_logger
from dpr.models.biencoder import BiEncoder
from dpr.models.fast.compilation import checkpoint_activations, compile_towers
from dpr.training.settings import ComputeSettings

logger = get_logger(__name__)


def set_up_arithmetic(settings: ComputeSettings, model: BiEncoder) -> None:
    """Applies what concerns the whole process (tf32, determinism) and the towers (activation checkpointing, compilation).

    Raises:
        ConfigError: a backbone has no activation checkpointing.
    """
    if settings.deterministic:
        # cuBLAS reads it when it is first used.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    if settings.tf32:
        if model.device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        else:
            logger.warning("train.tf32=true has no effect on %s", model.device.type)
    if settings.gradient_checkpointing:
        checkpoint_activations(model.trained_towers())
    if settings.compile:
        compile_towers(model.trained_towers())
