"""Embedding settings -> objects -> a run."""

from __future__ import annotations

import os

from dpr.assembly.sources import resolve_passage_source
from dpr.core.distributed import current_ranks, process_group, resolve_device
from dpr.core.logs import get_logger
from dpr.embedding.job import EmbedReport, embed_shard
from dpr.embedding.settings import EmbedConfig
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
        report = embed_shard(model, source, config)
        if current_ranks().is_main:
            reused = f", {report.passages - report.embedded} from before" if report.passages > report.embedded else ""
            logger.info("%s: %d vectors of %d dimensions%s", report.folder, report.passages, model.dimension, reused)
        return report
