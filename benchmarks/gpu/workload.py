"""Sizes of the parts, and texts with the lengths of Natural Questions: questions of about 12 tokens, passages
of about 150."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks import sides
from benchmarks.gpu.record import Record
from benchmarks.workload import SPECIAL, Texts, write_encoder
from dpr.core.batch import BiEncoderBatch, TokenBatch
from dpr.models.biencoder import BiEncoder, TowerOptions

LENGTH = 256
DROPOUT = 0.1
DTYPE, PRECISION = torch.bfloat16, "bf16"
STEMS, ENDINGS = 20_000, 10_000
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Sizes:
    """How much of everything; the defaults are for a GPU."""

    layers: int = 12
    width: int = 768
    batch: int = 128
    batches: int = 4
    rounds: int = 5
    warmups: int = 2
    sync_steps: int = 40
    embedded: int = 16_384
    corpus: int = 131_072
    forward_tokens: int = 65_536
    questions: int = 3_610
    dimension: int = 768
    streamed: int = 2_000_000
    share_of_memory: float = 0.85
    resident: int = 1 << 40
    most_batch: int = 32_768
    cache_tokens: int = 65_536
    compared_batch: int = 512
    decoder_layers: int = 28
    decoder_width: int = 1024
    decoder_vocabulary: int = 151_936
    decoder_batch: int = 64
    memory_batches: tuple[int, ...] = (16, 32, 64, 128, 256, 512)
    headroom_gib: float = 1.0


REHEARSAL = Sizes(
    layers=2, width=64, batch=4, batches=1, rounds=1, warmups=1, sync_steps=4, embedded=12, corpus=20, forward_tokens=512, questions=40,
    dimension=64, streamed=500, resident=1000, most_batch=8, cache_tokens=256, compared_batch=6, decoder_layers=2, decoder_width=64,
    decoder_vocabulary=31_000, decoder_batch=3, memory_batches=(2, 4),
)  # fmt: skip


def vocabulary() -> list[str]:
    """As large as BERT's: special tokens, letters, stems, and endings that follow a stem."""

    def syllables(number: int) -> str:
        return "".join(_LETTERS[number // 26**place % 26] for place in range(4))

    pieces = [*SPECIAL, *_LETTERS, *(f"##{letter}" for letter in _LETTERS)]
    return pieces + [f"{syllables(n)}o" for n in range(STEMS)] + [f"##{syllables(n)}" for n in range(ENDINGS)]


def texts_of(count: int, seed: int = 0) -> Texts:
    """``count`` questions and passages; frequent words are as much more frequent than rare ones as in a
    language."""
    rng = np.random.default_rng(seed)
    pieces = np.array(vocabulary(), dtype=object)
    stems, endings = (
        pieces[-STEMS - ENDINGS : -ENDINGS],
        np.array([piece[2:] for piece in pieces[-ENDINGS:]], dtype=object),
    )

    def text(num_words: int, share: float) -> str:
        words = stems[(STEMS ** rng.random(num_words)).astype(np.int64) - 1]
        long = rng.random(num_words) < share
        words[long] += endings[(ENDINGS ** rng.random(int(long.sum()))).astype(np.int64) - 1]
        return " ".join(words)

    questions = [text(max(3, round(rng.normal(7, 2))), 0.45) for _ in range(count)]
    return Texts(questions, [text(100, rng.uniform(0.25, 0.7)) for _ in range(count)], "made-up")


def write_bert(folder: Path, sizes: Sizes) -> Path:
    write_encoder(folder, Texts([], [], ""), layers=sizes.layers, width=sizes.width, pieces=vocabulary())
    return folder


def options(attention: str, *, packed: bool = True) -> TowerOptions:
    """Without attention dropout, which the kernel does not have, on every side."""
    return TowerOptions(attention=attention, attention_dropout=0.0, packed=packed)


def model_of(folder: Path, attention: str, *, packed: bool = True, dropout: float = DROPOUT) -> BiEncoder:
    return sides.our_model(folder, dropout=dropout, length=LENGTH, options=options(attention, packed=packed))


def batches_of(model: BiEncoder, batch: int, count: int, *, seed: int = 0) -> list[BiEncoderBatch]:
    """``count`` batches of ``batch`` questions, a positive and a hard negative each; in pinned memory where
    there is a GPU."""
    made = sides.our_batches(model, texts_of(2 * batch * count, seed), batch=batch)
    return [each.pin_memory() for each in made] if torch.cuda.is_available() else made


def lengths_of(batches: list[BiEncoderBatch]) -> torch.Tensor:
    return torch.cat([part.lengths for batch in batches for part in (batch.questions, batch.contexts)])


def tokens_of(model: BiEncoder, count: int) -> TokenBatch:
    return TokenBatch.from_lists(model.tensorizer.question_tokens(texts_of(count).passages))


def attention_of(record: Record) -> str:
    """The attention to measure: the kernel for sequences end to end, or SDPA, with a note of why it is not
    the kernel."""
    from dpr.models.fast import varlen

    lack = varlen.device_lacks(record.device)
    if lack:
        record.add("varlen", f"not measured: {lack}")
    return "sdpa" if lack else "varlen"


@contextmanager
def bert_on(record: Record, sizes: Sizes) -> Iterator[BiEncoder]:
    """A BERT with random weights and that attention, on the device."""
    with tempfile.TemporaryDirectory() as temporary:
        yield model_of(write_bert(Path(temporary) / "bert", sizes), attention_of(record)).to(record.device)


def is_out_of_memory(error: BaseException) -> bool:
    """From torch's allocator, or from a library that asks the driver for memory itself."""
    named = ("CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: out of memory")
    return isinstance(error, torch.cuda.OutOfMemoryError) or any(words in str(error) for words in named)


def start_memory(device: torch.device) -> None:
    """Returns what is free to the device; peaks count from here."""
    gc.collect()  # models of earlier sides, which their hooks keep
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_gib(device: torch.device) -> float:
    """Of tensors since ``start_memory``; 0 on a CPU, where it is not counted."""
    return torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else 0.0
