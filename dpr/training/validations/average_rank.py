"""The average rank of the gold passage in one pool of all dev questions' passages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from dpr.core.batch import TokenBatch
from dpr.core.distributed import current_ranks, gather_uneven_rows, sum_over_ranks
from dpr.data.collator import Collator, Identity, as_encoded, identity_table, judgement_identity
from dpr.data.loader import data_row
from dpr.data.negatives import AnyPassage
from dpr.data.order import rank_slice
from dpr.losses.candidates import Candidates, find_candidates, score_matrix
from dpr.models.biencoder import BiEncoder
from dpr.training.validations.dev_sets import DevSet, DevSetValidation

QUESTION_BLOCK = 1024
PASSAGE_BLOCK = 256


class AverageRankValidation(DevSetValidation):
    """``eval/avg_rank`` (0 is best) with ``eval/avg_rank_low`` and ``eval/avg_rank_high``, its bounds where ties are won or lost.

    Due from ``val_av_rank_start_epoch`` on. The pool is scored in blocks; the whole matrix is never held.
    """

    def is_due(self, epoch: int) -> bool:
        return self.settings.uses_average_rank(epoch)

    def _names(self) -> Sequence[str]:
        return ("avg_rank", "avg_rank_low", "avg_rank_high")

    def _sums(self, model: BiEncoder, dev: DevSet, most: int) -> Tensor:
        train = self.settings.train
        collator = Collator(model.tensorizer, num_hard=train.val_av_rank_hard_neg, num_other=train.val_av_rank_other_neg)
        share = _Share(model, dev, collator, self._num_questions(dev, most))
        pool = _RankPool.build(share, self.candidates)
        contexts = self._encode_passages(model, share.passages(pool.own_slots), len(pool.own_slots), dev)
        questions = self._encode(model, share.question_tokens(), dev.options.encoder_type or "question")

        gold = torch.zeros_like(questions)
        for columns, block in self._blocks(pool, contexts):
            row_of = torch.full((pool.num_columns,), -1, dtype=torch.int64)
            row_of[columns] = torch.arange(len(columns))
            row = row_of[pool.candidates.target]
            gold[row >= 0] = block[row[row >= 0]]
        gold_scores = torch.einsum("bd,bd->b", questions.double(), gold.double()).float()
        higher, ties = torch.zeros(len(questions), dtype=torch.int64), torch.zeros(len(questions), dtype=torch.int64)
        for columns, block in self._blocks(pool, contexts):
            for start in range(0, len(questions), QUESTION_BLOCK):
                part = slice(start, start + QUESTION_BLOCK)
                # Double sums rounded to single: equal vectors tie whatever the shape of the product they are part of.
                scores = score_matrix(questions[part].double(), block.double()).float()
                rivals = pool.candidates.competing(part, columns).to(scores.device)
                higher[part] += ((scores > gold_scores[part, None]) & rivals).sum(1).cpu()
                ties[part] += ((scores == gold_scores[part, None]) & rivals).sum(1).cpu()
        rank = higher + 0.5 * ties
        sums = torch.stack([torch.ones_like(rank), rank, higher.to(rank.dtype), (higher + ties).to(rank.dtype)], dim=1).double().sum(0)
        return sum_over_ranks(sums.to(model.device)).cpu()

    def _num_questions(self, dev: DevSet, most: int) -> int:
        limit = self.settings.train.val_av_rank_max_qs
        return min(super()._num_questions(dev, most), (limit // self.pool_size + 1) * self.pool_size if self.settings.as_dpr else limit)

    def _encode_passages(self, model: BiEncoder, passages: Iterator[AnyPassage], count: int, dev: DevSet) -> Tensor:
        """Vectors (count, D), block by block: all texts and tokens at once would take several times the memory of their vectors."""
        dtype = torch.promote_types(next(model.parameters()).dtype, torch.float32)
        vectors = torch.empty(count, model.dimension, device=model.device, dtype=dtype)
        for start in range(0, count, PASSAGE_BLOCK):
            part = model.tensorizer.passage_tokens(list(islice(passages, PASSAGE_BLOCK)))
            vectors[start : start + len(part)] = self._encode(model, TokenBatch.from_lists(part), dev.options.encoder_type or "ctx")
        return vectors

    def _blocks(self, pool: _RankPool, contexts: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Blocks of the common pool: column numbers (n,) on the CPU and vectors (n, D), the same on all ranks."""
        size = self.settings.train.val_av_rank_bsz
        for start in range(0, pool.longest_share, size):
            part = slice(start, start + size)
            yield gather_uneven_rows(pool.own_columns[part]), gather_uneven_rows(contexts[part])


class _Share:
    """One rank's questions of a dev set, and their passages laid end to end; texts are read again each time they are asked for."""

    def __init__(self, model: BiEncoder, dev: DevSet, collator: Collator, num_questions: int) -> None:
        ranks = current_ranks()
        self._tensorizer, self._dev, self._collator = model.tensorizer, dev, collator
        self._rows = range(num_questions)[rank_slice(num_questions, ranks.rank, ranks.world_size)]
        namespace = dev.options.namespace
        self.questions, self.positives = list[str | list[int]](), list[int]()
        self.identities, self.known = list[Identity](), list[list[Identity]]()
        for row in self._rows:
            self.questions.append(dev.source[row].question)
            self.positives.append(len(self.identities))
            self.identities.extend(judgement_identity(passage, namespace) for passage in self._chosen(row))
            self.known.append([judgement_identity(passage, namespace) for passage in dev.source.known_positives(row)])

    def question_tokens(self) -> TokenBatch:
        """Of the questions, with where their vectors are read."""
        options = self._dev.options
        sequences = self._tensorizer.question_tokens(self.questions, prefix=options.query_prefix, suffix=options.query_suffix)
        return TokenBatch.from_lists(sequences, self._tensorizer.representation_positions(sequences, options.selector))

    def passages(self, slots: Tensor) -> Iterator[AnyPassage]:
        """The passages in ascending ``slots``, as the tokenizer is to see them."""
        wanted, slot = set(slots.tolist()), 0
        for row in self._rows:
            for passage in self._chosen(row):
                if slot in wanted:
                    yield as_encoded(passage, self._dev.options)
                slot += 1

    def _chosen(self, row: int) -> list[AnyPassage]:
        """A question's positive, then its negatives, in the original's order."""
        return self._collator.select(data_row(self._dev.source, row, self._dev.options)).in_slot_order()


class _RankPool(NamedTuple):
    """Columns of the common pool, on the CPU: ``own_slots`` (n,) are this rank's passages that count, ``own_columns`` their columns."""

    candidates: Candidates
    num_columns: int
    longest_share: int
    own_slots: Tensor
    own_columns: Tensor

    @staticmethod
    def build(share: _Share, rule: str) -> _RankPool:
        own = torch.tensor(share.identities, dtype=torch.int64).reshape(-1, 2)
        counts, ids = gather_uneven_rows(torch.tensor([len(own)])), gather_uneven_rows(own)
        from_rank = int(counts[: current_ranks().rank].sum())
        positives = torch.tensor(share.positives, dtype=torch.int64) + from_rank
        found = find_candidates(rule, positives, torch.ones(len(ids), dtype=torch.bool), ids, *identity_table(share.known))
        own_slots = torch.nonzero(found.counts[from_rank : from_rank + len(own)])[:, 0]
        shares = gather_uneven_rows(torch.tensor([len(own_slots)]))
        return _RankPool(found, len(ids), int(shares.max()), own_slots, own_slots + from_rank)
