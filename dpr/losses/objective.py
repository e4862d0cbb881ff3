"""The objective as a weighted sum of terms, each a function of a question and its global batch (``pool`` in
the code). docs/numerics.md, section 1, has the formulas.

Letters: B questions of this rank, Q questions and M context slots of the global batch, n own slots of each
question, at most K known positives of a question, D dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dpr.core.batch import BiEncoderBatch, on_device
from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger, warn_once
from dpr.core.records import WHOLE_DOCUMENT
from dpr.losses.candidates import MASKED_SCORE, Candidates, GuideVectors, names_of
from dpr.losses.nll import nll_of_columns
from dpr.losses.protocol import (
    CONTEXTS,
    GATHERED,
    KNOWN_POSITIVES,
    OWN_SCORES,
    QUESTIONS,
    Loss,
    LossResult,
    Pool,
    Term,
)
from dpr.losses.settings import ObjectiveSettings

logger = get_logger(__name__)

# Above this spread, the softmax of a teacher's scores is 0 in fp32 for all but the best.
WIDEST_SPREAD = 100.0


class StoredVectors:
    """Vectors that are looked up by judgement identity.

    Args:
        chunks: the vectors, arrays (n, G) that may be mapped from files. Each key takes 16 bytes of memory.
        keys: the first numbers of the identities, (K,) int64.
        rows: the row of each key, (K,), counted through all chunks.
        fingerprint: changes with the vectors and their ids.
    """

    def __init__(
        self, chunks: Sequence[np.ndarray], keys: np.ndarray, rows: np.ndarray, *, fingerprint: str
    ) -> None:
        order = np.argsort(keys, kind="stable")
        self._chunks = chunks
        self._keys = keys[order]
        self._rows = rows[order]
        self.fingerprint = fingerprint
        self._starts = np.cumsum([0, *(len(chunk) for chunk in chunks)])
        self.dimension = chunks[0].shape[1]

    def find(self, ids: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Returns whether each of the identities (n, 2), on the host, has a vector, (n,), and the vectors
        (n, G) in fp32 at least, with zeros where there is none."""
        wanted = ids[:, 0].numpy()
        index = np.searchsorted(self._keys, wanted).clip(max=len(self._keys) - 1)
        rows = self._rows[index]
        is_found = self._keys[index] == wanted
        dtype = np.result_type(np.float32, self._chunks[0].dtype)
        vectors = np.zeros((len(wanted), self.dimension), dtype)
        chunk_of = np.searchsorted(self._starts, rows, side="right") - 1
        for hit in np.flatnonzero(is_found):
            chunk = chunk_of[hit]
            vectors[hit] = self._chunks[chunk][rows[hit] - self._starts[chunk]]
        return is_found, vectors

    def typical_length(self) -> float:
        """Returns the median length of the first vectors, 64 at most."""
        return float(np.median(np.linalg.norm(self._chunks[0][:64].astype(np.float32), axis=1)))


class Nll(Term):
    """The InfoNCE loss with in-batch negatives: -log softmax of a question's positive among the candidates of
    the global batch.

    This is the default objective, weighted by ``loss.nll_weight``. From "Dense Passage Retrieval for
    Open-Domain Question Answering" (Karpukhin et al., 2020). The vectors of ``guide`` are a false-negative
    filter: passages too similar to the positive are masked. The term warns once of a batch in which no
    passage has a guide vector.

        >>> nll = Nll(guide=None, threshold=0.9, max_scores=1 << 22)
        >>> nll.needs
        frozenset({'contexts'})

    Relatives: ``BiEncoderNllLoss`` is the same as a whole loss; ``Symmetric`` is the other direction.
    """

    needs = frozenset({CONTEXTS})

    def __init__(self, *, guide: StoredVectors | None, threshold: float, max_scores: int) -> None:
        self._guide = guide
        self._threshold = threshold
        self._max_scores = max_scores

    def content(self) -> Mapping[str, str]:
        return {} if self._guide is None else {"guide": self._guide.fingerprint}

    def __call__(self, questions: Tensor, pool: Pool, batch: BiEncoderBatch) -> LossResult:
        guide = None
        if self._guide is not None:
            is_found, found = self._guide.find(pool.ids)
            if not is_found.any():
                warn_once(
                    logger,
                    "no passage of this batch has a vector in loss.guide; the training data must name passages"
                    " by the ids of its shards",
                )
            lengths = np.linalg.norm(found, axis=1, keepdims=True)
            found = found / np.where(lengths > 0, lengths, 1.0).astype(np.float32)
            vectors = on_device(torch.from_numpy(found), questions.device)
            guide = GuideVectors(vectors[pool.candidates.target], vectors, self._threshold)
        return nll_of_columns(
            questions,
            pool.contexts,
            pool.candidates,
            pool.temperature,
            guide=guide,
            max_scores=self._max_scores,
        )


