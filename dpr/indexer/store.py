"""Saved indexes: opened again only for what they were made of, and built by one process at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpr.core import retired
from dpr.core.errors import DprError, InputError
from dpr.core.logs import get_logger
from dpr.indexer.registry import DEPTH, Index, IndexChoice, Recall, held_back, index_class, recall_values
from dpr.storage.checksums import folder_problems
from dpr.storage.durable import durable_folder, read_manifest, writing
from dpr.storage.outputs import held, lock_of

logger = get_logger(__name__)

Questions = Callable[[], np.ndarray]
"""Makes vectors (Q, D) of questions, by which the recall of a new index over vectors is measured."""
_REBUILD = "remove it to build it again, or name another folder"


@dataclass(frozen=True)
class IndexStore:
    """A folder that holds an index, or will hold it.

    Args:
        choice: the index that is wanted.
        folder: None for an index that is built in memory and not kept.
        source: what the corpus is. Of a saved index, these items must be the same.
        corpora: the passages that vectors are of; stated in the manifest of a new index, for those who show
        texts beside it.
        device: where a new index is built.
    """

    choice: IndexChoice
    folder: Path | None = None
    source: Mapping[str, Any] = field(default_factory=dict)
    corpora: Sequence[Mapping[str, Any]] = ()
    device: torch.device | str = "cpu"

    def load_or_build(self, corpus: Callable[[], Any] | None, *, questions: Questions | None = None) -> Index:
        """The index saved in the folder, else one built of ``corpus()`` and saved there; where another
        process builds it, that one.

        Args:
            corpus: makes what ``Index.build`` takes; None where there is none to build of.

        Raises:
            InputError: the saved index is damaged, or of another kind, source or settings; there is nothing
            to build of.
            OutputError: it cannot be saved.
        """
        folder = self.folder if self.choice.index_class.is_saved else None
        if folder is not None and _is_there(folder):
            return self._load(folder, corpus)
        if corpus is None:
            raise InputError(
                "there is no index", file=folder, hint="set encoded_ctx_files=[<vectors>] to build it"
            )
        if folder is None:
            return self._built(corpus(), questions)
        with writing(folder.parent):
            folder.parent.mkdir(parents=True, exist_ok=True)
        with held(folder, file=lock_of(folder), wait_s=math.inf):
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
                    metadata["recall"] = index.recall and index.recall.as_dict()
                logger.info("index saved to %s", folder)
                return index
        return self._load(folder, corpus)

    def _built(self, corpus: Any, questions: Questions | None) -> Index:
        """A new index, with its recall. One that chooses its breadth does so by every other question, and is
        measured on the rest."""
        start = time.monotonic()
        kind = self.choice.kind
        index = self.choice.index_class.build(corpus, self.choice.settings, device=self.device)
        if not index.is_saved:
            return index
        logger.info(
            "%s index of %d passages built in %.1f s", kind, index.num_passages, time.monotonic() - start
        )
        if index.reads == "vectors":
            asked = questions() if questions is not None else np.zeros((0, 0))
            if len(asked):
                asked = asked[held_back(len(asked))]
                exact = index_class("exact").build(corpus, None, device=self.device)
                truth = exact.search(asked, DEPTH)[1]
                if len(asked) > 1 and index.tune(asked[::2], truth[::2]):
                    asked, truth = asked[1::2], truth[1::2]
                values = recall_values(index.search(asked, DEPTH)[1], truth)
                index.recall = Recall(values, len(asked), index.breadth)
            logger.info("the %s index: %s", kind, index.recall_in_words())
        return index

    def _load(self, folder: Path, corpus: Callable[[], Any] | None) -> Index:
        kind = self.choice.kind
        made = self.choice.index_class
        metadata = read_manifest(folder)["metadata"]
        settings = metadata.get("settings")
        source = metadata.get("source")
        if not isinstance(settings, dict) or not isinstance(source, dict):
            raise InputError("is not an index of this toolkit", file=folder, hint=retired.FILES)
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
            hint = "remove the folder to build the index again"
            raise InputError("; ".join(problems), file=folder, hint=hint)
        if made.needs_vectors and corpus is None:
            found = f"an index of kind {kind} scores with the vectors it was built of"
            raise InputError(found, file=folder, hint="set encoded_ctx_files=[<vectors>]")
        try:
            index = made.open(folder, self.choice.settings)
        except (DprError, MemoryError):
            raise
        except Exception as error:  # readers of damaged files, and classes of users, raise anything
            found = f"cannot be opened ({type(error).__name__}: {error})"
            raise InputError(found, file=folder, hint=_REBUILD) from error
        if index.num_passages != metadata.get("num_passages"):
            found = f"holds {index.num_passages} passages, its manifest says {metadata.get('num_passages')}"
            raise InputError(found, file=folder, hint=_REBUILD)
        if lock_of(folder).is_file():  # of a build that was killed when all was done
            with suppress(DprError), held(folder, file=lock_of(folder)):
                pass
        if corpus is not None:
            index.use_vectors(corpus() if made.needs_vectors else ())
        index.recall = Recall.read(metadata.get("recall"))
        if index.reads == "vectors":
            logger.info("%s: %s", folder, index.recall_in_words())
        return index


def _is_there(folder: Path) -> bool:
    return folder.is_file() or (folder.is_dir() and any(folder.iterdir()))
