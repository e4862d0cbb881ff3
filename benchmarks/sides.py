"""The sides of the comparison. Each is given the same weights, texts, batches and optimizer, and returns what
does one round of work.

A round of training returns the loss of each of its batches, so that a test can see that the sides compute the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.workload import Texts
from dpr.core.batch import BiEncoderBatch, TokenBatch, plan_token_batches
from dpr.core.distributed import Ranks
from dpr.core.records import Passage, TrainingSample
from dpr.data.collator import Collator, DataRow
from dpr.data.settings import DataSetSettings
from dpr.losses.nll import BiEncoderNllLoss
from dpr.models.biencoder import BiEncoder, TowerOptions
from dpr.models.encoder import EncoderSettings
from dpr.training.grad_cache import CachedStep
from dpr.training.optimizer import make_optimizer
from dpr.training.settings import OptimizerSettings
from dpr.training.step import DirectStep, Step

Training = Callable[[], list[float]]
Encoding = Callable[[], None]
LEARNING_RATE, MAX_GRAD_NORM = 2e-5, 2.0


def our_model(folder: Path, *, dropout: float, length: int, options: TowerOptions | None = None) -> BiEncoder:
    settings = EncoderSettings(shared=True, sequence_length=length)
    return BiEncoder.from_pretrained(str(folder), settings, dropout=dropout, options=options)


def our_batches(model: BiEncoder, texts: Texts, *, batch: int) -> list[BiEncoderBatch]:
    """``batch`` questions, their passages and one hard negative each, as training builds them."""
    half = len(texts.questions) // 2
    samples = [
        TrainingSample(question, (Passage(texts.passages[row]),), (Passage(texts.passages[row + half]),))
        for row, question in enumerate(texts.questions[:half])
    ]
    collator = Collator(model.tensorizer, num_hard=1, num_other=0)
    return [
        collator(
            [
                DataRow(sample, start + place, sample.positives, "bench", DataSetSettings())
                for place, sample in enumerate(samples[start : start + batch])
            ]
        )
        for start in range(0, half, batch)
    ]


def our_training(
    model: BiEncoder,
    batches: Sequence[BiEncoderBatch],
    device: torch.device,
    *,
    grad_cache_tokens: int = 0,
    precision: str = "fp32",
) -> Training:
    """The trainer's step, direct or with gradients cached."""
    model.to(device).train()
    optimizer = make_optimizer(model, OptimizerSettings(learning_rate=LEARNING_RATE))
    step: Step = DirectStep(model, BiEncoderNllLoss(), ranks=Ranks(), device=device, precision=precision)
    if grad_cache_tokens:
        step = CachedStep(
            model,
            BiEncoderNllLoss(),
            max_tokens=grad_cache_tokens,
            ranks=Ranks(),
            device=device,
            precision=precision,
        )

    def work() -> list[float]:
        results = []
        for batch in batches:
            results.append(step(batch, num_batches=1, is_last=True))
            _update(model, optimizer)
        return [float(result.loss) / result.num_questions for result in results]

    return work


