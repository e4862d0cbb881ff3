"""``dpr mine``, and ``dpr.mine_hard_negatives`` with data in memory."""

from __future__ import annotations

import json
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dpr.core.logs import configure_by_default, get_logger
from dpr.core.other_names import hint, refuse
from dpr.core.paths import user_path
from dpr.core.settings import drop_unused, unused_note
from dpr.formats.corpora import given_passages, write_passages
from dpr.formats.stored_training_set import TrainingSet
from dpr.formats.training_sets import open_training_set
from dpr.mining.blocks import Record, run_job
from dpr.mining.negatives import Mining, audit_lines
from dpr.mining.search import LexicalSearch, Search, dense_search, open_scorer
from dpr.mining.settings import MineCommand, MiningSettings
from dpr.models.biencoder import BiEncoder

logger = get_logger(__name__)
_GIVEN = {"files", "out", "overwrite", "model_file"}


def mine(
    config: MineCommand, train: TrainingSet, corpus: Path | None, model: BiEncoder | str | Path | None
) -> dict[str, Any]:
    """Writes training data with hard negatives, found by a model or by BM25, and returns their audit."""
    search: Search = LexicalSearch()
    if model:
        search = dense_search(
            model,
            config,
            encoder=config.encoder,
            prompt=config.prompt,
            corpus=corpus,
            vectors=config.vectors,
        )
    job = Mining(
        train,
        Path(str(config.out)),
        [search],
        corpus,
        open_scorer(config),
        settings=config.part(MiningSettings),
        keep_within=config.keep_within,
    )
    return run_job(job, processes=config.processes, overwrite=config.overwrite)


class MinedRows(list[Record]):
    """Training data with hard negatives, a dictionary for each question (docs/file_formats.md). Prints as the
    audit of ``dpr mine``; ``audit`` has its numbers."""

    audit: dict[str, Any]

    def __repr__(self) -> str:
        return "\n".join(audit_lines(self.audit))


def mine_hard_negatives(
    pairs: Any, model: BiEncoder | str | Path = "bm25", corpus: Any = None, *others: Any, **settings: Any
) -> MinedRows:
    """Returns training data with hard negatives: passages that BM25 or a model ranks high for a question, and that
    do not answer it. They are those of ``dpr mine``. ``BiEncoderTrainer(train_sets=...)`` takes the result.

        rows = dpr.mine_hard_negatives([("who wrote hamlet", "Hamlet is by Shakespeare."), ...], model)
        print(rows)  # how much each filter left out, and examples

    Args:
        pairs: training data, as ``open_training_set`` takes or returns.
        model: a model, its folder or name, or ``"bm25"``.
        corpus: passages to search: a file, a dictionary by id, a list or a table; None = those of the pairs.
        settings: those of ``dpr mine`` by name: ``per_question=5``, ``from_rank``, ``to_rank``,
            ``max_relative_score=0.95``, ``keep_within``, ``keep_existing``, ``cross_encoder``, ``device``, ...

    Raises:
        ConfigError: a setting is out of range.
        InputError: a record cannot be used, or the corpus contains none of the positives.
        TypeError: there is no such setting.
    """
    if others:
        raise TypeError(f"mine_hard_negatives(pairs, model, corpus) takes settings by name{hint('columns')}")
    refuse(settings, "mine_hard_negatives()", signature(MineCommand).parameters.keys() - _GIVEN)
    configure_by_default()
    chosen = None if model == "bm25" else model
    # The job writes its work and its result into files.
    with TemporaryDirectory() as folder:
        file = None
        if isinstance(corpus, str | Path):
            file = user_path(corpus)
        elif corpus is not None:
            file = Path(folder) / "corpus.jsonl"
            write_passages(file, given_passages(corpus))
        out = Path(folder) / "mined.jsonl"
        given = {
            "files": ["pairs"],
            "out": str(out),
            "corpus": file and str(file),
            "model_file": chosen and "model",
        }
        config = MineCommand.from_mapping(settings | given, "")
        if unused := drop_unused(config):
            logger.warning(unused_note(unused))
        train = open_training_set(pairs, name="train")
        audit = mine(config, train, file, chosen)
        rows = MinedRows(json.loads(line) for line in out.open(encoding="utf-8"))
        rows.audit = audit
        return rows
