"""A resumed run of adapters ends with bitwise the same adapters, and its base stays as it was."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from dpr.core.errors import CheckpointError
from dpr.models.biencoder import BiEncoder
from dpr.models.settings import EncoderSettings
from tests.helpers.adapters import base_folder
from tests.helpers.tiny import ListSource, make_samples
from tests.helpers.training import assert_same_bits, make_trainer, newest, stored

pytest.importorskip("peft")


def trained(base: Path, output_dir: Path, **options: Any) -> dict[str, torch.Tensor]:
    """The weights and the optimizer's state after 8 updates."""
    torch.manual_seed(3)
    settings = EncoderSettings(sequence_length=24, adapter="lora", lora_rank=4)
    model = BiEncoder.from_pretrained(str(base), settings, dropout=0.1, do_lower_case=True)
    options |= {"max_steps": 8, "num_train_epochs": 8, "save_every_steps": 3, "learning_rate": 1e-2}
    make_trainer(model, [ListSource(make_samples(64))], [], output_dir, **options).train()
    assert newest(output_dir).name.endswith("step8")
    return stored(output_dir)


@pytest.mark.parametrize(
    "options",
    [{}, {"grad_cache_tokens": 40, "gradient_checkpointing": True}],
    ids=["direct", "cached and checkpointed"],
)
def test_a_resumed_run_ends_with_bitwise_the_same_adapters(options: dict[str, Any], tmp_path: Path) -> None:
    base = base_folder(tmp_path / "base")
    before = hashlib.sha256((base / "model.safetensors").read_bytes()).hexdigest()
    whole = trained(base, tmp_path / "whole", **options)
    (tmp_path / "resumed").mkdir()
    shutil.copytree(tmp_path / "whole" / "dpr_biencoder.step3", tmp_path / "resumed" / "dpr_biencoder.step3")
    shutil.copy(tmp_path / "whole" / "run.json", tmp_path / "resumed" / "run.json")
    resumed = trained(base, tmp_path / "resumed", **options)
    assert all("lora_" in name for name in whole)
    assert_same_bits(resumed, whole)
    assert hashlib.sha256((base / "model.safetensors").read_bytes()).hexdigest() == before


def test_a_run_is_not_resumed_on_another_base(tmp_path: Path) -> None:
    base = base_folder(tmp_path / "base")
    trained(base, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "dpr_biencoder.step8")
    base_folder(tmp_path / "base", seed=8)
    with pytest.raises(CheckpointError, match=r"encoder\.base"):
        trained(base, tmp_path / "run")
