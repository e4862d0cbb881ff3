"""Collation of samples into one rank's ``BiEncoderBatch``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dpr.core.batch import BiEncoderBatch, TokenBatch
from dpr.core.errors import ConfigError, InputError
from dpr.core.records import CutPassage, KnownDocument, StoredPassage, passage_hash, text_hash
from dpr.core.seeding import generator_for
from dpr.data.order import AUGMENT, NEGATIVES
from dpr.data.settings import Augmentation, DataSetSettings
from dpr.data.tensorizer import Tensorizer
from dpr.data.text import check_room, decorate_passage, normalize_passage
from dpr.data.training_data import AnyPassage, AnySample

PassageIdentity = tuple[int, int]


def passage_identity(passage: AnyPassage | KnownDocument, namespace: str) -> PassageIdentity:
    """Returns 64 bits of a passage's id within ``namespace``, and 63 bits of its title and text as a negative
    number. Without an id, it returns the latter twice.

    Texts are compared as in mining (``plain``). Passages that share either number are the same passage
    (``dpr.losses.candidates``).
    """
    if isinstance(passage, StoredPassage | CutPassage | KnownDocument):
        return passage.identity
    of_text = (passage_hash(passage) >> 1) - (1 << 63)
    if passage.id is None:
        return of_text, of_text
    return text_hash("\0".join(("id", namespace, passage.id))) - (1 << 63), of_text


def teacher_scores(passages: Sequence[AnyPassage | None]) -> list[float]:
    """Returns a teacher's scores of passages, NaN for a passage without one; empty if no passage has one."""
    scores = [
        math.nan if passage is None or passage.teacher_score is None else passage.teacher_score
        for passage in passages
    ]
    return [] if all(map(math.isnan, scores)) else scores


class DataRow(NamedTuple):
    """A row of a data set on its way into a batch. ``number`` is its number in its set, ``dataset`` the set's
    number in the run.

    ``known_positives`` are all passages known to answer its question. ``namespace`` is the name of its set;
    ids of passages count within it. ``pass_number`` is the number of complete passes over the set before this one.
    """

    sample: AnySample
    number: int
    known_positives: tuple[AnyPassage | KnownDocument, ...]
    namespace: str
    options: DataSetSettings
    dataset: int = 0
    pass_number: int = 0


def as_encoded(passage: AnyPassage, options: DataSetSettings) -> AnyPassage:
    """Returns the passage as a tower gets it: normalised and with a prefix if the set's options say so.
    Stored tokens already have this form."""
    if isinstance(passage, StoredPassage):
        return passage
    if options.normalize:
        passage = replace(passage, text=normalize_passage(passage.text))
    return decorate_passage(passage, options.passage_prefix) if options.passage_prefix else passage


