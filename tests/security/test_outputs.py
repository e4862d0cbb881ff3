"""What a run writes reveals no tokens, no environment and no home folder of the person who started it."""

from pathlib import Path

import pytest
import torch

from dpr.core.records import Passage
from dpr.embedding.settings import EmbedConfig
from dpr.formats.corpora import write_passages
from dpr.formats.training_files.dpr import write_training_set
from dpr.jobs import embed, train
from dpr.training.command_settings import TrainCommand
from tests.helpers.tiny import encoder_folder, make_samples

SECRETS = {
    "HF_TOKEN": "hf_abcdefghijklmnopqrstuvwx",
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY",
    "SOME_PASSWORD": "correct-horse-battery-staple",
    "USER": "jane-q-researcher",
    "LOGNAME": "jane-q-researcher",
}


def test_neither_training_nor_embedding_writes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home" / "jane-q-researcher"
    work = tmp_path / "work"
    for folder in (home, work):
        folder.mkdir(parents=True)
    for name, value in (SECRETS | {"HOME": str(home), "DPR_CACHE": str(home / "cache")}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(work)
    encoder_folder(work / "encoder")
    write_training_set("train.json", make_samples(16))
    write_passages("corpus.tsv", (Passage("ba be", "bi", str(row)) for row in range(8)))
    torch.manual_seed(0)
    config = TrainCommand(
        train_datasets="train.json", dev_datasets="train.json", output_dir="run", no_cuda=True
    )
    config.encoder.pretrained_model_cfg, config.encoder.pretrained = "encoder", False
    config.encoder.sequence_length = 24
    config.train.batch_size, config.train.num_train_epochs, config.train.num_workers = 8, 1, 0
    train.run(config)
    embed.run(EmbedConfig(model_file="run", ctx_src="corpus.tsv", out_file="run/vectors", no_cuda=True))
    files = [path for path in (work / "run").rglob("*") if path.is_file()]
    assert {"model.safetensors", "report.html", "metrics.jsonl", "vectors-00000.npy"} <= {
        path.name for path in files
    }
    for path in files:
        content = path.read_bytes()
        found = [name for name, value in SECRETS.items() if value.encode() in content]
        assert not found, f"{path} holds {found}"
        assert str(home).encode() not in content, f"{path} names the home folder"
