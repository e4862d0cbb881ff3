"""Any text, stored as tokens and read back, gives the tokens that the tokenizer gives for the text itself."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpr.core.records import Passage, TrainingSample
from dpr.data.collator import as_encoded, judgement_identity
from dpr.data.settings import DataSetSettings
from dpr.data.tensorizer import Tensorizer
from dpr.data.tokens import StoredTokens, open_tokens
from dpr.formats.training_files.dpr import write_training_set
from dpr.formats.training_sets import open_training_set
from tests.helpers.examples import examples
from tests.helpers.tiny import WORDS, encoder_folder

# Words of the vocabulary between characters of all kinds; some texts are many times longer than a window.
_PIECES = st.sampled_from(
    [*WORDS, " ", "\t", "\n", "[MASK]", "[SEP]", "-", "\N{RIGHT SINGLE QUOTATION MARK}"]
)
_ODD = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4)
TEXT = st.lists(_PIECES | _ODD, max_size=12).map(" ".join)
SOLID = TEXT.filter(lambda text: bool(text.strip()))
# Not for titles: of a pair whose parts are both many windows long, the tokenizer makes every pair of windows.
LONG = st.sampled_from(WORDS).map(lambda word: f"{word} " * 500)
PASSAGES = st.lists(
    st.builds(Passage, SOLID | LONG, st.just("") | TEXT, st.none() | _ODD, st.booleans()), max_size=3
).map(tuple)
SAMPLES = st.lists(
    st.builds(TrainingSample, SOLID | LONG, PASSAGES.filter(bool), PASSAGES, PASSAGES), min_size=1, max_size=4
)
OPTIONS = st.builds(
    DataSetSettings,
    query_prefix=st.none() | TEXT,
    query_special_suffix=st.none() | _ODD,
    normalize=st.booleans(),
)


def test_stored_texts_have_the_tokens_of_the_text(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    tokenizer = Tensorizer.load(
        encoder_folder(tmp_path_factory.mktemp("tokenizer")), sequence_length=16
    ).tokenizer

    @settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))
    @given(samples=SAMPLES, options=OPTIONS, length=st.integers(12, 40))
    def check(samples: list[TrainingSample], options: DataSetSettings, length: int) -> None:
        folder = tmp_path_factory.mktemp("set")
        monkeypatch.setenv("DPR_CACHE", str(folder / "cache"))
        write_training_set(folder / "t.jsonl", samples)
        text = open_training_set(folder / "t.jsonl", name="t")
        tensorizer = Tensorizer(tokenizer, sequence_length=length)
        stored = open_tokens(text, tensorizer, options)
        assert isinstance(stored, StoredTokens)
        decorated: dict[str, Any] = {"prefix": options.query_prefix, "suffix": options.query_special_suffix}
        for row, sample in enumerate(samples):
            found = stored[row]
            assert tensorizer.question_tokens([found.question]) == tensorizer.question_tokens(
                [sample.question], **decorated
            )
            for name in ("positives", "hard_negatives", "other_negatives"):
                mine, theirs = getattr(found, name), getattr(sample, name)
                assert tensorizer.passage_tokens(mine) == tensorizer.passage_tokens(
                    [as_encoded(passage, options) for passage in theirs]
                )
                assert [passage.identity for passage in mine] == [
                    judgement_identity(passage, "t") for passage in theirs
                ]
                assert [passage.has_score for passage in mine] == [passage.has_score for passage in theirs]

    check()
