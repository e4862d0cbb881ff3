"""Backbones of every family have the dropout that was asked for; encoder-decoders give their text encoder."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoModel
from transformers.utils import logging

from dpr.core.distributed import Ranks
from dpr.core.errors import ConfigError, InputError
from dpr.core.records import Passage
from dpr.formats.corpora import write_passages
from dpr.models import backbones
from dpr.models.backbones import backbone_from_config, load_backbone
from dpr.models.biencoder import BiEncoder
from dpr.models.encoder import Encoder, EncoderSettings
from dpr.models.properties import dropout_of
from tests.helpers.tiny import VOCABULARY, ListSource, encoder_folder, make_samples
from tests.helpers.training import make_trainer
from tests.unit.models.fast.test_packing import SMALL, batch_of

T5: dict[str, Any] = {"d_model": 32, "num_layers": 2, "num_heads": 2, "d_ff": 64, "d_kv": 16}
T5["vocab_size"] = len(VOCABULARY)
GPT2: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 80, "vocab_size": 100}
GPT2 |= {"bos_token_id": 1, "eos_token_id": 2}
WITH_DROPOUT = {
    "gpt2": transformers.GPT2Config(**GPT2),
    "t5": transformers.T5Config(**T5, dropout_rate=0.1),
    "bert": transformers.BertConfig(**SMALL),
    "distilbert": transformers.DistilBertConfig(dim=32, n_layers=2, n_heads=2, hidden_dim=64, vocab_size=100),
    "bloom": transformers.BloomConfig(
        hidden_size=32, n_layer=2, n_head=2, vocab_size=100, hidden_dropout=0.1, attention_dropout=0.1
    ),
    "xlnet": transformers.XLNetConfig(d_model=32, n_layer=2, n_head=2, d_inner=64, vocab_size=100),
    "opt": transformers.OPTConfig(
        hidden_size=32,
        ffn_dim=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        vocab_size=100,
        word_embed_proj_dim=32,
    ),
}


@pytest.mark.parametrize("name", WITH_DROPOUT)
def test_dropout_0_switches_off_all_there_is(name: str) -> None:
    torch.manual_seed(0)
    tower = Encoder(backbone_from_config(WITH_DROPOUT[name], dropout=0.0), pooling="mean").train()
    assert not [module for module in tower.modules() if isinstance(module, nn.Dropout) and module.p]
    assert torch.equal(tower(batch_of([9, 4])), tower(batch_of([9, 4])))
    assert set(dropout_of(tower.config).values()) == {0.0}
    other = Encoder(backbone_from_config(WITH_DROPOUT[name], dropout=0.3), pooling="mean").train()
    assert not torch.equal(other(batch_of([9, 4])), other(batch_of([9, 4])))
    assert dropout_of(other.config)["encoder.dropout"] == 0.3


def test_attention_dropout_is_set_apart_and_heads_keep_theirs() -> None:
    backbone: Any = backbone_from_config(WITH_DROPOUT["gpt2"], dropout=0.2, attention_dropout=0.0)
    config = backbone.config
    assert (config.resid_pdrop, config.embd_pdrop, config.attn_pdrop) == (0.2, 0.2, 0.0)
    assert config.summary_first_dropout == 0.1


def test_a_dropout_that_the_config_does_not_name_is_switched_off_too(monkeypatch: pytest.MonkeyPatch) -> None:
    made = transformers.BertModel.__init__

    def with_another(self: Any, *arguments: Any, **options: Any) -> None:
        made(self, *arguments, **options)
        self.another = nn.Dropout(0.5)

    monkeypatch.setattr(transformers.BertModel, "__init__", with_another)
    for dropout, expected in ((0.0, 0.0), (0.1, 0.5), (None, 0.5)):
        backbone: Any = backbone_from_config(WITH_DROPOUT["bert"], dropout=dropout)
        assert backbone.another.p == expected


@pytest.mark.parametrize("family", ["T5", "MT5", "UMT5"])
def test_the_encoder_of_t5_trains_is_saved_and_encodes(family: str, tmp_path: Path) -> None:
    """Weights of the whole model give its encoder; relative positions cannot be packed."""
    folder = tmp_path / "t5"
    torch.manual_seed(0)
    whole: Any = getattr(transformers, f"{family}Model")(getattr(transformers, f"{family}Config")(**T5))
    whole.save_pretrained(str(folder))
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(str(folder))
    settings = EncoderSettings(sequence_length=24, pooling="mean")
    model = BiEncoder.from_pretrained(str(folder), settings, dropout=0.0)
    assert type(model.question_model.backbone).__name__ == f"{family}EncoderModel"
    assert not model.question_model.is_packed
    tokens = batch_of([9])
    with torch.no_grad():
        expected = whole.eval().encoder(input_ids=tokens.tokens[None]).last_hidden_state[0].mean(0)
        torch.testing.assert_close(model.eval().question_model(tokens)[0], expected, rtol=0, atol=1e-5)
    make_trainer(model, [ListSource(make_samples(16))], [], tmp_path / "run", max_steps=2).train()
    loaded = BiEncoder.load(tmp_path / "run")
    texts = [sample.question for sample in make_samples(16)]
    assert abs(loaded.encode_questions(texts) - model.encode_questions(texts)).max() < 1e-6
    given = BiEncoder.load(folder, settings=EncoderSettings(pooling="mean", sequence_length=24))
    assert given.encode_questions(texts).any()


@pytest.mark.parametrize(
    "config",
    [transformers.DPRConfig(**SMALL), transformers.CanineConfig(**SMALL)],
    ids=lambda config: config.model_type,
)
def test_what_gives_no_state_for_every_token_is_refused_in_one_line(config: Any) -> None:
    with pytest.raises(ConfigError, match=r"encoder\.pretrained_model_cfg: .* cannot be a tower") as caught:
        Encoder(backbone_from_config(config))
    assert "\n" not in str(caught.value)


def test_every_value_of_a_loaded_backbone_is_taken(tmp_path: Path) -> None:
    transformers.BertModel(WITH_DROPOUT["bert"]).save_pretrained(str(tmp_path))
    backbone: Any = load_backbone(str(tmp_path), dropout=0.0)
    assert backbone.config.hidden_dropout_prob == 0.0 and backbone.embeddings.dropout.p == 0.0


def test_a_new_encoder_needs_no_further_setting(tmp_path: Path) -> None:
    """Its manifest says whose it is; a folder that has lost its weights is still refused."""
    from dpr.preparation.new_encoder import EncoderShape, new_encoder

    folder, settings = tmp_path / "new", EncoderSettings(sequence_length=16)
    shape = EncoderShape(hidden_size=16, num_heads=2, max_positions=16, vocab_size=200)
    write_passages(tmp_path / "corpus.jsonl", [Passage("ba be bi bo bu", "", "1")])
    new_encoder(folder, tmp_path / "corpus.jsonl", shape=shape)
    weights = []
    for pretrained in (True, False):
        torch.manual_seed(0)
        weights.append(BiEncoder.from_pretrained(str(folder), settings, pretrained=pretrained).weights())
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=0)
    with pytest.raises(ConfigError, match=r"lora needs pretrained weights, but .* has none"):
        BiEncoder.from_pretrained(str(folder), EncoderSettings(sequence_length=16, adapter="lora"))
    (folder / "manifest.json").unlink()
    with pytest.raises(InputError, match="the weights could not be loaded"):
        BiEncoder.from_pretrained(str(folder), settings)


def test_nothing_is_said_of_the_pooler_and_each_bar_comes_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> None:
    folder = encoder_folder(tmp_path / "encoder")
    AutoModel.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)  # with its pooler
    level, reported = logging.get_verbosity(), []
    logging.add_handler(caplog.handler)  # its own writes to what was the standard error when it was imported
    request.addfinalizer(lambda: logging.remove_handler(caplog.handler))
    for rank, is_terminal in ((0, True), (1, True), (0, False)):
        capfd.readouterr()
        monkeypatch.setattr(backbones, "current_ranks", lambda rank=rank: Ranks(rank, 2))
        monkeypatch.setattr(backbones, "shows_bars", lambda stream, shows=is_terminal: shows)
        load_backbone(str(folder))
        assert logging.is_progress_bar_enabled() and logging.get_verbosity() == level
        reported.append("".join(capfd.readouterr()))
    reported.append(caplog.text)
    assert "pooler" not in "".join(reported) and "REPORT" not in "".join(reported)
    assert ["Loading weights" in text for text in reported[:3]] == [True, False, False]
