"""Validation over dev sets: what its kinds share, and the NLL and in-batch accuracy over pools like those of training."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dpr.core.batch import BiEncoderBatch, TokenBatch
from dpr.core.distributed import current_ranks, gather_uneven_rows, sum_over_ranks
from dpr.core.errors import ConfigError
from dpr.core.precision import autocast
from dpr.data.collator import Collator, SetOptions
from dpr.data.loader import data_row
from dpr.data.order import rank_slice
from dpr.data.training_data import SampleSource
from dpr.losses.candidates import find_candidates, score_matrix
from dpr.losses.nll import BiEncoderNllLoss
from dpr.losses.protocol import Pool
from dpr.models.biencoder import BiEncoder
from dpr.training.metrics import Metrics
from dpr.training.settings import TrainingSettings
from dpr.training.validations.protocol import QuestionMetric, Validation


class DevSet(NamedTuple):
    """A named set to validate on."""

    name: str
    source: SampleSource
    options: SetOptions


class DevSetValidation(Validation):
    """Means over the questions of all dev sets, ``eval/...``, and of each, ``eval/<set>/...``; the same for any number of ranks.

    ``candidates`` is the candidate rule, "" that of the settings; ``metrics`` are user-defined, by name, over NLL pools. ``compat=dpr``
    validates on the questions that the original did: it read batches of ``train.dev_batch_size``, left out the last one if it was not full,
    and ended the average rank with the batch that exceeded ``train.val_av_rank_max_qs``.
    """

    names: Sequence[str]
    """Of the metrics, in the order of their sums."""

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
        sums = {dev.name: self._sums(model, dev, most) for dev in self.dev_sets}
        total = torch.stack(list(sums.values())).sum(0)
        metrics: Metrics = {}
        for key, values in [("eval", total), *((f"eval/{name}", of_set) for name, of_set in sums.items())]:
            metrics |= {f"{key}/{name}": float(value / values[0]) for name, value in zip(self.names, values[1:], strict=True)}
        return metrics

    @abstractmethod
    def _sums(self, model: BiEncoder, dev: DevSet, most: int) -> Tensor:
        """The number of questions and the sum of each metric over them, float64, of all ranks; ``most`` questions, 0 = all."""

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
    """``eval/nll_loss``, ``eval/in_batch_acc`` and user-defined metrics over pools like those of training, whatever its loss.

    Due until ``val_av_rank_start_epoch``, and always where there are user-defined metrics.
    """

    @property
    def names(self) -> Sequence[str]:  # type: ignore[override]
        return ("nll_loss", "in_batch_acc", *self.metrics)

    def is_due(self, epoch: int) -> bool:
        return bool(self.metrics) or not self.settings.uses_average_rank(epoch)

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
        """The pool of all ranks' slots; ranks may hold different numbers of them."""
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
