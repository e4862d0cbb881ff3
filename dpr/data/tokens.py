"""A training set's tokens, stored once by several processes. Batches are exactly those made from the text.
For a corpus, the tokens that pairs are cut from.

Questions are stored with their prompt, prefix and suffix, passages as separate title and text (normalised and
with a prefix if the set asks for it, after the model's prompt). Nothing is cut off, and there are no special
tokens. So one store serves every sequence length, and the random draws of training (negatives, cropping,
masking) are the same as from the text.

A row of a corpus's store has one positive, the passage, and in place of its question the numbers that tell
its words (docs/file_formats.md).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from dpr.core.cores import usable_cores
from dpr.core.errors import ConfigError, OutputError
from dpr.core.logs import ProgressBar, get_logger
from dpr.core.records import (
    PassageTokens,
    StoredPassage,
    StoredSample,
    StoreFacts,
    TrainingSample,
    json_sha256,
)
from dpr.data.collator import as_encoded, passage_identity, teacher_scores
from dpr.data.cuts import Cut, Words
from dpr.data.loader import WorkerLoader
from dpr.data.pairs import DrawnPairs, PseudoPairs
from dpr.data.settings import DataSetSettings
from dpr.data.tensorizer import Tensorizer
from dpr.data.training_data import spread_rows
from dpr.data.words import written_spans
from dpr.formats.stored_training_set import TrainingSet
from dpr.formats.token_store import LAYOUT_VERSION, TokenPartWriter, TokenStore, finish_store, token_dtype
from dpr.storage.checksums import cache_root
from dpr.storage.outputs import cached_problem, ensure_built
from dpr.storage.steps import Steps

logger = get_logger(__name__)

_BLOCKS_PER_PART = 4  # a part is some 16 MB of text: some seconds of work, which is what a killed build loses
_ROWS_AT_ONCE = 256
_COMPARED_ROWS = 16
# A number tells how many tokens a word has, and by this bit that a sentence begins with it.
_STARTS = 1 << 14
_LENGTH = _STARTS - 1


class _Stored:
    """A set whose rows come as tokens instead of as the ``text`` that it was made from. Pickles as paths."""

    def __init__(self, text: Any, folder: Path) -> None:
        self.text = text
        self.name = text.name
        self.fingerprint = text.fingerprint
        self._folder = folder
        self._store = TokenStore(folder)

    def __len__(self) -> int:
        return len(self.text)

    def __getitem__(self, row: int) -> StoredSample:
        return self._store[row]

    def equals_text(self, tensorizer: Tensorizer, options: DataSetSettings) -> bool:
        """Compares some rows, spread over the set, with the tokens of their text."""
        for row in spread_rows(len(self), _COMPARED_ROWS):
            sample = self[row]
            text = self.text[row]
            question = tensorizer.question_tokens([text.question], **options.of_questions)
            if tensorizer.question_tokens([sample.question]) != question:
                return False
            for ours, theirs in zip(_lists(sample), _lists(text), strict=True):
                given = [as_encoded(passage, options) for passage in theirs]
                identities = [passage_identity(passage, self.name) for passage in theirs]
                if (
                    tensorizer.passage_tokens(ours) != tensorizer.passage_tokens(given)
                    or [passage.identity for passage in ours] != identities
                ):
                    return False
        return True

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.text, self._folder))


class StoredTokens(_Stored):
    """A training set whose rows come as tokens."""

    text: TrainingSet

    def known_positives(self, row: int) -> tuple[StoredPassage, ...]:
        """Returns the positives that the text gives. Passages that several rows list may occur more than
        once."""
        return tuple(
            passage
            for other in (row, *self.text.rows_with_same_question(row))
            for passage in self._store[other].positives
        )

    @staticmethod
    def add_rows(
        part: TokenPartWriter, text: Any, rows: range, tensorizer: Tensorizer, options: DataSetSettings
    ) -> None:
        """Stores rows of a training set. A passage that several rows of the part list is stored once."""
        samples = [text[row] for row in rows]
        listed = (passage for sample in samples for passages in _lists(sample) for passage in passages)
        new = [passage for passage in dict.fromkeys(listed) if passage not in part.numbers]
        encoded: Any = [as_encoded(passage, options) for passage in new]
        for passage, (title, body) in zip(new, tensorizer.passage_parts(encoded), strict=True):
            identity = passage_identity(passage, text.name)
            part.numbers[passage] = part.add_passage(PassageTokens(title, body, identity, passage.has_score))
        questions = [tensorizer.question_text(sample.question, **options.of_questions) for sample in samples]
        for sample, question in zip(samples, tensorizer.bare_tokens(questions), strict=True):
            lists = _lists(sample)
            scores = teacher_scores([passage for passages in lists for passage in passages])
            positives, hard, other = ([part.numbers[passage] for passage in passages] for passages in lists)
            part.add_row(question, positives, hard, other, scores=scores)


class TokensOfWordsError(ConfigError):
    """Raised if a tokenizer does not keep words apart."""


class TokenRow:
    """A passage as its tokens."""

    def __init__(self, sample: StoredSample) -> None:
        (self._passage,) = sample.positives
        num_title, num_tokens, *rest = sample.question
        self._title = rest[:num_tokens]
        lengths = rest[num_tokens : num_tokens + num_title]
        codes = rest[num_tokens + num_title :]
        self._title_ends = [0, *accumulate(lengths)]
        self._ends = [0, *accumulate(code & _LENGTH for code in codes)]
        sentences = [word for word, code in enumerate(codes) if code & _STARTS]
        self.words = Words(num_title, len(codes), sentences)

    @property
    def document(self) -> int:
        return self._passage.identity[0]

    def sample(self, cut: Cut, identity: tuple[int, int]) -> StoredSample:
        title, text = self._passage.tokens()[:2]
        question: list[int] = []
        for word in cut.title:
            question += self._title[self._title_ends[word] : self._title_ends[word + 1]]
        for word in cut.question:
            question += text[self._ends[word] : self._ends[word + 1]]
        part: list[int] = []
        for start, end in cut.passage:
            part += text[self._ends[start] : self._ends[end]]
        made = PassageTokens(None if cut.title else title, part, identity, False)
        passage = StoredPassage(self._passage.part, self._passage.number, _read=made)
        return StoredSample(question, (passage,), (), ())


class StoredPairs(DrawnPairs, _Stored):
    """``PseudoPairs`` whose rows come as tokens."""

    text: PseudoPairs

    def row(self, number: int) -> TokenRow:
        return TokenRow(self._store[number])

    @staticmethod
    def add_rows(
        part: TokenPartWriter,
        text: PseudoPairs,
        rows: range,
        tensorizer: Tensorizer,
        options: DataSetSettings,
    ) -> None:
        """Stores passages of a corpus, one row each. docs/file_formats.md describes the numbers in place of a
        question.

        Raises:
            TokensOfWordsError: the tokens of a text are not those of its words.
        """
        found = list(text.passages(rows.start, rows.stop))
        passages = [row.passage for row in found]
        titles = _tokens_of_words([passage.title for passage in passages], tensorizer)
        texts = _tokens_of_words([passage.text.strip() for passage in passages], tensorizer)
        # By a title template, what is put before a text may change how it is tokenised.
        parts = tensorizer.passage_parts(passages) if tensorizer.text.title_template else None
        for index, (row, (plain, lengths), (tokens, codes)) in enumerate(
            zip(found, titles, texts, strict=True)
        ):
            words = row.words
            for word in words.sentences:
                codes[word] |= _STARTS
            title, body = parts[index] if parts else (plain if row.passage.title else None, tokens)
            if any([len(body) != len(tokens), len(plain) > _LENGTH, words.title > _LENGTH]):
                raise TokensOfWordsError("the tokens of a text are not those of its words")
            number = part.add_passage(PassageTokens(title, body, (row.document, 0), False))
            part.add_row([words.title, len(plain), *plain, *lengths, *codes], [number], [], [])


def _tokens_of_words(texts: list[str], tensorizer: Tensorizer) -> list[tuple[list[int], list[int]]]:
    """Returns the tokens of each text, and the number of tokens of each of its words."""
    encoded: Any = tensorizer.tokenizer(texts, add_special_tokens=False, truncation=False, verbose=False)
    counted = []
    for text, encoding in zip(texts, encoded.encodings, strict=True):
        spans = written_spans(text)
        starts = [start for start, _ in spans]
        places = [bisect_right(starts, start) - 1 for start, _ in encoding.offsets]
        if any(
            place < 0 or end > spans[place][1]
            for place, (_, end) in zip(places, encoding.offsets, strict=True)
        ):
            raise TokensOfWordsError("a token spans two words")
        lengths = np.bincount(np.array(places, dtype=int), minlength=len(spans))
        if lengths.size and lengths.max() > _LENGTH:
            raise TokensOfWordsError("a word has too many tokens")
        counted.append((list(encoding.ids), lengths.tolist()))
    return counted


def open_tokens(
    text: TrainingSet | PseudoPairs,
    tensorizer: Tensorizer,
    options: DataSetSettings,
    *,
    folder: str | Path | None = None,
    build: bool = True,
) -> TrainingSet | PseudoPairs | StoredTokens | StoredPairs:
    """Returns the stored tokens of a training set, built first if they are missing, stale or damaged. Returns
    the text itself if that is impossible.

    Args:
        text: a set from ``open_training_set``, or pairs that are cut from a corpus.
        tensorizer: that of the model to train or validate.
        options: the same that batches are made with; prompt, prefix, suffix, normalisation and the set's name
        are part of what is stored.
        folder: folder of the stores; default: the cache folder. If it is given, a store that cannot be
        written is an error.
        build: False uses an existing store and never builds one.

    Raises:
        OutputError: ``folder`` cannot be written.
    """
    if tensorizer.join_rule is None:
        logger.info(
            "%s: trained from the text, since this tokenizer puts special tokens between those of a text",
            text.name,
        )
        return text
    of_model = tensorizer.text
    # by a class of the user's, a prompt or a cleaning, for which the tokens of the corpus are of no use
    if isinstance(text, PseudoPairs) and (
        text.makers
        or of_model.plain_apostrophes
        or of_model.passage_prompt
        or of_model.question_prompt(None)
        or options.normalize
        or options.passage_prefix
        or any(options.of_questions.values())
    ):
        logger.info("%s: pairs are cut from the text, since it is changed afterwards", text.name)
        return text
    # everything that decides what a store holds
    kind: Any = StoredPairs if isinstance(text, PseudoPairs) else StoredTokens
    metadata: StoreFacts = {
        "kind": "tokens of a corpus" if kind is StoredPairs else "token store",
        "layout": LAYOUT_VERSION,
        "text": text.corpus_fingerprint if isinstance(text, PseudoPairs) else text.fingerprint,
        "rows": text.block_ends()[-1],
        "vocabulary": tensorizer.vocabulary_fingerprint,
        "bits": 8 * token_dtype(tensorizer.largest_id).itemsize,
        **options.stored_metadata(text.name, tensorizer.text),
    }
    target = cache_root(folder) / f"tokens-{json_sha256(metadata)[:32]}"

    try:
        if build:
            parts = _Parts(kind, text, tensorizer, options)
            ensure_built(target, lambda target: _build(target, metadata, parts))
        elif cached_problem(target) is not None:
            return text
        stored: StoredTokens | StoredPairs = kind(text, target)
    except TokensOfWordsError as error:
        logger.warning("%s: pairs are cut from the text, since with this tokenizer %s", text.name, error)
        return text
    except OSError as error:
        if folder is not None:
            hint = "set train.token_store to another folder, or to off"
            raise OutputError(folder, str(error.strerror), hint=hint) from error
        logger.warning("%s: trained from the text, since its tokens cannot be stored (%s)", text.name, error)
        return text
    if not stored.equals_text(tensorizer, options):
        logger.warning(
            "%s: trained from the text, because this tokenizer joins texts by an unknown rule", text.name
        )
        return text
    logger.debug("%s: tokens of %d rows are read from %s", text.name, len(stored), target)
    return stored


def _lists(sample: TrainingSample | StoredSample) -> tuple[tuple[Any, ...], ...]:
    return sample.positives, sample.hard_negatives, sample.other_negatives


@dataclass
class _Parts(Dataset[tuple[int, int]]):
    """The parts of one store. Item i writes part i, completely or not at all, and returns i and the number of
    its tokens."""

    kind: type[StoredTokens] | type[StoredPairs]
    text: Any
    tensorizer: Tensorizer
    options: DataSetSettings
    steps: Steps | None = None

    def __post_init__(self) -> None:
        ends = self.text.block_ends()
        self.ends = sorted({*ends[_BLOCKS_PER_PART - 1 :: _BLOCKS_PER_PART], ends[-1]})

    def rows(self, number: int) -> range:
        return range(self.ends[number - 1] if number else 0, self.ends[number])

    def __getitem__(self, number: int) -> tuple[int, int]:
        assert self.steps is not None
        part = TokenPartWriter(token_dtype(self.tensorizer.largest_id))
        rows = self.rows(number)
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            some = rows[start : start + _ROWS_AT_ONCE]
            self.kind.add_rows(part, self.text, some, self.tensorizer, self.options)
        part.write(self.steps, number)
        return number, part.num_tokens


def _build(folder: Path, metadata: StoreFacts, parts: _Parts) -> None:
    """Writes the missing parts, in as many processes as there are cores."""
    parts.steps = steps = Steps(folder, metadata, restart=True)
    if steps.is_complete():
        steps.reopen()
    done = steps.finished_steps()
    missing = [number for number in range(len(parts.ends)) if number not in done]
    total = parts.ends[-1]
    progress = ProgressBar(
        f"tokenising {parts.text.name}",
        total,
        unit="rows",
        done=total - sum(len(parts.rows(number)) for number in missing),
    )
    processes = min(usable_cores(), len(missing))
    writing = WorkerLoader(
        parts,
        sampler=missing,
        num_workers=processes if processes > 1 else 0,
        generator=torch.Generator(),  # the loader draws a seed, which must not come from the run's
    )
    try:
        for number, num_tokens in writing:
            progress.advance(len(parts.rows(number)), num_tokens)
    finally:
        progress.close()
    finish_store(steps, parts.ends)
