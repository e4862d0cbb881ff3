"""Embedding settings -> objects -> a run."""

from __future__ import annotations

import os
from pathlib import Path

from dpr.assembly.sources import resolve_passage_source
from dpr.core.distributed import current_ranks, process_group, resolve_device
from dpr.core.logs import get_logger
from dpr.embedding.encode import usual_tokens
from dpr.embedding.job import EmbedReport, EmbedSettings, embed_shard
from dpr.embedding.settings import EmbedConfig
from dpr.formats.checksums import cache_root
from dpr.models.biencoder import BiEncoder, TowerOptions

logger = get_logger(__name__)

# A rank on a slow CPU may need minutes for a chunk that another rank has no counterpart for.
_TIMEOUT_S = 1800.0


def run(config: EmbedConfig) -> EmbedReport:
    """Embeds one shard; every rank of a group calls it."""
    source = resolve_passage_source(str(config.ctx_src), config.ctx_sources)
    device = resolve_device("cpu" if config.no_cuda else config.device, local_rank=int(os.environ.get("LOCAL_RANK", "0")))
    with process_group(device.type, timeout_s=_TIMEOUT_S):
        options = TowerOptions(attention=config.attention)
        model = BiEncoder.load(str(config.model_file), device=device, options=options, **config.encoder.arguments())
        # In DPR batch_size is a number of passages, however long they are.
        tokens = config.batch_tokens or config.batch_size * model.settings.sequence_length or usual_tokens(device)
        token_folder = None
        if config.token_store != "off":
            token_folder = cache_root(None if config.token_store == "auto" else Path(config.token_store)) / "passage-tokens"
        report = embed_shard(
            model,
            source,
            str(config.out_file),
            shard_id=config.shard_id,
            num_shards=config.num_shards,
            settings=EmbedSettings(
                encoder_type=config.encoder_type,
                batch_tokens=tokens,
                batch_size=config.batch_size,
                chunk_size=config.chunk_size,
                dtype=config.out_dtype,
                precision=config.precision,
            ),
            token_folder=token_folder,
        )
        if current_ranks().is_main:
            reused = f", {report.passages - report.embedded} from before" if report.passages > report.embedded else ""
            logger.info("%s: %d vectors of %d dimensions%s", report.folder, report.passages, model.dimension, reused)
        return report
