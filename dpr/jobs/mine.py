"""``dpr mine``: hard negatives for training data; ``dpr score``: a teacher's scores."""

from __future__ import annotations

from pathlib import Path

from dpr.core.distributed import resolve_device
from dpr.embedding.encode import default_batch_tokens
from dpr.formats.training_sets import open_training_set
from dpr.mining.blocks import run_job
from dpr.mining.negatives import Mining, audit_lines
from dpr.mining.scoring import Scoring, score_lines
from dpr.mining.search import LexicalSearch, Search, dense_search
from dpr.mining.settings import MineCommand, MiningSettings, ScoreCommand
from dpr.models.cross_encoder import CrossEncoder
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
