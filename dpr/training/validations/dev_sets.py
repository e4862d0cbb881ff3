"""Validation over dev sets: the NLL over pools like those of training, and the average rank in one pool of
all passages."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpr.core.batch import BiEncoderBatch, Temperature, TokenBatch
from dpr.core.compute_settings import autocast
from dpr.core.distributed import current_ranks, gather_uneven_rows, sum_over_ranks
from dpr.core.errors import ConfigError
from dpr.data.collator import Collator, Identity, as_encoded, identity_table, judgement_identity
from dpr.data.loader import data_row
from dpr.data.order import rank_slice
from dpr.data.settings import DataSetSettings
from dpr.data.training_data import AnyPassage, SampleSource
from dpr.losses.candidates import find_candidates, score_matrix
from dpr.losses.nll import BiEncoderNllLoss
from dpr.losses.protocol import Pool
from dpr.models.biencoder import BiEncoder
from dpr.training.metrics import Metrics
from dpr.training.plan import negatives_per_question
from dpr.training.settings import TrainingSettings
from dpr.training.validations.protocol import QuestionMetric, Validation

QUESTION_BLOCK = 1024
PASSAGE_BLOCK = 256


class DevSet(NamedTuple):
    """A named set to validate on."""

    name: str
    source: SampleSource
    options: DataSetSettings


class DevSetValidation(Validation):
    """Means over the questions of all dev sets, ``eval/...``, and of each, ``eval/<set>/...``; the same for
    any number of ranks.

    ``candidates`` is the candidate rule, "" that of the settings; ``metrics`` are user-defined, by name, over
    NLL pools. ``compat=dpr`` validates on the questions that the original did: it read batches of
    ``train.dev_batch_size``, left out the last one if it was not full, and ended the average rank with the
    batch that exceeded ``train.val_av_rank_max_qs``.
    """

    kinds: Sequence[str]
    """The last parts of the names of its metrics, in the order of their sums."""
    _kinds_of_rows: Sequence[str]

    def __init__(
        self,
        dev_sets: Sequence[DevSet],
        settings: TrainingSettings | None = None,
        *,
        candidates: str = "",
        metrics: Mapping[str, QuestionMetric] | None = None,
    ) -> None:
        self.dev_sets, self.settings = list(dev_sets), settings or TrainingSettings()
        self.candidates, self.metrics = candidates or self.settings.candidates(), metrics or {}
        self.pool_size = self.settings.train.dev_batch_size

    def __call__(self, model: BiEncoder) -> Metrics:
        return self.trial(model, 0)

    @torch.no_grad()
    def trial(self, model: BiEncoder, num_pools: int) -> Metrics:
        """Over the first ``num_pools`` pools of each set; 0 = all."""
        most = num_pools * self.pool_size
        by_set = {dev.name: self._sums(model, dev, most) for dev in self.dev_sets}
        sums = {name: of_set for name, (of_set, _) in by_set.items()}
        total = torch.stack(list(sums.values())).sum(0)
        if not most:
            parts = {"eval": torch.cat([rows for _, rows in by_set.values()])}
            parts |= {f"eval/{name}": rows for name, (_, rows) in by_set.items()} if len(by_set) > 1 else {}
            self.values = {
                f"{key}/{kind}": rows[:, n].tolist()
                for key, rows in parts.items()
                for n, kind in enumerate(self._kinds_of_rows)
            }
            self.judged_by = [f"{key}/{self.kinds[0]}" for key in parts]
        metrics: Metrics = {}
        for key, values in [("eval", total), *((f"eval/{name}", of_set) for name, of_set in sums.items())]:
            metrics |= {
                f"{key}/{name}": float(value / values[0])
                for name, value in zip(self.kinds, values[1:], strict=True)
            }
        return metrics

    def names_for(self, sets: Sequence[str]) -> list[str]:
        """The metrics over dev sets of these names."""
        return [
            f"{key}/{kind}" for key in ("eval", *(f"eval/{name}" for name in sets)) for kind in self.kinds
        ]

    def num_texts(self, model: BiEncoder) -> int:
        drawn = self._collator(model)
        negatives = partial(negatives_per_question, num_hard=drawn.num_hard, num_other=drawn.num_other)
        return sum(self._num_questions(dev, 0) * (2 + negatives([dev.source])[0]) for dev in self.dev_sets)

    @abstractmethod
    def _collator(self, model: BiEncoder) -> Collator:
        """What makes pools of dev questions."""

    @abstractmethod
    def _sums(self, model: BiEncoder, dev: DevSet, most: int) -> tuple[Tensor, Tensor]:
        """The number of questions and the sum of each metric over them, float64, of all ranks; ``most``
        questions, 0 = all. Then the values (Q, n) of each of them, in their order, of the ``kinds`` that have
        some."""

    def _num_questions(self, dev: DevSet, most: int) -> int:
        """How many of a set's questions count; ``most`` at most, unless that is 0."""
        size = len(dev.source)
        whole = size // self.pool_size * self.pool_size
        return min(whole if self.settings.as_dpr and whole else size, most or size)

    def _encode(self, model: BiEncoder, tokens: TokenBatch, encoder_type: str) -> Tensor:
        budget = self.settings.train.val_av_rank_bsz * model.settings.sequence_length
        with autocast(model.device, self.settings.train.precision):
            return model.encode_batch(tokens, encoder_type=encoder_type, batch_tokens=budget)


