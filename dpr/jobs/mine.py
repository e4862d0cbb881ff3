"""``dpr mine``: hard negatives for training data; the models and vectors that they are searched with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpr.core.distributed import resolve_device
from dpr.core.errors import ConfigError, InputError
from dpr.embedding.encode import default_batch_tokens
from dpr.embedding.settings import CheckpointEncoderConfig
from dpr.embedding.source import PassageSource, corpora_of, require_corpora
from dpr.formats.training_sets import open_training_set
from dpr.formats.vector_shards import open_shards
from dpr.mining.blocks import PairScorer
from dpr.mining.negatives import audit_lines, mine
from dpr.mining.search import DenseSearch, LexicalSearch, Search
from dpr.mining.settings import MineCommand, MiningSettings
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
    search: Search = LexicalSearch()
    if config.model_file:
        search = dense_search(
            config.model_file,
            encoder=config.encoder,
            corpus=corpus,
            vectors=config.vectors,
            prompt=config.prompt,
            device=config.device,
            precision=config.precision,
            batch_tokens=config.batch_tokens,
        )
    scorer = None
    if config.cross_encoder:
        scorer = open_cross_encoder(
            config.cross_encoder,
            device=config.device,
            precision=config.precision,
            batch_tokens=config.batch_tokens,
        )
    if corpus is not None:
        file_state(corpus)  # a missing file is reported before the data are read
    audit = mine(
        open_training_set(config.files, name="train"),
        out,
        mining,
        search=search,
        scorer=scorer,
        corpus=corpus,
        keep_within=config.keep_within,
        processes=config.processes,
        overwrite=config.overwrite,
    )
    print("\n".join(audit_lines(audit)))
    print(
        f"{out}: {audit['counts']['questions']:,} questions, {audit['counts']['negatives']:,} mined negatives"
    )


def dense_search(
    model_file: str,
    *,
    encoder: CheckpointEncoderConfig | None = None,
    corpus: Path | None = None,
    vectors: Sequence[str] = (),
    prompt: str | None = None,
    device: str | None = None,
    precision: str = "fp32",
    batch_tokens: int = 0,
) -> Search:
    """A bi-encoder's search over ``vectors`` of ``corpus`` that ``dpr embed`` made; without them it makes them.

    Raises:
        ConfigError: vectors without a corpus, or a prompt that the model does not have.
        InputError: vectors of another model or corpus, with a prefix of passages, or unfinished ones.
        CheckpointError: there is no model.
    """
    if vectors and corpus is None:
        raise ConfigError("vectors are those of a corpus; name it with corpus=<file>")
    where = resolve_device(device)
    model = BiEncoder.load(model_file, device=where, **(encoder or CheckpointEncoderConfig()).arguments())
    model.tensorizer.text.question_prompt(prompt)
    shards = open_shards(vectors) if vectors else []
    check_vectors_are_of(model, shards, model_file=f"model_file={model_file}")
    if corpus is not None:
        made_of = corpora_of(shard.metadata for shard in shards)
        require_corpora(made_of, [PassageSource(corpus)], file=", ".join(vectors))
    for shard in shards:
        if stored := shard.metadata.get("passage_prefix"):
            hint = f"embed the corpus with encoder.passage_prompt={stored!r}, and name it here too"
            raise InputError(f"vectors made with passage_prefix={stored!r}", file=shard.path, hint=hint)
    return DenseSearch(
        model,
        shards=shards,
        batch_tokens=batch_tokens or default_batch_tokens(where),
        precision=precision,
        prompt=prompt,
    )


def open_cross_encoder(
    folder: str, *, device: str | None = None, precision: str = "fp32", batch_tokens: int = 0
) -> PairScorer:
    """The cross-encoder in a folder; raises CheckpointError where there is none, or it cannot be used."""
    where = resolve_device(device)
    return CrossEncoder.load(
        folder, where, batch_tokens=batch_tokens or default_batch_tokens(where), precision=precision
    )
