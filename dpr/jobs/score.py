"""``dpr score``: a teacher's scores for training data."""

from __future__ import annotations

from pathlib import Path

from dpr.formats.training_sets import open_training_set
from dpr.jobs.mine import dense_search, open_cross_encoder
from dpr.mining.scoring import audit_lines, score_passages
from dpr.mining.search import LexicalSearch, Search
from dpr.mining.settings import ScoreCommand
from dpr.storage.checksums import file_state
from dpr.storage.outputs import require_writable


def run(config: ScoreCommand) -> None:
    """Writes the scored data and prints what the scores are like."""
    out = Path(str(config.out))
    corpus = None if config.corpus is None else Path(config.corpus)
    require_writable(out)
    if corpus is not None:
        file_state(corpus)  # a missing file is reported before the data are read
    scorer = None
    searches: list[Search] = []
    if config.cross_encoder:
        scorer = open_cross_encoder(
            config.cross_encoder,
            device=config.device,
            precision=config.precision,
            batch_tokens=config.batch_tokens,
        )
    elif config.model_file:
        searches.append(
            dense_search(
                config.model_file,
                encoder=config.encoder,
                prompt=config.prompt,
                device=config.device,
                precision=config.precision,
                batch_tokens=config.batch_tokens,
            )
        )
    if not config.cross_encoder and (config.hybrid != "none" or not config.model_file):
        searches.append(LexicalSearch())
    audit = score_passages(
        open_training_set(config.files, name="train"),
        out,
        scorer=scorer,
        searches=searches,
        weight=config.hybrid_weight,
        corpus=corpus,
        processes=config.processes,
        overwrite=config.overwrite,
    )
    print("\n".join(audit_lines(audit)))
    print(f"{out}: {audit['counts']['passages with a score']:,} scores")
