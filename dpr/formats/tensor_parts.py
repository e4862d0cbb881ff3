"""Tensors that several processes hold in parts: each writes its own, and any number of processes reads them.

A folder of safetensors files, one a process, whose headers say which part of a tensor they hold; written and read by
torch.distributed.checkpoint, whose own format, a pickle, is not used. Its plans travel between the processes of the job as objects.
All functions are called by all processes together.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dpr.core.errors import CheckpointError

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def write_parts(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes this process's parts into a folder that all of them write, and that ``durable_folder`` is about to publish.

    Raises:
        OSError: some process cannot write; on all processes.
    """
    from torch.distributed import checkpoint

    writer = checkpoint.HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        checkpoint.save(dict(tensors), storage_writer=writer)
    except checkpoint.CheckpointException as error:
        first = next(iter(error.failures.values()))[0]
        raise OSError(getattr(first, "errno", None), getattr(first, "strerror", None) or str(first)) from error


def stored_shapes(folder: Path) -> dict[str, torch.Size]:
    """The whole shape of every tensor in a folder that ``write_parts`` has filled.

    Raises:
        CheckpointError: it cannot be read.
    """
    from safetensors import SafetensorError
    from torch.distributed import checkpoint

    try:
        found = checkpoint.HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
        return {name: stored.size for name, stored in found.items()}  # type: ignore[union-attr]
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"cannot be read ({error})", file=folder, expected="safetensors files of several processes") from error


def read_parts(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Fills tensors, each whole or in parts, with the stored ones of their names and shapes."""
    from torch.distributed import checkpoint

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # one process is as good
        checkpoint.load(tensors, storage_reader=checkpoint.HuggingFaceStorageReader(str(folder)))
