"""Validation over dev sets: the NLL over batches like those of training, and the average rank among the
passages of all dev questions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from dpr.core.batch import BiEncoderBatch, Temperature, TokenBatch, on_device
from dpr.core.compute_settings import autocast
from dpr.core.distributed import current_ranks, gather_uneven_rows, largest_over_ranks, sum_over_ranks
from dpr.core.logs import counted
from dpr.data.collator import Collator, identity_table, passage_identity
from dpr.data.loader import data_row
from dpr.data.order import rank_slice
from dpr.data.settings import DataSetSettings
from dpr.data.training_data import OpenedSets, SampleSource
from dpr.losses.candidates import find_candidates, score_matrix
from dpr.losses.nll import MAX_SCORES, nll_of_columns
from dpr.models.towers import Towers
from dpr.training.plan import negatives_per_question
from dpr.training.settings import TrainingSettings
from dpr.training.validations.protocol import Metrics, Validation

QUESTIONS_AT_ONCE = 32  # read and tokenised at a time, with their passages, for the average rank
QUESTION_BLOCK = 1024
_LOWER_IS_BETTER = ("nll_loss", "avg_rank", "avg_rank_low", "avg_rank_high")


class DevSetValidation(Validation):
    """Means over the questions of all dev sets, ``eval/...``, and of each, ``eval/<set>/...``; the same for
    any number of ranks.

    ``candidates`` is the candidate rule; "" stands for the rule of the settings. ``compat=dpr`` validates on
    the questions that the original did. It read batches of ``train.dev_batch_size`` and left out the last one
    if it was not full. It ended the average rank with the batch that exceeded ``train.val_av_rank_max_qs``.
    """

    kinds: Sequence[str]
    """Last parts of the names of its metrics, in the order of their sums. The first ones have a value for
    each question."""

    def __init__(
        self, dev_sets: OpenedSets, settings: TrainingSettings | None = None, *, candidates: str = ""
    ) -> None:
        self.dev_sets = dev_sets
        self.settings = settings or TrainingSettings()
        self.candidates = candidates or self.settings.candidates()
        self.global_batch_size = self.settings.train.dev_batch_size

    @torch.no_grad()
    def __call__(self, model: Towers) -> Metrics:
        by_set = {
            f"eval/{source.name}": self._measured(model, source, options) for source, options in self.dev_sets
        }
        all_sums, all_values = zip(*by_set.values(), strict=True)
        measured = {"eval": (torch.stack(all_sums).sum(0), torch.cat(all_values)), **by_set}
        metrics: Metrics = {}
        values: dict[str, list[float]] = {}
        for key, (sums, of_questions) in measured.items():
            for kind, value in zip(self.kinds, sums[1:], strict=True):
                metrics[f"{key}/{kind}"] = float(value / sums[0])
            if key == "eval" or len(by_set) > 1:
                for kind, column in zip(self.kinds, of_questions.T, strict=False):
                    values[f"{key}/{kind}"] = column.tolist()
        self.values = values
        self.judged_by = [name for name in values if name.endswith(f"/{self.kinds[0]}")]
        return metrics

    def names_for(self, sets: Sequence[str]) -> list[str]:
        """Returns the names of the metrics over dev sets of these names."""
        keys = ["eval", *(f"eval/{name}" for name in sets)]
        return [f"{key}/{kind}" for key in keys for kind in self.kinds]

    def lower_is_better(self, name: str) -> bool:
        return name.rpartition("/")[2] in _LOWER_IS_BETTER

    def num_texts(self, model: Towers) -> int:
        count = 0
        for source, _ in self.dev_sets:
            negatives, _ = negatives_per_question([source], self._collator(model))
            count += self._num_questions(source) * (2 + negatives)
        return count

    @abstractmethod
    def _collator(self, model: Towers) -> Collator:
        """Returns the collator that makes batches of dev questions."""

    @abstractmethod
    def _measured(
        self, model: Towers, source: SampleSource, options: DataSetSettings
    ) -> tuple[Tensor, Tensor]:
        """Returns the number of a set's questions and the sum of each metric over them, in float64, over all
        ranks; and the values (Q, K) of each question for the first K metrics."""

    def _num_questions(self, source: SampleSource) -> int:
        """Returns the number of a set's questions that count."""
        size = len(source)
        whole = size // self.global_batch_size * self.global_batch_size
        return whole if self.settings.as_dpr and whole else size

    def _encoded(
        self,
        model: Towers,
        collator: Collator,
        source: SampleSource,
        options: DataSetSettings,
        rows: Sequence[int],
    ) -> tuple[BiEncoderBatch, Tensor, Tensor]:
        """Returns a batch of these rows, with the vectors of its questions (B, D) and of its context slots
        (N, D). All ranks call it together: a sharded model encodes on all of them."""
        batch = collator([data_row(source, row, options) for row in rows]).to(model.device)
        questions = self._encode(model, batch.questions, options.encoder_type or "question")
        contexts = self._encode(model, batch.contexts, options.encoder_type or "ctx")
        return batch, questions, contexts[batch.context_row]

    def _encode(self, model: Towers, tokens: TokenBatch, encoder_type: str) -> Tensor:
        budget = self.settings.train.val_av_rank_bsz * model.settings.sequence_length
        with autocast(model.device, self.settings.train.precision):
            return model.encode_batch(tokens, encoder_type=encoder_type, batch_tokens=budget)