class Symmetric(Term):
    """The passage-to-question direction of the contrastive loss: -log softmax of each question among all
    questions of the global batch, given its positive.

    Use it beside ``Nll``, with ``loss.symmetric_weight``, to train both directions. "Learning Transferable
    Visual Models From Natural Language Supervision" (CLIP; Radford et al., 2021) weights both directions
    equally.

        >>> both = Objective(ObjectiveSettings(nll_weight=0.5, symmetric_weight=0.5))
        >>> sorted(both.needs)
        ['contexts', 'known_positives', 'questions']

    Relative: ``Nll``, the question-to-passage direction.
    """

    def __init__(self, *, candidates: str, max_scores: int) -> None:
        self.candidates = candidates
        self._max_scores = max_scores
        self.needs = frozenset({QUESTIONS, KNOWN_POSITIVES} if candidates == "distinct" else {QUESTIONS})

    def __call__(self, questions: Tensor, pool: Pool, batch: BiEncoderBatch) -> Tensor:
        slots = own_slots(pool, len(questions))
        column = on_device(own_positive(batch), questions.device)[:, None, None].expand(-1, 1, slots.shape[2])
        passages = slots.gather(1, column)[:, 0]
        candidates = competing_questions(pool, batch, self.candidates).to(questions.device)
        return nll_of_columns(
            passages, pool.questions, candidates, pool.temperature, max_scores=self._max_scores
        ).losses


class Distillation(Term):
    """Difference between a question's scores for its own slots and those of a teacher, by KL divergence
    (``loss.kl_weight``), by margins (``loss.margin_mse_weight``) or by both.

    Use it where the training data hold scores of a stronger model, such as a cross-encoder. KL divergence is
    from "Distilling the Knowledge in a Neural Network" (Hinton et al., 2015), MarginMSE from "Improving
    Efficient Neural Ranking Models with Cross-Architecture Knowledge Distillation" (Hofstaetter et al.,
    2020). A question without teacher scores has loss 0. The term warns once of scores that cannot be learned
    from.

        >>> distilled = Objective(ObjectiveSettings(nll_weight=0, kl_weight=1, teacher_temperature=2))
        >>> [type(term).__name__ for _, term in distilled.terms]
        ['Distillation']

    Relatives: ``kl_divergence`` and ``margin_mse`` are its formulas; ``Embedding`` learns a teacher's
    vectors.
    """

    needs = frozenset({OWN_SCORES})

    def __init__(self, settings: ObjectiveSettings) -> None:
        self.settings = settings
        self._has_warned = False

    def __call__(self, questions: Tensor, pool: Pool, batch: BiEncoderBatch) -> Tensor:
        assert pool.own_scores is not None
        settings = self.settings
        scores = pool.own_scores
        given = batch.teacher_scores
        if given is None:
            given = torch.full(batch.context_valid.shape, torch.nan)
        given = given.where(batch.context_valid, torch.nan).view_as(scores)
        if settings.kl_weight and not self._has_warned:
            divisor = settings.teacher_temperature
            highest = given.nan_to_num(-torch.inf).amax(1)
            spread = float((highest - given.nan_to_num(torch.inf).amin(1)).amax())
            if spread > WIDEST_SPREAD * divisor:
                self._has_warned = True
                logger.warning(
                    "teacher scores of one question differ by %.3g, more than %g times"
                    " loss.teacher_temperature=%g: its softmax is 0 for all but the best; set"
                    " loss.teacher_temperature to about %.2g",
                    spread,
                    WIDEST_SPREAD,
                    divisor,
                    spread / 10,
                )
        teacher = on_device(given, scores.device).to(scores.dtype)
        is_scored = ~teacher.isnan()
        total = torch.zeros_like(scores[:, 0])
        if settings.kl_weight:
            total = total + settings.kl_weight * kl_divergence(
                scores / pool.temperature, teacher / settings.teacher_temperature, is_scored
            )
        if settings.margin_mse_weight:
            positive = on_device(own_positive(batch), scores.device)
            total = total + settings.margin_mse_weight * margin_mse(
                scores, settings.margin_mse_scale * teacher, is_scored, positive
            )
        return total


