"""What a run reports: metrics, the arithmetic of its towers, and what it would take."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from dpr.training.bi_encoder_trainer import BiEncoderTrainer
from dpr.training.callbacks import Callback
from dpr.training.dry_run import dry_run
from dpr.training.throughput import TowerCost
from dpr.training.validations.protocol import Metrics
from tests.helpers.tiny import encoder_folder, make_samples, tiny_model
from tests.helpers.training import Calling, tiny_trainer


def logged(folder: Path, *callbacks: Callback, **options: Any) -> list[Metrics]:
    logs: list[Metrics] = []
    note = Calling("on_log", lambda trainer, metrics: logs.append(dict(metrics)))
    tiny_trainer(folder, *callbacks, note, **options).train()
    return logs


def test_a_log_line_has_all_plausible_metrics(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="dpr"):
        last = logged(tmp_path)[-1]
    assert 0 < last["perf/mfu"] < 1
    assert 0.05 < last["perf/mem_gb"] < 64
    assert last["perf/eta_s"] == 0
    line = next(message for message in caplog.messages if "step 6/6" in message)
    for word in "loss acc lr grad questions/s tokens/s padding MFU memory ETA".split():
        assert word in line


def test_the_loss_scale_of_fp16_is_logged_and_falls_where_a_step_overflows(tmp_path: Path) -> None:
    class Overflow(Callback):
        def on_step_end(self, trainer: BiEncoderTrainer) -> None:
            if trainer.progress.step == 2:
                scaler = trainer.training_step.scaler
                scaler.load_state_dict({**scaler.state_dict(), "scale": 2.0**100})

    weights: list[dict[str, torch.Tensor]] = []
    keep = Calling(
        "on_step_end",
        lambda trainer: weights.append(
            {name: tensor.clone() for name, tensor in trainer.model.weights().items()}
        ),
    )
    logs = logged(tmp_path, keep, Overflow(), precision="fp16", max_steps=4)
    scales = [log["optim/loss_scale"] for log in logs]
    assert scales[:2] == [2.0**16, 2.0**100]
    assert scales[2] == 2.0**99, "the step that overflowed halves the scale"
    assert all(torch.equal(weights[1][name], weights[2][name]) for name in weights[1])
    assert not all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.parametrize(
    ("options", "validations", "checkpoints"),
    # two, the best, and one that is being written; and the start
    [({}, 4, 4), ({"eval_at_start": True}, 5, 4), ({"keep": "better"}, 5, 5)],
)
def test_dry_runs_count(tmp_path: Path, options: dict[str, Any], validations: int, checkpoints: int) -> None:
    job = tiny_trainer(tmp_path, name="aside", num_train_epochs=4, save_every_steps=2, keep_last=2, **options)
    text = "\n".join(dry_run(job))
    assert "12 steps" in text and f"{validations} times" in text and "NOT ENOUGH" not in text
    assert f"{checkpoints} checkpoints of" in text
    assert not (tmp_path / "aside").exists()


def test_a_dry_run_knows_the_size_of_a_checkpoint(tmp_path: Path) -> None:
    (told,) = re.findall(r"checkpoints of (\S+) GB", "\n".join(dry_run(tiny_trainer(tmp_path, name="aside"))))
    job = tiny_trainer(tmp_path, name="real", num_train_epochs=1)
    job.train()
    size = sum(path.stat().st_size for path in job.checkpoints.stored_run().folder.rglob("*.safetensors"))  # type: ignore[union-attr]
    assert float(told) * 1e9 == pytest.approx(size, rel=0.2)


def test_a_dry_run_from_the_command_line_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dpr.formats.training_files.dpr import write_training_set
    from tests.helpers.jobs import train as main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    encoder_folder(Path("tiny"))
    write_training_set("train.json", make_samples(12))
    arguments = (
        "encoder.pretrained_model_cfg=tiny encoder.pretrained=false encoder.sequence_length=24"
        " train.batch_size=4 train.num_workers=0 device=cpu train_datasets=train.json dev_datasets=train.json"
        " output_dir=run train.dry_run=true train.num_train_epochs=5"
    )
    assert main(arguments.split()) == 0
    out = capsys.readouterr().out
    assert "15 steps" in out and "5 times" in out and "GiB" in out and "GB are free" in out
    assert not Path("run").exists()


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_the_arithmetic_counted_is_that_of_torchs_counter(tmp_path: Path, pooling: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    from dpr.core.batch import TokenBatch

    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}
    folder = encoder_folder(tmp_path / "encoder", **sizes)
    model = tiny_model(folder, dtype=torch.float32, pooling=pooling)
    lengths = [20, 20, 20]
    batch = TokenBatch(torch.full((60,), 12), torch.tensor(lengths), torch.zeros(3, dtype=torch.int64))
    model.train()
    # The fused kernel of the CPU is not known to the counter.
    with (
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        FlopCounterMode(display=False) as counter,
    ):
        model.question_model(batch).sum().backward()
    own = TowerCost(model.question_model).of(batch.lengths)
    # Computed on the way and not used: queries of all 60 tokens, keys and values of the 3 that are read,
    # forward only.
    unused = 2 * 64 * 64 * (60 + 2 * 3) if pooling == "cls" else 0
    assert own + unused == counter.get_total_flops()
    model.question_model.requires_grad_(False)
    assert TowerCost(model.question_model).of(batch.lengths) == pytest.approx(own / 3)


def test_frozen_weights_under_adapters_have_no_gradient_to_compute(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    lengths = torch.tensor([9, 4])
    plain = tiny_model(tmp_path, pooling="mean").question_model
    adapted = tiny_model(tmp_path, pooling="mean", adapter="lora", lora_rank=1, shared=True).question_model
    share = TowerCost(adapted).of(lengths) / TowerCost(plain).of(lengths)
    assert 0.6 < share < 0.85, "two passes of three, attention in full, and the adapters themselves"
