"""Saved indexes. An index is opened only for the source and settings that it was built from, and built by one
process at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpr.core.errors import ConfigError, DprError, InputError
from dpr.core.logs import get_logger
from dpr.indexer.registry import AT, DEPTH, Index, IndexChoice, Recall, held_back, index_class, recall_values
from dpr.storage.checksums import folder_problems
from dpr.storage.durable import durable_folder, read_manifest, writing
from dpr.storage.locks import lock_of, locked

if TYPE_CHECKING:
    import torch

logger = get_logger(__name__)

Questions = Callable[[], np.ndarray]
"""Function that makes vectors (Q, D) of questions, to measure the recall of a new index over vectors."""
_REBUILD = "remove it to build it again, or name another folder"


@dataclass(frozen=True)
class IndexStore:
    """A folder that holds an index, or will hold it.

    Args:
        choice: the index that is wanted.
        folder: None for an index that is built in memory and not kept.
        source: description of the corpus. Its items must be the same in a saved index.
        corpora: the passages of the vectors. The manifest of a new index states them, for programs that show
            the texts.
        device: where a new index is built.
    """

    choice: IndexChoice
    folder: Path | None = None
    source: Mapping[str, Any] = field(default_factory=dict)
    corpora: Sequence[Mapping[str, Any]] = ()
    device: torch.device | str = "cpu"

    def load_or_build(self, corpus: Callable[[], Any] | None, *, questions: Questions | None = None) -> Index:
        """Opens the index saved in the folder, else builds one of ``corpus()`` and saves it there. If another
        process builds it, that one is opened.

        Args:
            corpus: makes the corpus for ``Index.build``; None if there is none.

        Raises:
            InputError: the saved index is damaged, or of another kind, source or settings; or none is saved
            and there is no corpus.
            OutputError: it cannot be saved.
        """
        folder = self.folder if self.choice.index_class.is_saved else None
        if folder is not None and _is_there(folder):
            return self._load(folder)
        if corpus is None:
            raise InputError(
                "there is no index", file=folder, hint="set encoded_ctx_files=[<vectors>] to build it"
            )
        if folder is None:
            return self._built(corpus(), questions)
        with writing(folder.parent):
            folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder, file=lock_of(folder), wait_s=math.inf):
            if not _is_there(folder):
                # built inside, so that a folder that cannot be written is known before
                metadata: dict[str, Any] = {
                    "kind": self.choice.kind,
                    "settings": asdict(self.choice.settings),
                    "source": {**self.source, **self.choice.index_class.made_by},
                }
                if self.corpora:
                    metadata["corpora"] = list(self.corpora)
                with durable_folder(folder, metadata=metadata) as temporary:
                    index = self._built(corpus(), questions)
                    index.save(temporary)
                    metadata["num_passages"] = index.num_passages
                    metadata["recall"] = index.recall and asdict(index.recall)
                logger.info("index saved to %s", folder)
                return index
        return self._load(folder)

    def _built(self, corpus: Any, questions: Questions | None) -> Index:
        """Builds a new index and measures its recall. An index that chooses its breadth does so by every
        other question, and is measured on the rest."""
        start = time.monotonic()
        kind = self.choice.kind
        index = self.choice.index_class.build(corpus, self.choice.settings, device=self.device)
        if not index.is_saved:
            return index
        logger.info(
            "%s index of %d passages built in %.1f s", kind, index.num_passages, time.monotonic() - start
        )
        if index.reads == "vectors":
            if questions is not None and len(queries := questions()):
                queries = queries[held_back(len(queries))]
                exact = index_class("exact").build(corpus, None, device=self.device)
                truth = exact.search(queries, DEPTH)[1]
                if len(queries) > 1 and index.tune(queries[::2], truth[::2]):
                    queries = queries[1::2]
                    truth = truth[1::2]
                values = recall_values(index.search(queries, DEPTH)[1], truth)
                index.recall = Recall(values, len(queries), index.breadth)
                # with few passages, 100 of them are found by chance
                judged = f"recall@{DEPTH if index.num_passages > 2 * DEPTH else AT[0]}"
                least = getattr(self.choice.settings, "least_recall", 0)
                if values[judged] < least:
                    raise ConfigError(
                        f"the {kind} index misses too many passages: {index.recall}; expected {judged} of at"
                        f" least {least:g}. Choose an index that stores or searches more (docs/search.md), or"
                        " set indexer.least_recall=0 to keep this one"
                    )
            logger.info("the %s index: %s", kind, index.recall_in_words())
        return index

    def _load(self, folder: Path) -> Index:
        kind = self.choice.kind
        made = self.choice.index_class
        metadata = read_manifest(folder)["metadata"]
        settings = metadata.get("settings")
        source = metadata.get("source")
        if not isinstance(settings, dict) or not isinstance(source, dict):
            raise InputError("is not an index of this toolkit", file=folder, hint=_REBUILD)
        if metadata.get("kind") != kind:
            found = metadata.get("kind")
            hint = f"set indexer={found}, {_REBUILD}"
            raise InputError(f"holds an index of kind {found!r}", file=folder, expected=repr(kind), hint=hint)
        wanted = {**self.source, **made.made_by, **self.choice.decisive_settings()}
        stated = {**settings, **source}
        for name, value in wanted.items():
            if stated.get(name) != value:
                found = f"was built with {name} {stated.get(name)!r}"
                raise InputError(found, file=folder, expected=repr(value), hint=_REBUILD)
        if problems := folder_problems(folder):
            raise InputError("; ".join(problems), file=folder, hint=_REBUILD)
        try:
            index = made.open(folder, self.choice.settings)
            if recall := metadata.get("recall"):
                index.recall = Recall(**recall)
                str(index.recall)  # of figures
        except (DprError, MemoryError):
            raise
        except Exception as error:  # readers of damaged files, and classes of users, raise anything
            found = f"cannot be opened ({type(error).__name__}: {error})"
            raise InputError(found, file=folder, hint=_REBUILD) from error
        if index.num_passages != metadata.get("num_passages"):
            found = f"holds {index.num_passages} passages, its manifest says {metadata.get('num_passages')}"
            raise InputError(found, file=folder, hint=_REBUILD)
        if lock_of(folder).is_file():  # left by a build that was killed at its end
            with suppress(DprError), locked(folder, file=lock_of(folder)):
                pass
        if index.reads == "vectors":
            logger.info("%s: %s", folder, index.recall_in_words())
        return index


def _is_there(folder: Path) -> bool:
    return folder.is_file() or (folder.is_dir() and any(folder.iterdir()))
