"""Files and options of each test set of a suite, which is given as a BEIR folder, a folder of them, a YAML
list, or a file of training data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import get_logger
from dpr.core.paths import as_text, matching_paths, user_path
from dpr.core.records import Passage, Question, composed, text_sha256
from dpr.formats.corpora import write_passages
from dpr.formats.question_sets import Qrels, read_questions, write_qrels, write_questions
from dpr.formats.stored_training_set import TrainingSet
from dpr.formats.text_input import read_yaml
from dpr.formats.training_files.registry import look_at
from dpr.formats.training_sets import open_training_set
from dpr.retrieval.settings import SuiteSetConfig
from dpr.storage.checksums import content_sha256
from dpr.storage.durable import MANIFEST, durable_folder

logger = get_logger(__name__)

CACHE = "cache"
"""Folder of vectors and indexes, next to the folders of the test sets."""
_CORPORA = (".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz", ".parquet")
_QUERIES = (".jsonl", ".jsonl.gz", ".csv", ".csv.gz")
_QRELS = (".tsv", ".tsv.gz", ".txt", ".qrels")
_EXPECTED = "corpus.jsonl, queries.jsonl and qrels/<split>.tsv"


@dataclass(frozen=True, slots=True)
class TestSet:
    """A test set. ``name`` is unique in its suite, the files exist. Without ``qrels``, a text that contains
    an answer is right."""

    __test__ = False  # not a class of tests, whatever its name

    name: str
    corpus: Path
    queries: Path
    qrels: Path | None
    options: SuiteSetConfig


def read_suite(
    path: str | Path,
    *,
    split: str = "test",
    cache: Path | None = None,
    data: str | None = None,
    suites: Mapping[str, Any] | None = None,
) -> list[TestSet]:
    """Returns the test sets of ``path``: by name for a folder of folders, else in the order of the YAML, or
    of the suite of that name in ``suites``, whose files are in ``data``. The content of a file of training
    data is written into ``cache``; its passages are the corpus.

    Raises:
        InputError: there is none, or one has no corpus, questions or judgements.
        ConfigError: the YAML has an option that is unknown or of the wrong type.
    """
    suite = user_path(path)
    base = suite.parent if data is None else user_path(data)
    cache = cache or suite.parent / CACHE
    known = suites or {}
    if data is not None and not base.is_dir():
        raise InputError("no such folder", file=data, expected="the folder that the suite's files are in")
    if data is not None and str(path) in known:
        return _listed(known[str(path)], base, base, split, cache)
    if suite.is_file() and suite.suffix.lower() in (".yaml", ".yml"):
        value = read_yaml(suite)
        return _listed(value.get("sets") if isinstance(value, Mapping) else None, suite, base, split, cache)
    if data is not None:
        raise ConfigError(
            f"data={data} is for a YAML or a named suite ({', '.join(known) or 'none is known'}), not for {path}"
        )
    if suite.is_file():
        name = suite.name.removesuffix(".gz").partition(".")[0]
        return [_of_training_data(suite, cache, name, SuiteSetConfig())]
    if not suite.is_dir():
        expected = "a folder in BEIR's layout, a folder of these, or a YAML"
        raise InputError("no such file or folder", file=path, expected=expected)

    names = {folder: folder.name for folder in sorted(suite.iterdir()) if _is_set(folder, split)}
    if _is_set(suite, split):
        names = {suite: suite.resolve().name}
    test_sets = [
        _test_set(as_text(name), SuiteSetConfig(folder=str(folder)), folder, split, Path(), cache)
        for folder, name in names.items()
    ]
    if not test_sets:
        expected = f"{_EXPECTED}, in the folder or in folders in it"
        raise InputError("holds no test set", file=suite, expected=expected)
    return test_sets


def _listed(entries: Any, file: Path, base: Path, split: str, cache: Path) -> list[TestSet]:
    """Returns the sets of a mapping in ``file``, whose paths start from ``base``."""
    if not isinstance(entries, Mapping) or not entries:
        expected = "sets: {name: folder, ...}, or name: {folder: ..., split: ..., query_prefix: ...}"
        raise InputError("no sets", file=file, expected=expected)
    test_sets = []
    for name, entry in entries.items():
        given = {"folder": entry} if isinstance(entry, str) else entry
        if not isinstance(name, str) or Path(name).name != name or name.startswith("."):
            raise InputError(f"the name {name!r} cannot be that of a folder", file=file)
        if not isinstance(given, Mapping):
            raise InputError(f"sets.{name} is not a folder or a set of options", file=file)
        options = SuiteSetConfig.from_mapping(given, f"sets.{name}.")
        if options.source and not matching_paths(base / str(options.file or options.folder)):
            logger.warning(
                "%s is left out, since %s does not contain it; source: %s", name, base, options.source
            )
            continue
        test_sets.append(_test_set(name, options, file, split, base, cache))
    if not test_sets:
        expected = "at least one of them; benchmarks/results/collections.md lists their sources"
        raise InputError(f"holds none of the sets {', '.join(entries)}", file=base, expected=expected)
    return test_sets


def _test_set(
    name: str, options: SuiteSetConfig, source: Path, split: str, base: Path, cache: Path
) -> TestSet:
    if name in (CACHE, "mean"):
        raise InputError(
            f"a test set cannot be called {name}, which has another meaning in the results", file=source
        )
    if options.file is not None:
        matches = matching_paths(base / options.file)
        if len(matches) != 1:
            listed = ", ".join(map(str, matches)) or "no file"
            raise InputError(f"{name}: {base / options.file} is {listed}", file=source, expected="one file")
        return _of_training_data(matches[0], cache, name, options)
    folder = base / str(options.folder)
    if options.folder is None or not folder.is_dir():
        raise InputError(f"{name}: no such folder {folder}", file=source, expected="folder: or file:")
    chosen = options.split or split
    files: dict[str, Path] = {}
    for part in ("corpus", "queries", "qrels"):
        if (file := _in_folder(folder, part, chosen)) is not None:
            files[part] = file
            continue
        may_have_answers = part == "qrels" and not any(folder.glob("*qrels*"))
        if may_have_answers and any(question.answers for question in read_questions(files["queries"])):
            continue
        expected = f"{_EXPECTED}, or questions with answers"
        stems = {each.name.removesuffix(".gz").rpartition(".")[0] for each in folder.glob("qrels/*")}
        if part == "qrels" and stems:
            expected += f"; it has the splits {', '.join(sorted(stems))}, choose with split=NAME"
        raise InputError(f"{name}: no {part}", file=folder, expected=expected)
    return TestSet(name, files["corpus"], files["queries"], files.get("qrels"), options)


def _of_training_data(file: Path, cache: Path, name: str, options: SuiteSetConfig) -> TestSet:
    """Makes a test set from a file that lists relevant and irrelevant passages for each question."""
    if not options.columns and not look_at(file)[0]:
        raise InputError(
            "is not a test set",
            file=file,
            expected=f"a folder with {_EXPECTED}, a .yaml, or a file of training data",
            hint="put questions with answers into a folder as queries.jsonl or queries.csv, beside corpus.jsonl"
            " or corpus.tsv",
        )
    made_of = json.dumps([content_sha256(file), sorted(options.columns.items())])
    folder = cache / f"{name}-{text_sha256(made_of)[:16]}"
    if not (folder / MANIFEST).is_file():
        samples = open_training_set(file, name=name, columns=options.columns)
        passages, questions, qrels = judged_samples(samples)
        with durable_folder(folder) as target:
            (target / "qrels").mkdir()
            write_passages(target / "corpus.jsonl", passages)
            write_questions(target / "queries.jsonl", questions)
            write_qrels(target / "qrels" / "test.tsv", qrels)
    qrels_file = folder / "qrels" / "test.tsv"
    return TestSet(name, folder / "corpus.jsonl", folder / "queries.jsonl", qrels_file, options)


def judged_samples(samples: TrainingSet) -> tuple[list[Passage], list[Question], Qrels]:
    """Returns passages, questions and judgements of training data. Each different text is one passage of the
    corpus; a question of several rows is asked once."""
    passages: dict[str, Passage] = {}
    questions: dict[str, Question] = {}
    qrels: Qrels = {}
    for number in range(len(samples)):
        sample = samples[number]
        asked = questions.setdefault(
            composed(sample.question), Question(sample.question, f"q{number}", sample.answers)
        )
        for place, passage in enumerate(sample.passages):
            key = text_sha256(json.dumps([composed(passage.title), composed(passage.text)]))[:24]
            passages.setdefault(key, Passage(passage.text, passage.title, key))
            if place < len(sample.positives):
                qrels.setdefault(asked.id, {})[key] = 1
    logger.info(
        "%s: its %d passages are the corpus; in a larger corpus, metrics are lower",
        samples.name,
        len(passages),
    )
    return list(passages.values()), list(questions.values()), qrels


def _is_set(folder: Path, split: str) -> bool:
    return all(_in_folder(folder, part, split) for part in ("queries", "corpus"))


def _in_folder(folder: Path, part: str, split: str) -> Path | None:
    # dpr prepare hides the words of held-out questions in a corpus of its own
    names = {
        "corpus": ["evaluation_corpus.jsonl", *(f"corpus{suffix}" for suffix in _CORPORA)],
        "queries": [*(f"queries{suffix}" for suffix in _QUERIES), f"{split}_questions.jsonl"],
        "qrels": [*(f"qrels/{split}{suffix}" for suffix in _QRELS), f"{split}_qrels.tsv"],
    }
    return next((folder / name for name in names[part] if (folder / name).is_file()), None)
