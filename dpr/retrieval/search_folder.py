"""``search.json``: what a run folder needs to be searched by hand. Paths inside are relative to the folder, so that it can be moved."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.embedding.source import PassageSource
from dpr.formats.durable import read_json, write_json
from dpr.retrieval.retrievers import QuestionForm

FILE = "search.json"
_SCHEMA = 1


@dataclass(frozen=True)
class SearchSettings:
    """How a corpus is searched; names as in the retrieval settings."""

    model_file: str | None = None
    encoded_ctx_files: list[str] = field(default_factory=list)
    passages: list[PassageSource] = field(default_factory=list)
    indexer: str = "exact"
    index_path: str | None = None
    bm25_index_path: str | None = None
    hybrid: str = "none"
    hybrid_weight: float | None = None
    hybrid_normalisation: str = "minmax"
    hybrid_depth: int = 100
    form: QuestionForm = field(default_factory=QuestionForm)
    pretrained_model_cfg: str | None = None
    """Of a model_file of the original DPR; a folder by its absolute path."""

    def write(self, folder: Path) -> None:
        """Writes ``search.json`` into the folder."""
        relative = self._with_paths(lambda path: os.path.relpath(path, folder))
        value = asdict(relative) | {"schema": _SCHEMA}
        for passage_source in value["passages"]:
            passage_source["file"] = str(passage_source["file"])
        write_json(folder / FILE, value)

    @classmethod
    def read(cls, folder: Path) -> SearchSettings:
        """Reads ``search.json``.

        Raises:
            InputError: there is none, or it is not one of this toolkit.
        """
        file = folder / FILE
        if not file.is_file():
            hint = f"dpr retrieve ... search_folder={folder} writes one; or name what to search: --corpus, and --model with --vectors"
            raise InputError(f"no {FILE}", file=folder, hint=hint)
        value = read_json(file)
        if not isinstance(value, dict) or value.pop("schema", None) != _SCHEMA:
            raise InputError("not search settings", file=file, expected=f"an object with schema {_SCHEMA}")
        try:
            passages = [PassageSource(**{**item, "file": Path(item["file"])}) for item in value.pop("passages")]
            stored = cls(**value | {"passages": passages, "form": QuestionForm(**value.pop("form"))})
            return stored._with_paths(lambda path: os.path.normpath(folder / path))
        except (TypeError, KeyError, AttributeError) as error:
            raise InputError(f"not search settings ({error})", file=file) from None

    def _with_paths(self, convert: Callable[[str], str]) -> SearchSettings:
        def optional(path: str | None) -> str | None:
            return None if path is None else convert(path)

        changed: dict[str, Any] = {
            "model_file": optional(self.model_file),
            "index_path": optional(self.index_path),
            "bm25_index_path": optional(self.bm25_index_path),
            "encoded_ctx_files": [convert(pattern) for pattern in self.encoded_ctx_files],
            "passages": [_moved(source, Path(convert(str(source.file)))) for source in self.passages],
        }
        return SearchSettings(**{**{name: getattr(self, name) for name in self.__dataclass_fields__}, **changed})


def _moved(source: PassageSource, file: Path) -> PassageSource:
    return PassageSource(**{**asdict(source), "file": file})
