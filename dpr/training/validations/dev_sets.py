"""What the validations over dev sets have in common: the sets, their settings, encoding, and means over questions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dpr.core.batch import TokenBatch
from dpr.core.precision import autocast
from dpr.data.collator import SetOptions
from dpr.data.loader import SampleSource
from dpr.models.biencoder import BiEncoder
from dpr.training.metrics import Metrics
from dpr.training.settings import TrainingSettings
from dpr.training.validations.protocol import Validation

QuestionMetric = Callable[[Tensor, Tensor], Tensor]
"""(scores, labels) -> a value for each question: ``scores`` (B, M) of the pool's candidates, with -1e30 for those that do not count for a
question, ``labels`` (B,) the columns of the positives; returns (B,). Validation takes the mean over all questions."""


class DevSet(NamedTuple):
    """A named set to validate on."""

    name: str
    source: SampleSource
    options: SetOptions


class DevSetValidation(Validation):
    """Means over the questions of all dev sets, ``eval/...``, and of each, ``eval/<set>/...``; the same for any number of ranks.

    ``candidates`` is the rule by which contexts count, "" that of the settings; ``metrics`` are user-defined, by name, over NLL pools.
    ``compat=dpr`` validates on the questions that the original did: it read batches of ``train.dev_batch_size``, left the last one out if
    it was not full, and ended the average rank with the batch that took it past ``train.val_av_rank_max_qs``.
    """

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
            metrics |= {f"{key}/{name}": float(value / values[0]) for name, value in zip(self._names(), values[1:], strict=True)}
        return metrics

    @abstractmethod
    def _names(self) -> Sequence[str]:
        """Of the metrics, in the order of their sums."""

    @abstractmethod
    def _sums(self, model: BiEncoder, dev: DevSet, most: int) -> Tensor:
        """The number of questions and the sum of each metric over them, float64, of all ranks; ``most`` questions, 0 = all."""

    def _num_questions(self, dev: DevSet, most: int) -> int:
        """How many of a set's questions the NLL is taken over; ``most`` at most, unless that is 0."""
        size = len(dev.source)
        whole = size // self.pool_size * self.pool_size
        return min(whole if self.settings.as_dpr and whole else size, most or size)

    def _encode(self, model: BiEncoder, tokens: TokenBatch, encoder_type: str) -> Tensor:
        budget = self.settings.train.val_av_rank_bsz * model.settings.sequence_length
        with autocast(model.device, self.settings.train.precision):
            return model.encode_batch(tokens, encoder_type=encoder_type, batch_tokens=budget)
