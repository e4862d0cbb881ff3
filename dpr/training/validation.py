"""Validation in training and in evaluation-only mode: NLL over pools, and the average rank of the gold passage in one common pool.

Both give the same figures for any number of ranks: pools are defined over the data set and ranks share the work on each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from dpr.core.batch import ContextVectors, TokenBatch
from dpr.core.distributed import Ranks, current_ranks, gather_uneven_rows, sum_over_ranks
from dpr.core.errors import ConfigError
from dpr.data.collator import Collator, SetOptions, as_encoded, judgement_identity
from dpr.data.loader import SampleSource, data_row
from dpr.data.negatives import AnyPassage
from dpr.data.order import rank_slice
from dpr.losses.candidates import score_matrix
from dpr.losses.nll import BiEncoderNllLoss
from dpr.models.biencoder import BiEncoder
from dpr.training.metrics import Metrics
from dpr.training.step import PRECISIONS

QUESTION_BLOCK = 1024
PASSAGE_BLOCK = 256

QuestionMetric = Callable[[Tensor, Tensor], Tensor]
"""(scores, labels) -> a figure for each question: ``scores`` (B, M) of the pool's candidates, with -1e30 for those that do not count for a
question, ``labels`` (B,) the columns of the positives; returns (B,). Validation takes the mean over all questions."""


@dataclass(frozen=True, slots=True)
class ValidationSettings:
    """``pool_size``: questions per NLL pool over all ranks. The rest: DPR's average-rank settings.

    ``as_dpr`` validates on the questions that the original did: it read batches of ``pool_size``, left the last one out if it was not full,
    and ended the average rank with the batch that took it past ``average_rank_max_questions``. Prefixes belong to training there.
    ``metrics`` are figures of your own, by name, over the NLL pools.
    """

    pool_size: int = 64
    average_rank_hard_negatives: int = 30
    average_rank_other_negatives: int = 30
    average_rank_passages_per_forward: int = 128
    average_rank_max_questions: int = 10000
    as_dpr: bool = False
    metrics: Mapping[str, QuestionMetric] = field(default_factory=dict)

    def num_nll_questions(self, num_questions: int) -> int:
        """How many of a set's questions the NLL is taken over."""
        whole = num_questions // self.pool_size * self.pool_size
        return whole if self.as_dpr and whole else num_questions

    def num_rank_questions(self, num_questions: int) -> int:
        """How many of a set's questions, from its beginning, the average rank is taken over."""
        if not self.as_dpr:
            return min(num_questions, self.average_rank_max_questions)
        return min(self.num_nll_questions(num_questions), (self.average_rank_max_questions // self.pool_size + 1) * self.pool_size)


class DevSet(NamedTuple):
    """A named set to validate on."""

    name: str
    source: SampleSource
    options: SetOptions


class Validator:
    """Validates a model on one or several dev sets. Every method must be called by all ranks together."""

    def __init__(
        self,
        model: BiEncoder,
        loss: BiEncoderNllLoss,
        dev_sets: Sequence[DevSet],
        *,
        hard_negatives: int = 1,
        other_negatives: int = 0,
        settings: ValidationSettings | None = None,
        ranks: Ranks | None = None,
        precision: str = "fp32",
    ) -> None:
        self.model, self.loss, self.dev_sets = model, loss, list(dev_sets)
        self.settings, self.ranks = settings or ValidationSettings(), ranks or Ranks()
        self._autocast_dtype = PRECISIONS[precision]
        self._nll_collator = Collator(model.tensorizer, num_hard=hard_negatives, num_other=other_negatives)
        self._rank_collator = Collator(
            model.tensorizer,
            num_hard=self.settings.average_rank_hard_negatives,
            num_other=self.settings.average_rank_other_negatives,
        )

    def nll(self, *, max_pools: int = 0) -> Metrics:
        """``eval/nll_loss``, ``eval/in_batch_acc`` and own metrics: means over the questions of all sets and, ``eval/<set>/...``, of each.

        ``max_pools``: only so many pools of each set; 0 = all.
        """
        names = ("nll_loss", "in_batch_acc", *self.settings.metrics)
        return self._summary({dev.name: self._nll_sums(dev, max_pools) for dev in self.dev_sets}, names)

    def average_rank(self, *, max_pools: int = 0) -> Metrics:
        """``eval/avg_rank`` (0 is best) with ``eval/avg_rank_low`` and ``eval/avg_rank_high``, its bounds where ties are won or lost."""
        sums = {dev.name: self._rank_sums(dev, max_pools) for dev in self.dev_sets}
        return self._summary(sums, ("avg_rank", "avg_rank_low", "avg_rank_high"))

    def _summary(self, sums: dict[str, Tensor], names: tuple[str, ...]) -> Metrics:
        """``sums`` holds, for each set, the number of questions and the sum of each figure over them."""
        metrics: Metrics = {}
        for key, total in [("eval", torch.stack(list(sums.values())).sum(0)), *((f"eval/{name}", value) for name, value in sums.items())]:
            metrics |= {f"{key}/{name}": float(value / total[0]) for name, value in zip(names, total[1:], strict=True)}
        return metrics

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.model.device.type, dtype=self._autocast_dtype, enabled=self._autocast_dtype is not None)

    def _encode(self, tokens: TokenBatch, encoder_type: str, side: str) -> Tensor:
        budget = self.settings.average_rank_passages_per_forward * self.model.settings.sequence_length
        with self._autocast():
            return self.model.encode_batch(tokens, encoder_type=encoder_type or side, batch_tokens=budget)

    def _encode_passages(self, passages: Iterator[AnyPassage], count: int, dev: DevSet) -> Tensor:
        """Vectors (count, D), block by block: all texts and tokens at once would take several times the memory of their vectors."""
        dtype = torch.promote_types(next(self.model.parameters()).dtype, torch.float32)
        vectors = torch.empty(count, self.model.dimension, device=self.model.device, dtype=dtype)
        for start in range(0, count, PASSAGE_BLOCK):
            part = self.model.tensorizer.passage_tokens(list(islice(passages, PASSAGE_BLOCK)))
            vectors[start : start + len(part)] = self._encode(TokenBatch.from_lists(part), dev.options.encoder_type, "ctx")
        return vectors

    @torch.no_grad()
    def _nll_sums(self, dev: DevSet, max_pools: int) -> Tensor:
        sums = torch.zeros(3 + len(self.settings.metrics), dtype=torch.float64, device=self.model.device)
        num_questions = self._at_most(max_pools, self.settings.num_nll_questions(len(dev.source)))
        for start in range(0, num_questions, self.settings.pool_size):
            size = min(self.settings.pool_size, num_questions - start)
            mine = rank_slice(size, self.ranks.rank, self.ranks.world_size)
            rows = list(range(start + mine.start, start + mine.stop))
            batch = self._nll_collator([data_row(dev.source, row, dev.options) for row in rows]).to(self.model.device)
            questions = self._encode(batch.questions, dev.options.encoder_type, "question")
            contexts = self._encode(batch.contexts, dev.options.encoder_type, "ctx")
            slots = contexts[batch.context_row] if rows else contexts
            pool = ContextVectors(*(gather_uneven_rows(part) for part in (slots, batch.context_valid, batch.context_ids)))
            width = 1 + self._nll_collator.num_hard + self._nll_collator.num_other
            known = batch.known_positive_ids, batch.known_positive_valid
            positives = batch.positive_idx + mine.start * width
            result = self.loss(questions, pool, positives, *known, self._temperature())
            own = self._own_figures(questions, pool, positives, *known) if rows else []
            own = own or [torch.zeros(())] * len(self.settings.metrics)
            figures = [torch.tensor(float(len(rows))), result.loss, result.num_correct, *own]
            sums += torch.stack([figure.to(sums.device, torch.float64) for figure in figures])
        return sum_over_ranks(sums)

    def _at_most(self, max_pools: int, num_questions: int) -> int:
        return min(num_questions, max_pools * self.settings.pool_size) if max_pools else num_questions

    def _own_figures(
        self, questions: Tensor, pool: ContextVectors, positives: Tensor, known_ids: Tensor, known_valid: Tensor
    ) -> list[Tensor]:
        """Sums over this rank's questions."""
        if not self.settings.metrics:
            return []
        candidates = self.loss.find_candidates(positives, pool.valid, pool.ids, known_ids, known_valid)
        scores, labels = candidates.mask_(score_matrix(questions, pool.vectors, self._temperature())), candidates.target
        sums = []
        for name, metric in self.settings.metrics.items():
            value = metric(scores, labels)
            if not isinstance(value, Tensor) or value.shape != labels.shape:
                found = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
                raise ConfigError(
                    f"the metric {name} returned {found}; expected a tensor with one value per question, {tuple(labels.shape)}"
                )
            sums.append(value.double().sum())
        return sums

    def _temperature(self) -> float:
        learned = self.model.log_temperature
        return self.model.options.temperature if learned is None else float(learned.exp())

    @torch.no_grad()
    def _rank_sums(self, dev: DevSet, max_pools: int) -> Tensor:
        num_questions = self._at_most(max_pools, self.settings.num_rank_questions(len(dev.source)))
        rows = rank_slice(num_questions, self.ranks.rank, self.ranks.world_size)
        share = self._rank_share(dev, rows)
        candidates = _RankCandidates.build(share, distinct=self.loss.candidates == "distinct")
        contexts = self._encode_passages(self._passages(dev, rows, candidates.own_slots), len(candidates.own_slots), dev)
        sequences = self.model.tensorizer.question_tokens(share.questions, prefix=dev.options.query_prefix, suffix=dev.options.query_suffix)
        positions = self.model.tensorizer.representation_positions(sequences, dev.options.selector)
        questions = self._encode(TokenBatch.from_lists(sequences, positions), dev.options.encoder_type, "question")

        gold = torch.zeros_like(questions)
        for columns, block in self._blocks(candidates, contexts):
            row_of = torch.full((candidates.num_columns,), -1, dtype=torch.int64)
            row_of[columns] = torch.arange(len(columns))
            row = row_of[candidates.target]
            gold[row >= 0] = block[row[row >= 0]]
        gold_scores = torch.einsum("bd,bd->b", questions.double(), gold.double()).float()
        higher, ties = torch.zeros(len(questions), dtype=torch.int64), torch.zeros(len(questions), dtype=torch.int64)
        for columns, block in self._blocks(candidates, contexts):
            for start in range(0, len(questions), QUESTION_BLOCK):
                part = slice(start, start + QUESTION_BLOCK)
                # Double sums rounded to single: equal vectors tie whatever the shape of the product they are part of.
                scores = score_matrix(questions[part].double(), block.double()).float()
                counts = candidates.counting(part, columns).to(scores.device)
                higher[part] += ((scores > gold_scores[part, None]) & counts).sum(1).cpu()
                ties[part] += ((scores == gold_scores[part, None]) & counts).sum(1).cpu()
        rank = higher + 0.5 * ties
        sums = torch.stack([torch.ones_like(rank), rank, higher.to(rank.dtype), (higher + ties).to(rank.dtype)], dim=1).double().sum(0)
        return sum_over_ranks(sums.to(self.model.device)).cpu()

    def _rank_share(self, dev: DevSet, rows: slice) -> _RankShare:
        share = _RankShare([], [], [], [])
        for row in range(rows.start, rows.stop):
            share.questions.append(dev.source[row].question)
            share.positives.append(len(share.identities))
            share.identities.extend(judgement_identity(passage, dev.options.namespace) for passage in self._chosen(dev, row))
            share.known.append([judgement_identity(passage, dev.options.namespace) for passage in dev.source.known_positives(row)])
        return share

    def _passages(self, dev: DevSet, rows: slice, slots: Tensor) -> Iterator[AnyPassage]:
        """The passages in ascending ``slots`` of the questions' lists laid end to end, as the tokenizer is to see them."""
        wanted, slot = set(slots.tolist()), 0
        for row in range(rows.start, rows.stop):
            for passage in self._chosen(dev, row):
                if slot in wanted:
                    yield as_encoded(passage, dev.options)
                slot += 1

    def _chosen(self, dev: DevSet, row: int) -> list[AnyPassage]:
        """A question's positive, then its negatives, in the original's order."""
        return self._rank_collator.select(data_row(dev.source, row, dev.options)).in_slot_order()

    def _blocks(self, candidates: _RankCandidates, contexts: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Blocks of the common pool: column numbers (n,) on the CPU and vectors (n, D), the same on all ranks."""
        size = self.settings.average_rank_passages_per_forward
        for start in range(0, candidates.longest_share, size):
            part = slice(start, start + size)
            columns = gather_uneven_rows(candidates.own_columns[part].to(contexts.device)).cpu()
            yield columns, gather_uneven_rows(contexts[part])


class _RankShare(NamedTuple):
    """One rank's questions and the identities of their passages; ``positives`` are positions in ``identities``."""

    questions: list[str | list[int]]
    positives: list[int]
    identities: list[tuple[int, int]]
    known: list[list[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class _RankCandidates:
    """Columns of the common pool. All tensors on the CPU."""

    num_columns: int
    longest_share: int
    own_slots: Tensor
    """This rank's passages that count, (n,), and their columns below."""
    own_columns: Tensor
    target: Tensor
    """Column of each own question's gold passage, (B,)."""
    label: Tensor
    """Passage number of each column, (M,): equal for equal passages."""
    known: Tensor
    """Passage numbers of each question's known positives, (B, K), -1 where there are fewer; empty when every slot counts."""

    @staticmethod
    def build(share: _RankShare, *, distinct: bool) -> _RankCandidates:
        own = torch.tensor(share.identities, dtype=torch.int64).reshape(-1, 2)
        counts = gather_uneven_rows(torch.tensor([len(own)]))
        ids = gather_uneven_rows(own)
        from_rank = int(counts[: current_ranks().rank].sum())
        target = torch.tensor(share.positives, dtype=torch.int64) + from_rank
        columns = torch.arange(len(ids))
        most = max((len(known) for known in share.known), default=0) if distinct else 0
        pairs = [pair for known in share.known for pair in known] if distinct else []
        _, label = torch.unique(torch.cat([ids, torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)]), dim=0, return_inverse=True)
        known_table = torch.full((len(share.questions), most), -1, dtype=torch.int64)
        position = len(ids)
        for row, known in enumerate(share.known if distinct else []):
            known_table[row, : len(known)] = label[position : position + len(known)]
            position += len(known)
        counting = torch.ones(len(ids), dtype=torch.bool)
        if distinct:
            first = torch.full((len(label),), len(ids), dtype=torch.int64).scatter_reduce_(0, label[: len(ids)], columns, reduce="amin")
            counting = first[label[: len(ids)]] == columns
            target = first[label[target]]
        own_slots = torch.nonzero(counting[from_rank : from_rank + len(own)])[:, 0]
        shares = gather_uneven_rows(torch.tensor([len(own_slots)]))
        return _RankCandidates(len(ids), int(shares.max()), own_slots, own_slots + from_rank, target, label[: len(ids)], known_table)

    def counting(self, questions: slice, columns: Tensor) -> Tensor:
        """Which columns compete with the gold passage, (B', n): not itself, and no other known positive."""
        result = columns[None, :] != self.target[questions, None]
        for number in range(self.known.shape[1]):
            result &= self.label[columns][None, :] != self.known[questions, number, None]
        return result
