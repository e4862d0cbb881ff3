"""``dpr embed``: the vectors of a corpus."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dpr.core.compute_settings import ClusterSettings
from dpr.core.distributed import current_ranks, process_group, resolve_device
from dpr.core.logs import counted, get_logger
from dpr.core.machine import launched
from dpr.embedding.job import EmbedReport, embed_shard
from dpr.embedding.settings import EmbedConfig
from dpr.integrations.ray_cluster import share_out
from dpr.models.biencoder import BiEncoder, TowerOptions
from dpr.models.properties import mention_bf16
from dpr.retrieval.sources import resolve_passage_source

logger = get_logger(__name__)

# A rank on a slow CPU may need minutes for a last chunk, while the other ranks wait.
_TIMEOUT_S = 1800.0


def run(config: EmbedConfig) -> EmbedReport:
    """Embeds one shard, if every rank of a group calls it. On a cluster, embeds all shards and returns the
    sum of their numbers."""
    if config.cluster.kind == "none":
        return embed(config)
    # a mistake is reported before anything is started
    resolve_passage_source(str(config.ctx_src), config.ctx_sources)
    if config.num_shards == 1:
        logger.warning("num_shards=1 is one worker's work; set it to some times the number of workers")
    shards = [
        replace(config, shard_id=number, cluster=ClusterSettings()) for number in range(config.num_shards)
    ]
    reports = []
    folder = Path(str(config.out_file)).parent
    finished = share_out(
        config.cluster, embed, shards, what="embedding", folder=folder, device=config.device_or_cpu
    )
    for _, report in counted(finished, "embedding", len(shards), unit="shards"):
        reports.append(report)
    counts = (sum(getattr(report, name) for report in reports) for name in ("passages", "embedded", "empty"))
    whole = EmbedReport(Path(f"{config.out_file}_*"), *counts)
    logger.info(
        "%s: %d vectors in %d shards, %d from an earlier run",
        whole.folder,
        whole.passages,
        len(reports),
        whole.passages - whole.embedded,
    )
    return whole


def embed(config: EmbedConfig) -> EmbedReport:
    """Embeds one shard; every rank of a group calls it."""
    source = resolve_passage_source(str(config.ctx_src), config.ctx_sources)
    device = resolve_device(config.device_or_cpu, local_rank=launched("LOCAL_RANK"))
    with process_group(device.type, timeout_s=_TIMEOUT_S):
        options = TowerOptions(attention=config.attention)
        model = BiEncoder.load(
            str(config.model_file), device=device, options=options, **config.encoder.arguments()
        )
        mention_bf16(model.ctx_model.backbone, device, config.precision, key="precision")
        report = embed_shard(model, source, config)
        if current_ranks().is_main:
            reused = (
                f", {report.passages - report.embedded} from an earlier run"
                if report.passages > report.embedded
                else ""
            )
            logger.info(
                "%s: %d vectors of %d dimensions%s", report.folder, report.passages, model.dimension, reused
            )
        return report
