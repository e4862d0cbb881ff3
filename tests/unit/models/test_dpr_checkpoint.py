"""Checkpoints of the original and folders of transformers' DPR classes give the vectors of these, stray [SEP] and all, or are refused."""

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, DistilBertConfig, ModernBertConfig, RobertaConfig

from dpr.core.batch import TokenBatch
from dpr.core.errors import CheckpointError, ConfigError, InputError
from dpr.core.records import Passage
from dpr.models.backbones import backbone_from_config
from dpr.models.biencoder import BiEncoder, TowerOptions
from dpr.models.encoder import Encoder
from tests.helpers.original import flat_params, nested_params, original_extras, original_names, write_original
from tests.helpers.tiny import WORDS, encoder_folder, tiny_model

TEXTS = [" ".join(WORDS[start : start + count]) for start, count in ((0, 3), (9, 30), (20, 12), (4, 1))]
PASSAGES = [Passage(text, title) for text, title in zip(TEXTS, ["ba", "", "be bi", ""], strict=True)]


def file_of(model: BiEncoder, path: Path, params: dict[str, Any], *, as_zip: bool = True) -> Path:
    weights = original_extras(original_names(model.float().weights()), 16)
    return write_original(path, weights, params, as_zip=as_zip)


def original_vectors(model: BiEncoder, texts: list[tuple[str, ...]], tower: str) -> torch.Tensor:
    """The original's way: one padded window of 24 per text, [SEP] at its last place, first token, projection."""
    encoder, tokenizer = getattr(model, tower), model.tensorizer.tokenizer
    rows = []
    for pair in texts:
        tokens = tokenizer(*pair, truncation="longest_first", max_length=24)["input_ids"]
        tokens = [*tokens, *[0] * (24 - len(tokens))]
        tokens[-1] = tokenizer.sep_token_id
        ids = torch.tensor([tokens])
        mask = (ids != 0).long()
        types = torch.zeros_like(ids)
        state = encoder.backbone(ids, attention_mask=mask, token_type_ids=types).last_hidden_state[0, 0]
        rows.append(state if encoder.encode_proj is None else encoder.encode_proj(state))
    return torch.stack(rows).detach()


@pytest.mark.parametrize("projection", [0, 5])
@pytest.mark.parametrize("as_zip", [True, False], ids=["zip", "sequence"])
@pytest.mark.parametrize("params", [flat_params, nested_params])
def test_vectors_are_those_of_the_original(
    tmp_path: Path, params: Callable[..., dict[str, Any]], as_zip: bool, projection: int
) -> None:
    made = tiny_model(tmp_path / "bert", dtype=torch.float32, projection_dim=projection)
    given = params(str(tmp_path / "bert"), projection_dim=projection)
    file = file_of(made, tmp_path / "x.cp", given, as_zip=as_zip)
    loaded = BiEncoder.load(file)
    assert loaded.settings.dpr_trailing_sep
    assert (loaded.settings.sequence_length, loaded.dimension) == (24, projection or 16)
    pairs: list[tuple[str, ...]] = [(p.title, p.text) if p.title else (p.text,) for p in PASSAGES]
    expected = {
        "passages": original_vectors(made, pairs, "ctx_model"),
        "questions": original_vectors(made, [(t,) for t in TEXTS], "question_model"),
    }
    np.testing.assert_allclose(loaded.encode_passages(PASSAGES), expected["passages"], atol=1e-6)
    np.testing.assert_allclose(loaded.encode_questions(TEXTS), expected["questions"], atol=1e-6)


