"""Pairs of folders that transformers' DPR classes saved give the vectors that these classes give."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpr.core.errors import CheckpointError
from dpr.core.records import Passage
from dpr.models.biencoder import BiEncoder
from tests.helpers.tiny import WORDS, encoder_folder

QUESTIONS = ["ba be bi", "", "Ba be BI", "don\u2019t ca ce?", " ".join(WORDS[:40])]
PASSAGES = [Passage(text, title) for text in QUESTIONS for title in ("", "bi bo", " ".join(WORDS[:30]))]


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
    texts = [(passage.title, passage.text) if passage.title else (passage.text,) for passage in PASSAGES]
    found = their_vectors(folder / "ctx_encoder", texts, length or 64)
    np.testing.assert_allclose(model.encode_passages(PASSAGES), found, atol=3e-6)
    model.save(tmp_path / "again")
    again = BiEncoder.load(tmp_path / "again").encode_passages(PASSAGES)
    np.testing.assert_array_equal(again, model.encode_passages(PASSAGES))


def test_files_of_earlier_versions_hold_more(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = pair(tmp_path)
    expected = BiEncoder.load(folder).encode_passages(PASSAGES)
    file = str(folder / "ctx_encoder" / "model.safetensors")
    prefix = "ctx_encoder.bert_model"
    more = {f"{prefix}.pooler.dense.weight": torch.zeros(16, 16)}
    more[f"{prefix}.embeddings.position_ids"] = torch.arange(64)[None]
    save_file(load_file(file) | more, file)
    np.testing.assert_array_equal(BiEncoder.load(folder).encode_passages(PASSAGES), expected)


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
