"""``search.json``: the settings and files for searching a run folder by hand. Paths inside are relative to
the folder, so that it can be moved."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import get_logger
from dpr.core.paths import is_wide, matching_paths
from dpr.core.settings import check_type
from dpr.data.text import QuestionForm
from dpr.embedding.source import PassageSource
from dpr.formats.record_fields import has_lone_surrogate
from dpr.models.settings import GivenTextSettings
from dpr.retrieval.settings import IndexerConfig
from dpr.storage.checksums import content_sha256, verify_file
from dpr.storage.durable import CHECKSUM, MANIFEST, write_json
from dpr.storage.untrusted import leads_inside, read_json

logger = get_logger(__name__)

SEARCH_JSON = "search.json"
_SCHEMA = 1


@dataclass(frozen=True)
class SearchSettings:
    """Settings of a search of a corpus; names as in the retrieval settings."""

    model_file: str | None = None
    encoded_ctx_files: list[str] = field(default_factory=list)
    passages: list[PassageSource] = field(default_factory=list)
    indexer: IndexerConfig = field(default_factory=IndexerConfig)
    index_path: str | None = None
    bm25_index_path: str | None = None
    hybrid: str = "none"
    hybrid_weight: float | None = None
    hybrid_depth: int = 100
    form: QuestionForm = field(default_factory=QuestionForm)
    pretrained_model_cfg: str | None = None
    """Backbone of a model_file of the original DPR; a folder by its absolute path."""
    sequence_length: int | None = None
    """Length that was given in place of the model's own."""
    text: GivenTextSettings = field(default_factory=GivenTextSettings)
    """Prompts that were given for a model that states none."""
    fingerprints: list[str] = field(default_factory=list, compare=False)
    """SHA-256 of the passages when ``search.json`` was written, in their order. Only somebody who had the
    file can state it: see ``confined``."""

    def write(self, folder: Path) -> None:
        """Writes ``search.json`` into the folder. Patterns that ``confined`` refuses are replaced by their matches."""
        files: list[str] = []
        for pattern in self.encoded_ctx_files:
            found = matching_paths(pattern) if is_wide(pattern) else []
            files += [str(path) for path in found] or [pattern]
        fingerprints = [
            content_sha256(source.file) if source.file.is_file() else "" for source in self.passages
        ]
        stated = replace(self, encoded_ctx_files=files, fingerprints=fingerprints)
        relative = stated._with_paths(lambda path: os.path.relpath(path, folder))
        value = asdict(relative) | {"schema": _SCHEMA}
        for passage_source in value["passages"]:
            passage_source["file"] = str(passage_source["file"])
        write_json(folder / SEARCH_JSON, value, note={})

    @classmethod
    def read(cls, folder: Path) -> SearchSettings:
        """Reads ``search.json``, and compares it with the checksum beside it, if there is one.

        Raises:
            InputError: the file is missing, is not one of this toolkit, or has changed since it was written.
        """
        file = folder / SEARCH_JSON
        if not folder.is_dir():
            expected = "a run folder, such as dpr quickstart writes"
            raise InputError("no such folder", file=folder, expected=expected)
        if not file.is_file():
            hint = (
                f"dpr retrieve ... search_folder={folder} writes one; or name what to search: --corpus, and"
                " --model with --vectors. An unfinished dpr quickstart resumes when its command is repeated"
            )
            raise InputError(f"no {SEARCH_JSON}", file=folder, hint=hint)
        value = read_json(file)
        if not isinstance(value, dict) or value.pop("schema", None) != _SCHEMA:
            raise InputError("not search settings", file=file, expected=f"an object with schema {_SCHEMA}")
        if file.with_name(SEARCH_JSON + CHECKSUM).is_file() and (problems := verify_file(file)):
            hint = (
                f"run dpr retrieve ... search_folder={folder} again, or remove {SEARCH_JSON}{CHECKSUM} if you"
                " changed it yourself"
            )
            raise InputError("; ".join(problems), file=file, hint=hint)
        try:
            stored: SearchSettings = _typed(cls, value, "")
            stored.text.check("text.")
            return stored._with_paths(lambda path: os.path.abspath(folder / path))
        except (ConfigError, TypeError, ValueError) as error:  # TypeError: a passage source without a file
            hint = "dpr retrieve ... search_folder=FOLDER writes them again"
            raise InputError(f"not search settings: {error}", file=file, hint=hint) from None

    def confined(self, folder: Path) -> SearchSettings:
        """Returns the settings in a form that is safe for a folder from an untrusted source: nothing is written outside
        the folder, texts from outside are shown only if its writer also had them, and no other folders are
        searched.

        Raises:
            InputError: passages outside of the folder are missing, or differ from those when ``search.json``
            was written; or a pattern would be looked for in many folders.
        """

        def narrow(path: str) -> str:
            if is_wide(path) or is_wide(path.partition("=")[2]):
                raise InputError(
                    f"names {path!r}, which would be looked for in many folders",
                    file=folder / SEARCH_JSON,
                    expected="a path, or a pattern in its last part only",
                    hint=f"dpr retrieve ... search_folder={folder} writes it again",
                )
            return path

        self._with_paths(narrow)
        narrow(self.pretrained_model_cfg or "")
        for source, stated in zip_longest(self.passages, self.fingerprints[: len(self.passages)]):
            if not leads_inside(folder, source.file) and content_sha256(source.file) != stated:
                found = f"the passages {source.file} are outside the folder, and not those that it states"
                hint = f"if they are what you want to search, name them: corpus={source.file} (--corpus)"
                raise InputError(found, file=folder / SEARCH_JSON, hint=hint)

        def readable(index: str | None) -> str | None:
            if index is None or leads_inside(folder, Path(index)) or Path(index, MANIFEST).is_file():
                return index
            logger.warning(
                "%s names an index outside the folder that does not exist; it is built in memory: %s",
                folder / SEARCH_JSON,
                index,
            )
            return None

        return replace(
            self, index_path=readable(self.index_path), bm25_index_path=readable(self.bm25_index_path)
        )

    def _with_paths(self, convert: Callable[[str], str]) -> SearchSettings:
        def optional(path: str | None) -> str | None:
            return None if path is None else convert(path)

        return replace(
            self,
            model_file=optional(self.model_file),
            index_path=optional(self.index_path),
            bm25_index_path=optional(self.bm25_index_path),
            encoded_ctx_files=[convert(pattern) for pattern in self.encoded_ctx_files],
            passages=[replace(source, file=Path(convert(str(source.file)))) for source in self.passages],
        )


def _typed(kind: Any, value: Any, key: str) -> Any:
    """Returns a value of JSON as one of this type: a dataclass, a list, a path or anything plain. Fields that no longer
    exist are ignored."""
    if is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind)
        if not isinstance(value, dict):
            raise ConfigError(f"{key} is not an object of {', '.join(hints)}")
        at = f"{key}." if key else ""
        return kind(
            **{name: _typed(hint, value[name], at + name) for name, hint in hints.items() if name in value}
        )
    check_type(key, value, str if kind is Path else kind)
    if get_origin(kind) is list:
        (of,) = get_args(kind)
        return [_typed(of, item, f"{key}[{number}]") for number, item in enumerate(value)]
    is_of_file = key.endswith(("].file", "].name")) and _is_name(value)
    if isinstance(value, str) and ("\0" in value or (has_lone_surrogate(value) and not is_of_file)):
        raise ConfigError(f"{key}={value!r} is not a text")
    return Path(value) if kind is Path else value


def _is_name(text: str) -> bool:
    """True if half characters of a text stand for bytes of a file's name that are not UTF-8."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True
