"""Backbones of every family have the dropout asked for; towers refuse, or warn of, vectors that ignore the text or depend on others."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoModel
from transformers.utils import logging

from dpr.core.batch import TokenBatch
from dpr.core.distributed import Ranks
from dpr.core.errors import ConfigError, InputError
from dpr.core.records import Passage
from dpr.formats.corpora import write_passages
from dpr.models import backbones
from dpr.models.backbones import backbone_from_config, load_backbone
from dpr.models.biencoder import BiEncoder
from dpr.models.encoder import Encoder, EncoderSettings
from dpr.models.properties import dropout_of, longest_sequence
from tests.helpers.tiny import VOCABULARY, ListSource, encoder_folder, make_samples, tiny_model
from tests.helpers.training import make_trainer
from tests.unit.models.fast.test_decoders import GROUPED
from tests.unit.models.fast.test_packing import CONFIGS, SMALL, batch_of

T5: dict[str, Any] = {"d_model": 32, "num_layers": 2, "num_heads": 2, "d_ff": 64, "d_kv": 16}
T5["vocab_size"] = len(VOCABULARY)
GPT2: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 80, "vocab_size": 100}
GPT2 |= {"bos_token_id": 1, "eos_token_id": 2}
OPT = {"hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 100}
DISTIL = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "vocab_size": 100}
WITH_DROPOUT = {
    "gpt2": transformers.GPT2Config(**GPT2),
    "t5": transformers.T5Config(**T5, dropout_rate=0.1),
    "bert": transformers.BertConfig(**SMALL),
    "distilbert": transformers.DistilBertConfig(**DISTIL),
    "bloom": transformers.BloomConfig(
        hidden_size=32, n_layer=2, n_head=2, vocab_size=100, hidden_dropout=0.1, attention_dropout=0.1
    ),
    "xlnet": transformers.XLNetConfig(d_model=32, n_layer=2, n_head=2, d_inner=64, vocab_size=100),
    "opt": transformers.OPTConfig(**OPT, word_embed_proj_dim=32),
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


CAUSAL = {name: WITH_DROPOUT[name] for name in ("gpt2", "opt", "bloom")} | {
    "llama": transformers.LlamaConfig(**SMALL, pad_token_id=0, initializer_range=1e-5)
}
NO_HEADS = {key: value for key, value in SMALL.items() if key != "num_attention_heads"}
MIXING = {
    "FNetModel": transformers.FNetConfig(**NO_HEADS),
    "ConvBertModel": transformers.ConvBertConfig(**SMALL, embedding_size=32),
    "NystromformerModel": transformers.NystromformerConfig(**SMALL),
    "MobileBertModel": transformers.MobileBertConfig(**SMALL, embedding_size=16, intra_bottleneck_size=16),
}
PLAIN = {
    "bert": WITH_DROPOUT["bert"],
    "mpnet": transformers.MPNetConfig(**SMALL),
    "xlnet": WITH_DROPOUT["xlnet"],
    "longformer": transformers.LongformerConfig(**SMALL, attention_window=8),
    "deberta": transformers.DebertaV2Config(**SMALL),
}


@pytest.mark.parametrize("name", CAUSAL)
def test_cls_pooling_of_causal_attention_is_refused_and_last_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=r"its attention is causal; set encoder\.pooling=last or mean"):
        Encoder(backbone_from_config(CAUSAL[name]))
    generator = torch.Generator().manual_seed(1)
    texts = torch.randint(5, 80, (2, 8), generator=generator)
    texts[1, 0] = texts[0, 0]
    tower = Encoder(backbone_from_config(CAUSAL[name], dropout=0.0), pooling="last").eval()
    first, second = tower(TokenBatch.from_lists(texts.tolist()))
    assert float((first - second).abs().max()) > 0


@pytest.mark.parametrize("name", MIXING)
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_seeing_padding_is_told(name: str, pooling: str, caplog: pytest.LogCaptureFixture) -> None:
    backbone: Any = backbone_from_config(MIXING[name])
    with torch.no_grad():
        backbone.get_input_embeddings().weight[0] = 0.1  # as trained models have it, padding is no zero
    with caplog.at_level("WARNING"):
        Encoder(backbone, pooling=pooling)
    assert f"{name} gives a text another vector if it is padded" in caplog.text


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("packed", [True, False])
def test_others_are_not(name: str, packed: bool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING"):
        Encoder(backbone_from_config(PLAIN[name]), packed=packed)
    assert "another vector if it is padded" not in caplog.text


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        (transformers.BertConfig(**SMALL), 80),
        (transformers.RobertaConfig(**SMALL), 78),
        (transformers.GPT2Config(**GPT2), 80),
        (WITH_DROPOUT["opt"], 2048),
        (transformers.MPNetConfig(**SMALL), 78),
        (transformers.DistilBertConfig(**DISTIL, max_position_embeddings=20), 20),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_every_family_counts_its_positions_by_its_own_rule(config: Any, positions: int) -> None:
    backbone = backbone_from_config(config)
    assert longest_sequence(backbone, positions) == positions
    assert longest_sequence(backbone, positions + 1) == positions
    assert longest_sequence(backbone, positions + 300) == positions


def test_positions_without_a_table_have_no_end() -> None:
    modern = CONFIGS["modernbert"]
    assert modern.max_position_embeddings < 200  # positions are computed
    for config in (modern, WITH_DROPOUT["t5"], WITH_DROPOUT["bloom"]):
        assert longest_sequence(backbone_from_config(config), 200) == 200


ROTARY = {"rope_theta": 10000.0, "factor": 4.0}
DECODER: dict[str, Any] = GROUPED | {"initializer_range": 0.2, "max_position_embeddings": 128}
LONG_ROPE = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [3.0] * 4}
LONG_ROPE["original_max_position_embeddings"] = 32
CHANGING: dict[str, Any] = {
    "phi3 longrope": lambda: transformers.Phi3Config(
        **DECODER, original_max_position_embeddings=32, rope_parameters=ROTARY | LONG_ROPE
    ),
    "llama dynamic": lambda: transformers.LlamaConfig(
        **DECODER | {"max_position_embeddings": 32, "rope_parameters": ROTARY | {"rope_type": "dynamic"}}
    ),
}


@pytest.mark.parametrize("kind", CHANGING)
@pytest.mark.parametrize("packed", [True, False])
def test_a_vector_never_depends_on_the_longest_text_beside_it(kind: str, packed: bool) -> None:
    tower = Encoder(backbone_from_config(CHANGING[kind](), dropout=0.0), pooling="last", packed=packed).eval()
    tower.check_length(32, "encoder.sequence_length")
    found = "=33, but a .* has 32 positions, or a text of more tokens changes .*; set .*=32 or less"
    with pytest.raises(ConfigError, match=found):
        tower.check_length(33, "encoder.sequence_length")
    assert longest_sequence(tower.backbone, 100) == 32

    short, full, too_long = (list(range(3, 3 + size)) for size in (12, 32, 40))
    with torch.no_grad():
        alone = tower(TokenBatch.from_lists([short]))
        torch.testing.assert_close(tower(TokenBatch.from_lists([full, short]))[1:], alone, rtol=0, atol=1e-5)
        changed = tower(TokenBatch.from_lists([too_long, short]))[1:] - alone
        assert changed.abs().max() > 1e-3  # which is why it is refused


@pytest.mark.parametrize("setting", ["sequence_length", "question_length"])
def test_more_tokens_than_positions_are_refused_at_the_start(setting: str, tmp_path: Path) -> None:
    encoder_folder(tmp_path)
    found = f"encoder.{setting}=65, but a BertModel has 64 positions.* set encoder.{setting}=64 or less"
    with pytest.raises(ConfigError, match=found):
        tiny_model(tmp_path, **{setting: 65})
    assert tiny_model(tmp_path, **{setting: 64}).dimension == 16
