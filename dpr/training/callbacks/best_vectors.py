"""``keep_vectors`` of a validation by retrieval: the vectors of the best checkpoint stay, as the shard that ``dpr embed`` would write.

1. A validation writes what it encodes to ``<output_dir>/vectors/<name>.step<N>_0``, through the writer of ``dpr embed``.
2. Where the checkpoint is not the best, they are removed at once; otherwise those of the best until then, when the checkpoint is saved.
   So there are at most two at a time, and each says by its name and by the model's fingerprint in it whose vectors it holds.
3. A run that starts again removes all but those of its best checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from dpr.core.distributed import barrier, on_main
from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.embedding.corpus_tokens import CorpusTokens
from dpr.embedding.job import shard_metadata
from dpr.embedding.settings import EmbedConfig
from dpr.formats.vector_shards import VectorShardWriter
from dpr.models.biencoder import BiEncoder
from dpr.storage.durable import remove_folder
from dpr.training.callbacks.protocol import Callback
from dpr.training.metrics import Metrics
from dpr.training.run import Run
from dpr.training.validations.retrieval import RetrievalValidation

logger = get_logger(__name__)

_FOLDER = "vectors"


class BestVectors(Callback):
    """Gives the validations that keep vectors their writers, and removes vectors of steps that are not the best.

    Raises:
        ConfigError: two such validations have one name, or weights are shared out over ranks, which batches texts otherwise.
    """

    def on_train_begin(self, run: Run) -> None:
        keeping = _keeping(run)
        if keeping and run.settings.train.sharding != "none":
            raise ConfigError(
                f"keep_vectors and train.sharding={run.settings.train.sharding} are mutually exclusive; leave one of them out"
            )
        names = [validation.name for validation in keeping]
        if repeated := next((name for name in names if names.count(name) > 1), None):
            raise ConfigError(f"two validations called {repeated} keep vectors; give one of them another name")
        for validation in keeping:
            validation.writer = partial(_writer, run, validation.name)
        self._remove_others(run)

    def on_validate_end(self, run: Run, metrics: Metrics) -> None:
        """The vectors of an earlier best stay until the checkpoint of this one is written."""
        is_best = _is_best(run, run.progress.step)
        for validation in _keeping(run) if run.ranks.is_main else ():
            if not (folder := _target(run, validation.name)).is_dir():
                continue
            if is_best:
                logger.info("%s: vectors of the best checkpoint until now", folder)
            else:
                remove_folder(folder)

    def on_save(self, run: Run, folder: Path) -> None:
        self._remove_others(run)

    def _remove_others(self, run: Run) -> None:
        if run.ranks.is_main:
            for folder, step in _written(run):
                if not _is_best(run, step):
                    remove_folder(folder)


def _keeping(run: Run) -> list[RetrievalValidation]:
    return [each for each in run.validations if isinstance(each, RetrievalValidation) and each.options.keep_vectors]


def _is_best(run: Run, step: int) -> bool:
    return run.progress.best_checkpoint == f"{run.settings.checkpoint_file_name}.step{step}"


def _written(run: Run) -> Iterator[tuple[Path, int]]:
    """The folders of vectors of this run's validations, with their steps."""
    for validation in _keeping(run):
        pattern = re.compile(re.escape(validation.name) + r"\.step(\d+)_0")
        for path in sorted((run.output_dir / _FOLDER).glob("*_0")):
            if match := pattern.fullmatch(path.name):
                yield path, int(match[1])


def _target(run: Run, name: str) -> Path:
    return run.output_dir / _FOLDER / f"{name}.step{run.progress.step}_0"


def _writer(run: Run, name: str, model: BiEncoder, corpus: CorpusTokens) -> VectorShardWriter:
    """An empty shard for the present model, with what ``dpr embed`` states of it; all ranks call it together."""
    target = _target(run, name)
    config = EmbedConfig(precision=run.settings.train.precision, chunk_size=corpus.chunk_size)
    metadata = shard_metadata(model, corpus.source, config, range(corpus.num_passages))
    make_writer = partial(VectorShardWriter, target, metadata=metadata, dimension=model.dimension)

    def empty() -> None:
        if target.exists():  # of an earlier validation at this step
            remove_folder(target)
        make_writer()

    on_main(empty)
    writer = make_writer()
    barrier()  # no rank writes while another is still opening it
    return writer
