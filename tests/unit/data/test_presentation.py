"""Prompts, title templates and the apostrophe rule are applied alike to texts and to stored tokens."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpr.core.errors import ConfigError
from dpr.core.records import Passage, PassageTokens, StoredPassage
from dpr.data.collator import Augmentation, Collator
from dpr.data.settings import TextSettings
from dpr.data.tensorizer import Tensorizer
from tests.helpers.examples import examples
from tests.helpers.tiny import WORDS
from tests.unit.data.test_joining import TOKENIZERS, OnePassage, fast_tokenizer, texts

KINDS = [kind for kind in TOKENIZERS if "left" not in kind]
TEXT = TextSettings(query_prompt="ba be: ", passage_prompt="bi ", prompts={"web": "bo bu "})
TEMPLATE = TextSettings(passage_prompt="bi ", title_template="ba {title} - {text}")
TWICE = TextSettings(title_template="{title} {title} {text}")


def tensorizer_of(kind: str, text: TextSettings, **lengths: Any) -> Tensorizer:
    made = Tensorizer(TOKENIZERS[kind], **{"sequence_length": 32, **lengths})
    made.set_text_settings(text)
    return made


def stored(tensorizer: Tensorizer, passage: Passage) -> StoredPassage:
    ((title, text),) = tensorizer.passage_parts([passage])
    return StoredPassage(OnePassage(PassageTokens(title, text, (0, 0), False)), 0)  # type: ignore[arg-type]


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
    for prompt, text, length in (
        (TEXT.query_prompt, tensorizer.question_tokens([long])[0], 12),
        (TEXT.prompts["web"], tensorizer.question_tokens([long], prompt="web")[0], 12),
        (TEXT.passage_prompt, tensorizer.passage_tokens([Passage(long)])[0], 32),
        (TEXT.passage_prompt, tensorizer.passage_tokens([Passage(long, long)])[0], 32),
        (TEXT.passage_prompt, tensorizer.passage_tokens([Passage(long, long * 9)])[0], 32),
        (
            TEXT.passage_prompt,
            tensorizer.cropped_passage_tokens(Passage(long), 20, np.random.default_rng(0)),
            20,
        ),
        (
            TEXT.passage_prompt,
            tensorizer.cropped_passage_tokens(Passage(long, long), 20, np.random.default_rng(0)),
            20,
        ),
    ):
        expected = [*before, *tensorizer.bare_tokens([prompt.strip()])[0]]
        assert len(text) == length
        assert text[: len(expected)] == expected


def test_texts_are_those_of_a_model_that_is_given_them_by_hand() -> None:
    tensorizer, plain = tensorizer_of("bert", TEXT), tensorizer_of("bert", TextSettings())
    assert tensorizer.question_tokens(["ca"]) == plain.question_tokens(["ba be: ca"])
    asked = tensorizer.question_tokens(["ca"], prompt="web", suffix="?")
    assert asked == plain.question_tokens(["bo bu ca?"])
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
    with pytest.raises(ConfigError, match=r"train.augment.crop_tokens=5 leaves no room"):
        Collator(
            tensorizer_of("bert", TEXT),
            num_hard=0,
            num_other=0,
            seed=0,
            augmentation=Augmentation(crop_tokens=5),
        )


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
