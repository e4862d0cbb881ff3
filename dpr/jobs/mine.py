"""``dpr mine``: hard negatives for training data; ``dpr score``: a teacher's scores."""

from __future__ import annotations

from pathlib import Path

from dpr.formats.training_sets import open_training_set
from dpr.mining.blocks import run_job
from dpr.mining.hard_negatives import mine
from dpr.mining.negatives import audit_lines
from dpr.mining.scoring import Scoring, score_lines
from dpr.mining.search import LexicalSearch, Search, dense_search, open_scorer
from dpr.mining.settings import MineCommand, ScoreCommand
from dpr.storage.checksums import file_state
from dpr.storage.outputs import require_writable


def run(config: MineCommand) -> None:
    """Writes the data with their negatives and prints an audit."""
    out, corpus = _checked(config)
    train = open_training_set(config.files, name="train")
    audit = mine(config, train, corpus, config.model_file)
    print("\n".join(audit_lines(audit)))
    counts = audit["counts"]
    print(f"{out}: {counts['questions']:,} questions, {counts['negatives']:,} mined negatives")


def run_score(config: ScoreCommand) -> None:
    """Writes the scored data and prints statistics of the scores."""
    out, corpus = _checked(config)
    scorer = open_scorer(config)
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


def _checked(config: MineCommand | ScoreCommand) -> tuple[Path, Path | None]:
    """Returns the output file and the corpus, both checked before the data are read."""
    out = Path(str(config.out))
    require_writable(out)
    corpus = None if config.corpus is None else Path(config.corpus)
    if corpus is not None:
        file_state(corpus)
    return out, corpus