class Teacher(Protocol):
    """Source of the vectors to be learned, which have no gradient. ``fingerprint`` changes with them."""

    fingerprint: str
    teaches_passages: bool

    def questions(self, batch: BiEncoderBatch) -> Tensor | None:
        """Returns the vectors (B, D) of questions, or None if it teaches none."""
        ...

    def slots(self, batch: BiEncoderBatch) -> Tensor:
        """Returns the vectors (N, D) of the passages in context slots."""
        ...


class Embedding(Term):
    """Squared distance between a question's vector and the teacher's, plus its mean over the vectors of the
    question's own slots. A part that the teacher does not teach is left out.

    Use it with ``loss.teacher`` to distil another model's vectors, with ``loss.nll_weight=0`` from texts
    alone. "Making Monolingual Sentence Embeddings Multilingual using Knowledge Distillation" (Reimers and
    Gurevych, 2020) trains by the same distance.

        >>> from types import SimpleNamespace
        >>> teacher = SimpleNamespace(fingerprint="f", teaches_passages=False)
        >>> Embedding(teacher).reads_passages
        False

    Relative: ``Distillation`` learns a teacher's scores.
    """

    def __init__(self, teacher: Teacher) -> None:
        self._teacher = teacher
        self.reads_passages = teacher.teaches_passages

    def content(self) -> Mapping[str, str]:
        return {"teacher": self._teacher.fingerprint}

    def __call__(self, questions: Tensor, pool: Pool, batch: BiEncoderBatch) -> Tensor:
        taught = self._teacher.questions(batch)
        # every tower takes part
        total = (questions - taught).square().sum(1) if taught is not None else 0.0 * questions.sum(1)
        if not self._teacher.teaches_passages:
            return total
        slots = own_slots(pool, len(questions))
        taught = self._teacher.slots(batch).to(slots.dtype).view_as(slots)
        counts = on_device(batch.context_valid, slots.device).view(slots.shape[:2])
        return total + ((slots - taught).square().sum(2) * counts).sum(1) / counts.sum(1)


def kl_divergence(student: Tensor, teacher: Tensor, is_scored: Tensor) -> Tensor:
    """Returns the divergence KL(teacher || student) of two softmax distributions over the scored slots of
    each question, (B,).

    ``student`` and ``teacher`` (B, n) are divided by their temperatures already. ``is_scored`` (B, n) marks
    the slots that count. A question with fewer than two of them has 0.

        >>> teacher, is_scored = torch.tensor([[2.0, 0.0]]), torch.ones(1, 2, dtype=torch.bool)
        >>> kl_divergence(torch.zeros(1, 2), teacher, is_scored)
        tensor([0.3278])
    """
    log_student = student.masked_fill(~is_scored, MASKED_SCORE).log_softmax(1)
    log_teacher = teacher.masked_fill(~is_scored, MASKED_SCORE).log_softmax(1)
    return (log_teacher.exp() * (log_teacher - log_student)).masked_fill(~is_scored, 0.0).sum(1)


