"""A user-defined pooling, written in this file alone, works from the command line wherever the toolkit's own
do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dpr.cli.main import main
from dpr.formats import checkpoints, run_folders
from dpr.formats.training_files.dpr import write_training_set
from dpr.models.biencoder import BiEncoder
from dpr.models.pooling import MeanPooling
from dpr.models.settings import EncoderSettings
from tests.helpers.processes import run_on_ranks
from tests.helpers.tiny import encoder_folder, make_samples

TOY = "tests.cli.test_pooling_contract:Toy"


class Toy(nn.Module):
    """The mean over all tokens beside the first token, which has weights of its own."""

    def __init__(self, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.mean, self.weight = MeanPooling(hidden_size, vocab_size), nn.Parameter(torch.ones(hidden_size))

    def token_read(self, lengths: Tensor, position: Tensor) -> Tensor | None:
        return None

    def padded(self, hidden: Tensor, tokens: Tensor, mask: Tensor, position: Tensor) -> Tensor:
        return torch.cat(
            [self.mean.padded(hidden, tokens, mask, position), hidden[:, 0] * self.weight], dim=1
        )

    def packed(self, hidden: Tensor, tokens: Tensor, lengths: Tensor, position: Tensor) -> Tensor:
        first = hidden[torch.cumsum(lengths, 0) - lengths]
        return torch.cat([self.mean.packed(hidden, tokens, lengths, position), first * self.weight], dim=1)


def code_of(argv: list[str]) -> int:
    return main(["train", *argv])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pooling")
    encoder_folder(folder / "encoder")
    write_training_set(folder / "train.json", make_samples(16))
    (folder / "corpus.tsv").write_text(
        "id\ttext\ttitle\n"
        + "".join(f"{n}\tba be {word}\t\n" for n, word in enumerate("bi bo ca co".split()))
    )
    (folder / "questions.csv").write_text("ba be\t['bi']\nco\t['co']\n")
    return folder


def train(folder: Path, name: str, *more: str, ranks: int = 1) -> dict[str, Tensor]:
    arguments = [
        f"train_datasets=[{folder}/train.json]",
        f"output_dir={folder}/{name}",
        f"encoder.pretrained_model_cfg={folder}/encoder",
        *(
            "encoder.pretrained=false",
            "encoder.sequence_length=24",
            "encoder.dropout=0",
            f"encoder.pooling={TOY}",
        ),
        *(
            "train.global_batch_size=8",
            "train.num_train_epochs=2",
            "train.learning_rate=0.05",
            "train.warmup_steps=0",
        ),
        # above most gradients, so that updates do not magnify the rounding of small ones
        "train.adam_eps=0.01",
        *("train.num_workers=0", "train.keep_last=0", "device=cpu", *more),
    ]
    assert run_on_ranks(code_of, ranks, arguments, join=False) == [0] * ranks
    newest = run_folders.checkpoint_folders(folder / name, "dpr_biencoder")[0]
    return checkpoints.read_tensors(newest, checkpoints.MODEL_FILE)


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, Tensor]:
    weights = train(folder, "alone")
    assert any(
        not torch.equal(tensor, torch.ones_like(tensor))
        for name, tensor in weights.items()
        if name.endswith("pooling.weight")
    )
    return weights


def test_it_trains_alike_padded_cached_and_on_two_processes(folder: Path, alone: dict[str, Tensor]) -> None:
    other = ["encoder.packed=false", "train.grad_cache_tokens=60", "train.batch_size=4"]
    found = train(folder, "two-ranks", *other, ranks=2)
    assert found.keys() == alone.keys()
    for key, expected in alone.items():
        torch.testing.assert_close(found[key], expected, rtol=0, atol=3e-4, msg=key)


def test_a_run_is_resumed_bit_for_bit(folder: Path, alone: dict[str, Tensor]) -> None:
    train(folder, "halves", "train.stop_at_epoch=1")
    resumed = train(folder, "halves", "train.stop_at_epoch=2")
    assert all(torch.equal(tensor, resumed[key]) for key, tensor in alone.items())


def test_commands_load_it_where_its_class_is_named_and_refuse_it_otherwise(
    folder: Path, alone: dict[str, Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    named, model = f"encoder.pooling={TOY}", f"model_file={folder}/alone"
    corpus = [model, f"ctx_src={folder}/corpus.tsv", f"out_file={folder}/vectors", "no_cuda=true"]
    asked = [
        model,
        f"ctx_datasets=[{folder}/corpus.tsv]",
        f"encoded_ctx_files=[{folder}/vectors_0]",
        "no_cuda=true",
    ]
    asked += [f"qa_dataset={folder}/questions.csv", f"out_file={folder}/found.json"]
    mined = [str(folder / "train.json"), model, f"out={folder}/mined.jsonl", "device=cpu"]
    for command, arguments in (("embed", corpus), ("retrieve", asked), ("mine", mined)):
        assert main([command, *arguments]) == 3
        assert f"set encoder.pooling={TOY}" in capsys.readouterr().err
        assert main([command, *arguments, named]) == 0
    exported = [model, f"out_file={folder}/exported.cp", "to=dpr"]
    assert main(["export", *exported, named]) == 3
    assert f"pooling is {TOY}" in capsys.readouterr().err
    loaded = BiEncoder.load(folder / "alone", settings=EncoderSettings(pooling=TOY))
    assert loaded.dimension == 32