class Collator:
    """Builds batches. With ``seed`` (training), negatives and augmentation are drawn from (seed, pass over
    the data set, data set, row). Without it (validation), the first passages in file order are taken and
    texts stay as they are."""

    def __init__(
        self,
        tensorizer: Tensorizer,
        *,
        num_hard: int,
        num_other: int,
        seed: int | None = None,
        augmentation: Augmentation | None = None,
    ) -> None:
        self.tensorizer = tensorizer
        self.num_hard = num_hard
        self.num_other = num_other
        self.seed = seed
        self._augmentation = Augmentation() if augmentation is None or seed is None else augmentation
        if self._augmentation.crop_tokens:
            check_room(
                tensorizer.tokenizer,
                tensorizer.text,
                {"train.augment.crop_tokens": self._augmentation.crop_tokens},
            )

    @property
    def width(self) -> int:
        """Returns the number of slots of a question."""
        return 1 + self.num_other + self.num_hard

    def __call__(self, rows: Sequence[DataRow]) -> BiEncoderBatch:
        """Collates B rows, of one data set or of several.

        Raises:
            ConfigError: sets with different ``encoder_type`` meet: a batch goes through the towers as one.
        """
        width = self.width
        slots: list[AnyPassage | None] = []
        for row in rows:
            chosen = self.select(row).in_slot_order()
            slots += [*chosen, *[None] * (width - len(chosen))]
        questions, positions = self._question_tokens(rows)
        contexts = self._context_tokens(slots, rows)
        distinct: dict[tuple[int, ...], int] = {}
        context_row = [
            0 if tokens is None else distinct.setdefault(tuple(tokens), len(distinct)) for tokens in contexts
        ]
        identities = [
            (0, 0) if passage is None else passage_identity(passage, rows[slot // width].namespace)
            for slot, passage in enumerate(slots)
        ]
        known_ids, known_valid = identity_table(
            [[passage_identity(passage, row.namespace) for passage in row.known_positives] for row in rows]
        )
        return BiEncoderBatch(
            questions=TokenBatch.from_lists(questions, positions),
            contexts=TokenBatch.from_lists([list(tokens) for tokens in distinct]),
            context_row=torch.tensor(context_row, dtype=torch.int64),
            context_valid=torch.tensor([passage is not None for passage in slots], dtype=torch.bool),
            context_ids=torch.tensor(identities, dtype=torch.int64).reshape(len(slots), 2),
            positive_idx=torch.arange(len(rows), dtype=torch.int64) * width,
            known_positive_ids=known_ids,
            known_positive_valid=known_valid,
            loss_weights=torch.tensor([row.options.loss_weight for row in rows], dtype=torch.float64),
            encoder_type=one_encoder_type([(row.namespace, row.options) for row in rows]),
            datasets=tuple(row.dataset for row in rows),
            rows=tuple(row.number for row in rows),
            teacher_scores=(
                torch.tensor(scores, dtype=torch.float32) if (scores := teacher_scores(slots)) else None
            ),
        )

    def select(self, row: DataRow) -> Selection:
        """Draws the passages of one row; fewer than the batch has slots for if the row has fewer.

        Without a seed the first ones in file order are taken. As in DPR, the other negatives stand in for hard
        ones if a sample has no hard negatives at all, and ``exclude_gold`` drops positives without a score
        unless none would remain.

        Raises:
            InputError: it has no positive.
        """
        sample = row.sample
        options = row.options
        positives: Sequence[AnyPassage] = sample.positives
        if not positives:
            raise InputError(
                f"{row.namespace}: row {row.number} has no positive passage",
                expected="at least one in positive_ctxs",
            )
        generator = None
        # it costs as much as reading a sample
        if self.seed is not None and (self.width > 1 or options.shuffle_positives):
            generator = generator_for(NEGATIVES, self.seed, row.pass_number, row.dataset, row.number)
        if options.exclude_gold:
            positives = [passage for passage in positives if passage.has_score] or positives
        place = 0
        if generator is not None and options.shuffle_positives and len(positives) > 1:
            place = int(generator.integers(len(positives)))
        if sample.hard_negatives:
            others = _draw(sample.other_negatives, self.num_other, generator)
            hard = _draw(sample.hard_negatives, self.num_hard, generator)
        else:
            others = _draw(sample.other_negatives, max(self.num_other, self.num_hard), generator)
            hard = others[: self.num_hard]
        return Selection(positives[place], others[: self.num_other], hard)

    def _question_tokens(self, rows: Sequence[DataRow]) -> tuple[list[list[int]], list[int]]:
        """Returns token ids of the questions and the position at which each one's vector is read, by the
        options of each set."""
        questions: list[list[int]] = [[] for _ in rows]
        positions = [0] * len(rows)
        for options in {id(row.options): row.options for row in rows}.values():
            places = [place for place, row in enumerate(rows) if row.options is options]
            texts = [rows[place].sample.question for place in places]
            tokens = self.tensorizer.question_tokens(texts, **options.of_questions)
            if probability := self._augmentation.mask_probability:
                tokens = [
                    self.tensorizer.masked(sequence, probability, self._augmenting(rows[place], self.width))
                    for place, sequence in zip(places, tokens, strict=True)
                ]
            read_at = self.tensorizer.representation_positions(tokens, options.selector)
            for place, sequence, position in zip(places, tokens, read_at, strict=True):
                questions[place], positions[place] = sequence, position
        return questions, positions

    def _context_tokens(
        self, slots: list[AnyPassage | None], rows: Sequence[DataRow]
    ) -> list[list[int] | None]:
        present = [
            (index, passage, rows[index // self.width])
            for index, passage in enumerate(slots)
            if passage is not None
        ]
        passages = [as_encoded(passage, row.options) for _, passage, row in present]
        augment = self._augmentation
        if not (augment.crop_tokens or augment.mask_probability):
            tokens = self.tensorizer.passage_tokens(passages)
        else:
            tokens = []
            for (index, _, row), passage in zip(present, passages, strict=True):
                generator = self._augmenting(row, index % self.width)
                if augment.crop_tokens:
                    limit = min(augment.crop_tokens, self.tensorizer.sequence_length)
                    sequence = self.tensorizer.cropped_passage_tokens(
                        passage, limit, generator, prefix=row.options.passage_prefix
                    )
                else:
                    (sequence,) = self.tensorizer.passage_tokens([passage])
                if augment.mask_probability:
                    sequence = self.tensorizer.masked(sequence, augment.mask_probability, generator)
                tokens.append(sequence)
        encoded = iter(tokens)
        return [None if passage is None else next(encoded) for passage in slots]

    def _augmenting(self, row: DataRow, slot: int) -> np.random.Generator:
        return generator_for(AUGMENT, self.seed or 0, row.pass_number, row.dataset, row.number, slot)


def one_encoder_type(sets: Iterable[tuple[str, DataSetSettings]]) -> str:
    """Returns the ``encoder_type`` of sets whose rows share a batch, given by name; "" for none. Raises
    ConfigError if they differ."""
    names = {options.encoder_type or "": name for name, options in sets}
    if len(names) > 1:
        (first, one), (second, other), *_ = ((kind or "null", name) for kind, name in names.items())
        raise ConfigError(
            f"train.sampling.mixed=true and datasets.{one}.encoder_type={first} beside"
            f" datasets.{other}.encoder_type={second} are mutually exclusive: a global batch goes through the towers"
            " as one; give both sets the same encoder_type, or leave train.sampling.mixed out"
        )
    return next(iter(names), "")


def identity_table(identities: Sequence[Sequence[PassageIdentity]]) -> tuple[Tensor, Tensor]:
    """Returns the identities of each row without repetitions, (B, K, 2), and their validity (B, K). K is the
    maximum number of identities in a row."""
    distinct = [list(dict.fromkeys(of_row)) for of_row in identities]
    most = max(map(len, distinct), default=0)
    filled = [row + [(0, 0)] * (most - len(row)) for row in distinct]
    counts = torch.tensor([[len(row)] for row in distinct], dtype=torch.int64).reshape(-1, 1)
    ids = torch.tensor(filled, dtype=torch.int64).reshape(len(distinct), most, 2)
    return ids, torch.arange(most) < counts


class Selection(NamedTuple):
    """The passages of one question: the positive, other negatives, hard negatives."""

    positive: AnyPassage
    other_negatives: tuple[AnyPassage, ...]
    hard_negatives: tuple[AnyPassage, ...]

    def in_slot_order(self) -> list[AnyPassage]:
        return [self.positive, *self.other_negatives, *self.hard_negatives]


def _draw(
    passages: tuple[AnyPassage, ...], count: int, generator: np.random.Generator | None
) -> tuple[AnyPassage, ...]:
    if generator is None or not passages or count == 0:
        return passages[:count]
    return tuple(passages[int(index)] for index in generator.permutation(len(passages))[:count])
