"""A passage collection with the options that say how it is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

from dpr.core.records import Passage
from dpr.data.settings import TextSettings
from dpr.data.text import decorate_passage, normalize_passage
from dpr.formats.checksums import content_sha256
from dpr.formats.corpora import check_unique_ids, read_passages


@dataclass(frozen=True, slots=True)
class PassageSource:
    """A corpus file (TSV or BEIR JSON lines, plain or gzip) and DPR's options for it."""

    file: Path
    name: str = ""
    id_col: int = 0
    text_col: int = 1
    title_col: int = 2
    id_prefix: str = ""
    normalize: bool = False
    passage_prefix: str = ""
    """Put before every passage where it is encoded; texts that are shown or searched by words are without it."""

    def agreed(self, text: TextSettings) -> PassageSource:
        """The source beside a model that puts a prompt before passages: without a prefix that repeats it.

        Raises:
            ConfigError: the prefix is another one.
        """
        prefix = text.agreed_prefix(self.passage_prefix, text.passage_prompt, key="passage_prefix")
        return replace(self, passage_prefix=prefix or "")

    def as_encoded(self, passage: Passage) -> Passage:
        """A passage that was read, as the model gets it."""
        if not self.passage_prefix:
            return passage
        title, text = decorate_passage(passage.title, passage.text, prefix=self.passage_prefix)
        return replace(passage, title=title, text=text)

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Passage]:
        """Passages number ``start`` to ``stop``, with prefixed ids, cleaned where ``normalize`` asks for it."""
        columns = {"id_col": self.id_col, "text_col": self.text_col, "title_col": self.title_col}
        for passage in read_passages(self.file, **columns, id_prefix=self.id_prefix, start=start, stop=stop):
            yield replace(passage, text=normalize_passage(passage.text)) if self.normalize else passage

    def count_unique(self) -> int:
        """Number of passages.

        Raises:
            InputError: an id occurs twice (names both lines), or a row is bad.
        """
        return check_unique_ids(self.file, id_col=self.id_col, text_col=self.text_col, title_col=self.title_col)

    def identity(self) -> dict[str, str | int | bool]:
        """What decides the passages: the whole content of the file, and every setting but its name.

        Raises:
            InputError: the file cannot be read.
        """
        options = {item.name: getattr(self, item.name) for item in fields(PassageSource) if item.name not in ("file", "name")}
        return {"corpus_fingerprint": content_sha256(self.file)[:32], **options}
