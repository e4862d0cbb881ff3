"""``dpr mine``: hard negatives for training data; the models, vectors and indexes that they are searched
with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from dpr.core.distributed import resolve_device
from dpr.core.errors import ConfigError, InputError
from dpr.embedding.encode import usual_tokens
from dpr.embedding.source import PassageSource, corpora_of, require_corpora
from dpr.formats.training_sets import open_training_set
from dpr.formats.vector_shards import open_shards
from dpr.indexer.registry import IndexChoice
from dpr.indexer.settings import Bm25Settings
from dpr.integrations.ray_cluster import share_out
from dpr.jobs.sources import warn_of_lost_space
from dpr.mining.audit import audit_lines
from dpr.mining.dense import DenseSearch
from dpr.mining.job import mine
from dpr.mining.negatives import PairScorer
from dpr.mining.search import LexicalSearch, Search
from dpr.mining.settings import MineCommand, MiningInputs, MiningSettings
from dpr.mining.work import Elsewhere
from dpr.models.biencoder import BiEncoder
from dpr.models.cross_encoder import CrossEncoder
from dpr.retrieval.retrievers import check_vectors_are_of
from dpr.storage.checksums import file_state
from dpr.storage.outputs import require_writable


def run(config: MineCommand) -> None:
    """Writes the data with their negatives and prints an audit."""
    out = Path(str(config.out))
    corpus = None if config.corpus is None else Path(config.corpus)
    require_writable(out)
    mining = config.part(MiningSettings)
    open_scorer = None
    if config.cross_encoder:
        open_scorer = partial(open_cross_encoder, config)
        if mining.veto_above is None:
            mining.veto_above = 0.5
    kind = config.indexer.kind
    options = config.indexer.options
    if config.model_file:
        search = model_search(
            config, corpus=corpus, vectors=config.vectors, indexer=kind or "exact", options=options
        )
    else:
        search = lexical_search(config, indexer=kind or "bm25", options=options)
    remote = None
    if config.cluster.kind != "none":
        device = config.device if config.model_file or config.cross_encoder else "cpu"
        each = partial(share_out, config.cluster, what="mining", folder=out.parent, device=device)
        remote = Elsewhere(each, open_scorer)
    scorer = open_scorer() if open_scorer else None
    if corpus is not None:
        file_state(corpus)  # a missing file is reported before the data are read
    train = open_training_set(
        config.files, name="train", on_bad_row=config.on_bad_row, max_bad_rows=config.max_bad_rows
    )
    audit = mine(
        train,
        out,
        mining,
        search=search,
        scorer=scorer,
        corpus=corpus,
        keep_within=config.keep_within,
        processes=config.processes,
        elsewhere=remote,
        overwrite=config.overwrite,
    )
    print("\n".join(audit_lines(audit)))
    print(
        f"{out}: {audit['counts']['questions']:,} questions, {audit['counts']['negatives']:,} mined negatives"
    )


def lexical_search(
    config: Bm25Settings, *, indexer: str = "bm25", options: Mapping[str, Any] | None = None
) -> Search:
    """BM25, or another index over texts with its ``options``, which need not have k1 and b: these are given
    where they are not the default ones."""
    given = dict(options or {})
    for item in fields(Bm25Settings):
        if (value := getattr(config, item.name)) != item.default:
            given[item.name] = value
    return LexicalSearch(_index(indexer, given, reads="texts", else_hint="add model_file=<folder>"))


def model_search(
    config: MiningInputs,
    *,
    corpus: Path | None = None,
    vectors: Sequence[str] = (),
    indexer: str = "exact",
    options: Mapping[str, Any] | None = None,
) -> Search:
    """The search by the bi-encoder that the settings name, over ``vectors`` of ``corpus`` that ``dpr embed``
    made; without them it makes them.

    Raises:
        ConfigError: vectors without a corpus, an index over texts, or a prompt or prefix that the model does
        not have.
        InputError: vectors of another model or corpus, with another prefix, or unfinished ones.
        CheckpointError: there is no model.
    """
    index = _index(indexer, options or {}, reads="vectors", else_hint="leave model_file out")
    if vectors and corpus is None:
        raise ConfigError("vectors are those of a corpus; name it with corpus=<file>")
    warn_of_lost_space("query_prefix", config.query_prefix)
    warn_of_lost_space("passage_prefix", config.passage_prefix)
    device = resolve_device(config.device)
    model = BiEncoder.load(str(config.model_file), device=device, **config.encoder.arguments())
    shards = open_shards(vectors) if vectors else []
    check_vectors_are_of(model, shards, model_file=f"model_file={config.model_file}")
    text = model.tensorizer.text
    agreed = text.agreed_prefix(config.passage_prefix, text.passage_prompt, key="passage_prefix") or ""
    if corpus is not None:
        made_of = corpora_of(shard.metadata for shard in shards)
        require_corpora(made_of, [PassageSource(corpus)], file=", ".join(vectors))
    for shard in shards:
        if (stored := shard.metadata.get("passage_prefix")) != agreed:
            hint = (
                "name the passage_prefix that the corpus was embedded with, embed it with that of the"
                " training, or leave vectors out"
            )
            found = f"vectors made with passage_prefix={stored!r}"
            raise InputError(found, file=shard.path, expected=repr(agreed), hint=hint)
    return DenseSearch(
        model,
        shards=shards,
        batch_tokens=config.batch_tokens or usual_tokens(device),
        precision=config.precision,
        query_prefix=config.query_prefix,
        passage_prefix=agreed,
        prompt=config.prompt,
        index=index,
    )


def _index(kind: str, options: Mapping[str, Any], *, reads: str, else_hint: str) -> IndexChoice:
    choice = IndexChoice.of(kind, options, key="indexer.options.")
    if choice.index_class.reads != reads:
        raise ConfigError(f"indexer={kind} searches {choice.index_class.reads}; {else_hint}")
    return choice


def open_cross_encoder(config: MiningInputs) -> PairScorer:
    """The cross-encoder that the settings name; raises CheckpointError where there is none, or it cannot be
    used."""
    device = resolve_device(config.device)
    return CrossEncoder.load(
        str(config.cross_encoder),
        device,
        batch_tokens=config.batch_tokens or usual_tokens(device),
        precision=config.precision,
    )