def test_another_encoder_stands_in_for_a_missing_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tiny_model(tmp_path / "bert", dtype=torch.float32)
    file = file_of(made, tmp_path / "x.cp", nested_params("some/unknown-encoder"))
    with pytest.raises(CheckpointError, match=r"x\.cp: it builds on some/unknown.*pretrained_model_cfg="):
        BiEncoder.load(file)
    loaded = BiEncoder.load(file, pretrained_model_cfg=str(tmp_path / "bert"))
    assert loaded.weights().keys() == made.weights().keys()
    with pytest.raises(InputError, match="absent"):
        BiEncoder.load(file, pretrained_model_cfg=str(tmp_path / "absent"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("ctx_model.encoder.layer.1.output.dense.bias"), r"1 missing: .*layer\.1\.output"),
        (lambda w: w.update({"reader.qa.weight": torch.zeros(2)}), r"1 not known: reader\.qa\.weight"),
        (lambda w: w.update({"ctx_model.embeddings.LayerNorm.bias": torch.zeros(7)}), "1 of another shape"),
    ],
)
def test_weights_that_do_not_fit_are_named(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], Any], message: str
) -> None:
    made = tiny_model(tmp_path / "bert", dtype=torch.float32)
    weights = original_names(made.weights())
    change(weights)
    file = write_original(tmp_path / "x.cp", weights, flat_params(str(tmp_path / "bert")))
    with pytest.raises(CheckpointError, match=message):
        BiEncoder.load(file)


def test_other_kinds_are_refused(tmp_path: Path) -> None:
    made = tiny_model(tmp_path / "bert", dtype=torch.float32)
    folder = str(tmp_path / "bert")
    for changes, message in (
        ({"encoder_model_type": "pytext_bert"}, "encoder_model_type is pytext_bert"),
        ({"pretrained_model_cfg": None}, "names no encoder"),
    ):
        file = file_of(made, tmp_path / "x.cp", flat_params(folder, **changes))
        with pytest.raises(CheckpointError, match=message):
            BiEncoder.load(file)


def test_saved_as_a_folder_it_stays_the_same_model(tmp_path: Path) -> None:
    made = tiny_model(tmp_path / "bert", dtype=torch.float32)
    loaded = BiEncoder.load(file_of(made, tmp_path / "x.cp", nested_params(str(tmp_path / "bert"))))
    loaded.save(tmp_path / "model")
    again = BiEncoder.load(tmp_path / "model")
    assert again.fingerprint == loaded.fingerprint and again.settings.dpr_trailing_sep
    assert (again.encode_passages(PASSAGES) == loaded.encode_passages(PASSAGES)).all()


def test_special_tokens_take_their_old_places(tmp_path: Path) -> None:
    made = tiny_model(tmp_path / "bert", dtype=torch.float32)
    file = file_of(made, tmp_path / "x.cp", flat_params(str(tmp_path / "bert")))
    loaded = BiEncoder.load(file, special_tokens=["[ENT]"])
    assert loaded.tensorizer.question_tokens(["ba [ENT] be"])[0][2] == 1  # the row of [unused0]


QUESTIONS = ["ba be bi", "", "Ba be BI", "don\u2019t ca ce?", " ".join(WORDS[:40])]
TITLED_OR_NOT = [Passage(text, title) for text in QUESTIONS for title in ("", "bi bo", " ".join(WORDS[:30]))]


def pair(folder: Path, *, projection: int = 0, length: int | None = None, lower: bool = True) -> Path:
    from transformers import (
        BertConfig,
        DPRConfig,
        DPRContextEncoder,
        DPRContextEncoderTokenizerFast,
        DPRQuestionEncoder,
    )
    from transformers import DPRQuestionEncoderTokenizerFast as QuestionTokenizer

    config = BertConfig.from_pretrained(str(encoder_folder(folder / "bert", initializer_range=0.2)))
    own = ("model_type", "architectures")
    values = {key: value for key, value in config.to_dict().items() if key not in own}
    torch.manual_seed(0)
    limit = {} if length is None else {"model_max_length": length}
    for name, model_class, tokenizer_class in (
        ("question_encoder", DPRQuestionEncoder, QuestionTokenizer),
        ("ctx_encoder", DPRContextEncoder, DPRContextEncoderTokenizerFast),
    ):
        model_class(DPRConfig(**values, projection_dim=projection)).save_pretrained(str(folder / name))
        tokenizer = tokenizer_class(str(folder / "bert" / "vocab.txt"), do_lower_case=lower, **limit)
        tokenizer.save_pretrained(str(folder / name))
    return folder


