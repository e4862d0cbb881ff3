"""A suite of test sets -> files and options of each: a BEIR folder, a folder of them, or a YAML that lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import get_logger
from dpr.core.suggestions import suggestion
from dpr.formats.yaml_files import read_yaml
from dpr.retrieval.suite_settings import SuiteSetConfig

logger = get_logger(__name__)

CACHE = "cache"
"""Folder of vectors and indexes beside those of the test sets."""
_SUFFIXES = {"corpus": (".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz", ".parquet"), "queries": (".jsonl", ".jsonl.gz")}
_QRELS = (".tsv", ".tsv.gz", ".txt", ".qrels")
_EXPECTED = "corpus.jsonl, queries.jsonl and qrels/<split>.tsv"


@dataclass(frozen=True, slots=True)
class TestSet:
    """A test set: ``name`` is unique in its suite, the files exist."""

    __test__ = False  # not a class of tests, whatever its name

    name: str
    corpus: Path
    queries: Path
    qrels: Path
    options: SuiteSetConfig


def read_suite(path: str | Path, *, split: str = "test") -> list[TestSet]:
    """The test sets that ``path`` stands for, by name for a folder of folders, else in the order of the YAML.

    Raises:
        InputError: there is none, or one has no corpus, questions or judgements.
        ConfigError: the YAML has an option that is unknown or of the wrong type.
    """
    suite = Path(path).expanduser()
    if suite.is_file():
        return _listed(suite, split)
    if not suite.is_dir():
        raise InputError("no such file or folder", file=path, expected="a folder in BEIR's layout, a folder of these, or a YAML")
    if _is_set(suite):
        return [_test_set(suite.resolve().name, SuiteSetConfig(folder=str(suite)), suite, split)]
    folders = [folder for folder in sorted(suite.iterdir()) if folder.is_dir()]
    found = [_test_set(folder.name, SuiteSetConfig(folder=str(folder)), folder, split) for folder in folders if _is_set(folder)]
    if not found:
        raise InputError("holds no test set", file=suite, expected=f"{_EXPECTED}, in the folder or in folders in it")
    if others := [folder.name for folder in folders if not _is_set(folder)]:
        logger.info("%s: no test sets in %s", suite, ", ".join(others))
    return found


def _listed(file: Path, split: str) -> list[TestSet]:
    value = read_yaml(file)
    entries = value.get("sets") if isinstance(value, Mapping) and value.keys() == {"sets"} else None
    if isinstance(entries, list) and all(isinstance(entry, str) for entry in entries):
        names = [Path(entry).name for entry in entries]
        if len(set(names)) != len(names):
            raise InputError("two folders have the same name", file=file, hint="write sets as a mapping, name: folder")
        entries = dict(zip(names, entries, strict=True))
    if not isinstance(entries, Mapping) or not entries:
        raise InputError("no sets", file=file, expected="sets: {name: folder, ...}, or name: {folder: ..., split: ..., query_prefix: ...}")
    known = [item.name for item in fields(SuiteSetConfig)]
    found = []
    for name, entry in entries.items():
        given: Any = {"folder": entry} if isinstance(entry, str) else entry
        if not isinstance(name, str) or Path(name).name != name or name.startswith("."):
            raise InputError(f"the name {name!r} cannot be that of a folder", file=file)
        if not isinstance(given, Mapping):
            raise InputError(f"sets.{name} is not a folder or a set of options", file=file)
        for option in given:
            if option not in known:
                raise ConfigError(f"{file}: unknown option sets.{name}.{option}{suggestion(str(option), known)}")
        options = SuiteSetConfig(**{str(option): item for option, item in given.items() if item is not None})
        options.check(f"sets.{name}.")
        found.append(_test_set(name, options, file, split))
    return found


def _test_set(name: str, options: SuiteSetConfig, source: Path, split: str) -> TestSet:
    if name in (CACHE, "mean"):
        raise InputError(f"a test set cannot be called {name}, which stands for something else in the results", file=source)
    base = source.parent if source.is_file() else Path()
    folder = None if options.folder is None else base / Path(options.folder).expanduser()
    if folder is not None and not folder.is_dir():
        raise InputError(f"{name}: no such folder {folder}", file=source)
    files: dict[str, Any] = {}
    for part in ("corpus", "queries", "qrels"):
        given = getattr(options, part)
        files[part] = base / Path(given).expanduser() if given else _in_folder(folder, part, options.split or split)
        if files[part] is None or not files[part].is_file():
            missing = f"no {part}" if given is None else f"no such file {files[part]}"
            raise InputError(f"{name}: {missing}", file=folder or source, expected=_EXPECTED + _splits(folder, part))
    return TestSet(name, **files, options=options)


def _is_set(folder: Path) -> bool:
    return _in_folder(folder, "queries", "") is not None and _in_folder(folder, "corpus", "") is not None


def _in_folder(folder: Path | None, part: str, split: str) -> Path | None:
    if folder is None:
        return None
    names = [f"qrels/{split}{suffix}" for suffix in _QRELS] if part == "qrels" else [part + suffix for suffix in _SUFFIXES[part]]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _splits(folder: Path | None, part: str) -> str:
    """What a folder without the split has instead."""
    if folder is None or part != "qrels":
        return ""
    names = sorted({file.name.removesuffix(".gz").rpartition(".")[0] for file in (folder / "qrels").glob("*")})
    return f"; it has the splits {', '.join(names)}, choose with split=NAME" if names else ""
