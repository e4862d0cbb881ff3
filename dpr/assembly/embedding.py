"""Embedding settings -> objects -> a run."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from dpr.assembly.passage_sources import resolve_passage_source
from dpr.core.distributed import current_ranks, process_group, resolve_device
from dpr.core.logs import get_logger
from dpr.embedding.encode import usual_tokens
from dpr.embedding.job import EmbedReport, EmbedSettings, embed_shard
from dpr.embedding.settings import EmbedConfig
from dpr.formats.checksums import cache_root
from dpr.models.biencoder import BiEncoder, TowerOptions
from dpr.models.settings import EncoderSettings

logger = get_logger(__name__)

# A rank on a slow CPU may need minutes for a chunk that another rank has no counterpart for.
_TIMEOUT_S = 1800.0


def run(config: EmbedConfig) -> EmbedReport:
    """Embeds one shard; every rank of a group calls it."""
    source = resolve_passage_source(str(config.ctx_src), config.ctx_sources)
    device = resolve_device("cpu" if config.no_cuda else config.device, local_rank=int(os.environ.get("LOCAL_RANK", "0")))
    with process_group(device.type, timeout_s=_TIMEOUT_S):
        model = BiEncoder.load(
            str(config.model_file),
            device=device,
            options=TowerOptions(attention=config.attention),
            pretrained_model_cfg=config.encoder.pretrained_model_cfg,
            settings=EncoderSettings(pooling=config.encoder.pooling),
        )
        settings = EmbedSettings(
            encoder_type=config.encoder_type,
            batch_tokens=_batch_tokens(config, model.settings.sequence_length, device),
            batch_size=config.batch_size,
            chunk_size=config.chunk_size,
            dtype=config.out_dtype,
            precision=config.precision,
        )
        report = embed_shard(
            model,
            source,
            str(config.out_file),
            shard_id=config.shard_id,
            num_shards=config.num_shards,
            settings=settings,
            token_folder=_token_folder(config),
        )
        if current_ranks().is_main:
            reused = report.passages - report.embedded
            logger.info(
                "%s: %d vectors of %d dimensions%s",
                report.folder,
                report.passages,
                model.dimension,
                f", {reused} from before" if reused else "",
            )
        return report


def _token_folder(config: EmbedConfig) -> Path | None:
    if config.token_store == "off":
        return None
    return cache_root(None if config.token_store == "auto" else Path(config.token_store)) / "passage-tokens"


def _batch_tokens(config: EmbedConfig, sequence_length: int, device: torch.device) -> int:
    if config.batch_tokens:
        return config.batch_tokens
    if config.batch_size:  # DPR's meaning: so many passages, however long they are
        return config.batch_size * sequence_length
    return usual_tokens(device)
