"""Static towers distilled from a model's vectors of a corpus and of pseudo-questions from it, without labels:
the method of ``dpr adapt static=``.

The model encodes each text once, and the rows of a static embedding table are fitted to these vectors in
seconds. A row begins as the vector of its token alone, weighted by how rare the token is in the corpus.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from dpr.adaptation.sampled_texts import sample_texts
from dpr.core.batch import TokenBatch
from dpr.core.errors import ConfigError
from dpr.core.logs import counted
from dpr.data.pairs import PseudoPairs
from dpr.formats.token_frequencies import TokenFrequencies
from dpr.models.biencoder import BiEncoder
from dpr.models.pooling import IdfPooling, set_idf
from dpr.models.properties import is_static

# Measured on eight collections (benchmarks/results/students.md).
MOST_QUESTIONS = 10_000
LEARNING_RATE = 0.2
"""Learning rate of the rows, in units of the root mean square of the vectors' numbers."""
_RATE_OF_WEIGHTS = 0.01
_EPOCHS = 10
_LEAST_STEPS = 150
_BATCH_SIZE = 64


def learn_static(
    model: BiEncoder, pairs: PseudoPairs, *, sides: str, most_questions: int = MOST_QUESTIONS, seed: int = 0
) -> BiEncoder:
    """Puts a static embedding table, distilled from the vectors of ``model``, in place of its question tower.
    Returns ``model`` itself, or with ``both`` a new model of the table alone.

    Args:
        sides: ``questions``, so that passages keep the tower of ``model``; or ``both``.

    Raises:
        ConfigError: ``model`` has two towers or adapters, or is static.
        InputError: the corpus has too few passages for pseudo-questions.
    """
    if is_static(model.ctx_model.backbone):
        raise ConfigError(f"static={sides}, but the model is static already; leave it out")
    if model.base is not None:
        raise ConfigError(
            f"static={sides}, but the model has adapters; merge them first (dpr export to=model)"
        )
    if model.question_model is not model.ctx_model:
        raise ConfigError(
            f"static={sides}, but the model has two towers, whose vectors one table cannot learn; train a"
            " table for its questions with encoder.static_questions=true (docs/static_encoders.md)"
        )
    passages, questions, _ = sample_texts(pairs, most_questions=most_questions, seed=seed)
    taught = [
        model.encode_passages(passages, convert_to_tensor=True, show_progress_bar=True),
        model.encode_questions(questions, convert_to_tensor=True, show_progress_bar=True),
    ]
    tokens = [model.tensorizer.passage_tokens(passages), model.tensorizer.question_tokens(questions)]
    model.use_static_questions()
    table = model.question_model.train()
    pooling = table.pooling
    assert isinstance(pooling, IdfPooling)
    rows = table.backbone.get_input_embeddings().weight
    with_token = np.zeros(len(rows), dtype=np.int64)
    for sequence in tokens[0]:
        with_token[np.unique(sequence)] += 1
    set_idf(pooling, TokenFrequencies(len(passages), with_token))
    if not model.settings.normalize:  # otherwise only the direction of a sum matters
        with torch.no_grad():
            seen = torch.tensor([token for sequence in tokens[0] for token in sequence])
            pooling.token_weights.div_(pooling.token_weights[seen].mean())

    # More passes come closer to the model's vectors, but retrieve worse.
    scale = float(taught[0].square().mean().sqrt())
    optimizers = [
        torch.optim.SparseAdam([rows], lr=LEARNING_RATE * scale),
        torch.optim.Adam(pooling.parameters(), lr=_RATE_OF_WEIGHTS),
    ]
    num_steps = max(_LEAST_STEPS, _EPOCHS * len(passages) // _BATCH_SIZE)
    schedules = [
        torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, num_steps) for optimizer in optimizers
    ]
    draws = torch.Generator().manual_seed(seed)
    batches = [batches_of(len(texts), num_steps, draws) for texts in tokens]
    steps = counted(list(zip(*batches, strict=True)), "distilling the model's vectors", unit="steps")
    for of_passages, of_questions in steps:
        sequences = [tokens[0][row] for row in of_passages] + [tokens[1][row] for row in of_questions]
        wanted = torch.cat([taught[0][of_passages], taught[1][of_questions]])
        vectors = table(TokenBatch.from_lists(sequences).to(model.device))
        loss = (vectors - wanted).square().sum(1).mean()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
    table.eval()
    if sides == "questions":
        return model
    settings = replace(
        model.settings,
        pooling="idf",
        shared=True,
        static_questions=False,
        projection_dim=0,
        projection_activation="none",
        dpr_trailing_sep=False,
    )
    options = replace(model.options, temperature=model.options.temperature if model.has_temperature else None)
    return BiEncoder(table, table, model.tensorizer, settings, options)


def batches_of(num_texts: int, num_steps: int, draws: torch.Generator) -> list[list[int]]:
    """Returns the rows of the texts of each step, in an order that changes with each pass over them."""
    order: list[int] = []
    while len(order) < num_steps * _BATCH_SIZE:
        order += torch.randperm(num_texts, generator=draws).tolist()
    return [order[step * _BATCH_SIZE : (step + 1) * _BATCH_SIZE] for step in range(num_steps)]
