"""``dpr mine``: hard negatives for training data; ``dpr score``: a teacher's scores. This module also opens
the models and vectors that both search with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpr.core.compute_settings import ForwardSettings
from dpr.core.distributed import resolve_device
from dpr.core.errors import ConfigError, InputError
from dpr.embedding.encode import default_batch_tokens
from dpr.embedding.settings import CheckpointEncoderConfig
from dpr.embedding.source import PassageSource, corpora_of, require_corpora
from dpr.formats.training_sets import open_training_set
from dpr.formats.vector_shards import open_shards
from dpr.mining.blocks import run_job
from dpr.mining.negatives import Mining, audit_lines
from dpr.mining.scoring import Scoring, score_lines
from dpr.mining.search import DenseSearch, LexicalSearch, Search
from dpr.mining.settings import MineCommand, MiningSettings, ScoreCommand
from dpr.models.biencoder import BiEncoder
from dpr.models.cross_encoder import CrossEncoder
from dpr.retrieval.dense import fit_to_vectors
from dpr.storage.checksums import file_state
from dpr.storage.outputs import require_writable


def run(config: MineCommand) -> None:
    """Writes the data with their negatives and prints an audit."""
    out, corpus, scorer = _opened(config)
    search: Search = LexicalSearch()
    if config.model_file:
        search = dense_search(
            config.model_file,
            config,
            encoder=config.encoder,
            prompt=config.prompt,
            corpus=corpus,
            vectors=config.vectors,
        )
    train = open_training_set(config.files, name="train")
    settings = config.part(MiningSettings)
    job = Mining(train, out, [search], corpus, scorer, settings=settings, keep_within=config.keep_within)
    audit = run_job(job, processes=config.processes, overwrite=config.overwrite)
    print("\n".join(audit_lines(audit)))
    counts = audit["counts"]
    print(f"{out}: {counts['questions']:,} questions, {counts['negatives']:,} mined negatives")


def run_score(config: ScoreCommand) -> None:
    """Writes the scored data and prints statistics of the scores."""
    out, corpus, scorer = _opened(config)
    searches: list[Search] = []
    if config.model_file and scorer is None:
        dense = dense_search(config.model_file, config, encoder=config.encoder, prompt=config.prompt)
        searches.append(dense)
    if scorer is None and (config.hybrid != "none" or not config.model_file):
        searches.append(LexicalSearch())
    train = open_training_set(config.files, name="train")
    job = Scoring(train, out, searches, corpus, scorer, weight=config.hybrid_weight)
    audit = run_job(job, processes=config.processes, overwrite=config.overwrite)
    print("\n".join(score_lines(audit)))
    print(f"{out}: {audit['counts']['passages with a score']:,} scores")


def _opened(config: MineCommand | ScoreCommand) -> tuple[Path, Path | None, CrossEncoder | None]:
    """Returns the output file and the corpus, both checked before the data are read, and the
    cross-encoder."""
    out = Path(str(config.out))
    require_writable(out)
    corpus = None if config.corpus is None else Path(config.corpus)
    if corpus is not None:
        file_state(corpus)
    if not config.cross_encoder:
        return out, corpus, None
    where = resolve_device(config.device)
    batch_tokens = config.batch_tokens or default_batch_tokens(where)
    scorer = CrossEncoder.load(
        config.cross_encoder, where, batch_tokens=batch_tokens, precision=config.precision
    )
    return out, corpus, scorer


def dense_search(
    model_file: str,
    config: ForwardSettings,
    *,
    encoder: CheckpointEncoderConfig | None = None,
    prompt: str | None = None,
    corpus: Path | None = None,
    vectors: Sequence[str] = (),
) -> Search:
    """Opens a bi-encoder's search over ``vectors`` of ``corpus`` that ``dpr embed`` made. Without them it
    makes them, with the device and batches of ``config``.

    Raises:
        ConfigError: vectors without a corpus, or a prompt that the model does not have.
        InputError: vectors of another model or corpus, with a prefix of passages, or unfinished ones.
        CheckpointError: there is no model.
    """
    if vectors and corpus is None:
        raise ConfigError("vectors are those of a corpus; name it with corpus=<file>")
    where = resolve_device(config.device)
    model = BiEncoder.load(model_file, device=where, **(encoder or CheckpointEncoderConfig()).arguments())
    model.tensorizer.text.question_prompt(prompt)
    shards = open_shards(vectors) if vectors else []
    fit_to_vectors(model, shards, model_file=f"model_file={model_file}")
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
        batch_tokens=config.batch_tokens or default_batch_tokens(where),
        precision=config.precision,
        prompt=prompt,
    )
