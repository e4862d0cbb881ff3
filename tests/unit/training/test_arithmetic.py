"""Choices of arithmetic change time and memory, not what is learnt; a setting says how a run begins."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dpr.core.errors import ConfigError
from dpr.formats.training_files.dpr import write_training_set
from dpr.training.bi_encoder_trainer import BiEncoderTrainer
from tests.helpers.tiny import ListSource, encoder_folder, make_samples, tiny_model
from tests.helpers.training import assert_same_bits, command_trainer, gradients, make_trainer, small_command


def trainer(folder: Path, *, name: str = "run", dropout: float = 0.1, **options: Any) -> BiEncoderTrainer:
    model = tiny_model(folder / "encoder", dtype=torch.float32, dropout=dropout)
    options.setdefault("learning_rate", 1e-3)
    return make_trainer(model, [ListSource(make_samples(24))], [], folder / name, **options)


def gradients_of(job: BiEncoderTrainer) -> dict[str, Tensor]:
    job.model.train()
    job.forward_backward(next(job.micro_batches()), 0)
    return gradients(job.model)


def test_checkpointed_activations_give_the_same_gradient_with_the_same_dropout(tmp_path: Path) -> None:
    plain = gradients_of(trainer(tmp_path))
    assert_same_bits(gradients_of(trainer(tmp_path, name="saved", gradient_checkpointing=True)), plain)
    without = gradients_of(trainer(tmp_path, name="without", dropout=0.0))
    assert not all(torch.equal(plain[name], without[name]) for name in plain), "dropout was on"


def test_checkpointed_activations_are_fewer(tmp_path: Path) -> None:
    """What autograd keeps between forward and backward, counted as it is packed."""
    kept = {}
    for checkpointing in (False, True):
        job = trainer(tmp_path, name=f"run-{checkpointing}", gradient_checkpointing=checkpointing)
        sizes: list[int] = []

        def pack(tensor: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(tensor.numel())
            return tensor

        batch = next(job.micro_batches())
        job.model.train()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            job.model(batch.questions, batch.contexts)
        kept[checkpointing] = sum(sizes)
    assert kept[True] < kept[False] / 2


def test_a_backbone_without_that_mode_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import BertModel

    monkeypatch.setattr(BertModel, "supports_gradient_checkpointing", False)
    with pytest.raises(ConfigError, match=r"train\.gradient_checkpointing=true: BertModel has no such mode"):
        trainer(tmp_path, gradient_checkpointing=True)


def test_determinism_is_switched_on_and_training_is_possible_with_it(tmp_path: Path) -> None:
    job = trainer(tmp_path, deterministic=True)
    assert torch.are_deterministic_algorithms_enabled()
    job.train()
    again = trainer(tmp_path, name="again", deterministic=True)
    again.train()
    assert job.model.fingerprint == again.model.fingerprint


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pretrained encoder with random weights."""
    from transformers import AutoConfig, BertModel

    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    write_training_set(tmp_path / "train.json", make_samples(12))
    encoder_folder(tmp_path / "encoder")
    torch.manual_seed(99)
    config = AutoConfig.from_pretrained(str(tmp_path / "encoder"))
    BertModel(config, add_pooling_layer=False).save_pretrained(str(tmp_path / "encoder"))
    return tmp_path


def started(folder: Path, **changes: Any) -> BiEncoderTrainer:
    defaults = {"encoder.pretrained": True, "train.num_train_epochs": 1, "train.warmup_steps": 2}
    return command_trainer(small_command(folder, **defaults, **changes))


def started_from(folder: Path, **changes: Any) -> BiEncoderTrainer:
    """Another run, of the model of the first one."""
    place = {"model_file": str(folder / "run"), "output_dir": str(folder / "second")}
    return started(folder, **place, **changes)


def test_attention_and_its_dropout_reach_both_towers_from_weights_and_from_a_checkpoint(folder: Path) -> None:
    varlen = {"encoder.attention": "varlen", "encoder.attention_dropout": 0.0, "train.precision": "bf16"}
    first = started(folder, **varlen)
    first.train()
    for model in (first.model, started_from(folder, **varlen).model):
        for tower in (model.question_model, model.ctx_model):
            assert tower.fast.attention == "varlen"
            assert (tower.config.attention_probs_dropout_prob, tower.config.hidden_dropout_prob) == (0.0, 0.1)
    assert first.identity.free["encoder.attention"] == "varlen"


def test_from_scratch_from_weights_and_on_with_a_run(folder: Path) -> None:
    scratch = command_trainer(small_command(folder, output_dir=str(folder / "scratch")))
    pretrained = started(folder)
    name = "question_model.backbone.encoder.layer.0.output.dense.weight"
    assert not torch.equal(scratch.model.weights()[name], pretrained.model.weights()[name])
    pretrained.train()
    assert started(folder).resume().step == 3, "the same command goes on"


def test_fine_tuning_from_a_checkpoint_starts_a_fresh_schedule(folder: Path) -> None:
    first = started(folder)
    first.train()
    second = started_from(folder)
    assert_same_bits(second.model.weights(), first.model.weights())
    assert (second.progress.step, len(second.optimizer.state)) == (0, 0)
    second.forward_backward(next(second.micro_batches()), 0)
    second.update()
    assert second.learning_rate == pytest.approx(1e-5), "the first of two warm-up steps"
