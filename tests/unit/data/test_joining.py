"""Texts and stored tokens become the same tokens: titles, prompts, templates and the apostrophe rule."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from dpr.core.errors import ConfigError
from dpr.core.records import Passage, PassageTokens, StoredPassage
from dpr.data.collator import Augmentation, Collator
from dpr.data.settings import TextSettings
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
    ((title, text),) = tensorizer.passage_parts([passage])
    return StoredPassage(OnePassage(PassageTokens(title, text, (0, 0), False)), 0)  # type: ignore[arg-type]


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


KINDS = [kind for kind in TOKENIZERS if "left" not in kind]
TEXT = TextSettings(query_prompt="ba be: ", passage_prompt="bi ", prompts={"web": "bo bu "})
TEMPLATE = TextSettings(passage_prompt="bi ", title_template="ba {title} - {text}")
TWICE = TextSettings(title_template="{title} {title} {text}")


def tensorizer_of(kind: str, text: TextSettings, **lengths: Any) -> Tensorizer:
    made = Tensorizer(TOKENIZERS[kind], **{"sequence_length": 32, **lengths})
    made.set_text_settings(text)
    return made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "text", [TextSettings(), TEXT, TEMPLATE, TWICE], ids=["plain", "prompts", "both", "title twice"]
)
@settings(max_examples=examples(60), deadline=None)
@given(
    title=texts, body=texts, length=st.integers(24, 40), limit=st.integers(24, 40), seed=st.integers(0, 99)
)
def test_stored_passages_become_tokens_of_texts(
    kind: str, text: TextSettings, title: str, body: str, length: int, limit: int, seed: int
) -> None:
    tensorizer, passage = tensorizer_of(kind, text, sequence_length=length), Passage(body, title)
    kept = stored(tensorizer, passage)
    assert tensorizer.passage_tokens([kept]) == tensorizer.passage_tokens([passage])
    first, second = np.random.default_rng(seed), np.random.default_rng(seed)
    cropped = tensorizer.cropped_passage_tokens(kept, limit, first)
    assert cropped == tensorizer.cropped_passage_tokens(passage, limit, second)
    assert first.integers(1 << 60) == second.integers(1 << 60), "the generator was used differently"


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_cut_is_never_the_prompt(kind: str) -> None:
    tensorizer, long = tensorizer_of(kind, TEXT, sequence_length=32, question_length=12), " ".join(WORDS)
    before, _ = tensorizer.join_rule.single if tensorizer.join_rule else ([], [])
    cropped = lambda passage: tensorizer.cropped_passage_tokens(passage, 20, np.random.default_rng(0))
    for prompt, text, length in (
        (TEXT.query_prompt, tensorizer.question_tokens([long])[0], 12),
        (TEXT.prompts["web"], tensorizer.question_tokens([long], prompt="web")[0], 12),
        (TEXT.passage_prompt, tensorizer.passage_tokens([Passage(long)])[0], 32),
        (TEXT.passage_prompt, tensorizer.passage_tokens([Passage(long, long)])[0], 32),
        (TEXT.passage_prompt, tensorizer.passage_tokens([Passage(long, long * 9)])[0], 32),
        (TEXT.passage_prompt, cropped(Passage(long)), 20),
        (TEXT.passage_prompt, cropped(Passage(long, long)), 20),
    ):
        expected = [*before, *tensorizer.bare_tokens([prompt.strip()])[0]]
        assert len(text) == length
        assert text[: len(expected)] == expected


def test_texts_are_those_of_a_model_that_is_given_them_by_hand() -> None:
    tensorizer, plain = tensorizer_of("bert", TEXT), tensorizer_of("bert", TextSettings())
    assert tensorizer.question_tokens(["ca"]) == plain.question_tokens(["ba be: ca"])
    asked = tensorizer.question_tokens(["ca"], prompt="web", suffix="?")
    assert asked == plain.question_tokens(["bo bu ca?"])
    assert tensorizer.question_tokens(["ca?"], prompt="web", suffix="?") == asked
    prompted = [Passage("bi ca"), Passage("ca", "bi ce")]
    found = tensorizer.passage_tokens([Passage("ca"), Passage("ca", "ce")])
    assert found == plain.passage_tokens(prompted)
    template = tensorizer_of("bert", TEMPLATE)
    found = template.passage_tokens([Passage(" ca ", "ce"), Passage("ca")])
    assert found == plain.passage_tokens([Passage("bi ba ce - ca"), Passage("bi ca")])
    found = tensorizer_of("bert", TWICE).passage_tokens([Passage("ca", "ce")])
    assert found == plain.passage_tokens([Passage("ce ce ca")])


def test_the_apostrophe_rule_is_the_models() -> None:
    sign = "ba\N{RIGHT SINGLE QUOTATION MARK}"
    assert tensorizer_of("bert", TextSettings()).question_text(sign) == "ba'"
    assert tensorizer_of("bert", TextSettings(plain_apostrophes=False)).question_text(sign) == sign


def test_a_prompt_that_would_be_cut_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"question_length=5 .* 3 tokens of encoder.query_prompt.* 6 or"):
        tensorizer_of("bert", TEXT, question_length=5)
    with pytest.raises(ConfigError, match=r"encoder.sequence_length=5 .* encoder.passage_prompt.* 6 or more"):
        tensorizer_of("bert", TextSettings(passage_prompt="bi "), sequence_length=5)
    with pytest.raises(ConfigError, match="cuts texts at their beginning"):
        Tensorizer(fast_tokenizer("bert", truncation_side="left"), sequence_length=32).set_text_settings(TEXT)
    cropping = Augmentation(crop_tokens=5)
    with pytest.raises(ConfigError, match=r"train.augment.crop_tokens=5 leaves no room"):
        Collator(tensorizer_of("bert", TEXT), num_hard=0, num_other=0, seed=0, augmentation=cropping)


@pytest.mark.parametrize(
    "template",
    ["{title}", "{text} {title}", "{title} {text} end", "{title} {text} {text}", "{name} {title} {text}"],
)
def test_a_template_that_is_none_is_refused(template: str) -> None:
    with pytest.raises(ConfigError, match=r"encoder.title_template=.* must have {title} and end"):
        tensorizer_of("bert", TextSettings(title_template=template))


def test_a_prefix_beside_a_prompt_must_repeat_it() -> None:
    assert TEXT.agreed_prefix("ba be: ", TEXT.query_prompt, key="query_prefix") is None
    assert TextSettings().agreed_prefix("ba be: ", "", key="query_prefix") == "ba be: "
    with pytest.raises(ConfigError, match=r"query_prefix='bo bu ', but .* 'ba be: ' .*name it by prompt=web"):
        TEXT.agreed_prefix("bo bu ", TEXT.query_prompt, key="query_prefix")
