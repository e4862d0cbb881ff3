"""The tokens of a corpus, in a token store; pairs are cut from them exactly as from the text, so nothing is
tokenised twice.

A row of the store has one positive, the passage, and as its question the numbers that tell its words
(``add_passages``).
"""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.errors import ConfigError
from dpr.core.records import KnownDocument, PassageTokens, StoredPassage, StoredSample, StoreFacts
from dpr.core.seeding import generator_for
from dpr.data.loader import counts_by_row
from dpr.data.order import PAIRS
from dpr.data.pairs import Cut, Words
from dpr.data.pseudo_pairs import PseudoPairs, draw
from dpr.data.settings import DataSetSettings
from dpr.data.tensorizer import Tensorizer
from dpr.data.training_data import known_document
from dpr.data.words import written_spans
from dpr.formats.token_store import TokenPartWriter, TokenStore

_STARTS, _ASKS, _LENGTH = 1 << 14, 1 << 15, (1 << 14) - 1
_COMPARED_ROWS = 16


class TokensOfWordsError(ConfigError):
    """A tokenizer does not keep words apart."""


def why_cut_from_text(pairs: PseudoPairs, tensorizer: Tensorizer, options: DataSetSettings) -> str:
    """What in the settings changes texts after they are cut, so that the tokens of the corpus are of no use;
    empty where nothing does."""
    if pairs.makers:
        return "since a class of the user's makes them"
    if tensorizer.text.plain_apostrophes:
        return "since apostrophes of questions are changed (encoder.plain_apostrophes)"
    changed = (
        options.normalize,
        options.passage_prefix,
        tensorizer.text.passage_prompt,
        any(options.of_questions.values()),
    )
    return (
        "since they get a prompt or are normalised"
        if any(changed) or tensorizer.text.question_prompt(None)
        else ""
    )


class TokenRow:
    """A passage as its tokens."""

    def __init__(self, sample: StoredSample) -> None:
        (self._passage,), self._facts = sample.positives, sample.facts
        num_title, heading, num_tokens, *rest = sample.question
        self._title, lengths, codes = (
            rest[:num_tokens],
            rest[num_tokens : num_tokens + num_title],
            rest[num_tokens + num_title :],
        )
        self._title_ends = [0, *accumulate(lengths)]
        self._ends = [0, *accumulate(code & _LENGTH for code in codes)]
        sentences = [word for word, code in enumerate(codes) if code & _STARTS]
        asked = [index for index, word in enumerate(sentences) if codes[word] & _ASKS]
        self.words = Words(num_title, heading, len(codes), sentences, asked)

    @property
    def document(self) -> int:
        return self._passage.identity[0]

    def sample(self, cut: Cut, cut_from: TokenRow, identity: tuple[int, int]) -> StoredSample:
        text = self._passage.tokens().text
        question = [
            token
            for word in cut.title
            for token in self._title[self._title_ends[word] : self._title_ends[word + 1]]
        ]
        question += [
            token for word in cut.question for token in text[self._ends[word] : self._ends[word + 1]]
        ]
        title, text = cut_from._passage.tokens()[:2]
        part = [
            token for start, end in cut.passage for token in text[cut_from._ends[start] : cut_from._ends[end]]
        ]
        made = PassageTokens(title if cut.keeps_title else None, part, identity, False)
        return StoredSample(
            question,
            (StoredPassage(self._passage.part, self._passage.number, _read=made),),
            (),
            (),
            self._facts,
        )


class StoredPairs:
    """``PseudoPairs`` whose rows come as tokens. Pickles as paths."""

    def __init__(self, text: PseudoPairs, folder: Path, facts: StoreFacts) -> None:
        self.text, self.name, self.fingerprint = text, text.name, text.fingerprint
        self._folder, self._facts = folder, facts
        self._store = TokenStore(folder, facts)

    def __len__(self) -> int:
        return len(self.text)

    def __getitem__(self, row: int) -> StoredSample:
        return self.drawn(row, generator_for(PAIRS, 0, 0, 0, row))

    def drawn(self, row: int, generator: np.random.Generator) -> StoredSample:
        sample: StoredSample = draw(self.text, self.row, row, generator)
        return sample

    def row(self, number: int) -> TokenRow:
        """A passage of the corpus."""
        return TokenRow(self._store[number])

    def known_positives(self, row: int) -> tuple[KnownDocument, ...]:
        return (known_document(self[row]),)

    def character_counts(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        return counts_by_row(self.text)

    def equals_text(self, tensorizer: Tensorizer, options: DataSetSettings) -> bool:
        """Compares some pairs, spread over the corpus, with those cut from the text."""
        for row in np.unique(np.linspace(0, len(self) - 1, _COMPARED_ROWS).astype(int)).tolist():
            ours, theirs = self[row], self.text[row]
            if tensorizer.question_tokens([ours.question]) != tensorizer.question_tokens([theirs.question]):
                return False
            if tensorizer.passage_tokens(ours.positives) != tensorizer.passage_tokens(theirs.positives):
                return False
        return True

    @staticmethod
    def add_rows(
        part: TokenPartWriter,
        text: PseudoPairs,
        rows: range,
        tensorizer: Tensorizer,
        options: DataSetSettings,
    ) -> None:
        """Stores passages of a corpus, a row each (docs/file_formats.md has the numbers that stand in place of
        a question).

        Raises:
            TokensOfWordsError: the tokens of a text are not those of its words.
        """
        found = list(text.passages(rows.start, rows.stop))
        passages = [row.passage for row in found]
        titles = _encoded([passage.title for passage in passages], tensorizer)
        texts = _encoded([passage.text.strip() for passage in passages], tensorizer)
        # By a title template, what is put before a text may change how it is tokenised.
        parts = tensorizer.passage_parts(passages) if tensorizer.text.title_template else None
        for index, (row, (plain, lengths), (tokens, codes)) in enumerate(
            zip(found, titles, texts, strict=True)
        ):
            words = row.words
            for number, word in enumerate(words.sentences):
                codes[word] |= _STARTS | (_ASKS if number in words.questions else 0)
            title, body = parts[index] if parts else (plain if row.passage.title else None, tokens)
            if any([len(body) != len(tokens), len(plain) >= _ASKS, words.title >= _ASKS]):
                raise TokensOfWordsError("the tokens of a text are not those of its words")
            number = part.add_passage(PassageTokens(title, body, (row.document, 0), False))
            part.add_row([words.title, words.heading, len(plain), *plain, *lengths, *codes], [number], [], [])

    def __reduce__(self) -> tuple[object, ...]:
        return (StoredPairs, (self.text, self._folder, self._facts))


def _encoded(texts: list[str], tensorizer: Tensorizer) -> list[tuple[list[int], list[int]]]:
    """The tokens of each text, and how many each of its words has."""
    encoded: Any = tensorizer.tokenizer(texts, add_special_tokens=False, truncation=False, verbose=False)
    counted = []
    for text, encoding in zip(texts, encoded.encodings, strict=True):
        spans = written_spans(text)
        places = (
            np.searchsorted(
                [start for start, _ in spans], [start for start, _ in encoding.offsets], side="right"
            )
            - 1
        )
        if any(
            place < 0 or end > spans[place][1]
            for place, (_, end) in zip(places.tolist(), encoding.offsets, strict=True)
        ):
            raise TokensOfWordsError("a token reaches over two words")
        lengths = np.bincount(places, minlength=len(spans))
        if lengths.size and lengths.max() > _LENGTH:
            raise TokensOfWordsError("a word has too many tokens")
        counted.append((list(encoding.ids), lengths.tolist()))
    return counted