@torch.no_grad()
def their_vectors(folder: Path, texts: list[tuple[str, ...]], length: int) -> np.ndarray:
    from transformers import DPRContextEncoder, DPRContextEncoderTokenizerFast, DPRQuestionEncoder

    kind: Any = DPRQuestionEncoder if folder.name == "question_encoder" else DPRContextEncoder
    model = kind.from_pretrained(str(folder)).eval()
    tokenizer = DPRContextEncoderTokenizerFast.from_pretrained(str(folder))
    encoded = [
        tokenizer(
            *([part] for part in text), truncation="longest_first", max_length=length, return_tensors="pt"
        )["input_ids"]
        for text in texts
    ]
    return torch.cat([model(ids, torch.ones_like(ids)).pooler_output for ids in encoded]).numpy()


@pytest.mark.parametrize(
    ("projection", "length", "lower"), [(0, None, True), (5, 12, True), (0, None, False)]
)
def test_a_pair_has_its_vectors(tmp_path: Path, projection: int, length: int | None, lower: bool) -> None:
    folder = pair(tmp_path / "pair", projection=projection, length=length, lower=lower)
    model = BiEncoder.load(folder)
    assert not model.settings.shared and model.dimension == (projection or 16)
    found = their_vectors(folder / "question_encoder", [(question,) for question in QUESTIONS], length or 64)
    np.testing.assert_allclose(model.encode_questions(QUESTIONS), found, atol=3e-6)
    texts = [(passage.title, passage.text) if passage.title else (passage.text,) for passage in TITLED_OR_NOT]
    found = their_vectors(folder / "ctx_encoder", texts, length or 64)
    np.testing.assert_allclose(model.encode_passages(TITLED_OR_NOT), found, atol=3e-6)
    model.save(tmp_path / "again")
    again = BiEncoder.load(tmp_path / "again").encode_passages(TITLED_OR_NOT)
    np.testing.assert_array_equal(again, model.encode_passages(TITLED_OR_NOT))


