"""NLL and in-batch accuracy over pools of a dev set."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dpr.core.batch import BiEncoderBatch
from dpr.core.distributed import current_ranks, gather_uneven_rows, sum_over_ranks
from dpr.core.errors import ConfigError
from dpr.data.collator import Collator
from dpr.data.loader import data_row
from dpr.data.order import rank_slice
from dpr.losses.candidates import find_candidates, score_matrix
from dpr.losses.nll import BiEncoderNllLoss
from dpr.losses.protocol import Pool
from dpr.models.biencoder import BiEncoder
from dpr.training.validations.dev_sets import DevSet, DevSetValidation


class NllValidation(DevSetValidation):
    """``eval/nll_loss``, ``eval/in_batch_acc`` and user-defined metrics over pools like those of training, whatever its loss.

    Due until ``val_av_rank_start_epoch``, and always where there are user-defined metrics.
    """

    def is_due(self, epoch: int) -> bool:
        return bool(self.metrics) or not self.settings.uses_average_rank(epoch)

    def _names(self) -> Sequence[str]:
        return ("nll_loss", "in_batch_acc", *self.metrics)

    def _sums(self, model: BiEncoder, dev: DevSet, most: int) -> Tensor:
        ranks = current_ranks()
        collator = Collator(model.tensorizer, num_hard=self.settings.train.hard_negatives, num_other=self.settings.train.other_negatives)
        sums = torch.zeros(3 + len(self.metrics), dtype=torch.float64, device=model.device)
        num_questions = self._num_questions(dev, most)
        for start in range(0, num_questions, self.pool_size):
            size = min(self.pool_size, num_questions - start)
            mine = rank_slice(size, ranks.rank, ranks.world_size)
            rows = range(start + mine.start, start + mine.stop)
            batch = collator([data_row(dev.source, row, dev.options) for row in rows]).to(model.device)
            questions = self._encode(model, batch.questions, dev.options.encoder_type or "question")
            contexts = self._encode(model, batch.contexts, dev.options.encoder_type or "ctx")
            width = 1 + collator.num_hard + collator.num_other
            own = slice(mine.start * width, mine.stop * width)
            pool = self._pool(batch, questions, contexts[batch.context_row], own, float(model.temperature))
            result = BiEncoderNllLoss()(questions, pool)
            found = [torch.tensor(float(len(rows))), result.loss, result.num_correct, *self._user_sums(questions, pool)]
            sums += torch.stack([value.to(sums.device, torch.float64) for value in found])
        return sum_over_ranks(sums)

    def _pool(self, batch: BiEncoderBatch, questions: Tensor, slots: Tensor, own: slice, temperature: float) -> Pool:
        """The pool of all ranks' slots, of which they may hold different numbers."""
        ids, valid = gather_uneven_rows(batch.context_ids), gather_uneven_rows(batch.context_valid)
        known = batch.known_positive_ids, batch.known_positive_valid
        candidates = find_candidates(self.candidates, batch.positive_idx + own.start, valid, ids, *known).to(slots.device)
        return Pool(gather_uneven_rows(slots), candidates, temperature, questions, own, slice(0, len(questions)), ids)

    def _user_sums(self, questions: Tensor, pool: Pool) -> list[Tensor]:
        """User-defined metrics, summed over this rank's questions."""
        if not len(questions):
            return [torch.zeros(())] * len(self.metrics)
        scores, labels = pool.candidates.mask_(score_matrix(questions, pool.contexts, pool.temperature)), pool.candidates.target
        sums = []
        for name, metric in self.metrics.items():
            value = metric(scores, labels)
            if not isinstance(value, Tensor) or value.shape != labels.shape:
                found = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
                raise ConfigError(
                    f"the metric {name} returned {found}; expected a tensor with one value per question, {tuple(labels.shape)}"
                )
            sums.append(value.double().sum())
        return sums
