"""Title and text tokenised apart and joined give what the tokenizer gives for the pair."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from dpr.core.records import Passage, PassageTokens, StoredPassage
from dpr.data.tensorizer import Tensorizer
from tests.helpers.examples import examples
from tests.helpers.tiny import VOCABULARY, WORDS

SPECIAL = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}


def fast_tokenizer(kind: str, **options: Any) -> PreTrainedTokenizerFast:
    """bert has one separator, roberta is byte-level with two, t5 has nothing before, gpt2 no special tokens."""
    vocabulary = {token: number for number, token in enumerate(VOCABULARY)}
    ids = [(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")]
    if kind == "roberta":
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        vocabulary = {token: number for number, token in enumerate([*SPECIAL.values(), *letters])}
        tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        ends = [(token, vocabulary[token]) for token in ("[SEP]", "[CLS]")]
        tokenizer.post_processor = processors.RobertaProcessing(*ends)
    else:
        tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        begin = "[CLS] " if kind == "bert" else ""
        single, pair = f"{begin}$A [SEP]", f"{begin}$A [SEP] $B [SEP]"
        if kind != "gpt2":
            tokenizer.post_processor = processors.TemplateProcessing(
                single=single, pair=pair, special_tokens=ids
            )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL, **options)


TOKENIZERS = {
    "bert": fast_tokenizer("bert"),
    "roberta": fast_tokenizer("roberta"),
    "t5": fast_tokenizer("t5"),
    "gpt2": fast_tokenizer("gpt2"),
    "bert cut from the left": fast_tokenizer("bert", truncation_side="left"),
}

texts = st.one_of(
    st.lists(st.sampled_from([*WORDS[:5], "?", "unknown", "[SEP]", "[MASK]"]), max_size=12).map(" ".join),
    st.text(alphabet="ba be\N{RIGHT SINGLE QUOTATION MARK}\u00e9\u4e2d\u0301\t\n'-", max_size=20),
)


class OnePassage:
    """Stands in for a part of a token store."""

    def __init__(self, passage: PassageTokens) -> None:
        self._passage = passage

    def passage(self, number: int) -> PassageTokens:
        return self._passage


def stored(tensorizer: Tensorizer, passage: Passage) -> StoredPassage:
    title = tensorizer.bare_tokens([passage.title])[0] if passage.title else None
    tokens = PassageTokens(title, tensorizer.bare_tokens([passage.text.strip()])[0], (0, 0), False)
    return StoredPassage(OnePassage(tokens), 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=examples(150), deadline=None)
@given(title=texts, text=texts, length=st.integers(4, 30))
def test_joined_parts_are_the_pair(kind: str, title: str, text: str, length: int) -> None:
    tensorizer = Tensorizer(TOKENIZERS[kind], sequence_length=length)
    passage = Passage(text, title)
    expected = tensorizer.passage_tokens([passage]) * 2
    assert tensorizer.passage_tokens([stored(tensorizer, passage), passage]) == expected
    if text == text.strip():
        asked = tensorizer.question_tokens(tensorizer.bare_tokens([text]))
        assert asked == tensorizer.passage_tokens([Passage(text)])
