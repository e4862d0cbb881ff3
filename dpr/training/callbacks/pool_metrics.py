"""What the loss does not show: how the vectors of a pool lie to each other, and whether they collapse."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from dpr.core.batch import BiEncoderBatch, on_device
from dpr.core.distributed import sum_over_ranks
from dpr.core.logs import get_logger
from dpr.losses.candidates import MASKED_SCORE, Candidates, score_matrix
from dpr.losses.protocol import Pool
from dpr.losses.terms import own_candidates, own_slots
from dpr.training.metrics import Metrics
from dpr.training.run import Callback, Run

logger = get_logger(__name__)

OF_QUESTIONS = (
    "positive_similarity",
    "negative_similarity",
    "margin",
    "hard_above_positive",
    "alignment",
    "temperature",
    "candidates",
)
OF_PASSAGES = ("passage_cosine", "effective_rank", "uniformity")
SAMPLE = 64
WATCH_EVERY = 25
COLLAPSED = 3.0


class HostCopy:
    """A copy of ``tensor`` on the host, under way: nobody waits for the device until ``wait``."""

    def __init__(self, tensor: Tensor) -> None:
        self._copy, self._arrival = tensor, None
        if tensor.is_cuda:
            self._copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(
                tensor, non_blocking=True
            )
            self._arrival = torch.cuda.Event()
            self._arrival.record(torch.cuda.current_stream(tensor.device))

    @property
    def has_arrived(self) -> bool:
        return self._arrival is None or self._arrival.query()

    def wait(self) -> Tensor:
        if self._arrival is not None:
            self._arrival.synchronize()
        return self._copy


class PoolMetrics(Callback):
    """Adds ``pool/...`` to the log line, from the first pool of its step, and warns once when the vectors
    have collapsed.

    They are those of at most ``SAMPLE`` questions, each in its whole pool, and of at most ``SAMPLE``
    passages, evenly spaced over the pool of all ranks. So they do not depend on the number of ranks where the
    loss gathers the passages. The host does not wait for the device before the log line. A collapse is an
    effective rank below ``COLLAPSED`` and below a quarter of the highest before. docs/training.md, "The log
    line", says what each metric is.
    """

    def __init__(self, log_every: int) -> None:
        self.log_every, self._step = log_every, 0
        self._copies: tuple[HostCopy, HostCopy] | None = None
        self._passages: list[float] | None = None
        self._highest_rank, self._has_warned = 0.0, False

    def needs_pool(self, run: Run) -> bool:
        step = run.progress.step + 1
        return self._step != step and (
            (step - 1) % WATCH_EVERY == 0 or is_logged(step, self.log_every, run.last_step)
        )

    def on_pool(self, run: Run, questions: Tensor, pool: Pool, batch: BiEncoderBatch) -> None:
        if self.needs_pool(run):
            stride = -(-len(questions) * run.ranks.world_size // SAMPLE)
            rows = torch.arange(-run.ranks.rank * len(questions) % stride, len(questions), stride)
            values = _of_questions(questions, pool, batch, rows).double()
            sums = torch.stack([values.nansum(0), (~values.isnan()).sum(0)])
            self._step, self._passages = run.progress.step + 1, None
            self._copies = (HostCopy(sums), HostCopy(_cosines(pool)))

    def on_step_end(self, run: Run) -> None:
        if self._passages is None and self._copies is not None and self._copies[1].has_arrived:
            self._judge(run, self._copies[1].wait())

    def _judge(self, run: Run, cosines: Tensor) -> list[float]:
        self._passages = cosine, rank, _ = _of_passages(cosines)
        self._highest_rank = max(self._highest_rank, rank)  # in this order a NaN is not larger
        if rank < min(COLLAPSED, self._highest_rank / 4) and not self._has_warned and run.ranks.is_main:
            self._has_warned = True
            logger.warning(
                "step %d: the vectors have collapsed: the effective rank of the passages is %.1f, before"
                " %.1f, their mean cosine %.4f; start anew with a lower rate, as train.learning_rate=%g",
                *(self._step, rank, self._highest_rank, cosine, run.settings.train.learning_rate / 10),
            )
        return self._passages

    def on_log(self, run: Run, metrics: Metrics) -> None:
        if self._copies is None or self._step != run.progress.step:
            return
        of_questions, cosines = (copy.wait() for copy in self._copies)
        of_passages = torch.tensor(self._passages or self._judge(run, cosines), dtype=torch.float64)
        own = torch.stack([of_passages.nan_to_num(), (~of_passages.isnan()).double()])
        sums, counts = sum_over_ranks(torch.cat([of_questions, own], dim=1)).tolist()
        names = (*OF_QUESTIONS, *OF_PASSAGES)
        metrics |= {
            f"pool/{name}": value / count
            for name, value, count in zip(names, sums, counts, strict=True)
            if count
        }

    def state_dict(self) -> dict[str, Any]:
        return {"highest_rank": self._highest_rank, "has_warned": self._has_warned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._highest_rank, self._has_warned = float(state["highest_rank"]), bool(state["has_warned"])


def is_logged(step: int, every: int, last_step: int) -> bool:
    """Whether a log line follows update ``step`` (counted from 1)."""
    return bool(every) and (step % every == 0 or step == last_step)


def _of_questions(questions: Tensor, pool: Pool, batch: BiEncoderBatch, rows: Tensor) -> Tensor:
    """``OF_QUESTIONS`` of the questions ``rows``, (R, 7); NaN where a question has no negative, or no
    negative of its own."""
    asked = on_device(rows, questions.device)
    vectors, candidates, hard = (
        questions[asked],
        _of_rows(pool.candidates, asked),
        _of_rows(own_candidates(batch, "distinct"), rows),
    )
    positive, others = _split(score_matrix(vectors, pool.contexts), candidates)
    own = torch.bmm(
        own_slots(pool, len(questions))[asked].to(positive.dtype), vectors.to(positive.dtype)[:, :, None]
    )[:, :, 0]
    _, hard_scores = _split(own, hard.to(questions.device))
    difference = normalize(vectors.to(positive.dtype), dim=1) - normalize(
        pool.contexts[candidates.target].to(positive.dtype), dim=1
    )
    values = [
        positive,
        others.nanmean(1),
        positive - others.nan_to_num(-torch.inf).amax(1),
        (hard_scores > positive[:, None])
        .to(positive.dtype)
        .where(~hard_scores.isnan(), torch.nan)
        .nanmean(1),
        difference.square().sum(1),
        pool.temperature.like(positive).expand(len(rows)),
        1 + (~others.isnan()).sum(1),
    ]
    return torch.stack(values, dim=1)


def _of_rows(candidates: Candidates, rows: Tensor) -> Candidates:
    return candidates._replace(target=candidates.target[rows], masked=candidates.masked[rows])


def _split(scores: Tensor, candidates: Candidates) -> tuple[Tensor, Tensor]:
    """The scores of the positives (R,), and those of their rivals (R, n), NaN where a column is none."""
    column = candidates.target[:, None]
    others = candidates.mask_(scores.clone()).scatter(1, column, MASKED_SCORE)
    return scores.gather(1, column)[:, 0], others.where(others > MASKED_SCORE, torch.nan)


def _cosines(pool: Pool) -> Tensor:
    """The cosines of the sampled passages with each other, (n, n), in fp32 at least; 0 for those that are
    listed before."""
    stride = -(-len(pool.contexts) // SAMPLE)
    passages = pool.contexts[::stride]
    passages = (
        normalize(passages.to(torch.promote_types(passages.dtype, torch.float32)), dim=1)
        * pool.candidates.counts[::stride, None]
    )
    return passages @ passages.T


def _of_passages(cosines: Tensor) -> list[float]:
    """``OF_PASSAGES`` from ``_cosines`` on the host: the mean cosine of two passages, their effective rank
    (Roy and Vetterli, 2007: the exponential of the entropy of the singular values), and their uniformity
    (Wang and Isola, 2020)."""
    counts, noise = cosines.diagonal() > 0.5, torch.finfo(cosines.dtype).eps * len(cosines) ** 2
    cosines = cosines[counts][:, counts].double()
    pairs = cosines[~torch.eye(len(cosines), dtype=torch.bool)]
    if not len(pairs):
        return [torch.nan] * len(OF_PASSAGES)
    strengths = torch.threshold(torch.linalg.eigvalsh(cosines), noise, 0.0).sqrt()
    rank = torch.special.entr(strengths / strengths.sum()).sum().exp()
    return [float(pairs.mean()), float(rank), float((4 * pairs - 4).exp().mean().log())]
