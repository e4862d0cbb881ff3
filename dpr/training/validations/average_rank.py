"""The average rank of the gold passage in one pool of all dev questions' passages."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor

from dpr.core.batch import TokenBatch
from dpr.core.distributed import current_ranks, gather_uneven_rows, sum_over_ranks
from dpr.data.collator import Collator, Identity, as_encoded, identity_table, judgement_identity
from dpr.data.loader import data_row
from dpr.data.negatives import AnyPassage
from dpr.data.order import rank_slice
from dpr.losses.candidates import find_candidates, score_matrix
from dpr.models.biencoder import BiEncoder
from dpr.training.validations.dev_sets import DevSet, DevSetValidation

QUESTION_BLOCK = 1024
PASSAGE_BLOCK = 256


class AverageRankValidation(DevSetValidation):
    """``eval/avg_rank`` (0 is best) with ``eval/avg_rank_low`` and ``eval/avg_rank_high``, its bounds where ties are won or lost.

    Due from ``val_av_rank_start_epoch`` on. The pool is scored in blocks; the whole matrix is never held.
    """

    names = ("avg_rank", "avg_rank_low", "avg_rank_high")

    def is_due(self, epoch: int) -> bool:
        return self.settings.uses_average_rank(epoch)

    def _sums(self, model: BiEncoder, dev: DevSet, most: int) -> Tensor:
        train = self.settings.train
        collator = Collator(model.tensorizer, num_hard=train.val_av_rank_hard_neg, num_other=train.val_av_rank_other_neg)
        pool = _RankPool(dev, collator, self._num_questions(dev, most), self.candidates)
        contexts = self._encode_passages(model, pool.passages(), len(pool.slots), dev)
        questions = self._encode(model, pool.question_tokens(), dev.options.encoder_type or "question")

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
                # Sums in float64 rounded to float32: equal vectors tie whatever the shape of the product that they are part of.
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
        """Vectors (count, D), block by block: all texts and tokens at once would take several times the memory of the vectors."""
        dtype = torch.promote_types(next(model.parameters()).dtype, torch.float32)
        vectors = torch.empty(count, model.dimension, device=model.device, dtype=dtype)
        for start in range(0, count, PASSAGE_BLOCK):
            part = model.tensorizer.passage_tokens(list(islice(passages, PASSAGE_BLOCK)))
            vectors[start : start + len(part)] = self._encode(model, TokenBatch.from_lists(part), dev.options.encoder_type or "ctx")
        return vectors

    def _blocks(self, pool: _RankPool, contexts: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Blocks of the pool: column numbers (n,) on the CPU and vectors (n, D), the same on all ranks."""
        size = self.settings.train.val_av_rank_bsz
        for start in range(0, pool.longest_share, size):
            part = slice(start, start + size)
            yield gather_uneven_rows(pool.columns[part]), gather_uneven_rows(contexts[part])


class _RankPool:
    """One pool of the passages of all dev questions, whose rows the ranks share.

    A rank lays the passages of its questions end to end. ``slots`` (n,) are the places of those that count, ``columns`` (n,) their columns
    in the pool, both on the CPU. Texts are read again each time they are needed.
    """

    def __init__(self, dev: DevSet, collator: Collator, num_questions: int, rule: str) -> None:
        ranks, namespace = current_ranks(), dev.options.namespace
        self._dev, self._collator = dev, collator
        self._rows = range(num_questions)[rank_slice(num_questions, ranks.rank, ranks.world_size)]
        positives, identities, known = list[int](), list[Identity](), list[list[Identity]]()
        for row in self._rows:
            positives.append(len(identities))
            identities.extend(judgement_identity(passage, namespace) for passage in self._chosen(row))
            known.append([judgement_identity(passage, namespace) for passage in dev.source.known_positives(row)])
        mine = torch.tensor(identities, dtype=torch.int64).reshape(-1, 2)
        counts, ids = gather_uneven_rows(torch.tensor([len(mine)])), gather_uneven_rows(mine)
        first, self.num_columns = int(counts[: ranks.rank].sum()), len(ids)
        targets = torch.tensor(positives, dtype=torch.int64) + first
        self.candidates = find_candidates(rule, targets, torch.ones(len(ids), dtype=torch.bool), ids, *identity_table(known))
        self.slots = torch.nonzero(self.candidates.counts[first : first + len(mine)])[:, 0]
        self.columns = self.slots + first
        self.longest_share = int(gather_uneven_rows(torch.tensor([len(self.slots)])).max())

    def question_tokens(self) -> TokenBatch:
        """The tokens of this rank's questions, with the positions at which their vectors are read."""
        tensorizer, options = self._collator.tensorizer, self._dev.options
        questions = [self._dev.source[row].question for row in self._rows]
        sequences = tensorizer.question_tokens(questions, prefix=options.query_prefix, suffix=options.query_suffix)
        return TokenBatch.from_lists(sequences, tensorizer.representation_positions(sequences, options.selector))

    def passages(self) -> Iterator[AnyPassage]:
        """The passages in ``slots``, as the tokenizer sees them."""
        wanted = set(self.slots.tolist())
        every = (passage for row in self._rows for passage in self._chosen(row))
        return (as_encoded(passage, self._dev.options) for slot, passage in enumerate(every) if slot in wanted)

    def _chosen(self, row: int) -> list[AnyPassage]:
        """A question's positive, then its negatives, in the original's order."""
        return self._collator.select(data_row(self._dev.source, row, self._dev.options)).in_slot_order()
