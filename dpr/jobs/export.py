"""``dpr export``: a model as a file or folder, or vectors with their passages in a vector store."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import get_logger
from dpr.embedding.source import require_corpora
from dpr.export.folders import export_folder, write_adapters, write_once
from dpr.export.lancedb import load_lance
from dpr.export.model_card import CardMetadata
from dpr.export.original import export_dpr_file, export_vector_folders
from dpr.export.pgvector import load_postgres
from dpr.export.settings import MODEL_FORMATS, STORES, ExportConfig
from dpr.export.store_rows import VectorRows
from dpr.export.towers import merged
from dpr.formats.checkpoints import CONFIG_FILE, STATE_FILE
from dpr.formats.run_folders import resolve_checkpoint
from dpr.formats.vector_shards import open_shards
from dpr.models.biencoder import BiEncoder
from dpr.retrieval.sources import resolve_passage_sources
from dpr.storage.outputs import require_writable
from dpr.storage.untrusted import read_json

_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def card_metadata(model_file: str, name: str) -> CardMetadata:
    """Returns the known metadata of a model. Files of its checkpoint that cannot be read are ignored;
    absolute paths and credentials are left out."""
    checkpoint = Path(model_file)
    config: dict[str, Any] = {}
    state: dict[str, Any] = {}
    if checkpoint.is_dir():
        checkpoint = resolve_checkpoint(checkpoint)
        with suppress(InputError):
            config = _section(read_json(checkpoint / CONFIG_FILE))
        with suppress(InputError):
            state = _section(read_json(checkpoint / STATE_FILE))
    fixed = _section(state, "identity", "fixed")
    data = {
        "training data": fixed.get("train_datasets"),
        "validation data": _section(state, "identity", "free").get("dev_datasets.content"),
    }
    metrics = _section(state, "progress", "last_metrics")
    base = None if config.get("model_file") else _section(config, "encoder").get("pretrained_model_cfg")
    if not isinstance(base, str) or not _HUB_NAME.fullmatch(base) or Path(base).exists():
        base = None
    return CardMetadata(
        name=name,
        base_model=base,
        seed=fixed.get("seed") if isinstance(fixed.get("seed"), int) else None,
        data={key: list(map(str, found)) for key, found in data.items() if isinstance(found, list) and found},
        validation={key: float(value) for key, value in metrics.items() if type(value) in (int, float)},
    )


def _section(value: Any, *names: str) -> dict[str, Any]:
    """Returns the section of nested settings; empty if there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


logger = get_logger(__name__)

_STORES = {"lancedb": load_lance, "pgvector": load_postgres}


def run(config: ExportConfig) -> None:
    """Writes the model, or the vectors, in the format that the settings name."""
    if config.to in STORES:
        _fill_store(config)
        return
    target = Path(str(config.out))
    require_writable(
        target.with_name(f"{target.name}_0") if config.to == "vectors" else target, folder=config.to != "dpr"
    )
    source = str(config.model_file)
    model = BiEncoder.load(source, **config.encoder.arguments())
    model.keep_dimensions(config.dimensions)
    if config.to in MODEL_FORMATS:
        metadata = card_metadata(source, target.name)
        export_folder(model, target, config.to, source=source, metadata=metadata)
    elif config.to == "vectors":
        export_vector_folders(model, config.vector_patterns(), str(target))
    elif config.to == "peft":
        write_adapters(model, target, source=source)
    elif config.to == "model":
        made_of = {"format": "model", "model": model.fingerprint, "temperature": model.options.temperature}
        model = merged(model)
        write_once(target, made_of, model, model.write_to)
    elif model.settings.dimensions:
        raise ConfigError(
            f"the original has no place for encoder.dimensions={model.settings.dimensions}; export to=model"
            " keeps it"
        )
    else:
        export_dpr_file(
            merged(model),
            target,
            source=source,
            pretrained_model_cfg=config.encoder.pretrained_model_cfg,
            allow_other_vectors=config.allow_other_vectors,
        )


def _fill_store(config: ExportConfig) -> None:
    """Puts the vectors into the store that the settings name, or the rest of them if an earlier run was killed."""
    out = str(config.out)
    if config.to != "pgvector" and "://" not in out:
        require_writable(out, folder=True)
    sources = resolve_passage_sources(config.passage_names(), config.ctx_sources)
    shards = open_shards(config.vector_patterns())
    rows = VectorRows(shards, sources, config.metadata_kinds())
    if not rows.num_rows:
        raise InputError("no vectors", file=", ".join(config.vector_patterns()))
    stated = [shard.metadata for shard in shards]
    require_corpora(stated, sources, file=", ".join(config.vector_patterns()))
    if not _STORES[config.to](rows, out, config.table):
        logger.info("%s has all %d vectors already: nothing to do", config.to, rows.num_rows)
        return
    logger.info(
        "%s holds %d vectors of %d dimensions, compared by dot product",
        config.to,
        rows.num_rows,
        rows.dimension,
    )