class NllValidation(DevSetValidation):
    """``eval/nll_loss`` and ``eval/in_batch_acc`` over batches like those of training, whatever the training
    loss is. Both depend on ``eval/candidates``, the mean number of candidates of a question. Due until
    ``val_av_rank_start_epoch``."""

    kinds = ("nll_loss", "in_batch_acc", "candidates")

    def is_due(self, epoch: int) -> bool:
        return not self.settings.uses_average_rank(epoch)

    def _collator(self, model: Towers) -> Collator:
        train = self.settings.train
        return Collator(model.tensorizer, num_hard=train.hard_negatives, num_other=train.other_negatives)

    def _measured(
        self, model: Towers, source: SampleSource, options: DataSetSettings
    ) -> tuple[Tensor, Tensor]:
        collator = self._collator(model)
        ranks = current_ranks()
        sums = torch.zeros(4, dtype=torch.float64, device=model.device)
        values = [torch.zeros(0, 2, dtype=torch.float64)]
        num_questions = self._num_questions(source)
        starts = range(0, num_questions, self.global_batch_size)
        for start in counted(starts, f"validating on {source.name}", unit="questions"):
            mine = rank_slice(
                min(self.global_batch_size, num_questions - start), ranks.rank, ranks.world_size
            )
            rows = range(start + mine.start, start + mine.stop)
            batch, questions, slots = self._encoded(model, collator, source, options, rows)

            # The slots of all ranks; ranks may have different numbers of them.
            candidates = find_candidates(
                self.candidates,
                batch.positive_idx + mine.start * collator.width,
                gather_uneven_rows(batch.context_valid),
                gather_uneven_rows(batch.context_ids),
                batch.known_positive_ids,
                batch.known_positive_valid,
            )
            negatives = candidates.competing(slice(None), torch.nonzero(candidates.counts)[:, 0]).sum()
            candidates = candidates.to(slots.device)
            temperature = Temperature(float(model.temperature))
            columns = gather_uneven_rows(slots)
            result = nll_of_columns(questions, columns, candidates, temperature, max_scores=MAX_SCORES)
            size = sums.new_full((), len(rows))
            found = size + on_device(negatives, slots.device)
            sums += torch.stack([size, result.loss.double(), result.num_correct.double(), found])
            of_questions = torch.stack([result.losses.double(), result.correct.double()], dim=1)
            values.append(gather_uneven_rows(of_questions).cpu())
        return sum_over_ranks(sums).cpu(), torch.cat(values)


