"""A static encoder is a table, token weights and a mean: packed equals padded, and its folder keeps it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from dpr.core.batch import TokenBatch
from dpr.core.errors import ConfigError, InputError
from dpr.formats.token_frequencies import TOKEN_FREQUENCIES_FILE, TokenFrequencies
from dpr.jobs.train import build_model
from dpr.models.biencoder import BiEncoder, TowerOptions
from dpr.training.command_settings import TrainCommand
from tests.helpers.tiny import VOCABULARY, encoder_folder, static_folder, tiny_model
from tests.helpers.training import assert_near, encoded

BATCH = TokenBatch.from_lists([[5, 9, 9, 30, 6], [5, 6], [5, 12, 9, 6, 40, 41, 9]])


@pytest.mark.parametrize("side", ["question", "ctx"])
@pytest.mark.parametrize("pooling", ["idf", "idf_sqrt", "mean", "weighted_mean", "last"])
def test_packed_equals_padded_in_vectors_and_gradients(tmp_path: Path, pooling: str, side: str) -> None:
    folder = static_folder(tmp_path)
    results = []
    for packed in (True, False):
        model = tiny_model(
            folder, shared=True, pooling=pooling, normalize=True, options=TowerOptions(packed=packed)
        )
        tower = model.tower(side)
        assert tower.is_packed == packed
        results.append(encoded(tower, BATCH))
    assert len(results[0]) == (3 if pooling in ("idf", "idf_sqrt") else 2)
    assert_near(*results, 1e-13)


def test_a_vector_is_the_mean_of_rows_times_idf(tmp_path: Path) -> None:
    folder = static_folder(tmp_path)
    tower = tiny_model(folder, shared=True, pooling="idf").question_model
    count = torch.arange(len(VOCABULARY), dtype=torch.float64) % 100
    idf = torch.log1p((100 - count + 0.5) / (count + 0.5))
    idf = idf / idf.mean()
    texts = BATCH.tokens.split(BATCH.lengths.tolist())
    rows = tower.backbone.words.weight
    expected = [(idf[tokens, None] * rows[tokens]).mean(0) for tokens in texts]
    torch.testing.assert_close(tower(BATCH), torch.stack(expected), rtol=0, atol=1e-6)
    torch.testing.assert_close(tower.pooling.token_weights.detach(), idf, rtol=1e-6, atol=0)


def test_repeats_count_by_their_root_and_weights_begin_with_the_root_of_idf(tmp_path: Path) -> None:
    folder = static_folder(tmp_path)
    idf, root = (tiny_model(folder, shared=True, pooling=name).question_model for name in ("idf", "idf_sqrt"))
    start = idf.pooling.token_weights.detach().sqrt()
    torch.testing.assert_close(root.pooling.token_weights.detach(), start / start.mean(), rtol=1e-6, atol=0)
    rows = root.pooling.token_weights[:, None] * root.backbone.words.weight
    expected = [(rows[5] + 2**0.5 * rows[9] + rows[30] + rows[6]) / 5, (rows[5] + rows[6]) / 2]
    torch.testing.assert_close(root(BATCH)[:2], torch.stack(expected), rtol=0, atol=1e-12)


def test_the_gradient_holds_the_tokens_of_the_batch_alone(tmp_path: Path) -> None:
    tower = tiny_model(static_folder(tmp_path), shared=True, pooling="idf").question_model
    tower(BATCH).sum().backward()
    gradient = tower.backbone.words.weight.grad
    assert gradient.is_sparse and gradient._indices().tolist() == [sorted(set(BATCH.tokens.tolist()))]


def test_its_folder_keeps_everything(tmp_path: Path) -> None:
    folder, options = static_folder(tmp_path / "encoder"), TowerOptions(temperature=0.05)
    model = tiny_model(folder, shared=True, pooling="idf", normalize=True, options=options)
    nn.init.normal_(model.question_model.pooling.token_weights)
    model.float().save(tmp_path / "model")
    loaded = BiEncoder.load(tmp_path / "model")
    assert loaded.fingerprint == model.fingerprint and loaded.stored_temperature == 0.05
    assert (loaded.encode(["ba be bi", ""]) == model.encode(["ba be bi", ""])).all()


def test_opening_one_imports_none_of_transformers_models(tmp_path: Path) -> None:
    tiny_model(static_folder(tmp_path / "encoder"), shared=True, pooling="idf").save(tmp_path / "model")
    program = (
        "import sys; from dpr import BiEncoder; BiEncoder.load(sys.argv[1]).encode_questions(['ba be'])\n"
        "print({'transformers.modeling_utils', 'torch._dynamo', 'scipy', 'peft'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "model")], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "set()"


def test_a_folder_that_transformers_wrote_of_one_is_read(tmp_path: Path) -> None:
    model = tiny_model(static_folder(tmp_path), shared=True, pooling="mean")
    rows = model.question_model.backbone.words.weight.detach()
    save_file({"words.weight": rows.half()}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    opened = BiEncoder.from_pretrained(str(tmp_path), model.settings).question_model.backbone
    assert (opened.words.weight == rows.half().to(rows)).all() and not opened.training
    save_file({"words.weight": rows[:-1].contiguous()}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="of another shape: words"):
        BiEncoder.from_pretrained(str(tmp_path), model.settings)


def test_without_frequencies_all_tokens_begin_alike(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_model(static_folder(tmp_path / "uncounted", counted=False), shared=True, pooling="idf")
    assert "token weights of encoder.pooling=idf begin with 1" in caplog.text
    assert (model.question_model.pooling.token_weights == 1).all()


@pytest.mark.parametrize(
    "stored",
    [
        {"passages": 3},
        {"passages": 3, "passages_with": [1]},
        {"passages": 3, "passages_with": [4] * len(VOCABULARY)},
        {"passages": 3, "passages_with": [1] * len(VOCABULARY), "mean_length": -1},
    ],
)
def test_damaged_frequencies_are_refused(tmp_path: Path, stored: object) -> None:
    static_folder(tmp_path)
    (tmp_path / TOKEN_FREQUENCIES_FILE).write_text(json.dumps(stored))
    with pytest.raises(InputError, match="is not a count of tokens"):
        TokenFrequencies.read(tmp_path, vocab_size=len(VOCABULARY))


def test_idf_is_positive_and_greatest_for_what_was_never_seen() -> None:
    idf = TokenFrequencies(10, np.array([0, 1, 5, 10])).idf()
    assert (np.diff(idf) < 0).all() and 0 < idf[-1] < 0.05


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dpr_trailing_sep"):
        tiny_model(static_folder(tmp_path / "static"), pooling="mean", dpr_trailing_sep=True)
    with pytest.raises(ConfigError, match=r"encoder\.pooling=cls"):
        tiny_model(tmp_path / "static")
    config = TrainCommand()
    config.encoder.encoder_model_type = "static"
    config.encoder.pretrained_model_cfg = str(encoder_folder(tmp_path / "bert"))
    with pytest.raises(ConfigError, match=r"not the folder of a static .*make one with dpr new-encoder"):
        build_model(config)
