"""``dpr pretrain``: text in, an encoder folder out, whatever happened between."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dpr.core.batch import TokenBatch
from dpr.formats import checkpoints
from dpr.models.biencoder import BiEncoder
from dpr.models.encoder import Encoder
from dpr.models.pretraining import PretrainingHeads
from tests.helpers.jobs import raising, train
from tests.helpers.tiny import encoder_folder, static_folder
from tests.unit.data.test_pseudo_pairs import made_rows, write_corpus

pretrain = raising("pretrain")


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    encoder_folder(tmp_path / "start", max_position_embeddings=64)
    return write_corpus(tmp_path / "corpus.jsonl", made_rows(60))


def arguments(corpus: Path, out: str, *more: str) -> list[str]:
    given = [f"train_datasets=[{corpus}]", f"output_dir={corpus.parent / out}", f"encoder.pretrained_model_cfg={corpus.parent / 'start'}"]
    given += ["encoder.pretrained=false", "encoder.sequence_length=32", "train.batch_size=12", "train.num_train_epochs=3"]
    return [*given, "train.learning_rate=1e-3", "train.log_batch_step=1", "device=cpu", *more]


def logged(folder: Path) -> list[dict[str, float]]:
    return [line for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()) if "train/loss" in line]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return checkpoints.read_tensors(checkpoints.resolve_checkpoint(folder), checkpoints.MODEL_FILE)


def test_an_encoder_comes_of_text_and_is_trained_further(corpus: Path, tmp_path: Path) -> None:
    pretrain(arguments(corpus, "run"))
    lines, kinds = logged(tmp_path / "run"), ("pair_loss", "masked_loss", "decoder_loss")
    for line in lines:
        assert line["train/loss"] == pytest.approx(sum(line[f"train/{kind}"] for kind in kinds))
    assert lines[-1]["train/masked_loss"] < lines[0]["train/masked_loss"]
    assert any(name.startswith("question_model.heads.") for name in weights(tmp_path / "run"))
    model, texts = BiEncoder.load(tmp_path / "run"), ["ba be bi", "ko ku"]
    assert model.question_model.heads is None
    rows = [{"question": f"ba {number}", "positive_ctxs": [{"text": f"be {number}"}]} for number in range(4)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = [f"train_datasets=[{tmp_path / 'train.jsonl'}]", "train.max_steps=1", "train.learning_rate=0", "train.batch_size=2"]
    given += ["device=cpu"]
    alike = ["encoder.shared=true", "encoder.pooling=mean", "encoder.normalize=true", "encoder.sequence_length=32"]
    alike += [f"encoder.pretrained_model_cfg={tmp_path / 'run/encoder'}"]
    assert train([*given, *alike, f"output_dir={tmp_path / 'from_encoder'}"]) == 0
    assert train([*given, f"model_file={tmp_path / 'run'}", f"output_dir={tmp_path / 'from_run'}"]) == 0
    for name in ("from_encoder", "from_run"):
        there = BiEncoder.load(tmp_path / name).encode_passages(texts)
        torch.testing.assert_close(torch.from_numpy(there), torch.from_numpy(model.encode_passages(texts)), rtol=0, atol=1e-6)


def test_a_stopped_run_ends_with_the_same_bits(corpus: Path, tmp_path: Path) -> None:
    pretrain(arguments(corpus, "whole"))
    pretrain(arguments(corpus, "stopped", "train.stop_at_epoch=1"))
    first = BiEncoder.load(tmp_path / "stopped/encoder", settings=BiEncoder.load(tmp_path / "stopped").settings).fingerprint
    pretrain(arguments(corpus, "stopped"))
    whole, stopped = weights(tmp_path / "whole"), weights(tmp_path / "stopped")
    assert whole.keys() == stopped.keys()
    assert all(torch.equal(tensor, stopped[name]) for name, tensor in whole.items())
    settings = BiEncoder.load(tmp_path / "stopped").settings
    made = [BiEncoder.load(tmp_path / name / "encoder", settings=settings).fingerprint for name in ("whole", "stopped")]
    assert made[0] == made[1] != first  # the encoder of the earlier end was replaced


def test_tokens_alone_need_no_pairs(corpus: Path, tmp_path: Path) -> None:
    pretrain(arguments(corpus, "run", "pretrain.pairs_weight=0", "pretrain.decoder_masked=0"))
    (last, *_) = logged(tmp_path / "run")[::-1]
    assert last["train/loss"] == pytest.approx(last["train/masked_loss"])
    assert not {"train/in_batch_acc", "train/decoder_loss", "train/pair_loss"} & last.keys()
    assert not [name for name in last if name.startswith("pool/")]  # vectors that nothing trains would be said to collapse


def test_what_another_run_began_with_is_another_run(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pretrain(arguments(corpus, "run", "train.max_steps=2"))
    for changed in ("pretrain.masked=0.2", "pretrain.decoder_masked=0.4", "pretrain.pairs_weight=2"):
        assert train_code(arguments(corpus, "run", "train.max_steps=2", changed)) not in (0, 1, 2)
        assert f"different run: {changed.split('=')[0]}" in capsys.readouterr().err


def train_code(given: list[str]) -> int:
    from dpr.cli.main import main

    return main(["pretrain", *given])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["encoder.shared=false"], "encoder.shared=false"),
        (["encoder.pooling=bm25"], "encoder.pooling=bm25"),
        (["train.precision=fp16"], "train.precision=fp16"),
        (["pretrain.masked=0"], "pretrain.masked"),
        (["pretrain.pairs_weight=0", "pretrain.pairs=crops"], "pretrain.pairs"),
        (["pretrain.pairs=nonsense"], "nonsense is not a kind of pairs"),
        (["train_datasets=null"], "train_datasets"),
        (["train_datasets=[absent.jsonl]"], "absent.jsonl"),
    ],
)
def test_what_does_not_fit_is_said(corpus: Path, more: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert train_code(arguments(corpus, "run", *more)) == 2
    assert message in capsys.readouterr().err


def test_a_static_encoder_is_refused(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    static = static_folder(tmp_path / "static")
    assert train_code(arguments(corpus, "run", f"encoder.pretrained_model_cfg={static}")) == 2
    assert "a static encoder has no layers" in capsys.readouterr().err


def test_masks_change_with_each_step_and_equal_texts_count_as_often_as_they_are_listed(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    whole = PretrainingHeads.vectors

    def vectors(heads: PretrainingHeads, tower: Encoder, batch: TokenBatch) -> torch.Tensor:
        if heads.training:
            seen.append((heads.key, len(batch)))
        return whole(heads, tower, batch)

    monkeypatch.setattr(PretrainingHeads, "vectors", vectors)
    write_corpus(corpus, [{"title": "", "text": "ba be bi bo bu da de di"}] * 12)
    pretrain(arguments(corpus, "run", "train.max_steps=3", "pretrain.pairs_weight=0"))
    assert len(seen) == len({key for key, _ in seen}) == 3
    assert {size for _, size in seen} == {24}  # 12 questions without words, and 12 texts
