"""Training metrics between two log lines, the arithmetic and memory of training, and the speed of the
device."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dpr.core.batch import BiEncoderBatch, on_device
from dpr.core.distributed import current_ranks, sum_over_ranks
from dpr.models.encoder import Encoder
from dpr.models.properties import layers_of
from dpr.models.towers import Towers

Metrics = dict[str, float]


def each_once(metrics: Metrics, *, by_set: bool = False) -> Metrics:
    """Returns the metrics without repeated figures. With a single set, its metrics (``eval/dev/nll_loss``)
    equal those of all sets (``eval/nll_loss``). Then only the latter are kept, or with ``by_set`` only the
    former."""
    names_of_all = {name: f"eval/{name.rpartition('/')[2]}" for name in metrics if name.count("/") > 1}
    twice = {name: short for name, short in names_of_all.items() if metrics[name] == metrics.get(short)}
    left_out = twice.values() if by_set else twice.keys()
    return {name: value for name, value in metrics.items() if name not in left_out}


class StepResult(NamedTuple):
    """Detached results of this rank's questions: ``losses`` (B,) without loss weights, ``correct`` as in
    ``LossResult``."""

    losses: Tensor
    correct: Tensor
    num_questions: int

    @property
    def loss_sum(self) -> Tensor:
        return self.losses.sum()

    @property
    def num_correct(self) -> Tensor:
        return self.correct.sum()


class TrainingMetrics:
    """Sums of loss, correct answers, questions, tokens and arithmetic since the last ``take``. A micro-batch
    whose loss is NaN or infinite does not count. With several train sets ``names``, each has its own metrics
    besides the total.

    Nothing is read back from the device, and nothing is sent between ranks, before ``take``.
    """

    def __init__(self, model: Towers, names: Sequence[str] = ()) -> None:
        self._device = model.device
        self._names = names
        towers = {"question": model.question_model, "ctx": model.ctx_model}
        self._packed = {side: tower.is_packed for side, tower in towers.items()}
        self._cost = {side: TowerCost(tower) for side, tower in towers.items()}
        self.begin()

    def begin(self, stored: Sequence[float] = ()) -> None:
        """Starts from scratch, or from the sums that ``settled`` returned for the steps before a
        checkpoint."""
        self._sums = torch.zeros(max(len(self._names), 1), 3, dtype=torch.float64, device=self._device)
        self._questions = self._tokens = self._computed = self._flops = 0.0
        self._start = time.perf_counter()
        if len(stored) == self._sums.numel() + 4 and current_ranks().is_main:
            *sums, self._questions, self._tokens, self._computed, self._flops = stored
            self._sums += self._sums.new_tensor(sums).view_as(self._sums)

    def settled(self) -> list[float]:
        """Returns all sums, over all ranks; rank 0 keeps them from now on. All ranks must call it
        together."""
        start = self._start
        totals = self._totals()
        self.begin(totals)
        self._start = start
        return totals

    def _totals(self) -> list[float]:
        counts = self._sums.new_tensor([self._questions, self._tokens, self._computed, self._flops])
        totals: list[float] = sum_over_ranks(torch.cat([self._sums.flatten(), counts])).tolist()
        return totals

    def add(self, result: StepResult, batch: BiEncoderBatch) -> None:
        """Adds one micro-batch; ``batch`` is the one on the CPU."""
        losses = result.losses.double()
        size = result.num_questions
        # a user-defined loss may return the number of correct questions only
        correct = result.correct.double() / (1 if result.correct.dim() else size)
        values = torch.stack([losses, correct.expand(size), torch.ones_like(losses)], dim=1)
        members = torch.zeros(len(self._sums), size, dtype=torch.float64)
        members[torch.tensor(batch.datasets) if self._names else 0, torch.arange(size)] = 1.0
        self._sums += on_device(members, self._device) @ torch.where(
            torch.isfinite(losses.sum()), values, 0.0
        )
        self._questions += result.num_questions
        self._tokens += batch.num_tokens
        for side, tokens in (("question", batch.questions), ("ctx", batch.contexts)):
            tower = batch.encoder_type or side
            self._computed += tokens.tokens.shape[0] if self._packed[tower] else tokens.padded_size
            self._flops += self._cost[tower].of(tokens.lengths)

    def take(self, *, peak: float = 0.0) -> Metrics:
        """Returns the metrics over all ranks since the last call. All ranks must call it together.

        ``peak`` is the number of operations per second that a device can do. ``perf/mfu`` is the MFU: the
        share of it that the model's arithmetic took.
        """
        *sums, questions, tokens, computed, flops = self._totals()
        of_sets = [sums[start : start + 3] for start in range(0, len(sums), 3)]
        loss, correct, judged = map(sum, zip(*of_sets, strict=True))
        elapsed = max(time.perf_counter() - self._start, 1e-9)
        self.begin()
        if not questions:
            return {}
        metrics = {
            "train/loss": loss / judged if judged else math.nan,
            "train/in_batch_acc": correct / judged if judged else math.nan,
            "perf/questions_per_s": questions / elapsed,
            "perf/tokens_per_s": tokens / elapsed,
            "perf/padding_share": 1.0 - tokens / computed,
        }
        if peak:
            metrics["perf/mfu"] = flops / elapsed / (peak * current_ranks().world_size)
        for name, (loss_of_set, correct_of_set, size) in zip(self._names, of_sets, strict=False):
            if size and len(of_sets) > 1:
                metrics[f"train/{name}/loss"] = loss_of_set / size
                metrics[f"train/{name}/in_batch_acc"] = correct_of_set / size
                metrics[f"train/{name}/share"] = size / judged
        return metrics


class TowerCost:
    """Floating-point operations of one training pass of a tower over real tokens.

    Linear layers take two for each weight and token; attention takes its two products over the whole
    sequence. Backward is twice forward, or once for weights that are frozen under trained ones; a frozen
    tower has none. In a last layer that is read at one token, the other tokens need only keys and values.
    Work that no vector needs, or that is repeated to save memory, does not count.
    """

    def __init__(self, tower: Encoder) -> None:
        is_trained = any(parameter.requires_grad for parameter in tower.parameters())
        frozen = _linear_weights(tower.backbone, trained=False) / max(_linear_weights(tower.backbone), 1)
        passes = 3 - frozen if is_trained else 1
        layers = int(getattr(tower.config, "num_hidden_layers", 0))
        width = int(tower.config.hidden_size)
        of_tokens = _linear_weights(tower.backbone)
        of_sequences = 0
        if tower.fast.prunes_last_layer:
            of_sequences = _linear_weights(layers_of(tower.backbone)[-1]) - 2 * width * width
            of_tokens += 2 * width - of_sequences  # attention of the one token to all
            layers -= 1
        self._per_token = passes * 2.0 * of_tokens
        self._per_sequence = passes * 2.0 * of_sequences
        self._per_pair = (3 if is_trained else 1) * 4.0 * layers * width

    def of(self, lengths: Tensor) -> float:
        """Returns the operations for sequences with these lengths (N,)."""
        exact = lengths.to(torch.float64)
        return (
            self._per_token * float(exact.sum())
            + self._per_sequence * len(lengths)
            + self._per_pair * float(exact.square().sum())
        )


def _linear_weights(module: nn.Module, *, trained: bool | None = None) -> int:
    """Returns the number of weights of linear layers: all of them, or only the ``trained`` or the frozen
    ones."""
    weights = (part.weight for part in module.modules() if isinstance(part, nn.Linear))
    return sum(weight.numel() for weight in weights if trained in (None, weight.requires_grad))


@cache
def matrix_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Returns the operations per second of a large matrix product on ``device``, measured once within
    hundredths of a second."""
    is_cuda = device.type == "cuda"
    size = 4096 if is_cuda else 1024 if dtype == torch.float32 else 512
    repeats = 20 if is_cuda else 2
    left = torch.ones(size, size, device=device, dtype=dtype)
    right = torch.ones_like(left)
    best = float("inf")
    for _ in range(3):  # the first warms up
        wait_for(device)
        start = time.perf_counter()
        for _ in range(repeats):
            left @ right
        wait_for(device)
        best = min(best, time.perf_counter() - start)
    if is_cuda:
        del left, right
        torch.cuda.reset_peak_memory_stats(device)
    return repeats * 2.0 * size**3 / best


def wait_for(device: torch.device) -> None:
    """Waits until the device has done all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory_gb(device: torch.device) -> float:
    """Returns the peak memory so far, in GiB: of tensors on a GPU, of this process elsewhere; NaN on Windows,
    which does not report it."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    if sys.platform == "win32":
        return math.nan
    import resource  # Windows has no such module

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
