"""The slow truth: what training computes, written out independently of the package."""

from collections.abc import Sequence
from typing import Any

import torch

from dpr.core.records import Passage, TrainingSample


def key_of(passage: Passage) -> tuple[str, ...]:
    return ("id", passage.id) if passage.id is not None else ("text", passage.title, passage.text)


def embed(
    backbone: Any, tokenizer: Any, texts: Sequence[str | tuple[str, str]], max_length: int
) -> torch.Tensor:
    """CLS vectors, one text at a time: no padding, no batching, all segments 0."""
    vectors = []
    for text in texts:
        pair = (text,) if isinstance(text, str) else text
        ids = tokenizer(*pair, truncation=True, max_length=max_length)["input_ids"]
        vectors.append(backbone(input_ids=torch.tensor([ids])).last_hidden_state[0, 0])
    return torch.stack(vectors)


def question_losses(
    questions: torch.Tensor,
    contexts: torch.Tensor,
    passages: Sequence[Passage],
    positives: Sequence[int],
    known: Sequence[Sequence[Passage]],
    *,
    distinct: bool,
) -> torch.Tensor:
    """Returns -log softmax of each question's positive (Q,), one question and one candidate at a time."""
    losses = []
    for row, positive in enumerate(positives):
        answers = {key_of(passage) for passage in known[row]}
        scores: list[torch.Tensor] = []
        target: int | None = None
        for column, passage in enumerate(passages):
            is_gold = key_of(passage) == key_of(passages[positive]) if distinct else column == positive
            repeated = any(key_of(earlier) == key_of(passage) for earlier in passages[:column])
            if distinct and (repeated or (not is_gold and key_of(passage) in answers)):
                continue
            if is_gold:
                target = len(scores)
            scores.append(questions[row] @ contexts[column])
        assert target is not None
        losses.append(-torch.log_softmax(torch.stack(scores), 0)[target])
    return torch.stack(losses)


def slow_vectors(
    model: Any, samples: Sequence[TrainingSample], chosen: Sequence[Sequence[Passage]], max_length: int
) -> tuple[torch.Tensor, torch.Tensor, list[Passage], list[int]]:
    """Returns vectors of questions and of their chosen passages, these passages, and the positives' places."""
    tokenizer = model.tensorizer.tokenizer
    passages = [passage for row in chosen for passage in row]
    positives = [sum(map(len, chosen[:row])) for row in range(len(chosen))]
    texts = [(passage.title, passage.text) if passage.title else passage.text for passage in passages]
    asked = [sample.question for sample in samples]
    questions = embed(model.question_model.backbone, tokenizer, asked, max_length)
    return questions, embed(model.ctx_model.backbone, tokenizer, texts, max_length), passages, positives


def sample_passages(sample: TrainingSample, num_hard: int, num_other: int) -> list[Passage]:
    """Returns the first positive, other, then hard negatives in file order; others stand in for missing hard ones."""
    hard = sample.hard_negatives or sample.other_negatives
    return [sample.positives[0], *sample.other_negatives[:num_other], *hard[:num_hard]]
