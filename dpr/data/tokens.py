"""A training set's tokens, stored once by several processes; batches are exactly those made from the text.

Questions are stored with their prompt, prefix and suffix, passages as title and text apart (normalised and
with a prefix if the set asks for it, after the model's prompt), nothing cut off and without special tokens.
So one store serves every sequence length, and what is random in training (negatives, cropping, masking) is
drawn as from the text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from dpr.core.errors import ConfigError, InputError
from dpr.core.hashes import text_sha256
from dpr.core.logs import get_logger
from dpr.core.machine import usable_cores
from dpr.core.progress import Progress
from dpr.core.records import PassageTokens, StoredPassage, StoredSample, StoreFacts, TrainingSample
from dpr.data.collator import as_encoded, encoded_text, judgement_identity, teacher_scores
from dpr.data.loader import WorkerLoader
from dpr.data.pair_tokens import StoredPairs, TokensOfWordsError, why_cut_from_text
from dpr.data.pseudo_pairs import PseudoPairs
from dpr.data.settings import DataSetSettings
from dpr.data.tensorizer import Tensorizer
from dpr.formats.token_store import (
    LAYOUT_VERSION,
    TokenPartWriter,
    TokenStore,
    finish_store,
    token_dtype,
)
from dpr.formats.training_sets import TrainingSet
from dpr.storage.checksums import cache_root
from dpr.storage.outputs import ensure_built
from dpr.storage.steps import Steps

logger = get_logger(__name__)

_BLOCKS_PER_PART = 4  # a part is some 16 MB of text: some seconds of work, which is what a killed build loses
_ROWS_AT_ONCE = 256
_COMPARED_ROWS = 16


class StoredTokens:
    """A training set whose rows come as tokens, in place of the set it was made of. Pickles as paths."""

    def __init__(self, text: TrainingSet, folder: Path, facts: StoreFacts) -> None:
        self.text, self.name, self.fingerprint = text, text.name, text.fingerprint
        self._folder, self._facts = folder, facts
        self._store = TokenStore(folder, facts)

    def __len__(self) -> int:
        return len(self._store)

    def __getitem__(self, row: int) -> StoredSample:
        return self._store[row]

    def known_positives(self, row: int) -> tuple[StoredPassage, ...]:
        """As the text's; passages that several rows list may occur more than once."""
        return tuple(
            passage
            for other in (row, *self.text.rows_with_same_question(row))
            for passage in self._store[other].positives
        )

    def character_counts(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        return self.text.character_counts()

    def equals_text(self, tensorizer: Tensorizer, options: DataSetSettings) -> bool:
        """Compares some rows, spread over the set, with the tokens of their text."""
        for row in np.unique(np.linspace(0, len(self) - 1, _COMPARED_ROWS).astype(int)).tolist():
            sample, text = self[row], self.text[row]
            if tensorizer.question_tokens([sample.question]) != tensorizer.question_tokens(
                [text.question], **options.of_questions
            ):
                return False
            for ours, theirs in zip(_lists(sample), _lists(text), strict=True):
                given = [as_encoded(passage, options) for passage in theirs]
                if tensorizer.passage_tokens(ours) != tensorizer.passage_tokens(given):
                    return False
                identities = [judgement_identity(passage, self.name) for passage in theirs]
                if [passage.identity for passage in ours] != identities:
                    return False
        return True

    @staticmethod
    def add_rows(
        part: TokenPartWriter, text: Any, rows: range, tensorizer: Tensorizer, options: DataSetSettings
    ) -> None:
        """Stores rows of a training set. A passage that several rows of the part list is stored once."""
        samples = [text[row] for row in rows]
        listed = (passage for sample in samples for passages in _lists(sample) for passage in passages)
        new = [passage for passage in dict.fromkeys(listed) if passage not in part.numbers]
        encoded = [encoded_text(passage, options) for passage in new]
        for passage, (title, body) in zip(new, tensorizer.passage_parts(encoded), strict=True):
            identity = judgement_identity(passage, text.name)
            part.numbers[passage] = part.add_passage(PassageTokens(title, body, identity, passage.has_score))
        questions = [tensorizer.question_text(sample.question, **options.of_questions) for sample in samples]
        for sample, question in zip(samples, tensorizer.bare_tokens(questions), strict=True):
            lists = _lists(sample)
            scores = teacher_scores([passage for passages in lists for passage in passages])
            positives, hard, other = ([part.numbers[passage] for passage in passages] for passages in lists)
            part.add_row(question, positives, hard, other, scores=scores)

    def __reduce__(self) -> tuple[object, ...]:
        return (StoredTokens, (self.text, self._folder, self._facts))


def open_tokens(
    text: TrainingSet | PseudoPairs,
    tensorizer: Tensorizer,
    options: DataSetSettings,
    *,
    folder: str | Path | None = None,
    build: bool = True,
) -> TrainingSet | PseudoPairs | StoredTokens | StoredPairs:
    """The stored tokens of a training set, built first if they are missing, stale or damaged; the text itself
    where that is impossible.

    Args:
        text: what ``open_training_set`` returned, or pairs that are cut from a corpus.
        tensorizer: of the model that is going to be trained or validated.
        options: the same that batches are made with; prompt, prefix, suffix, normalisation and the set's name
        are part of what is stored.
        folder: where stores are kept; default: the cache folder. If it is given, a store that cannot be
        written is an error.
        build: False uses an existing store and never builds one.

    Raises:
        ConfigError: ``folder`` cannot be written.
    """
    if tensorizer.join_rule is None:
        logger.info(
            "%s: trained from the text, since this tokenizer puts special tokens between those of a text",
            text.name,
        )
        return text
    if isinstance(text, PseudoPairs) and (reason := why_cut_from_text(text, tensorizer, options)):
        logger.info("%s: pairs are cut from the text, %s", text.name, reason)
        return text
    facts = store_facts(text, tensorizer, options)
    key = text_sha256(json.dumps(facts, sort_keys=True))[:32]
    target = cache_root(folder) / f"tokens-{key}"
    kind: Any = StoredPairs if isinstance(text, PseudoPairs) else StoredTokens

    def problem_of(target: Path) -> str | None:
        try:
            TokenStore(target, facts)
        except (InputError, OSError) as error:
            return str(error)
        return None

    try:
        if build:
            parts = _Parts(kind, text, tensorizer, options)
            ensure_built(target, lambda target: _build(target, facts, parts), problem_of=problem_of)
        elif problem_of(target) is not None:
            return text
        stored: StoredTokens | StoredPairs = kind(text, target, facts)
    except TokensOfWordsError as error:
        logger.warning("%s: pairs are cut from the text, since with this tokenizer %s", text.name, error)
        return text
    except (OSError, ConfigError) as error:
        if folder is not None:
            raise ConfigError(f"train.token_store={folder}: {error}") from error
        logger.warning("%s: trained from the text, since its tokens cannot be stored (%s)", text.name, error)
        return text
    if not stored.equals_text(tensorizer, options):
        logger.warning(
            "%s: trained from the text, because this tokenizer joins texts by an unknown rule", text.name
        )
        return text
    logger.info("%s: tokens of %d rows are read from %s", text.name, len(stored), target)
    return stored


def store_facts(
    text: TrainingSet | PseudoPairs, tensorizer: Tensorizer, options: DataSetSettings
) -> StoreFacts:
    """Everything that decides what a store holds."""
    is_corpus = isinstance(text, PseudoPairs)
    return {
        "kind": "token store of a corpus" if is_corpus else "token store",
        "layout": LAYOUT_VERSION,
        "text": text.corpus_fingerprint if isinstance(text, PseudoPairs) else text.fingerprint,
        "rows": text.block_ends()[-1],
        "vocabulary": tensorizer.vocabulary_fingerprint,
        "bits": 8 * token_dtype(tensorizer.largest_id).itemsize,
        **options.stored_facts(text.name, tensorizer.text),
    }


def _lists(sample: TrainingSample | StoredSample) -> tuple[tuple[Any, ...], ...]:
    return sample.positives, sample.hard_negatives, sample.other_negatives


class _Parts(Dataset[tuple[int, int]]):
    """The parts of one store. Item i writes part i, whole or not at all, and returns i and the number of its
    tokens."""

    def __init__(
        self,
        kind: type[StoredTokens] | type[StoredPairs],
        text: Any,
        tensorizer: Tensorizer,
        options: DataSetSettings,
    ) -> None:
        self._kind, self.text, self._tensorizer, self._options = kind, text, tensorizer, options
        self.steps: Steps | None = None
        ends = text.block_ends()
        self.ends = sorted({*ends[_BLOCKS_PER_PART - 1 :: _BLOCKS_PER_PART], ends[-1]})

    def rows(self, number: int) -> range:
        return range(self.ends[number - 1] if number else 0, self.ends[number])

    def __getitem__(self, number: int) -> tuple[int, int]:
        assert self.steps is not None
        part = TokenPartWriter(token_dtype(self._tensorizer.largest_id))
        rows = self.rows(number)
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            some = rows[start : start + _ROWS_AT_ONCE]
            self._kind.add_rows(part, self.text, some, self._tensorizer, self._options)
        part.write(self.steps, number)
        return number, part.num_tokens


def _build(folder: Path, facts: StoreFacts, parts: _Parts) -> None:
    """Writes the parts that are missing, in as many processes as there are cores."""
    parts.steps = steps = Steps(folder, facts, restart=True)
    if steps.is_complete():
        steps.reopen()
    done = steps.finished_steps()
    missing = [number for number in range(len(parts.ends)) if number not in done]
    total = parts.ends[-1]
    progress = Progress(
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
