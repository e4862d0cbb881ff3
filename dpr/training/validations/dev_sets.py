"""What the validations over dev sets have in common: the sets, their settings, encoding, and means over questions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from dpr.core.batch import TokenBatch
from dpr.core.precision import autocast
from dpr.data.collator import SetOptions
from dpr.data.loader import SampleSource
from dpr.models.biencoder import BiEncoder
from dpr.training.metrics import Metrics
from dpr.training.validations.protocol import Validation

QuestionMetric = Callable[[Tensor, Tensor], Tensor]
"""(scores, labels) -> a value for each question: ``scores`` (B, M) of the pool's candidates, with -1e30 for those that do not count for a
question, ``labels`` (B,) the columns of the positives; returns (B,). Validation takes the mean over all questions."""


@dataclass(frozen=True, slots=True)
class ValidationSettings:
    """``pool_size``: questions per NLL pool over all ranks. The rest: DPR's average-rank settings.

    ``as_dpr`` validates on the questions that the original did: it read batches of ``pool_size``, left the last one out if it was not full,
    and ended the average rank with the batch that took it past ``average_rank_max_questions``. Prefixes belong to training there.
    ``metrics`` are user-defined, by name, over the NLL pools.
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


class DevSetValidation(Validation):
    """Means over the questions of all dev sets, ``eval/...``, and of each, ``eval/<set>/...``.

    The same for any number of ranks: pools are defined over the data set, and ranks share the work on each. ``candidates`` is the rule by
    which contexts count, as in training.
    """

    def __init__(
        self,
        dev_sets: Sequence[DevSet],
        *,
        settings: ValidationSettings | None = None,
        candidates: str = "distinct",
        precision: str = "fp32",
    ) -> None:
        self.dev_sets, self.settings = list(dev_sets), settings or ValidationSettings()
        self.candidates, self.precision = candidates, precision

    def __call__(self, model: BiEncoder) -> Metrics:
        return self.trial(model, 0)

    @torch.no_grad()
    def trial(self, model: BiEncoder, num_pools: int) -> Metrics:
        """Over the first ``num_pools`` pools of each set; 0 = all."""
        most = num_pools * self.settings.pool_size
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

    def _encode(self, model: BiEncoder, tokens: TokenBatch, encoder_type: str) -> Tensor:
        budget = self.settings.average_rank_passages_per_forward * model.settings.sequence_length
        with autocast(model.device, self.precision):
            return model.encode_batch(tokens, encoder_type=encoder_type, batch_tokens=budget)


def at_most(most: int, num_questions: int) -> int:
    """``num_questions``, or ``most`` of them unless that is 0."""
    return min(num_questions, most) if most else num_questions
