"""Embedding of one shard of a corpus.

1. The shard is a consecutive range of ceil(N / num_shards) passages, as in DPR. It is cut into chunks of
   ``chunk_size`` passages.
2. Chunks that an earlier run finished are verified and kept. The others are dealt out to the ranks, the k-th
   to rank k mod W.
3. A rank streams the file and has three chunks in memory at a time: one is encoded, the next is read and
   tokenised, and the last is written.
4. When all ranks are done, rank 0 writes the manifest. The bytes do not depend on the number of ranks or on
   interruptions.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from dpr.core.distributed import (
    barrier,
    current_ranks,
    from_main,
    largest_over_ranks,
    on_main,
    sum_over_ranks,
)
from dpr.core.errors import InputError, LostRankError
from dpr.core.logs import ProgressBar, get_logger
from dpr.core.records import json_sha256
from dpr.embedding.encode import CorpusTokens, TokenBudget, default_batch_tokens, encode_within_memory
from dpr.embedding.settings import EmbedConfig
from dpr.embedding.source import PassageSource, with_store
from dpr.formats.vector_shards import Metadata, VectorShardWriter
from dpr.models.biencoder import BiEncoder
from dpr.storage.outputs import require_writable

logger = get_logger(__name__)

_SHOWN_IDS = 5


@dataclass(frozen=True, slots=True)
class EmbedReport:
    """Numbers of a run, over all ranks: passages of the shard, passages that it embedded (the rest existed),
    and those of the latter without text."""

    folder: Path
    passages: int
    embedded: int
    empty: int


def shard_range(num_passages: int, shard_id: int, num_shards: int) -> range:
    """Returns the rows of a shard: consecutive, ceil(N / num_shards) each. The last shards may be shorter or
    empty."""
    size = -(-num_passages // num_shards)
    return range(min(shard_id * size, num_passages), min((shard_id + 1) * size, num_passages))


def embed_shard(model: BiEncoder, source: PassageSource, config: EmbedConfig) -> EmbedReport:
    """Writes the vectors of the shard ``config.shard_id`` to the folder ``<out_file>_<shard_id>``, and
    resumes an interrupted run.

    Every rank of a group calls it, or a single process. The settings that name the model and the corpus are
    not read.

    Raises:
        ConfigError: the source has a passage_prefix that is not the model's prompt.
        InputError: the corpus is empty, has a bad row or a repeated id; the folder holds vectors of another
            model, corpus or settings; the model gives vectors that are zero, NaN or infinite; one passage
            does not fit into memory.
        OutputError: they cannot be written. If this can be known beforehand, it is raised before the corpus
            is read.
        LostRankError: another rank raised.
    """
    folder = Path(f"{config.out_file}_{config.shard_id}")
    on_main(lambda: require_writable(folder if folder.is_dir() else folder.parent, folder=True))
    model.keep_dimensions(config.dimensions)
    source = source.agreed(model.tensorizer.text)
    counted = [0]

    def count() -> None:
        source.identity()  # reads the whole file; the other ranks then find its hash in the cache
        # a single shard reads the file from its beginning
        counted[0] = (with_store(source) if config.num_shards > 1 else source).count_unique()
        if not counted[0]:
            raise InputError("no passages", file=source.file, expected="at least one row besides the header")

    on_main(count)
    rows = shard_range(from_main(counted[0]), config.shard_id, config.num_shards)
    if config.num_shards > 1:
        source = with_store(source)
    corpus = CorpusTokens(
        source, len(rows), model.tensorizer, chunk_size=config.chunk_size, first_row=rows.start
    )
    num_chunks = corpus.num_chunks
    metadata = shard_metadata(model, source, config, rows)
    make_writer = partial(
        VectorShardWriter, folder, metadata=metadata, dimension=model.dimension, dtype=config.out_dtype
    )
    opened: list[VectorShardWriter] = []
    flags = torch.zeros(num_chunks + 1)  # 1 for each missing chunk; the last is 1 if the shard is unfinished

    def look() -> None:
        opened.append(make_writer())
        if not opened[0].is_complete():
            flags[[*set(range(num_chunks)) - opened[0].finished_steps(), num_chunks]] = 1

    on_main(look)  # rank 0 alone creates the folder and verifies what is there
    flags = sum_over_ranks(flags)
    missing = flags[:num_chunks].nonzero().flatten().tolist()
    if len(missing) < num_chunks:
        logger.info("%s: %d of %d chunks exist already", folder, num_chunks - len(missing), num_chunks)
    embedded = 0
    empty = 0
    if flags[num_chunks]:
        writer = opened[0] if opened else make_writer()
        barrier()  # no rank finishes the shard while another is still opening it
        embedded, empty = _embed_chunks(model, corpus, writer, missing, config)
        on_main(lambda: writer.finish(num_chunks))
    return EmbedReport(folder, len(rows), embedded, empty)


def shard_metadata(model: BiEncoder, source: PassageSource, config: EmbedConfig, rows: range) -> Metadata:
    """Returns everything that the vectors of a shard depend on. A search refuses to mix shards that differ in
    it."""
    tokens = [model.settings.as_dict(), model.tensorizer.fingerprint, source.normalize]
    tokens += [source.passage_prefix] if source.passage_prefix else []
    return {
        "model_fingerprint": model.fingerprint,
        "settings_fingerprint": json_sha256(tokens)[:32],
        "encoder_type": config.encoder_type,
        "similarity": "dot",
        "precision": config.precision,
        "corpus": source.file.name,
        **source.identity(),
        "shard_id": config.shard_id,
        "num_shards": config.num_shards,
        "first_row": rows.start,
        "end_row": rows.stop,
        "chunk_size": config.chunk_size,
    }


def _embed_chunks(
    model: BiEncoder, corpus: CorpusTokens, writer: VectorShardWriter, missing: list[int], config: EmbedConfig
) -> tuple[int, int]:
    """Embeds the missing chunks with all ranks. Returns how many passages it embedded, and how many of them
    had no text.

    The ranks meet after every chunk, so that one that fails or hangs is noticed soon.
    """
    ranks = current_ranks()
    mine = missing[ranks.rank :: ranks.world_size]
    lost = sum(len(corpus.rows_of(number)) for number in missing)
    total = corpus.num_passages
    progress = ProgressBar("embedding", total, done=total - lost, quiet=not ranks.is_main)
    prepared = corpus.read(mine)
    # In DPR, batch_size is a number of passages, whatever their length.
    tokens_of_batch = config.batch_size * model.settings.sequence_length
    budget = TokenBudget(config.batch_tokens or tokens_of_batch or default_batch_tokens(model.device))
    empty_ids: list[str] = []
    num_empty = 0
    turns = -(-len(missing) // ranks.world_size)
    written: Future[None] = Future()
    written.set_result(None)
    # Leaving the pool lets a write that has started finish.
    with ThreadPoolExecutor(1, thread_name_prefix="write") as pool:
        for turn in range(turns + 1):  # in the last one, only the last chunk is written
            done = torch.zeros(3, dtype=torch.float64)
            failure = None
            try:
                if turn < len(mine):
                    chunk = next(prepared)
                    if turn == 0:
                        model.tensorizer.check_known(chunk.tokens.tokens.numpy(), str(corpus.source.file))
                    vectors = encode_within_memory(
                        model,
                        chunk.tokens,
                        budget,
                        encoder_type=config.encoder_type,
                        batch_size=config.batch_size,
                        precision=config.precision,
                        on_batch=lambda items, _: progress.under_way(items * ranks.world_size),
                    )
                    ids = [key.decode() for key in chunk.ids.tolist()]
                    empty = [key for key, has_text in zip(ids, chunk.has_text, strict=True) if not has_text]
                    counts = [len(ids), len(chunk.tokens.tokens), len(empty)]
                    done = torch.tensor(counts, dtype=torch.float64)
                    empty_ids = (empty_ids + empty)[:_SHOWN_IDS]
                written.result()  # raises what the write raised
                if turn < len(mine):
                    written = pool.submit(writer.write_chunk, chunk.number, ids, vectors)
            except Exception as error:
                failure = error
            if largest_over_ranks(int(failure is not None)):
                progress.close()
                raise failure or LostRankError("another rank stopped while embedding; its message says why")
            items, tokens, without_text = (int(value) for value in sum_over_ranks(done).tolist())
            num_empty += without_text
            if turn < turns:
                progress.advance(items, tokens)
    progress.close()
    if num_empty and ranks.is_main:
        shown = f", such as {', '.join(empty_ids)}" if empty_ids else ""
        logger.warning(
            "%d passages have no text%s; they were embedded by their title, or as empty sequences",
            num_empty,
            shown,
        )
    return lost, num_empty
