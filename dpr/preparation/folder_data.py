"""Conversion of a folder of documents into everything that training, search and evaluation need. The same
folder and settings give the same bytes.

1. Read the documents, cut them into passages, and drop passages that nearly repeat an earlier one.
2. Make questions of headings and sentences; add those that were given.
3. Hold out dev and test questions file by file, or section by section where there are few files. Given
   questions are held out passage by passage, and then nothing but given questions is held out.
4. Write the corpus for searching, and the one for evaluation, in which the held-out questions' own words are
   hidden.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import counted, get_logger
from dpr.core.paths import as_text
from dpr.core.records import Question, TrainingSample, text_sha256
from dpr.data.near_duplicates import find_near_duplicates
from dpr.formats.corpora import write_passages
from dpr.formats.document_files import READERS
from dpr.formats.documents.bounded_reading import read_documents
from dpr.formats.documents.document import Document
from dpr.formats.question_sets import write_qrels, write_questions
from dpr.formats.training_files.dpr import write_training_set
from dpr.preparation.document_questions import (
    DEV,
    KINDS,
    TEST,
    TRAIN,
    made_questions,
    split_questions,
    without_questions,
)
from dpr.preparation.given_questions import find_answers, read_given
from dpr.preparation.passages import cut
from dpr.preparation.settings import FolderSettings
from dpr.storage.checksums import content_sha256
from dpr.storage.durable import durable_file, durable_folder, read_manifest
from dpr.storage.outputs import output, require_writable

SKIPPED_FOLDERS = frozenset(
    "__pycache__ node_modules site-packages dist-packages build dist venv env".split()
)
logger = get_logger(__name__)
CORPUS = "corpus.jsonl"
EVALUATION_CORPUS = "evaluation_corpus.jsonl"
UNREAD = "unread.jsonl"
LEAST_QUESTIONS = 30
_ALIKE = 0.8
_COUNTED = (
    "files",
    "unread files",
    "passages",
    "near-duplicates left out",
    "train questions",
    "dev questions",
    "test questions",
    "test questions by kind",
)


def find_documents(folder: Path, types: Sequence[str] = ()) -> dict[str, Path]:
    """Returns the files that a reader exists for, by their path from the folder, in that order. Hidden files
    and folders, links, and folders that programs fill are left out.

    Args:
        types: endings such as ``md``; none = all that can be read.

    Raises:
        ConfigError: no reader reads an ending.
        InputError: the folder does not exist, or holds no such file.
    """
    wanted = {f".{name.lstrip('.').lower()}" for name in types} or set(READERS)
    if unknown := sorted(wanted - READERS.keys()):
        raise ConfigError(
            f"types={unknown[0][1:]} is not supported; choose from {', '.join(name[1:] for name in READERS)}"
        )
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "no such folder"
        raise InputError(what, file=folder, expected="a folder of documents")
    hidden = (".", "~")
    found: dict[str, Path] = {}
    for parent, subfolders, names in os.walk(folder):
        subfolders[:] = [
            name for name in subfolders if not name.startswith(hidden) and name not in SKIPPED_FOLDERS
        ]
        for name in names:
            path = Path(parent, name)
            if path.suffix.lower() in wanted and not name.startswith(hidden) and not path.is_symlink():
                found[as_text(path.relative_to(folder).as_posix())] = path
    if not found:
        expected = f"files that end in {', '.join(sorted(wanted))}"
        raise InputError("holds no documents", file=folder, expected=expected)
    return dict(sorted(found.items()))


def content_of_documents(files: Mapping[str, Path]) -> str:
    """Returns one hash of the names and contents of documents."""
    listed = []
    for name, path in files.items():
        content = ""
        with suppress(InputError):  # it is listed later, with the reason
            content = content_sha256(path)
        listed.append([name, content])
    return text_sha256(json.dumps(listed))


def prepare_folder(
    folder: Path, out: Path, settings: FolderSettings, *, overwrite: bool = False
) -> dict[str, Any]:
    """Writes the folder ``out`` and returns counts; if the same was made before, the counts of that time.

    If there are too few questions to train on and to hold out, only the corpus is written, with a warning.

    Raises:
        InputError: nothing can be read, or ``out`` exists, made from other inputs or settings, without
        ``overwrite``.
        ConfigError: settings do not fit together.
    """
    settings.check()
    if out.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"out={out} is inside {folder}, whose files are read; choose a folder beside it")
    require_writable(out, folder=True)
    files = find_documents(folder, settings.types)
    questions = None if settings.questions is None else Path(settings.questions)
    made_of = asdict(settings) | {
        "files": content_of_documents(files),
        "questions": questions and content_sha256(questions),
    }
    metadata: dict[str, Any] = {"kind": "folder of documents", "made_of": made_of}
    with output(out, made_of, overwrite=overwrite) as is_missing:
        if not is_missing:
            stored = read_manifest(out)["metadata"]["counts"]  # sorted by name, as JSON is written
            return {name: stored[name] for name in _COUNTED if name in stored}
        with durable_folder(out, overwrite=overwrite, metadata=metadata) as target:
            metadata["counts"] = counts = _make(target, files, settings, questions)
    return counts


def _make(
    target: Path, files: Mapping[str, Path], settings: FolderSettings, questions: Path | None
) -> dict[str, Any]:
    logger.info("reading %d files", len(files))
    documents: dict[str, Document] = {}
    bad: dict[str, str] = {}
    with closing(read_documents(files)) as found:
        for name, document in counted(found, "reading documents", len(files), unit="files"):
            if isinstance(document, str):
                bad[name] = document
            else:
                documents[name] = document
    for name, reason in list(bad.items())[:5]:  # unread.jsonl has all
        logger.warning("%s is not read: %s", name, reason)
    pieces = list(cut(documents, words=settings.words, overlap=settings.overlap))
    repeats = find_near_duplicates([piece.passage().text for piece in pieces], threshold=_ALIKE)
    kept = [piece for piece, original in zip(pieces, repeats, strict=True) if original is None]
    num_repeats = len(pieces) - len(kept)
    pairs = made_questions(kept)
    if questions is not None:
        given, added = find_answers(
            read_given(questions), kept, name=questions.name, words=settings.words, overlap=settings.overlap
        )
        kept += added
        pairs += given
    logger.info("%d passages, %d questions", len(kept), len(pairs))
    by_split = split_questions(pairs, settings.seed) if len(pairs) >= LEAST_QUESTIONS else {}
    if not all(by_split.get(name) for name in (TRAIN, DEV, TEST)):
        logger.warning(
            "only %d questions were found, too few to train on and to hold out, so only the corpus is written;"
            " a larger folder, or questions=FILE, gives more",
            len(pairs),
        )
        by_split = {TRAIN: [], DEV: [], TEST: []}

    write_passages(target / CORPUS, (piece.passage() for piece in kept))
    with durable_file(target / UNREAD) as out:
        for name, reason in bad.items():
            out.write(json.dumps({"file": name, "reason": reason}, ensure_ascii=False) + "\n")
    if by_split[TRAIN]:
        held_out = without_questions(kept, [*by_split[DEV], *by_split[TEST]])
        write_passages(target / EVALUATION_CORPUS, held_out)
        for split in (TRAIN, DEV):
            samples = (TrainingSample(one.text, (one.positive(),)) for one in by_split[split])
            write_training_set(target / f"{split}.jsonl", samples)
        for split in (DEV, TEST):
            keyed = {f"{split}-{number}": one for number, one in enumerate(by_split[split])}
            listed = [Question(one.text, key) for key, one in keyed.items()]
            write_questions(target / f"{split}_questions.jsonl", listed)
            qrels = {key: {piece.id: 1 for piece in one.pieces} for key, one in keyed.items()}
            write_qrels(target / f"{split}_qrels.tsv", qrels)

    kinds = Counter(one.kind for one in by_split[TEST])
    counts: dict[str, Any] = {
        "files": len(documents),
        "unread files": len(bad),
        "passages": len(kept),
        "near-duplicates left out": num_repeats,
    }
    counts |= {f"{split} questions": len(of_split) for split, of_split in by_split.items()}
    counts["test questions by kind"] = {kind: kinds[kind] for kind in KINDS if kinds[kind]}
    return counts