def _update(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
    optimizer.step()
    optimizer.zero_grad()


def plain_training(
    folder: Path,
    batches: Sequence[BiEncoderBatch],
    device: torch.device,
    *,
    dropout: float,
    pad_to: int = 0,
    dtype: torch.dtype | None = None,
) -> Training:
    """A plain loop on a Hugging Face BERT: padded to the longest of the batch, or to ``pad_to`` as DPR runs
    it; ``dtype`` by autocast."""
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.from_pretrained(
        str(folder), hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout
    )
    model: nn.Module = (
        AutoModel.from_pretrained(str(folder), config=config, add_pooling_layer=False).to(device).train()
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    padded = [
        [_padded(tokens, pad_to, device) for tokens in (batch.questions, batch.contexts)] for batch in batches
    ]
    targets = [batch.context_row[batch.positive_idx].to(device) for batch in batches]

    def work() -> list[float]:
        losses = []
        for (questions, contexts), target in zip(padded, targets, strict=True):
            with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
                vectors = [
                    model(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0]
                    for ids, mask in (questions, contexts)
                ]
            loss = nn.functional.cross_entropy(vectors[0].float() @ vectors[1].float().T, target)
            loss.backward()
            _update(model, optimizer)
            losses.append(loss.detach())
        return [loss.item() for loss in losses]

    return work


def sorted_training(
    folder: Path,
    batches: Sequence[BiEncoderBatch],
    device: torch.device,
    *,
    dropout: float,
    attention_dropout: float,
    micro_batch_tokens: int,
    dtype: torch.dtype | None = None,
) -> Training:
    """The best that padding can do: a plain Hugging Face BERT on micro-batches of texts sorted by length, up
    to so many padded tokens; one loss and one backward for all of them, ``dtype`` by autocast."""
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.from_pretrained(
        str(folder), hidden_dropout_prob=dropout, attention_probs_dropout_prob=attention_dropout
    )
    model: nn.Module = (
        AutoModel.from_pretrained(str(folder), config=config, add_pooling_layer=False).to(device).train()
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    prepared = []
    for batch in batches:
        both = TokenBatch.join([batch.questions, batch.contexts])
        rows = plan_token_batches(both.lengths.numpy(), micro_batch_tokens)
        parts = [_padded(both.select(torch.from_numpy(part)), 0, device) for part in rows]
        back = torch.argsort(torch.from_numpy(np.concatenate(rows))).to(device)
        prepared.append((parts, back, batch.context_row[batch.positive_idx].to(device)))

    def work() -> list[float]:
        losses = []
        for parts, back, target in prepared:
            with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
                states = [
                    model(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0] for ids, mask in parts
                ]
            vectors = torch.cat(states).float()[back]
            loss = nn.functional.cross_entropy(vectors[: len(target)] @ vectors[len(target) :].T, target)
            loss.backward()
            _update(model, optimizer)
            losses.append(loss.detach())
        return [loss.item() for loss in losses]

    return work


def _padded(tokens: TokenBatch, pad_to: int, device: torch.device) -> tuple[Tensor, Tensor]:
    ids, mask = tokens.padded(0)
    extra = max(0, pad_to - ids.shape[1])
    return nn.functional.pad(ids, (0, extra)).to(device), nn.functional.pad(mask, (0, extra)).to(
        device, torch.int64
    )


def st_training(
    folder: Path,
    texts: Texts,
    device: torch.device,
    *,
    batch: int,
    length: int,
    dropout: float,
    mini_batch_size: int = 0,
) -> Training:
    """sentence-transformers: its loss on its own padded features (question, positive, negative columns),
    tokenised beforehand.

    With ``mini_batch_size`` the loss is its gradient-cached one.
    """
    from sentence_transformers import SentenceTransformer, util
    from sentence_transformers.sentence_transformer.losses import (
        CachedMultipleNegativesRankingLoss,
        MultipleNegativesRankingLoss,
    )

    model = _st_model(folder, length, dropout, device).train()
    assert isinstance(model, SentenceTransformer)
    kind: dict[str, Any] = {"scale": 1.0, "similarity_fct": util.dot_score}
    loss: nn.Module = (
        CachedMultipleNegativesRankingLoss(model, mini_batch_size=mini_batch_size, **kind)
        if mini_batch_size
        else MultipleNegativesRankingLoss(model, **kind)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    half = len(texts.questions) // 2
    columns = (texts.questions[:half], texts.passages[:half], texts.passages[half : 2 * half])
    batches = [
        [
            {
                key: value.to(device)
                for key, value in model.preprocess(column[start : start + batch]).items()
                if isinstance(value, Tensor)
            }
            for column in columns
        ]
        for start in range(0, half, batch)
    ]
    labels = torch.arange(batch, device=device)

    def work() -> list[float]:
        losses = []
        for features in batches:
            value = loss([dict(column) for column in features], labels)
            value.backward()
            _update(model, optimizer)
            losses.append(value.item())
        return losses

    return work


def _st_model(folder: Path, length: int, dropout: float, device: torch.device) -> nn.Module:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    arguments = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    body = Transformer(str(folder), max_seq_length=length, config_kwargs=arguments)
    return SentenceTransformer(
        modules=[body, Pooling(body.get_embedding_dimension(), pooling_mode="cls")], device=str(device)
    )


def our_encoding(model: BiEncoder, passages: Sequence[str]) -> Encoding:
    return lambda: [model.encode_passages(list(passages))].clear()


def st_encoding(folder: Path, passages: Sequence[str], device: torch.device, *, length: int) -> Encoding:
    model = _st_model(folder, length, 0.1, device).eval()
    return lambda: [model.encode(list(passages), batch_size=32, show_progress_bar=False)].clear()  # type: ignore[operator]


def plain_encoding(
    folder: Path, passages: Sequence[str], device: torch.device, *, length: int, pad_to: int = 0
) -> Encoding:
    """Batches of 32 in file order, padded to the longest or to ``pad_to``; tokenising included, as on the
    other sides."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    model: nn.Module = AutoModel.from_pretrained(str(folder), add_pooling_layer=False).to(device).eval()
    padding = (
        {"padding": "max_length", "max_length": pad_to}
        if pad_to
        else {"padding": "longest", "max_length": length}
    )

    @torch.inference_mode()
    def work() -> None:
        for start in range(0, len(passages), 32):
            batch = tokenizer(
                list(passages[start : start + 32]), truncation=True, return_tensors="pt", **padding
            ).to(device)
            model(**batch).last_hidden_state[:, 0].cpu()

    return work