def margin_mse(student: Tensor, teacher: Tensor, is_scored: Tensor, positive: Tensor) -> Tensor:
    """Returns the mean squared difference of margins over the scored slots of each question other than its
    positive, (B,).

    A margin is the positive's score minus that of another slot. ``positive`` (B,) is the slot of the
    positive. A question whose positive has no score has 0, and so has one with no other scored slot.

        >>> student, teacher = torch.tensor([[1.0, 0.5]]), torch.tensor([[3.0, 1.0]])
        >>> margin_mse(student, teacher, torch.ones(1, 2, dtype=torch.bool), torch.tensor([0]))
        tensor([2.2500])
    """
    column = positive[:, None]
    counts = (is_scored & is_scored.gather(1, column)).scatter(1, column, False)
    teacher = teacher.masked_fill(~is_scored, 0.0)
    gap = (student.gather(1, column) - student) - (teacher.gather(1, column) - teacher)
    return gap.square().masked_fill(~counts, 0.0).sum(1) / counts.sum(1).clamp(min=1)


def own_slots(pool: Pool, num_questions: int) -> Tensor:
    """Returns the vectors of each question's own slots, (B, n, D)."""
    slots = pool.contexts[pool.own_contexts]
    return slots.view(num_questions, -1, slots.shape[1])


def own_scores(questions: Tensor, pool: Pool) -> Tensor:
    """Returns the dot products of each question with its own slots, (B, n), in fp32 at least and not divided
    by the temperature."""
    dtype = torch.promote_types(questions.dtype, torch.float32)
    return torch.bmm(own_slots(pool, len(questions)).to(dtype), questions.to(dtype)[:, :, None])[:, :, 0]


