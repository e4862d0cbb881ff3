"""An end token behind every sequence, however long the text; and a decoder that is read there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpr.core.errors import ConfigError
from dpr.core.records import Passage
from dpr.data.tensorizer import Tensorizer
from dpr.data.tokenizer_files import append_end_token
from dpr.models.biencoder import BiEncoder
from dpr.models.settings import EncoderSettings
from tests.helpers.decoders import BEGIN, END, KINDS, VOCABULARY, byte_tokenizer, decoder_folder
from tests.unit.data.test_joining import fast_tokenizer, stored

EOS = VOCABULARY[END]
PASSAGES = [
    Passage("abcdefghijkl"),
    Passage("xyz" * 9, "title"),
    Passage("xyz", "a title that is long"),
    Passage(""),
    Passage("b"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [4, 9, 40])
def test_an_end_token_survives_truncation(kind: str, length: int) -> None:
    tokenizer = byte_tokenizer(kind)
    append_end_token(tokenizer)
    tensorizer = Tensorizer(tokenizer, sequence_length=length)
    found = [*tensorizer.question_tokens(["abcdefghijkl", "a", ""]), *tensorizer.passage_tokens(PASSAGES)]
    assert all(tokens[-1] == EOS and tokens.count(EOS) == 1 and len(tokens) <= length for tokens in found)
    assert (
        found[0][:-1]
        == [*([VOCABULARY[BEGIN]] if kind == "llama" else []), *range(VOCABULARY["a"], VOCABULARY["m"])][
            : length - 1
        ]
    )


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_put_there_once_and_stored_with_the_tokenizer(kind: str, tmp_path: Path) -> None:
    byte_tokenizer(kind).save_pretrained(str(tmp_path / "plain"))
    first = Tensorizer.load(tmp_path / "plain", sequence_length=9, append_eos=True)
    first.save(tmp_path)
    for again in (True, False):
        second = Tensorizer.load(tmp_path, sequence_length=9, append_eos=again)
        assert second.passage_tokens(PASSAGES) == first.passage_tokens(PASSAGES)
        assert second.fingerprint == first.fingerprint
    plain = Tensorizer.load(tmp_path / "plain", sequence_length=9)
    assert (plain.fingerprint == first.fingerprint) == (kind == "qwen3 embedding")


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_of_a_store_and_random_windows_end_with_it_too(kind: str) -> None:
    tokenizer = byte_tokenizer(kind)
    append_end_token(tokenizer)
    tensorizer = Tensorizer(tokenizer, sequence_length=9)
    joined = tensorizer.passage_tokens([stored(tensorizer, passage) for passage in PASSAGES])
    assert joined == tensorizer.passage_tokens(PASSAGES)
    for passage in PASSAGES:
        assert tensorizer.cropped_passage_tokens(passage, 9, np.random.default_rng(0))[-1] == EOS


def test_tokenizers_without_one_and_of_other_kinds_are_refused_and_bert_has_its_own() -> None:
    with pytest.raises(ConfigError, match="has no end token"):
        append_end_token(byte_tokenizer(eos_token=None, pad_token=None))
    with pytest.raises(ConfigError, match="adds special tokens by RobertaProcessing"):
        append_end_token(fast_tokenizer("roberta", eos_token="[MASK]"))
    bert = fast_tokenizer("bert", eos_token="[SEP]")
    before = bert.backend_tokenizer.to_str()
    append_end_token(bert)
    assert bert.backend_tokenizer.to_str() == before


def test_a_decoder_that_is_read_at_its_last_token_needs_one(tmp_path: Path) -> None:
    folder = str(decoder_folder(tmp_path / "decoder"))
    settings = {"pooling": "last", "sequence_length": 16, "shared": True}
    with pytest.raises(ConfigError, match=r"set encoder\.append_eos=true"):
        BiEncoder.from_pretrained(folder, EncoderSettings(**settings), pretrained=False)
    model = BiEncoder.from_pretrained(
        folder, EncoderSettings(**settings, append_eos=True), pretrained=False
    ).eval()
    assert model.question_model.is_packed
    model.save(tmp_path / "saved")
    loaded = BiEncoder.load(tmp_path / "saved")
    assert loaded.settings.append_eos and loaded.fingerprint == model.fingerprint
    texts = ["a text that is longer than sixteen tokens", "short", ""]
    assert np.array_equal(loaded.encode(texts), model.encode(texts))
    ends = decoder_folder(tmp_path / "with an end", "qwen3 embedding")
    BiEncoder.from_pretrained(str(ends), EncoderSettings(**settings), pretrained=False)