def test_files_of_earlier_versions_hold_more(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = pair(tmp_path)
    expected = BiEncoder.load(folder).encode_passages(TITLED_OR_NOT)
    file = str(folder / "ctx_encoder" / "model.safetensors")
    prefix = "ctx_encoder.bert_model"
    more = {f"{prefix}.pooler.dense.weight": torch.zeros(16, 16)}
    more[f"{prefix}.embeddings.position_ids"] = torch.arange(64)[None]
    save_file(load_file(file) | more, file)
    np.testing.assert_array_equal(BiEncoder.load(folder).encode_passages(TITLED_OR_NOT), expected)


def test_half_a_pair_is_refused(tmp_path: Path) -> None:
    folder = pair(tmp_path)
    with pytest.raises(CheckpointError, match=r"one encoder of a .* pair, .* holds both.*question_encoder"):
        BiEncoder.load(folder / "ctx_encoder")
    shutil.rmtree(folder / "ctx_encoder")
    shutil.copytree(folder / "question_encoder", folder / "ctx_encoder")
    with pytest.raises(CheckpointError, match="weights of DPRContextEncoder are missing"):
        BiEncoder.load(folder)


def test_towers_of_different_tokenizers_are_refused(tmp_path: Path) -> None:
    from transformers import DPRContextEncoderTokenizerFast

    folder = pair(tmp_path)
    tokenizer = DPRContextEncoderTokenizerFast(str(folder / "bert" / "vocab.txt"), do_lower_case=False)
    tokenizer.save_pretrained(str(folder / "ctx_encoder"))
    with pytest.raises(CheckpointError, match="the tokenizers of questions and passages differ"):
        BiEncoder.load(folder)


WINDOW = 24
SEP, PAD = 6, 0
# 1 word to more words than the window holds; 21, 22 and 23 words fill all but one place, all, and one too
# many.
OF_ALL_LENGTHS = [" ".join(WORDS[:count]) for count in (1, 5, 21, 22, 23, 40, 5, 12)]
OF_ALL_LENGTHS_TITLED = [
    Passage(text, title)
    for text, title in zip(OF_ALL_LENGTHS, ["", "ba be", "", "", "", "bi", "bo", "bu"], strict=True)
]


def window_vectors(backbone: Any, sequences: list[list[int]]) -> torch.Tensor:
    """(N, L, D) hidden states of the original's windows."""
    input_ids = torch.full((len(sequences), WINDOW), PAD)
    for row, tokens in enumerate(sequences):
        input_ids[row, : len(tokens)] = torch.tensor(tokens)
        input_ids[row, -1] = SEP
    hidden: torch.Tensor = backbone(
        input_ids=input_ids, attention_mask=(input_ids != PAD).long()
    ).last_hidden_state
    return hidden


def models(folder: Path, *, packed: bool, **settings: Any) -> BiEncoder:
    model = tiny_model(folder, dpr_trailing_sep=True, options=TowerOptions(packed=packed), **settings)
    assert model.question_model.is_packed is packed
    return model


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_vectors_and_gradients_are_those_of_the_padded_window(
    tmp_path: Path, packed: bool, pooling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpr.models.fast.packed.CPU_FORWARD_TOKENS", 60)
    model = models(tmp_path, packed=packed, pooling=pooling)
    backbone = tiny_model(tmp_path).ctx_model.backbone  # plain, without any of it
    tower = model.ctx_model
    backbone.load_state_dict(tower.backbone.state_dict())
    sequences = model.tensorizer.passage_tokens(OF_ALL_LENGTHS_TITLED)
    assert {len(tokens) for tokens in sequences} >= {3, WINDOW - 1, WINDOW}
    hidden, vectors = window_vectors(backbone, sequences), tower(TokenBatch.from_lists(sequences))
    expected = hidden[:, 0]
    if pooling == "mean":
        lengths = map(len, sequences)
        expected = torch.stack([row[:length].mean(0) for row, length in zip(hidden, lengths, strict=True)])
    weights = torch.randn(vectors.shape, dtype=vectors.dtype, generator=torch.Generator().manual_seed(1))
    (expected * weights).sum().backward()
    (vectors * weights).sum().backward()
    torch.testing.assert_close(vectors, expected, rtol=0, atol=1e-10)
    for (name, one), (_, other) in zip(
        backbone.named_parameters(), tower.backbone.named_parameters(), strict=True
    ):
        torch.testing.assert_close(other.grad, one.grad, rtol=0, atol=1e-10, msg=name)


@pytest.mark.parametrize("family", [BertConfig, RobertaConfig, DistilBertConfig])
def test_every_family_numbers_the_far_position_by_its_own_rule(family: Any) -> None:
    torch.manual_seed(0)
    backbone = backbone_from_config(
        family(num_hidden_layers=2, hidden_size=48, num_attention_heads=12, intermediate_size=32), dropout=0.0
    )
    packed, padded = Encoder(copy.deepcopy(backbone)).double(), Encoder(backbone, packed=False).double()
    batch = TokenBatch.from_lists([[5, 9, 7], [6] * 20, list(range(5, 28)), [8]])
    before = padded(batch)
    for tower in (packed, padded):
        tower.attend_to_last(6, WINDOW - 1)
    torch.testing.assert_close(packed(batch), padded(batch), rtol=0, atol=1e-6)
    assert ((padded(batch) - before).abs().amax(1) > 1e-6).all()


def test_backbones_that_cannot_say_so() -> None:
    near_only = Encoder(
        backbone_from_config(ModernBertConfig(num_hidden_layers=1, hidden_size=8, num_attention_heads=2))
    )
    with pytest.raises(ConfigError, match=r"dpr_trailing_sep=true: ModernBertModel"):
        near_only.attend_to_last(2, 20)
    sizes = {"dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 64}
    short = Encoder(backbone_from_config(DistilBertConfig(**sizes, max_position_embeddings=20)))
    short.attend_to_last(2, 19)
    with pytest.raises(ConfigError, match="20 positions"):
        short.attend_to_last(2, 20)
