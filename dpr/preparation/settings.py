"""Settings of what makes and fetches data: how files and folders are read, and ``dpr download``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from dpr.core.compute_settings import ForwardSettings
from dpr.core.errors import ConfigError
from dpr.core.settings import Settings, listed, setting


@dataclass
class ReadSettings(Settings):
    """What a file of training data does not state."""

    corpus: str | None = setting(None, path="input")
    """Passages that rows name by id: TSV, JSON lines or Parquet."""
    queries: str | None = setting(None, path="input")
    """Questions that rows name by id."""
    split: str = ""
    """Part of a folder; empty = train, or the only one."""
    min_grade: float | None = None
    """Judgements, labels and scores from here on are positives, those of 0 or below hard negatives; absent =
    1, of whole grades."""
    question: str | None = None
    """Column of the question, in a table or JSON lines; a.b is key b of column a."""
    positive: str | None = None
    """Column of the positive."""
    negative: str | None = None
    """Column of the negative."""
    title: str | None = None
    """Column of the title."""
    answers: str | None = None
    """Column of the answers."""
    label: str | None = None
    """Column of the label."""

    def columns(self) -> dict[str, str]:
        """Column names by role."""
        roles = ("question", "positive", "negative", "title", "answers", "label")
        return {role: name for role in roles if (name := getattr(self, role))}


@dataclass
class PairFileSettings(Settings):
    """What is cut from a corpus."""

    pairs: Any = None
    """Kinds of pairs to cut from a corpus: mixed, or as in datasets.<name>.pairs."""
    held_back: float = setting(0.1, above=0, below=1)
    """Share of the documents of whose passages up to 500 pseudo-questions are cut; training pairs are cut from
    all others."""
    rounds: int = setting(0, unit="pairs", least=0)
    """Training pairs of each passage that is not held back, in train.jsonl; 0 = none, since dpr train cuts
    its own."""


@dataclass
class SuspectSettings(ForwardSettings):
    """Which labels of training data look wrong, by BM25 and a model."""

    suspects: str | None = setting(None, path="output")
    """File to write: the labels that BM25 and the bi-encoder model_file both contradict, the most doubtful
    first, at most 200. Delete the lines that are right after all; dpr prepare ... suspects=FILE drops or relabels the
    others."""
    overwrite: bool = False
    """Replace the file."""

    def unused(self) -> Iterator[str]:
        yield from super().unused()
        if self.suspects is None:
            yield from (item.name for item in fields(SuspectSettings) if item.name != "suspects")


@dataclass
class FolderSettings(Settings):
    """How a folder of documents is read."""

    words: int = setting(150, unit="words", least=20)
    """Words of a passage, at most."""
    overlap: int = setting(30, unit="words", least=0)
    """Words that are repeated from one passage to the next."""
    types: list[str] = field(default_factory=list)
    """Endings of the files to read, types=md,pdf; none = all that can be read."""
    seed: int = 0
    """Decides what is held out."""
    questions: str | None = setting(None, path="input")
    """Your own questions with answers or files: TSV, CSV or JSON lines."""

    def check_together(self, prefix: str) -> None:
        if self.overlap >= self.words:
            raise ConfigError(
                f"{prefix}words={self.words} {prefix}overlap={self.overlap}: a passage repeats fewer words"
                " than it has"
            )


@dataclass
class ResourceConfig(Settings):
    """One entry of ``resources``."""

    url: str | None = None
    """Where it is published; ``{}`` stands for the number of a part."""
    parts: int = 0
    """How many parts there are; 0 = one file."""
    suffix: str | None = None
    """Ending of the file's name; absent = that of the address."""
    sha256: str | None = None
    """Checksum of the file as published, where it is known."""
    also: Any = None
    """Addresses of files that belong beside it (a licence)."""
    about: str = ""
    """What it is."""

    def check_together(self, prefix: str) -> None:
        if not self.url:
            raise ConfigError(f"{prefix}url is not set")
        if self.parts < 0 or (self.parts > 0) != ("{}" in self.url) or (self.parts and self.sha256):
            raise ConfigError(
                f"{prefix}parts: parts and a {{}} in url belong together, and sha256 is for a single file"
            )

    def beside(self) -> list[str]:
        """``also`` as a list."""
        return list(map(str, listed(self.also)))


@dataclass
class DownloadConfig(Settings):
    """Downloads published data."""

    resource: Any = setting(None, operand="[KEY ...]")
    """Keys of ``resources``; the start of a key stands for all keys below it. Absent: the keys are listed."""
    output_dir: str = setting("downloads", path="folder")
    """Folder to write; the parts of a key are folders in it, where the settings of data sets look for
    them."""
    resources: dict[str, Any] = field(default_factory=dict)
    """The catalogue: key -> url, parts, suffix, sha256, also, about."""

    def unused(self) -> Iterator[str]:
        if not self.resource:
            yield "output_dir"

    def check_together(self, prefix: str) -> None:
        if not self.output_dir:
            raise ConfigError("output_dir is empty")

    def keys(self) -> list[str]:
        """``resource`` as a list."""
        return list(map(str, listed(self.resource)))
