"""What ``dpr adapt`` and ``dpr quickstart`` search and train on: a corpus, or a folder of documents."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from dpr.core.hashes import text_sha256
from dpr.core.setting_keys import overrides
from dpr.jobs.ladder.stages import Stage
from dpr.preparation import folder_data
from dpr.preparation.folder_files import find_documents, name_in
from dpr.preparation.settings import FolderSettings

_HELD_BACK = 0.1


class Texts(Protocol):
    """What is searched and trained on."""

    def stage(self) -> Stage:
        """The stage that makes the files below."""
        ...

    @property
    def prepared(self) -> Path:
        """The folder that the stage makes, with the corpus to evaluate on and the questions for it."""
        ...

    @property
    def corpus(self) -> Path:
        """The passages that are searched."""
        ...

    def train_sets(self, kinds: Any) -> dict[str, Any]:
        """The entries of the data sets that are trained on."""
        ...


@dataclass(frozen=True)
class CorpusTexts:
    """A corpus, some documents of which are held back from training for pseudo-questions."""

    corpus: Path
    out: Path

    @property
    def prepared(self) -> Path:
        return self.out / "pseudo" / "questions"

    def stage(self) -> Stage:
        return Stage(
            "pseudo",
            self.out / "pseudo",
            "pseudo-questions, to choose settings by",
            lambda: [
                "prepare-pairs",
                *overrides({"corpus": self.corpus, "out": self.prepared, "held_back": _HELD_BACK}),
            ],
            {"held_back": _HELD_BACK},
            lambda: [self.prepared.name],
            inputs={"corpus": [self.corpus]},
        )

    def train_sets(self, kinds: Any) -> dict[str, Any]:
        return {"corpus": {"file": str(self.corpus), "pairs": kinds, "held_back": _HELD_BACK}}


@dataclass(frozen=True)
class FolderTexts:
    """A folder of documents, and the questions made of them or given for them; those held out are hidden from
    the texts trained on."""

    folder: Path
    out: Path
    reading: FolderSettings
    questions: Path | None = None

    @property
    def prepared(self) -> Path:
        return self.out / "data" / "texts"

    @property
    def corpus(self) -> Path:
        return self.prepared / folder_data.CORPUS

    def stage(self) -> Stage:
        """
        Raises:
            InputError: the folder does not exist or holds no documents.
        """
        files = find_documents(self.folder, self.reading.types)
        values = {key: value for key, value in asdict(self.reading).items() if key != "types"}
        given = {
            "folder": self.folder,
            "out": self.prepared,
            **values,
            "questions": self.questions,
            "few": True,
        }
        if self.reading.types:
            given["types"] = self.reading.types
        names = text_sha256(json.dumps([name_in(self.folder, path) for path in files]))
        return Stage(
            "data",
            self.out / "data",
            f"{len(files)} files: passages, training questions, held-out questions",
            lambda: ["prepare-folder", *overrides(given)],
            {**values, "types": self.reading.types, "names": names},
            lambda: [self.prepared.name],
            inputs={
                "folder": [file for file in files if file.is_file()],
                **({"questions": [self.questions]} if self.questions else {}),
            },
        )

    def train_sets(self, kinds: Any) -> dict[str, Any]:
        corpus = {"file": str(self.prepared / folder_data.EVALUATION_CORPUS), "pairs": kinds}
        return {"corpus": corpus, "questions": {"file": str(self.prepared / f"{folder_data.TRAIN}.jsonl")}}
