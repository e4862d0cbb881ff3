"""Saved indexes: opened again only for what they were made of, and built by one process at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpr.core import retired
from dpr.core.errors import DprError, InputError
from dpr.core.logs import get_logger
from dpr.core.settings import IDENTITY, NO_EFFECT, WARNED, rule_of
from dpr.indexer.recall import DEPTH, Recall, held_back, least_breadth, recall_values
from dpr.indexer.registry import Index, IndexChoice, index_class
from dpr.storage.checksums import folder_problems
from dpr.storage.durable import durable_folder, read_manifest, writing
from dpr.storage.run_lock import held, lock_of

logger = get_logger(__name__)

Questions = Callable[[], np.ndarray]
"""Makes vectors (Q, D) of questions, by which the recall of a new index over vectors is measured."""


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
        if folder is not None and corpus is not None and not _is_there(folder):
            with writing(folder.parent):
                folder.parent.mkdir(parents=True, exist_ok=True)
            with held(folder, file=lock_of(folder), wait_s=math.inf):
                if not _is_there(folder):
                    return self._build(folder, corpus, questions)
        if folder is not None and _is_there(folder):
            return self._load(folder, corpus)
        if corpus is None:
            raise InputError(
                "there is no index", file=folder, hint="set encoded_ctx_files=[<vectors>] to build it"
            )
        return self._build(None, corpus, questions)

    def _build(self, folder: Path | None, corpus: Callable[[], Any], questions: Questions | None) -> Index:
        start = time.monotonic()
        made_of = corpus()
        if folder is not None:
            index = self._saved_build(folder, made_of, questions)
        else:
            index = self.choice.index_class.build(made_of, self.choice.settings, device=self.device)
            index.recall = self._measured(index, made_of, questions)
        if index.is_saved:
            logger.info(
                "%s index of %d passages built in %.1f s",
                self.choice.kind,
                index.num_passages,
                time.monotonic() - start,
            )
        if folder is not None:
            logger.info("index saved to %s", folder)
        self._say_recall(index, f"the {self.choice.kind} index")
        return index

    def _saved_build(self, folder: Path, corpus: Any, questions: Questions | None) -> Index:
        """A new index in its folder, whose manifest states the recall."""
        made, settings = self.choice.index_class, self.choice.settings
        facts: dict[str, Any] = {
            "kind": self.choice.kind,
            "settings": asdict(settings),
            "source": {**self.source, **made.made_by},
        }
        facts |= {"corpora": list(self.corpora)} if self.corpora else {}

        with durable_folder(folder, metadata=facts) as temporary:
            index = made.build(corpus, settings, device=self.device)
            index.save(temporary)
            index.recall = self._measured(index, corpus, questions)
            facts.update(num_passages=index.num_passages, recall=index.recall and index.recall.as_dict())
        return index

    def _load(self, folder: Path, corpus: Callable[[], Any] | None) -> Index:
        index = self._saved(folder)
        if index.needs_vectors and corpus is None:
            hint = "set encoded_ctx_files=[<vectors>]"
            raise InputError(
                f"an index of kind {self.choice.kind} scores with the vectors it was built of",
                file=folder,
                hint=hint,
            )
        if corpus is not None:
            index.use_vectors(corpus() if index.needs_vectors else ())
        self._say_recall(index, str(folder))
        return index

    def _saved(self, folder: Path) -> Index:
        fault = partial(InputError, file=folder, hint="remove it to build it again, or name another folder")
        metadata = read_manifest(folder)["metadata"]
        settings, made_of = metadata.get("settings", {}), metadata.get("source")
        if not isinstance(settings, dict) or not isinstance(made_of, dict):
            raise InputError("is not an index of this toolkit", file=folder, hint=retired.FILES)
        kind = metadata.get("kind")
        if kind != self.choice.kind:
            hint = f"set indexer={kind}, remove it to build it again, or name another folder"
            raise InputError(
                f"holds an index of kind {kind!r}", file=folder, expected=repr(self.choice.kind), hint=hint
            )
        for how, decisive in (
            ("from something else", self.source),
            ("by another version", self.choice.index_class.made_by),
        ):
            for key, value in decisive.items():
                if made_of.get(key) != value:
                    raise fault(f"was built {how} ({key} {made_of.get(key)!r})", expected=repr(value))
        self._compare_settings(settings, fault)
        if problems := folder_problems(folder):
            raise InputError(
                "; ".join(problems), file=folder, hint="remove the folder to build the index again"
            )
        try:
            index = self.choice.index_class.open(folder, self.choice.settings)
        except (DprError, MemoryError):
            raise
        except Exception as error:  # readers of damaged files, and classes of users, raise anything
            raise fault(f"cannot be opened ({type(error).__name__}: {error})") from error
        stated = metadata.get("num_passages", metadata.get("num_vectors"))
        if index.num_passages != stated:
            raise fault(f"holds {index.num_passages} passages, its manifest says {stated}")
        if lock_of(folder).is_file():  # of a build that was killed when all was done
            with suppress(DprError), held(folder, file=lock_of(folder)):
                pass
        return self._with_recall(index, Recall.read(metadata.get("recall")))

    def _compare_settings(self, settings: Mapping[str, Any], fault: Callable[..., InputError]) -> None:
        """Refuses a saved index of other settings, or warns, as each setting says."""
        for item in fields(self.choice.settings):
            ours, theirs = getattr(self.choice.settings, item.name), settings.get(item.name)
            role = rule_of(item).on_resume or IDENTITY
            if item.name not in settings or ours == theirs or role == NO_EFFECT:
                continue
            message = f"was built with {item.name}={theirs}"
            if role != WARNED:
                raise fault(message, expected=str(ours))
            logger.warning(
                "%s %s; %s=%s has no effect on it. Remove it to build it again",
                self.folder,
                message,
                item.name,
                ours,
            )

    def _measured(self, index: Index, corpus: Any, questions: Questions | None) -> Recall | None:
        """The recall of a new index. One that chooses its breadth does so by every other question, and is
        measured on the rest."""
        if questions is None or not index.is_saved or index.reads != "vectors":
            return None
        asked = questions()
        asked = asked[held_back(len(asked))]
        if not len(asked):
            return None
        exact, settings = index_class("exact"), self.choice.settings
        truth = exact.build(corpus, exact.Settings(), device=self.device).search(asked, DEPTH)[1]
        name = index.breadth_setting
        if name and not getattr(settings, name) and len(asked) > 1:
            reached = least_breadth(index, asked[::2], truth[::2], settings.target_recall)
            if reached < settings.target_recall:
                message = (
                    f"no indexer.{name} reaches recall@{DEPTH} {settings.target_recall:g} in this"
                    f" {self.choice.kind} index"
                )
                logger.warning(
                    "%s; %d reaches %.3f, and more add less than 0.005", message, index.breadth, reached
                )
            asked, truth = asked[1::2], truth[1::2]
        values = recall_values(index.search(asked, DEPTH)[1], truth)
        return Recall(values, len(asked), {name: index.breadth} if name else {})

    def _with_recall(self, index: Index, recall: Recall | None) -> Index:
        """An opened index with what was measured of it; where its breadth is left open, with the one that the
        build chose."""
        index.recall, name = recall, index.breadth_setting
        if recall and name in recall.breadth and not getattr(self.choice.settings, name):
            index.search_with(recall.breadth[name])
        return index

    def _say_recall(self, index: Index, what: str) -> None:
        if index.is_saved and index.reads == "vectors":
            logger.info("%s: %s", what, index.recall_in_words())


def _is_there(folder: Path) -> bool:
    return folder.is_file() or (folder.is_dir() and any(folder.iterdir()))