def own_positive(batch: BiEncoderBatch) -> Tensor:
    """Returns the number, among a question's own slots, of its positive, (B,), on the host."""
    return batch.positive_idx - torch.arange(len(batch)) * (len(batch.context_ids) // len(batch))


def competing_questions(pool: Pool, batch: BiEncoderBatch, rule: str) -> Candidates:
    """Returns, for the positive of each of this rank's questions, the column of its question among all Q and
    the columns that compete with it.

    With ``distinct``, questions that the passage is known to answer do not compete. Everything is on the
    host.
    """
    num_questions = len(pool.questions)
    target = pool.own_questions.start + torch.arange(len(batch))
    everything = torch.ones(num_questions, dtype=torch.bool)
    if rule == "dpr":
        return Candidates(
            target, everything, torch.empty(len(batch), 0, dtype=torch.int64), torch.arange(num_questions)
        )
    assert pool.known_positives is not None, "the loss did not ask for known positives"
    passages = batch.context_ids[batch.positive_idx]
    known = pool.known_positives
    is_known = known[:, :, 2].bool()
    is_whole = is_known & (known[:, :, 1] == WHOLE_DOCUMENT)
    (by_id, by_text), (known_by_id, known_by_text) = names_of(passages), names_of(known[:, :, :2])
    masked = []
    for of_passage, of_known, counts in (
        (by_id, known_by_id, is_known),
        (by_text, known_by_text, is_known),
        (passages[:, 0].contiguous(), known[:, :, 0], is_whole),
    ):
        ordered, order = of_known[counts].sort()
        knowing = counts.nonzero()[order, 0]
        first, last = (torch.searchsorted(ordered, of_passage, right=right) for right in (False, True))
        place = first[:, None] + torch.arange(int((last - first).max()))
        question = (
            knowing[place.clamp(max=len(knowing) - 1)]
            if len(knowing)
            else torch.full_like(place, num_questions)
        )
        is_rival = (place >= last[:, None]) | (question == target[:, None])
        masked.append(torch.where(is_rival, num_questions, question))
    return Candidates(target, everything, torch.cat(masked, dim=1), torch.arange(num_questions))


class Objective(Loss):
    """Weighted sum of terms: those with a weight in ``settings``, then ``user_terms`` with their weights.

    This is the loss of ``dpr train``, set by the ``loss`` node of the configuration. ``loss.dimensions``
    follows "Matryoshka Representation Learning" (Kusupati et al., 2022).

    The terms run in the same order with the same operations in every step, whatever the data hold. A question
    without teacher scores has a distillation term of 0, and the divisor of the global batch stays Q. With
    ``normalize`` vectors have length 1, and prefixes (``loss.dimensions``) are scaled to length 1 as well. A
    score matrix of more than ``max_scores`` entries is computed in blocks.

        >>> loss = Objective(ObjectiveSettings(symmetric_weight=0.5, kl_weight=1))
        >>> [(weight, type(term).__name__) for weight, term in loss.terms]
        [(1.0, 'Nll'), (0.5, 'Symmetric'), (1.0, 'Distillation')]

    Relatives: ``Nll``, ``Symmetric``, ``Distillation`` and ``Embedding`` are its terms. ``BiEncoderNllLoss``
    is the first alone.
    """

    def __init__(
        self,
        settings: ObjectiveSettings,
        *,
        candidates: str = "distinct",
        normalize: bool = False,
        guide: StoredVectors | None = None,
        teacher: Teacher | None = None,
        user_terms: Sequence[tuple[float, Term]] = (),
        max_scores: int = 1 << 22,
    ) -> None:
        self.settings = settings
        self.candidates = candidates
        self._normalize = normalize
        nll = Nll(guide=guide, threshold=settings.guide_threshold, max_scores=max_scores)
        terms: list[tuple[float, Term]] = [
            (settings.nll_weight, nll),
            (settings.symmetric_weight, Symmetric(candidates=candidates, max_scores=max_scores)),
            (float(settings.uses_teacher_scores), Distillation(settings)),  # it weighs its two kinds itself
        ]
        if teacher is not None:
            terms.append((1.0, Embedding(teacher)))
        self.terms = [(weight, term) for weight, term in [*terms, *user_terms] if weight]
        self._needed = frozenset[str]().union(*(term.needs for _, term in self.terms))
        self.needs = self._needed & GATHERED
        self.reads_passages = any(term.reads_passages for _, term in self.terms)

    def content(self) -> Mapping[str, Any]:
        return {key: value for _, term in self.terms for key, value in term.content().items()}

    def __call__(self, questions: Tensor, pool: Pool, batch: BiEncoderBatch) -> LossResult:
        widths = self.settings.dimensions
        if widths is None:
            return self._sum(questions, pool, batch)
        losses = list[Tensor]()
        for width in widths:
            narrow = replace(
                pool,
                contexts=self._prefix(pool.contexts, width),
                questions=self._prefix(pool.questions, width),
            )
            result = self._sum(self._prefix(questions, width), narrow, batch)
            losses.append(result.losses)
            if width == max(widths):
                correct = result.correct
        return LossResult(_added(losses), correct)

    def _prefix(self, vectors: Tensor, width: int) -> Tensor:
        """Returns the first ``width`` dimensions, scaled to length 1 if the vectors are."""
        if width < vectors.shape[1]:
            vectors = vectors[:, :width]
            if self._normalize:
                vectors = torch.nn.functional.normalize(vectors, dim=1)
        return vectors

    def _sum(self, questions: Tensor, pool: Pool, batch: BiEncoderBatch) -> LossResult:
        """Returns the weighted sum of the terms for vectors of one width."""
        if OWN_SCORES in self._needed:
            pool = replace(pool, own_scores=own_scores(questions, pool))
        losses = list[Tensor]()
        correct = None
        for weight, term in self.terms:
            part = term(questions, pool, batch)
            if isinstance(part, LossResult):
                correct = part.correct if correct is None else correct
                part = part.losses
            if not isinstance(part, Tensor) or part.shape != (len(batch),):
                shape = f"a {type(part).__name__}"
                if isinstance(part, Tensor):
                    shape = f"losses of shape {tuple(part.shape)}"
                raise ConfigError(
                    f"the term {type(term).__name__} returned {shape}; expected one loss per question,"
                    f" ({len(batch)},)"
                )
            losses.append(weight * part)
        if correct is None:  # no term says which questions rank their positive first
            scores = own_scores(questions, pool) if pool.own_scores is None else pool.own_scores
            valid = on_device(batch.context_valid, scores.device).view_as(scores)
            best = scores.detach().masked_fill(~valid, MASKED_SCORE).argmax(1)
            correct = best == on_device(own_positive(batch), scores.device)
        return LossResult(_added(losses), correct)


def _added(terms: list[Tensor]) -> Tensor:
    return torch.stack(terms).sum(0) if len(terms) > 1 else terms[0]
