"""Embedding passages of 150 tokens in bf16: passages per second, and whether tokenizer and writer keep up
with the device."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.gpu.record import PEAK, Record
from benchmarks.gpu.workload import (
    DTYPE,
    PRECISION,
    Sizes,
    attention_of,
    model_of,
    texts_of,
    tokens_of,
    write_bert,
)
from benchmarks.measuring import take_turns
from dpr.core.records import Passage
from dpr.embedding.encode import encode_tokens, tokenize_passages
from dpr.embedding.job import embed_shard
from dpr.embedding.settings import EmbedConfig
from dpr.embedding.source import PassageSource
from dpr.formats.corpora import write_passages
from dpr.formats.vector_shards import VectorShardWriter
from dpr.models.biencoder import BiEncoder
from dpr.training.throughput import TowerCost

WIKIPEDIA = 21_015_324
"""Passages of DPR's corpus."""
CHUNK = 8192


def part(record: Record, sizes: Sizes) -> None:
    """The device alone by side, tokenizer and writer alone, then the job from file to file."""
    attention = attention_of(record)
    with tempfile.TemporaryDirectory() as temporary, _tokenizer_on_all_cores():
        folder = write_bert(Path(temporary) / "bert", sizes)
        sides = {"sdpa": ("sdpa", True), "padded": ("sdpa", False)}
        sides = {**({"varlen": ("varlen", True)} if attention == "varlen" else {}), **sides}
        models = {
            name: model_of(folder, kind, packed=packed).to(record.device).eval().requires_grad_(False)
            for name, (kind, packed) in sides.items()
        }
        best, encoded = _device(record, sizes, models)
        rates = {
            "tokenizer": _tokenizer(sizes, models["sdpa"]),
            "writer": _writer(sizes, models["sdpa"], Path(temporary)),
        }
        for name, rate in rates.items():
            record.add(name, {"passages/s": rate, "times as fast as the device": rate / encoded})
        record.add("from file to file", _job(record, sizes, models[best], best, Path(temporary)))


@contextmanager
def _tokenizer_on_all_cores() -> Iterator[None]:
    """One thread a core, without a warning after data-loading processes were started. Reset: a process forked
    later would wait forever."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "true"
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def _device(record: Record, sizes: Sizes, models: dict[str, BiEncoder]) -> tuple[str, float]:
    """The fastest packed side, and its passages per second."""
    tokens = tokens_of(models["sdpa"], sizes.embedded)
    record.add("mean tokens of a passage", float(tokens.lengths.double().mean()))
    if record.device.type == "cuda":
        tokens = tokens.pin_memory()
    work: dict[str, Callable[[], object]] = {
        name: partial(encode_tokens, model, tokens, batch_tokens=sizes.forward_tokens, precision=PRECISION)
        for name, model in models.items()
    }
    flops = TowerCost(models["sdpa"].ctx_model).of(tokens.lengths)
    figures = take_turns(
        work,
        units=sizes.embedded,
        flops=flops,
        rounds=sizes.rounds,
        device=record.device,
        warmups=sizes.warmups,
        dtype=DTYPE,
    )
    shares = {name: side.rate * flops / sizes.embedded / PEAK for name, side in figures.items()}
    for name, side in figures.items():
        hours = {"hours for 21 million": WIKIPEDIA / side.rate / 3600}
        of_peak = {"share of 989 TFLOP/s": shares[name], "share of a measured product": side.share}
        record.add(name, {"passages/s": side.rate, "by round": side.rates} | of_peak | hours)
    best = max((name for name in figures if name != "padded"), key=lambda name: figures[name].rate)
    record.judge("embedding", shares[best])
    return best, figures[best].rate


def _passages(sizes: Sizes) -> list[Passage]:
    """As many as ``embedded``, repeated up to ``corpus`` with ids of their own."""
    texts = texts_of(sizes.embedded).passages
    return [Passage(texts[row % len(texts)], "", str(row)) for row in range(sizes.corpus)]


def _tokenizer(sizes: Sizes, model: BiEncoder) -> float:
    passages = _passages(sizes)[: 4 * CHUNK]
    tokenize_passages(model.tensorizer, passages[:512])
    start = time.perf_counter()
    tokenize_passages(model.tensorizer, passages)
    return len(passages) / (time.perf_counter() - start)


def _writer(sizes: Sizes, model: BiEncoder, folder: Path) -> float:
    """Two-byte vectors, with their checksums."""
    size = min(CHUNK, sizes.corpus)
    vectors = np.random.default_rng(0).standard_normal((size, model.dimension), dtype=np.float32)
    writer = VectorShardWriter(
        folder / "written", metadata={"similarity": "dot"}, dimension=model.dimension, dtype="float16"
    )
    start, count = time.perf_counter(), 4
    for number in range(count):
        writer.write_chunk(number, [f"{number}-{row}" for row in range(size)], vectors)
    return count * size / (time.perf_counter() - start)


def _job(record: Record, sizes: Sizes, model: BiEncoder, attention: str, folder: Path) -> dict[str, float]:
    """``dpr embed`` on a TSV: reading, tokenising, encoding and writing overlap."""
    write_passages(folder / "corpus.tsv", _passages(sizes))
    config = EmbedConfig(
        out_file=str(folder / "vectors"),
        precision=PRECISION,
        attention=attention,
        out_dtype="float16",
        batch_tokens=sizes.forward_tokens,
        chunk_size=CHUNK,
    )
    source = PassageSource(folder / "corpus.tsv")
    source.identity()
    start = time.perf_counter()
    report = embed_shard(model, source, config)
    rate = report.embedded / (time.perf_counter() - start)
    return {"passages/s": rate, "hours for 21 million": WIKIPEDIA / rate / 3600}