class NllValidation(DevSetValidation):
    """``eval/nll_loss``, ``eval/in_batch_acc`` and user-defined metrics over pools like those of training,
    whatever its loss.

    Due until ``val_av_rank_start_epoch``, and always where there are user-defined metrics.
    """

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.kinds = ("nll_loss", "in_batch_acc", *self.metrics)
        self._kinds_of_rows = ("nll_loss", *self.metrics)

    def is_due(self, epoch: int) -> bool:
        return bool(self.metrics) or not self.settings.uses_average_rank(epoch)

    def _collator(self, model: BiEncoder) -> Collator:
        return Collator(
            model.tensorizer,
            num_hard=self.settings.train.hard_negatives,
            num_other=self.settings.train.other_negatives,
        )

    def _sums(self, model: BiEncoder, dev: DevSet, most: int) -> tuple[Tensor, Tensor]:
        ranks, collator = current_ranks(), self._collator(model)
        sums = torch.zeros(3 + len(self.metrics), dtype=torch.float64, device=model.device)
        num_questions, parts = (
            self._num_questions(dev, most),
            [torch.zeros(0, 1 + len(self.metrics), dtype=torch.float64)],
        )
        for start in range(0, num_questions, self.pool_size):
            size = min(self.pool_size, num_questions - start)
            mine = rank_slice(size, ranks.rank, ranks.world_size)
            rows = range(start + mine.start, start + mine.stop)
            batch = collator([data_row(dev.source, row, dev.options) for row in rows]).to(model.device)
            questions = self._encode(model, batch.questions, dev.options.encoder_type or "question")
            contexts = self._encode(model, batch.contexts, dev.options.encoder_type or "ctx")
            own = slice(mine.start * collator.width, mine.stop * collator.width)
            pool = self._pool(
                batch, questions, contexts[batch.context_row], own, Temperature(float(model.temperature))
            )
            result = BiEncoderNllLoss()(questions, pool)
            own_values = self._user_values(questions, pool)
            values_of_pool = [
                torch.tensor(float(len(rows))),
                result.loss,
                result.num_correct,
                *(values.sum() for values in own_values),
            ]
            sums += torch.stack([value.to(sums.device, torch.float64) for value in values_of_pool])
            mine_of_all = torch.stack(
                [value.to(sums.device, torch.float64) for value in (result.losses, *own_values)], dim=1
            )
            parts.append(gather_uneven_rows(mine_of_all).cpu())
        return sum_over_ranks(sums), torch.cat(parts)

    def _pool(
        self, batch: BiEncoderBatch, questions: Tensor, slots: Tensor, own: slice, temperature: Temperature
    ) -> Pool:
        """The pool of all ranks' slots; ranks may hold different numbers of them."""
        ids, valid = gather_uneven_rows(batch.context_ids), gather_uneven_rows(batch.context_valid)
        known = batch.known_positive_ids, batch.known_positive_valid
        candidates = find_candidates(self.candidates, batch.positive_idx + own.start, valid, ids, *known).to(
            slots.device
        )
        return Pool(
            gather_uneven_rows(slots), candidates, temperature, questions, own, slice(0, len(questions)), ids
        )

    def _user_values(self, questions: Tensor, pool: Pool) -> list[Tensor]:
        """User-defined metrics of this rank's questions."""
        if not len(questions):
            return [torch.zeros(0)] * len(self.metrics)
        scores, labels = (
            pool.candidates.mask_(score_matrix(questions, pool.contexts, pool.temperature)),
            pool.candidates.target,
        )
        found_values = []
        for name, metric in self.metrics.items():
            value = metric(scores, labels)
            if not isinstance(value, Tensor) or value.shape != labels.shape:
                found = (
                    f"of shape {tuple(value.shape)}"
                    if isinstance(value, Tensor)
                    else f"a {type(value).__name__}"
                )
                raise ConfigError(
                    f"the metric {name} returned {found}; expected a tensor with one value per question,"
                    f" {tuple(labels.shape)}"
                )
            found_values.append(value.double())
        return found_values


