"""Samples -> one rank's ``BiEncoderBatch``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from dpr.core.batch import BiEncoderBatch, TokenBatch
from dpr.core.errors import ConfigError, InputError
from dpr.core.records import Passage
from dpr.core.seeding import generator_for
from dpr.data.negatives import AnyPassage, AnySample, Selection, select_passages
from dpr.data.order import AUGMENT, NEGATIVES
from dpr.data.tensorizer import Tensorizer
from dpr.data.text import normalize_passage
from dpr.formats.token_store import StoredPassage, StoredSample

Identity = tuple[int, int]


def judgement_identity(passage: AnyPassage, namespace: str) -> Identity:
    """128 bits that say which passage this is: by its id within ``namespace``, or by title and text where it has none."""
    if isinstance(passage, StoredPassage):
        return passage.identity
    parts = ("id", namespace, passage.id) if passage.id is not None else ("text", passage.title, passage.text)
    digest = blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return int.from_bytes(digest[:8], "little", signed=True), int.from_bytes(digest[8:], "little", signed=True)


@dataclass(frozen=True, slots=True)
class SetOptions:
    """How one data set's texts are treated (DPR's per-set options)."""

    namespace: str
    query_prefix: str | None = None
    query_suffix: str | None = None
    selector: int | str | None = None
    encoder_type: str = ""
    shuffle_positives: bool = False
    normalize: bool = False
    exclude_gold: bool = False
    loss_scale: float = 1.0


def as_encoded(passage: AnyPassage, options: SetOptions) -> AnyPassage:
    """The passage as a tower gets it: normalised if the set asks for it. Stored tokens are already."""
    if not options.normalize or isinstance(passage, StoredPassage):
        return passage
    return Passage(normalize_passage(passage.text), passage.title, passage.id, passage.has_score)


@dataclass(frozen=True, slots=True)
class Augmentation:
    """Random changes to training texts; 0 switches each off."""

    crop_tokens: int = 0
    mask_probability: float = 0.0


class Collator:
    """Builds batches. With ``seed`` (training), negatives and augmentation are drawn from (seed, epoch, data set, row); without, the first
    passages in file order are taken and nothing is changed (validation)."""

    def __init__(
        self,
        tensorizer: Tensorizer,
        *,
        num_hard: int,
        num_other: int,
        seed: int | None = None,
        augmentation: Augmentation | None = None,
    ) -> None:
        self.tensorizer, self.num_hard, self.num_other = tensorizer, num_hard, num_other
        self._seed = seed
        self.augmentation = augmentation or Augmentation()

    def __call__(
        self,
        samples: Sequence[AnySample],
        rows: Sequence[int],
        *,
        options: SetOptions,
        known_positives: Callable[[int], tuple[AnyPassage, ...]],
        epoch: int = 0,
        dataset: int = 0,
    ) -> BiEncoderBatch:
        """Collates B samples; ``rows`` are their numbers in the data set, ``known_positives(row)`` all that answer it."""
        selections = [self.select(sample, row, options, epoch, dataset) for sample, row in zip(samples, rows, strict=True)]
        width = 1 + self.num_other + self.num_hard
        slots: list[AnyPassage | None] = []
        for selection in selections:
            chosen = selection.in_slot_order()
            slots += [*chosen, *[None] * (width - len(chosen))]
        questions = self.tensorizer.question_tokens(
            [sample.question for sample in samples], prefix=options.query_prefix, suffix=options.query_suffix
        )
        contexts = self._context_tokens(slots, rows, width, options, epoch, dataset)
        if self._seed is not None and self.augmentation.mask_probability:
            for index, row in enumerate(rows):
                generator = generator_for(AUGMENT, self._seed, epoch, dataset, row, width)
                questions[index] = self.tensorizer.masked(questions[index], self.augmentation.mask_probability, generator)
        distinct: dict[tuple[int, ...], int] = {}
        context_row = [0 if tokens is None else distinct.setdefault(tuple(tokens), len(distinct)) for tokens in contexts]
        identities = [(0, 0) if passage is None else judgement_identity(passage, options.namespace) for passage in slots]
        known_ids, known_valid = _known_positive_ids([known_positives(row) for row in rows], options.namespace)
        return BiEncoderBatch(
            questions=TokenBatch.from_lists(questions, self.tensorizer.representation_positions(questions, options.selector)),
            contexts=TokenBatch.from_lists([list(tokens) for tokens in distinct]),
            context_row=torch.tensor(context_row, dtype=torch.int64),
            context_valid=torch.tensor([passage is not None for passage in slots], dtype=torch.bool),
            context_ids=torch.tensor(identities, dtype=torch.int64).reshape(len(slots), 2),
            positive_idx=torch.arange(len(samples), dtype=torch.int64) * width,
            known_positive_ids=known_ids,
            known_positive_valid=known_valid,
            dataset=dataset,
            encoder_type=options.encoder_type,
            loss_scale=options.loss_scale,
            rows=tuple(int(row) for row in rows),
        )

    def select(self, sample: AnySample, row: int, options: SetOptions, epoch: int, dataset: int) -> Selection:
        """The passages of one sample.

        Raises:
            InputError: it has no positive.
            ConfigError: it comes from a token store that was made with other options.
        """
        if isinstance(sample, StoredSample):
            _refuse_other_options(sample, options)
        if not sample.positives:
            raise InputError(f"{options.namespace}: row {row} has no positive passage", expected="at least one in positive_ctxs")
        is_drawn = self.num_hard or self.num_other or options.shuffle_positives  # a generator costs as much as reading a sample
        generator = None if self._seed is None or not is_drawn else generator_for(NEGATIVES, self._seed, epoch, dataset, int(row))
        return select_passages(
            sample,
            num_hard=self.num_hard,
            num_other=self.num_other,
            generator=generator,
            shuffle_positives=options.shuffle_positives,
            exclude_gold=options.exclude_gold,
        )

    def _context_tokens(
        self, slots: list[AnyPassage | None], rows: Sequence[int], width: int, options: SetOptions, epoch: int, dataset: int
    ) -> list[list[int] | None]:
        present = [index for index, passage in enumerate(slots) if passage is not None]
        passages = [as_encoded(passage, options) for passage in slots if passage is not None]
        augment = self.augmentation if self._seed is not None else Augmentation()
        if augment.crop_tokens or augment.mask_probability:
            tokens = []
            for index, passage in zip(present, passages, strict=True):
                generator = generator_for(AUGMENT, self._seed or 0, epoch, dataset, int(rows[index // width]), index % width)
                tokens.append(self._augmented(passage, augment, generator))
        else:
            tokens = self.tensorizer.passage_tokens(passages)
        result: list[list[int] | None] = [None] * len(slots)
        for index, sequence in zip(present, tokens, strict=True):
            result[index] = sequence
        return result

    def _augmented(self, passage: AnyPassage, augment: Augmentation, generator: np.random.Generator) -> list[int]:
        limit = min(augment.crop_tokens or self.tensorizer.sequence_length, self.tensorizer.sequence_length)
        if augment.crop_tokens:
            tokens = self.tensorizer.cropped_passage_tokens(passage, limit, generator)
        else:
            tokens = self.tensorizer.passage_tokens([passage])[0]
        return self.tensorizer.masked(tokens, augment.mask_probability, generator) if augment.mask_probability else tokens


def _refuse_other_options(sample: StoredSample, options: SetOptions) -> None:
    for key in ("namespace", "query_prefix", "query_suffix", "normalize"):
        if sample.facts[key] != (asked := getattr(options, key)):
            raise ConfigError(f"the tokens of {options.namespace} were stored with {key}={sample.facts[key]!r}, not {asked!r}")


def _known_positive_ids(known: list[tuple[AnyPassage, ...]], namespace: str) -> tuple[Tensor, Tensor]:
    """Identities (B, K, 2), each once, and their validity (B, K); K is the most any question of the batch has."""
    identities = [list(dict.fromkeys(judgement_identity(passage, namespace) for passage in passages)) for passages in known]
    most = max(map(len, identities), default=0)
    ids = np.zeros((len(known), most, 2), dtype=np.int64)
    valid = np.zeros((len(known), most), dtype=bool)
    for index, found in enumerate(identities):
        ids[index, : len(found)] = np.array(found, dtype=np.int64).reshape(-1, 2)
        valid[index, : len(found)] = True
    return torch.from_numpy(ids), torch.from_numpy(valid)
