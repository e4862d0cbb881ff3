"""``dpr score``: a teacher's scores for training data."""

from __future__ import annotations

from pathlib import Path

from dpr.formats.training_sets import open_training_set
from dpr.jobs.mine import lexical_search, model_search, open_cross_encoder
from dpr.mining.scoring import Teacher, audit_lines, score_passages
from dpr.mining.settings import ScoreCommand
from dpr.storage.checksums import file_state
from dpr.storage.outputs import require_writable


def run(config: ScoreCommand) -> None:
    """Writes the scored data and prints what the scores are like."""
    out, corpus = Path(str(config.out)), None if config.corpus is None else Path(config.corpus)
    require_writable(out)
    if corpus is not None:
        file_state(corpus)  # a missing file is reported before the data are read
    teacher = _teacher(config)
    train = open_training_set(
        config.files, name="train", on_bad_row=config.on_bad_row, max_bad_rows=config.max_bad_rows
    )
    audit = score_passages(
        train, out, teacher, corpus=corpus, processes=config.processes, overwrite=config.overwrite
    )
    print("\n".join(audit_lines(audit)))
    print(f"{out}: {audit['counts']['passages with a score']:,} scores")


def _teacher(config: ScoreCommand) -> Teacher:
    if config.cross_encoder:
        return Teacher(open_cross_encoder(config))
    lexical = lexical_search(config)
    if not config.model_file:
        return Teacher(searches=(lexical,))
    dense = model_search(config)
    if config.hybrid == "none":
        return Teacher(searches=(dense,))
    return Teacher(searches=(dense, lexical), weight=config.hybrid_weight, depth=config.hybrid_depth)
