"""A passage collection with the options that say how it is read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from dpr.core.errors import InputError
from dpr.core.records import Passage
from dpr.data.text import decorate_passage, normalize_passage
from dpr.formats.corpora import check_unique_ids, read_passages

_SAMPLE_BYTES = 2**20


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

    def fingerprint(self) -> str:
        """Of the file's size and its first and last megabyte: quick for any size, and changed by every growth or new download.

        Raises:
            InputError: the file cannot be read.
        """
        try:
            size = self.file.stat().st_size
            digest = hashlib.sha256(str(size).encode())
            with open(self.file, "rb") as file:
                digest.update(file.read(_SAMPLE_BYTES))
                file.seek(max(0, size - _SAMPLE_BYTES), os.SEEK_SET)
                digest.update(file.read(_SAMPLE_BYTES))
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror or error}", file=self.file) from None
        return digest.hexdigest()[:32]
