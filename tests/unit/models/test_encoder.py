"""Towers refuse, or warn of, vectors that ignore the text or depend on other texts, and texts that are too long."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from dpr.core.batch import TokenBatch
from dpr.core.errors import ConfigError
from dpr.models.backbones import backbone_from_config
from dpr.models.encoder import Encoder
from dpr.models.properties import longest_sequence
from tests.helpers.tiny import encoder_folder, tiny_model
from tests.unit.models.fast.test_decoders import GROUPED
from tests.unit.models.fast.test_packing import CONFIGS, SMALL
from tests.unit.models.test_backbones import GPT2, WITH_DROPOUT

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
def test_a_backbone_that_sees_padding_is_told(
    name: str, pooling: str, caplog: pytest.LogCaptureFixture
) -> None:
    backbone: Any = backbone_from_config(MIXING[name])
    with torch.no_grad():
        backbone.get_input_embeddings().weight[0] = 0.1  # as trained models have it, padding is no zero
    with caplog.at_level(logging.WARNING):
        Encoder(backbone, pooling=pooling)
    assert f"{name} gives a text another vector if it is padded" in caplog.text


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("packed", [True, False])
def test_others_are_not(name: str, packed: bool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Encoder(backbone_from_config(PLAIN[name]), packed=packed)
    assert "lets padding" not in caplog.text


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        (transformers.BertConfig(**SMALL), 80),
        (transformers.RobertaConfig(**SMALL), 78),
        (transformers.GPT2Config(**GPT2), 80),
        (WITH_DROPOUT["opt"], 2048),
        (transformers.MPNetConfig(**SMALL), 78),
        (
            transformers.DistilBertConfig(
                dim=32, n_layers=2, n_heads=2, hidden_dim=64, vocab_size=100, max_position_embeddings=20
            ),
            20,
        ),
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