class AverageRankValidation(DevSetValidation):
    """``eval/avg_rank`` (0 is best) among the passages of all dev questions. ``eval/avg_rank_low`` and
    ``eval/avg_rank_high`` are its bounds: the positive ranks before, or after, all passages with its score.

    Due from ``val_av_rank_start_epoch``. Scores are computed in blocks; the whole matrix is never in memory.
    """

    kinds = ("avg_rank", "avg_rank_low", "avg_rank_high")

    def is_due(self, epoch: int) -> bool:
        return self.settings.uses_average_rank(epoch)

    def _collator(self, model: Towers) -> Collator:
        train = self.settings.train
        return Collator(
            model.tensorizer, num_hard=train.val_av_rank_hard_neg, num_other=train.val_av_rank_other_neg
        )

    def _measured(
        self, model: Towers, source: SampleSource, options: DataSetSettings
    ) -> tuple[Tensor, Tensor]:
        train = self.settings.train
        collator = self._collator(model)
        ranks = current_ranks()
        num_questions = self._num_questions(source)
        mine = range(num_questions)[rank_slice(num_questions, ranks.rank, ranks.world_size)]
        longest = -(-num_questions // ranks.world_size)

        # The filled slots of this rank's questions, end to end.
        questions = list[Tensor]()
        golds = list[Tensor]()
        contexts = list[Tensor]()
        identities = list[Tensor]()
        targets = list[Tensor]()
        num_slots = 0
        starts = range(0, longest, QUESTIONS_AT_ONCE)
        for start in counted(starts, f"encoding {source.name}", unit="questions of a process"):
            rows = mine[start : start + QUESTIONS_AT_ONCE]
            batch, vectors, slots = self._encoded(model, collator, source, options, rows)
            valid = batch.context_valid
            questions.append(vectors)
            golds.append(slots[on_device(batch.positive_idx, slots.device)])
            contexts.append(slots[on_device(torch.nonzero(valid)[:, 0], slots.device)])
            identities.append(batch.context_ids[valid])
            targets.append(valid.cumsum(0)[batch.positive_idx] - 1 + num_slots)
            num_slots += int(valid.sum())

        # The columns are the slots of all ranks.
        first = int(gather_uneven_rows(torch.tensor([num_slots]))[: ranks.rank].sum())
        ids = gather_uneven_rows(torch.cat(identities))
        known = [
            [passage_identity(passage, source.name) for passage in source.known_positives(row)]
            for row in mine
        ]
        candidates = find_candidates(
            self.candidates,
            torch.cat(targets) + first,
            torch.ones(len(ids), dtype=torch.bool),
            ids,
            *identity_table(known),
        )
        counting = torch.nonzero(candidates.counts[first : first + num_slots])[:, 0]
        columns = counting + first
        own = torch.cat(contexts)[on_device(counting, model.device)]

        # Sums in float64 are rounded to float32, so that equal vectors tie whatever the shape of the product.
        queries = torch.cat(questions).double()
        gold_scores = (queries * torch.cat(golds).double()).sum(1).float()
        higher = torch.zeros(len(queries), dtype=torch.float64, device=model.device)
        ties = torch.zeros_like(higher)
        most = largest_over_ranks(len(own))
        for start in counted(range(0, most, train.val_av_rank_bsz), f"ranking {source.name}"):
            part = slice(start, start + train.val_av_rank_bsz)
            block_columns = gather_uneven_rows(columns[part])
            block = gather_uneven_rows(own[part]).double()
            for row in range(0, len(queries), QUESTION_BLOCK):
                rows_of_block = slice(row, row + QUESTION_BLOCK)
                scores = score_matrix(queries[rows_of_block], block).float()
                gold = gold_scores[rows_of_block, None]
                competing = candidates.competing(rows_of_block, block_columns)
                competing = on_device(competing, scores.device)
                higher[rows_of_block] += ((scores > gold) & competing).sum(1)
                ties[rows_of_block] += ((scores == gold) & competing).sum(1)
        rank = higher + 0.5 * ties
        sums = torch.stack([torch.ones_like(rank), rank, higher, higher + ties], dim=1).sum(0)
        return sum_over_ranks(sums).cpu(), gather_uneven_rows(rank[:, None]).cpu()

    def _num_questions(self, source: SampleSource) -> int:
        most = self.settings.train.val_av_rank_max_qs
        if self.settings.as_dpr:
            most = (most // self.global_batch_size + 1) * self.global_batch_size
        return min(super()._num_questions(source), most)


def dev_validations(
    dev_sets: OpenedSets, settings: TrainingSettings, *, candidates: str = ""
) -> list[DevSetValidation]:
    """Returns the validations by average rank and by NLL, each due in its epochs."""
    return [
        AverageRankValidation(dev_sets, settings, candidates=candidates),
        NllValidation(dev_sets, settings, candidates=candidates),
    ]
