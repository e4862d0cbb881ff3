"""Attention over packs on a GPU: torch's kernel for sequences end to end, SDPA over packs, and padding at its
best."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch

from benchmarks import sides
from benchmarks.measuring import Figures, table, take_turns
from benchmarks.page import Ratio, Section
from benchmarks.workload import load_texts, write_encoder
from dpr.core.batch import TokenBatch
from dpr.embedding.encode import encode_tokens
from dpr.models.biencoder import TowerOptions
from dpr.models.fast import varlen
from dpr.training.throughput import TowerCost

TITLE = "Attention on a GPU"
VARLEN, SDPA, PADDED = (
    "dpr, encoder.attention=varlen",
    "dpr, encoder.attention=sdpa",
    "padded micro-batches, sorted by length",
)
LAYERS, WIDTH, LENGTH, BATCH, BATCHES = 12, 768, 256, 128, 3
DROPOUT, MICRO_BATCH_TOKENS, ENCODING_TOKENS = 0.1, 16384, 65536
DTYPE = torch.bfloat16


def section(rounds: int, device: torch.device) -> Section:
    """Training and encoding in bf16; nothing where the kernel is not."""
    lack = varlen.device_lacks(device)
    if lack is not None:
        return Section(
            TITLE, _what(), measured=f"*Not measured: {lack}. `python -m benchmarks --only attention`*"
        )
    with tempfile.TemporaryDirectory() as temporary:
        trained, encoded = (
            _training(Path(temporary) / "training", rounds, device),
            _encoding(Path(temporary) / "encoding", rounds, device),
        )
    fastest = [max(figures, key=lambda name: figures[name].rate) for figures in (trained, encoded)]
    text = [
        _what(),
        "Training:",
        table(trained, ours=VARLEN, unit="questions/s"),
        "Encoding:",
        table(encoded, ours=VARLEN, unit="tokens/s"),
        f"Fastest: {fastest[0]} in training, {fastest[1]} in encoding.",
    ]
    ratios = [
        Ratio.of(f"{name}, {work}", figures[VARLEN].ratios_to(figures[name]))
        for work, figures in (("training", trained), ("encoding", encoded))
        for name in (SDPA, PADDED)
    ]
    return Section(TITLE, "\n\n".join(text), tuple(ratios))


def _what() -> str:
    return (
        f"BERT of {LAYERS} layers x {WIDTH} in bf16, SQuAD texts truncated at {LENGTH} tokens. Training:"
        f" {BATCH} questions and {2 * BATCH} passages a step, hidden dropout {DROPOUT}, no attention dropout"
        " on any side, AdamW and clipping included. Sides: `encoder.attention=varlen`,"
        " `encoder.attention=sdpa` (packs whose attention is padded among sequences of similar length), a"
        f" plain loop over texts sorted by length in padded micro-batches of at most {MICRO_BATCH_TOKENS:,}"
        f" tokens. Encoding: {BATCHES * 2 * BATCH} passages, tokenised before, at most {ENCODING_TOKENS:,}"
        " tokens a forward; the padded side sorts too."
    )


def _options(attention: str, *, packed: bool = True) -> TowerOptions:
    return TowerOptions(attention=attention, attention_dropout=0.0, packed=packed)


def _training(folder: Path, rounds: int, device: torch.device) -> Mapping[str, Figures]:
    texts = load_texts(2 * BATCHES * BATCH)
    write_encoder(folder, texts, layers=LAYERS, width=WIDTH)
    models = {
        name: sides.our_model(folder, dropout=DROPOUT, length=LENGTH, options=_options(attention))
        for name, attention in ((VARLEN, "varlen"), (SDPA, "sdpa"))
    }
    batches = sides.our_batches(models[SDPA], texts, batch=BATCH)
    lengths = torch.cat([part.lengths for batch in batches for part in (batch.questions, batch.contexts)])
    competitors: dict[str, Callable[[], object]] = {
        name: sides.our_training(model, batches, device, precision="bf16") for name, model in models.items()
    }
    competitors[PADDED] = sides.sorted_training(
        folder,
        batches,
        device,
        dropout=DROPOUT,
        attention_dropout=0.0,
        micro_batch_tokens=MICRO_BATCH_TOKENS,
        dtype=DTYPE,
    )
    flops = TowerCost(models[SDPA].ctx_model).of(lengths)
    return take_turns(
        competitors,
        units=len(batches) * BATCH,
        flops=flops,
        rounds=rounds,
        device=device,
        warmups=2,
        dtype=DTYPE,
    )


def _encoding(folder: Path, rounds: int, device: torch.device) -> Mapping[str, Figures]:
    texts = load_texts(BATCHES * 2 * BATCH)
    write_encoder(folder, texts, layers=LAYERS, width=WIDTH)
    cases = {VARLEN: _options("varlen"), SDPA: _options("sdpa"), PADDED: _options("sdpa", packed=False)}
    models = {
        name: (
            sides.our_model(folder, dropout=DROPOUT, length=LENGTH, options=options)
            .to(device)
            .eval()
            .requires_grad_(False)
        )
        for name, options in cases.items()
    }
    tokens = TokenBatch.from_lists(models[SDPA].tensorizer.question_tokens(texts.passages))
    competitors: dict[str, Callable[[], object]] = {
        name: partial(encode_tokens, model, tokens, batch_tokens=ENCODING_TOKENS, precision="bf16")
        for name, model in models.items()
    }
    flops = TowerCost(models[SDPA].ctx_model).of(tokens.lengths)
    return take_turns(
        competitors,
        units=int(tokens.lengths.sum()),
        flops=flops,
        rounds=rounds,
        device=device,
        warmups=2,
        dtype=DTYPE,
    )
