"""Embeds one shard of a corpus.

1. The shard is a consecutive range of ceil(N / num_shards) passages, as in DPR; it is cut into chunks of ``chunk_size`` passages.
2. Chunks that an earlier run finished are verified and kept. The others are dealt out to the ranks, the k-th to rank k mod W.
3. A rank reads the file as a stream and holds three chunks at a time: one is encoded, the next is read and tokenised, the last written.
4. When all ranks are through, rank 0 writes the manifest. The bytes do not depend on the number of ranks or on interruptions.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from dpr.core.distributed import barrier, current_ranks, from_main, largest_over_ranks, on_main, sum_over_ranks
from dpr.core.errors import InputError, LostRankError
from dpr.core.logs import get_logger
from dpr.core.progress import Progress
from dpr.embedding.chunks import Chunk, WriteBehind, chunk_rows, prepared_chunks
from dpr.embedding.encode import TokenBudget, encode_within_memory, tokenize_passages
from dpr.embedding.source import PassageSource
from dpr.embedding.token_cache import TokenCache
from dpr.formats.vector_shards import Metadata, VectorShardWriter
from dpr.models.biencoder import BiEncoder

logger = get_logger(__name__)

_SHOWN_IDS = 5


@dataclass(frozen=True, slots=True)
class EmbedSettings:
    """How passages become vectors. ``batch_size`` caps the passages of one forward pass; 0 leaves that to ``batch_tokens``.

    ``dtype``: float32, float16, int8 or binary, in which they are stored.
    """

    encoder_type: str = "ctx"
    batch_tokens: int = 8192
    batch_size: int = 0
    chunk_size: int = 8192
    dtype: str = "float32"
    precision: str = "fp32"


@dataclass(frozen=True, slots=True)
class EmbedReport:
    """What a run did: passages of the shard, those embedded now (the rest was there), those without text; all ranks together."""

    folder: Path
    passages: int
    embedded: int
    empty: int


def shard_range(num_passages: int, shard_id: int, num_shards: int) -> range:
    """Rows of a shard: consecutive, ceil(N / num_shards) each; the last ones may be shorter or empty."""
    size = -(-num_passages // num_shards)
    return range(min(shard_id * size, num_passages), min((shard_id + 1) * size, num_passages))


def embed_shard(
    model: BiEncoder,
    source: PassageSource,
    out_file: str | Path,
    *,
    shard_id: int = 0,
    num_shards: int = 1,
    settings: EmbedSettings | None = None,
    token_folder: Path | None = None,
) -> EmbedReport:
    """Writes the vectors of one shard to the folder ``<out_file>_<shard_id>``; resumes an interrupted run.

    Called by every rank of a group, or by a single process. In ``token_folder`` the tokens are kept for the next embedding of the corpus.

    Raises:
        InputError: the corpus is empty, has a bad row or an id twice; the folder holds vectors of another model, corpus or settings;
            the model gives vectors that are not finite or zero; they cannot be written; memory does not suffice for one passage.
        LostRankError: another rank raised.
    """
    settings = settings or EmbedSettings()
    folder = Path(f"{out_file}_{shard_id}")
    rows = shard_range(_count(source), shard_id, num_shards)
    num_chunks = -(-len(rows) // settings.chunk_size)
    metadata = shard_metadata(model, source, settings, rows=rows, shard_id=shard_id, num_shards=num_shards)
    open_writer = _WriterOpener(folder, metadata, model.dimension, settings.dtype)
    missing = open_writer.missing_chunks(num_chunks)
    if len(missing) < num_chunks:
        logger.info("%s: %d of %d chunks are there already", folder, num_chunks - len(missing), num_chunks)
    embedded, empty = 0, 0
    if missing or not open_writer.is_complete:
        writer = open_writer.writer()
        barrier()  # nobody finishes the shard while another rank is still opening it
        embedded, empty = _embed_chunks(model, source, writer, rows, missing, settings, token_folder)
        on_main(lambda: writer.finish(num_chunks))
    return EmbedReport(folder, len(rows), embedded, empty)


def shard_metadata(
    model: BiEncoder, source: PassageSource, settings: EmbedSettings, *, rows: range, shard_id: int, num_shards: int
) -> Metadata:
    """What decides the vectors of a shard; a search refuses to mix shards where it differs."""
    tokens = [model.settings.as_dict(), model.tensorizer.fingerprint, source.normalize]
    tokens += [source.passage_prefix] if source.passage_prefix else []
    return {
        "model_fingerprint": model.fingerprint,
        "settings_fingerprint": hashlib.sha256(json.dumps(tokens, sort_keys=True).encode()).hexdigest()[:32],
        "encoder_type": settings.encoder_type,
        "similarity": "dot",
        "precision": settings.precision,
        "corpus": source.file.name,
        **source.identity(),
        "shard_id": shard_id,
        "num_shards": num_shards,
        "first_row": rows.start,
        "end_row": rows.stop,
        "chunk_size": settings.chunk_size,
    }


class _WriterOpener:
    """Opens the shard on rank 0 first: it alone makes the folder, verifies what is there, and says which chunks are missing."""

    def __init__(self, folder: Path, metadata: Metadata, dimension: int, dtype: str) -> None:
        self._arguments = (folder, metadata, dimension, dtype)
        self._writer: VectorShardWriter | None = None
        self.is_complete = False

    def writer(self) -> VectorShardWriter:
        if self._writer is None:
            folder, metadata, dimension, dtype = self._arguments
            self._writer = VectorShardWriter(folder, metadata=metadata, dimension=dimension, dtype=dtype)
        return self._writer

    def missing_chunks(self, num_chunks: int) -> list[int]:
        """The same list on every rank."""
        flags = torch.zeros(num_chunks + 1)

        def look() -> None:
            writer = self.writer()
            if writer.is_complete():
                flags[num_chunks] = 1
                return
            for number in set(range(num_chunks)) - writer.finished_chunks():
                flags[number] = 1

        on_main(look)
        flags = sum_over_ranks(flags)
        self.is_complete = bool(flags[num_chunks])
        return torch.nonzero(flags[:num_chunks]).flatten().tolist()


def _count(source: PassageSource) -> int:
    counted = [0]

    def count() -> None:
        source.identity()  # reads the whole file; the other ranks then find its hash in the cache
        counted[0] = source.count_unique()
        if not counted[0]:
            raise InputError("no passages", file=source.file, expected="at least one row besides the header")

    on_main(count)
    return from_main(counted[0])


def _embed_chunks(
    model: BiEncoder,
    source: PassageSource,
    writer: VectorShardWriter,
    rows: range,
    missing: list[int],
    settings: EmbedSettings,
    token_folder: Path | None,
) -> tuple[int, int]:
    """Embeds the missing chunks with all ranks; returns how many passages, and how many of them without text.

    The ranks meet after every chunk, so that one that fails or hangs is noticed soon.
    """
    ranks = current_ranks()
    mine = missing[ranks.rank :: ranks.world_size]
    lost = sum(len(chunk_rows(rows, number, settings.chunk_size)) for number in missing)
    progress = Progress("embedding", len(rows), done=len(rows) - lost, quiet=not ranks.is_main)
    tokenize = partial(tokenize_passages, model.tensorizer) if token_folder is None else TokenCache(token_folder, model.tensorizer).tokens
    prepared = prepared_chunks(source, rows, mine, settings.chunk_size, tokenize)
    budget = TokenBudget(settings.batch_tokens)
    empty_ids: list[str] = []
    num_empty = 0
    turns = -(-len(missing) // ranks.world_size)
    with WriteBehind(writer) as behind:
        for turn in range(turns + 1):  # in the last one, what was encoded last comes to be written
            done, failure = torch.zeros(3, dtype=torch.float64), None
            try:
                if turn < len(mine):
                    chunk = next(prepared)
                    _refuse_changed(source, writer)
                    _embed_chunk(model, behind, chunk, budget, settings)
                    done = torch.tensor([len(chunk.ids), len(chunk.tokens.tokens), len(chunk.empty_ids)], dtype=torch.float64)
                    empty_ids = (empty_ids + chunk.empty_ids)[:_SHOWN_IDS]
                else:
                    behind.wait()
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
        logger.warning("%d passages have no text%s; they were embedded by their title, or as empty sequences", num_empty, shown)
    return lost, num_empty


def _refuse_changed(source: PassageSource, writer: VectorShardWriter) -> None:
    """Before each chunk is stored: what was read of a file that changes is neither the old corpus nor the new one."""
    if source.identity()["corpus_fingerprint"] != writer.metadata["corpus_fingerprint"]:
        raise InputError("has changed while it was embedded", file=source.file, hint="finish writing it, choose another out_file, rerun")


def _embed_chunk(model: BiEncoder, behind: WriteBehind, chunk: Chunk, budget: TokenBudget, settings: EmbedSettings) -> None:
    vectors = encode_within_memory(
        model,
        chunk.tokens,
        budget,
        encoder_type=settings.encoder_type,
        batch_size=settings.batch_size,
        precision=settings.precision,
    )
    behind.write(chunk.number, chunk.ids, vectors)
