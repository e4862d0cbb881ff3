"""A linear layer on top of a trained model's vectors, fitted to a corpus without labels: the method of ``dpr
adapt`` for a given model.

The backbone stays as it is, so the fit takes about a minute once some passages are encoded. Pseudo-questions
are cut from passages. The target ranking of each is the hybrid of BM25 and the model itself, over all
passages except the one it was cut from: that passage holds its words and would teach nothing. The layer is
the same for both sides, and begins as the identity.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, normalize

from dpr.adaptation.sampled_texts import sample_texts
from dpr.core.errors import ConfigError
from dpr.core.logs import counted
from dpr.data.pairs import PseudoPairs
from dpr.indexer.bm25 import Bm25Index
from dpr.indexer.ranking import fuse_linear, to_rankings
from dpr.indexer.registry import IndexTexts
from dpr.models.biencoder import BiEncoder

# Measured on eight collections (benchmarks/results/adapt_trained.md).
MOST_QUESTIONS = 3000
LEARNING_RATE = 2e-4
TEACHER_TEMPERATURE = 0.09
"""Divides the hybrid's scores, which lie between 0 and 1."""
_TEMPERATURE = 0.05
_EPOCHS = 3
_BATCH_SIZE = 32
_DEPTH = 1000
"""Number of passages that each side of the hybrid lists; all others have score 0."""
_WEIGHT = 0.5
"""Weight of the model in the hybrid."""


def add_fitted_layer(
    model: BiEncoder, pairs: PseudoPairs, *, most_questions: int = MOST_QUESTIONS, seed: int = 0
) -> None:
    """Puts a layer fitted to the passages of ``pairs`` on top of both towers. Large corpora are sampled.

    Raises:
        ConfigError: the model's vectors go through an activation, or its questions through a static table.
        InputError: the corpus has too few passages for pseudo-questions.
    """
    if model.settings.projection_activation != "none" or model.settings.static_questions:
        raise ConfigError(
            "a linear layer cannot be added to a model whose vectors go through tanh, or whose questions use"
            " a static embedding table; train it on labelled questions (dpr train model=FOLDER)"
        )
    passages, questions, sources = sample_texts(pairs, most_questions=most_questions, seed=seed)
    asked = model.encode_questions(questions, convert_to_tensor=True, show_progress_bar=True)
    encoded = model.encode_passages(passages, convert_to_tensor=True, show_progress_bar=True)

    # The hybrid's scores (Q, N) of the passages for each question. Passages that neither side lists have 0,
    # as does the passage that the question was cut from.
    names = [str(row) for row in range(len(passages))]
    words = Bm25Index.build(
        IndexTexts(iter(names), (f"{passage.title} {passage.text}" for passage in passages))
    )
    targets = torch.zeros(len(questions), len(passages))
    depth = min(_DEPTH, len(passages))
    steps = range(0, len(questions), _BATCH_SIZE)
    for start in counted(steps, "searching by words and vectors", unit="questions"):
        part = slice(start, start + _BATCH_SIZE)
        best = (asked[part] @ encoded.T).cpu().topk(depth)
        found = [[names[row] for row in rows] for rows in best.indices.tolist()]
        by_vectors = to_rankings((best.values.float().numpy(), found))
        by_words = to_rankings(words.search(questions[part], depth))
        for listed in (by_vectors, by_words):
            for place, source in enumerate(sources[part]):
                listed[place] = [found for found in listed[place] if found[0] != names[source]]
        fused = fuse_linear(by_vectors, by_words, weight=_WEIGHT, k=2 * depth)
        for line, ranking in zip(targets[part], fused, strict=True):
            line[[int(name) for name, _ in ranking]] = torch.tensor([score for _, score in ranking])

    matrix = _fitted(asked, encoded, targets, torch.tensor(sources), seed=seed)
    _add(model, matrix)


def _fitted(asked: Tensor, encoded: Tensor, targets: Tensor, sources: Tensor, *, seed: int) -> Tensor:
    """Returns the matrix (D, D) that fits the questions' distributions over passages to the hybrid's. Scores
    are products of the transformed vectors, scaled to length 1; the passage that a question was cut from is
    left out."""
    asked = normalize(asked, dim=-1)
    encoded = normalize(encoded, dim=-1)
    device = asked.device
    matrix = nn.Parameter(torch.eye(asked.shape[1], device=device))
    optimizer = torch.optim.Adam([matrix], lr=LEARNING_RATE)
    draws = torch.Generator().manual_seed(seed)
    batches: list[Tensor] = []
    for _ in range(_EPOCHS):
        batches += torch.randperm(len(asked), generator=draws).split(_BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, len(batches))
    for rows in counted(batches, "fitting the layer", unit="steps"):
        own = sources[rows, None].to(device)
        ours = normalize(asked[rows.to(device)] @ matrix.T, dim=-1)
        scores = ours @ normalize(encoded @ matrix.T, dim=-1).T
        scores = (scores / _TEMPERATURE).scatter(1, own, float("-inf"))
        wanted = (targets[rows].to(device) / TEACHER_TEMPERATURE).scatter(1, own, float("-inf"))
        learned = scores.log_softmax(1).scatter(1, own, 0.0)  # 0 x -inf is no number
        loss = kl_div(learned, wanted.softmax(1), reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return matrix.detach()


@torch.no_grad()
def _add(model: BiEncoder, matrix: Tensor) -> None:
    """Multiplies the vectors of both towers by ``matrix`` before they are scaled. An existing projection, or
    a cut of the vectors, becomes part of it."""
    for tower in model.towers:
        before = tower.encode_proj
        like = next(tower.parameters())
        width = tower.pooled_width if before is None else before.out_features
        # the vectors that the matrix was fitted to are the first of these dimensions
        whole = matrix.to(like) @ torch.eye(len(matrix), width).to(like)
        layer = nn.Linear(tower.pooled_width, len(matrix)).to(like)
        layer.weight.copy_(whole if before is None else whole @ before.weight)
        if before is None:
            layer.bias.zero_()
        else:
            layer.bias.copy_(whole @ before.bias)
        tower.encode_proj = layer
        tower.dimension = len(matrix)
    model.settings = replace(model.settings, projection_dim=len(matrix), dimensions=0)