class AverageRankValidation(DevSetValidation):
    """``eval/avg_rank`` (0 is best) with ``eval/avg_rank_low`` and ``eval/avg_rank_high``, its bounds where
    ties are won or lost.

    Due from ``val_av_rank_start_epoch`` on. The pool is scored in blocks; the whole matrix is never held.
    """

    kinds = ("avg_rank", "avg_rank_low", "avg_rank_high")
    _kinds_of_rows = ("avg_rank",)

    def is_due(self, epoch: int) -> bool:
        return self.settings.uses_average_rank(epoch)

    def _collator(self, model: BiEncoder) -> Collator:
        train = self.settings.train
        return Collator(
            model.tensorizer, num_hard=train.val_av_rank_hard_neg, num_other=train.val_av_rank_other_neg
        )

    def _sums(self, model: BiEncoder, dev: DevSet, most: int) -> tuple[Tensor, Tensor]:
        pool = _RankPool(dev, self._collator(model), self._num_questions(dev, most), self.candidates)
        contexts = self._encode_passages(model, pool, dev)
        questions = self._encode(model, pool.question_tokens(), dev.options.encoder_type or "question")

        gold = torch.zeros_like(questions)
        for columns, block in self._blocks(pool, contexts):
            row_of = torch.full((pool.num_columns,), -1, dtype=torch.int64)
            row_of[columns] = torch.arange(len(columns))
            row = row_of[pool.candidates.target]
            gold[row >= 0] = block[row[row >= 0]]
        gold_scores = torch.einsum("bd,bd->b", questions.double(), gold.double()).float()
        higher, ties = (
            torch.zeros(len(questions), dtype=torch.int64),
            torch.zeros(len(questions), dtype=torch.int64),
        )
        for columns, block in self._blocks(pool, contexts):
            for start in range(0, len(questions), QUESTION_BLOCK):
                part = slice(start, start + QUESTION_BLOCK)
                # Sums in float64 rounded to float32: equal vectors tie whatever the shape of the product that
                # they are part of.
                scores = score_matrix(questions[part].double(), block.double()).float()
                rivals = pool.candidates.competing(part, columns).to(scores.device)
                higher[part] += ((scores > gold_scores[part, None]) & rivals).sum(1).cpu()
                ties[part] += ((scores == gold_scores[part, None]) & rivals).sum(1).cpu()
        rank = higher + 0.5 * ties
        sums = (
            torch.stack(
                [torch.ones_like(rank), rank, higher.to(rank.dtype), (higher + ties).to(rank.dtype)], dim=1
            )
            .double()
            .sum(0)
        )
        return (
            sum_over_ranks(sums.to(model.device)).cpu(),
            gather_uneven_rows(rank.double()[:, None].to(model.device)).cpu(),
        )

    def _num_questions(self, dev: DevSet, most: int) -> int:
        limit = self.settings.train.val_av_rank_max_qs
        return min(
            super()._num_questions(dev, most),
            (limit // self.pool_size + 1) * self.pool_size if self.settings.as_dpr else limit,
        )

    def _encode_passages(self, model: BiEncoder, pool: _RankPool, dev: DevSet) -> Tensor:
        """Vectors of the pool's slots (n, D), block by block: all texts and tokens at once would take several
        times their memory.

        All ranks take as many blocks, some of them empty, as the longest share has: a sharded model encodes
        on all of them together.
        """
        passages, count = pool.passages(), len(pool.slots)
        dtype = torch.promote_types(next(model.parameters()).dtype, torch.float32)
        vectors = torch.empty(count, model.dimension, device=model.device, dtype=dtype)
        for start in range(0, pool.longest_share, PASSAGE_BLOCK):
            part = model.tensorizer.passage_tokens(list(islice(passages, PASSAGE_BLOCK)))
            vectors[start : start + len(part)] = self._encode(
                model, TokenBatch.from_lists(part), dev.options.encoder_type or "ctx"
            )
        return vectors

    def _blocks(self, pool: _RankPool, contexts: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Blocks of the pool: column numbers (n,) on the CPU and vectors (n, D), the same on all ranks."""
        size = self.settings.train.val_av_rank_bsz
        for start in range(0, pool.longest_share, size):
            part = slice(start, start + size)
            yield gather_uneven_rows(pool.columns[part]), gather_uneven_rows(contexts[part])


def dev_validations(
    dev_sets: Sequence[DevSet],
    settings: TrainingSettings,
    *,
    candidates: str = "",
    metrics: Mapping[str, QuestionMetric] | None = None,
) -> list[DevSetValidation]:
    """The average rank and the NLL, each due in its epochs."""
    return [
        kind(dev_sets, settings, candidates=candidates, metrics=metrics)
        for kind in (AverageRankValidation, NllValidation)
    ]


class _RankPool:
    """One pool of the passages of all dev questions, whose rows the ranks share.

    A rank lays the passages of its questions end to end. ``slots`` (n,) are the places of those that count,
    ``columns`` (n,) their columns in the pool, both on the CPU. Texts are read again each time they are
    needed.
    """

    def __init__(self, dev: DevSet, collator: Collator, num_questions: int, rule: str) -> None:
        ranks, namespace = current_ranks(), dev.source.name
        self._dev, self._collator = dev, collator
        self._rows = range(num_questions)[rank_slice(num_questions, ranks.rank, ranks.world_size)]
        positives, identities, known = list[int](), list[Identity](), list[list[Identity]]()
        for row in self._rows:
            positives.append(len(identities))
            identities.extend(judgement_identity(passage, namespace) for passage in self._chosen(row))
            known.append(
                [judgement_identity(passage, namespace) for passage in dev.source.known_positives(row)]
            )
        mine = torch.tensor(identities, dtype=torch.int64).reshape(-1, 2)
        counts, ids = gather_uneven_rows(torch.tensor([len(mine)])), gather_uneven_rows(mine)
        first, self.num_columns = int(counts[: ranks.rank].sum()), len(ids)
        targets = torch.tensor(positives, dtype=torch.int64) + first
        self.candidates = find_candidates(
            rule, targets, torch.ones(len(ids), dtype=torch.bool), ids, *identity_table(known)
        )
        self.slots = torch.nonzero(self.candidates.counts[first : first + len(mine)])[:, 0]
        self.columns = self.slots + first
        self.longest_share = int(gather_uneven_rows(torch.tensor([len(self.slots)])).max())

    def question_tokens(self) -> TokenBatch:
        """The tokens of this rank's questions, with the positions at which their vectors are read."""
        tensorizer, options = self._collator.tensorizer, self._dev.options
        questions = [self._dev.source[row].question for row in self._rows]
        sequences = tensorizer.question_tokens(questions, **options.of_questions)
        return TokenBatch.from_lists(
            sequences, tensorizer.representation_positions(sequences, options.selector)
        )

    def passages(self) -> Iterator[AnyPassage]:
        """The passages in ``slots``, as the tokenizer sees them."""
        wanted = set(self.slots.tolist())
        every = (passage for row in self._rows for passage in self._chosen(row))
        return (
            as_encoded(passage, self._dev.options) for slot, passage in enumerate(every) if slot in wanted
        )

    def _chosen(self, row: int) -> list[AnyPassage]:
        """A question's positive, then its negatives, in the original's order."""
        return self._collator.select(data_row(self._dev.source, row, self._dev.options)).in_slot_order()
