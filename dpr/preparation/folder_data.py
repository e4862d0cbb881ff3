"""A folder of documents -> everything that training, search and evaluation need. The same folder and settings
give the same bytes.

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
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import Any

from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import get_logger
from dpr.core.paths import as_text
from dpr.core.records import Question, TrainingSample, text_sha256
from dpr.data.words import find_near_duplicates
from dpr.formats.corpora import write_passages
from dpr.formats.document_files import READERS, read_document
from dpr.formats.documents import Document
from dpr.formats.question_sets import write_qrels, write_questions
from dpr.formats.training_sets import write_training_set
from dpr.preparation.given_questions import find_answers, read_given
from dpr.preparation.passages import (
    GIVEN,
    KINDS,
    Piece,
    QuestionPair,
    cut,
    made_questions,
    one_for_each_passage,
    without_questions,
)
from dpr.preparation.settings import FolderSettings
from dpr.storage.checksums import content_sha256
from dpr.storage.durable import durable_file, durable_folder, read_manifest
from dpr.storage.outputs import output, require_writable

SKIPPED_FOLDERS = frozenset(
    "__pycache__ node_modules site-packages dist-packages build dist venv env".split()
)


def find_documents(folder: Path, types: Sequence[str] = ()) -> dict[str, Path]:
    """The files that a reader exists for, by their path from the folder, in its order. Hidden files and
    folders, links, and folders that programs fill are left out.

    Args:
        types: endings such as ``md``; none = all that can be read.

    Raises:
        ConfigError: an ending that nothing reads.
        InputError: the folder does not exist, or holds no such file.
    """
    wanted = {f".{name.lstrip('.').lower()}" for name in types} or set(READERS)
    if unknown := sorted(wanted - READERS.keys()):
        raise ConfigError(
            f"types={unknown[0][1:]} is not read; choose from {', '.join(name[1:] for name in READERS)}"
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
    """One hash of the names and contents of documents."""
    listed = []
    for name, path in files.items():
        try:
            listed.append([name, content_sha256(path)])
        except InputError:  # it is listed later, with the reason
            listed.append([name, ""])
    return text_sha256(json.dumps(listed))


logger = get_logger(__name__)

TRAIN = "train"
DEV = "dev"
TEST = "test"
CORPUS = "corpus.jsonl"
EVALUATION_CORPUS = "evaluation_corpus.jsonl"
UNREAD = "unread.jsonl"
LEAST_QUESTIONS = 30
_FEW_GROUPS = 50
_PART = 20  # passages
# A group above the first share of a held-out set would make it a test of one topic; larger ones are taken
# where nothing else is left.
LARGEST_SHARES = (0.15, 0.5, 1.0)
_ALIKE = 0.8
_HELD_OUT = {TEST: (0.25, 1000), DEV: (0.15, 500)}
"""Share of the questions, and the most of them."""


def prepare_folder(
    folder: Path, out: Path, settings: FolderSettings, *, overwrite: bool = False, few: bool = False
) -> dict[str, Any]:
    """Writes the folder ``out`` and returns counts; where the same was made before, the counts of then.

    Too few questions to train on and to hold out are an error; with ``few``, the corpus alone is written
    then, with a warning.

    Raises:
        InputError: nothing can be read, there are too few questions, or ``out`` exists, made of something
        else, without ``overwrite``.
        ConfigError: settings that do not fit.
    """
    settings.check()
    if out.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"out={out} lies in {folder}, whose files are read; name a folder beside it")
    require_writable(out, folder=True)
    files = find_documents(folder, settings.types)
    questions = None if settings.questions is None else Path(settings.questions)
    made_of: dict[str, Any] = asdict(settings)
    made_of["files"] = content_of_documents(files)
    made_of["questions"] = None if questions is None else content_sha256(questions)
    metadata: dict[str, Any] = {"kind": "folder of documents", "made_of": made_of}
    with output(out, made_of, overwrite=overwrite) as is_missing:
        if not is_missing:
            return dict(read_manifest(out)["metadata"]["counts"])
        with durable_folder(out, overwrite=overwrite, metadata=metadata) as target:
            metadata["counts"] = counts = _make(target, folder, files, settings, questions, few=few)
    return counts


def _make(
    target: Path,
    folder: Path,
    files: Mapping[str, Path],
    settings: FolderSettings,
    questions: Path | None,
    *,
    few: bool,
) -> dict[str, Any]:
    logger.info("reading %d files", len(files))
    documents: dict[str, Document] = {}
    bad: dict[str, str] = {}
    for name, path in files.items():
        try:
            documents[name] = read_document(path, PurePosixPath(name))
        except InputError as error:
            bad[name] = str(InputError(error.found, expected=error.expected, hint=error.hint))
        except ConfigError as error:
            bad[name] = str(error)
    pieces = list(cut(documents, words=settings.words, overlap=settings.overlap))
    repeats = find_near_duplicates([piece.passage().text for piece in pieces], threshold=_ALIKE)
    kept = [piece for piece, original in zip(pieces, repeats, strict=True) if original is None]
    num_repeats = len(pieces) - len(kept)
    asked = made_questions(kept)
    if questions is not None:
        rows = read_given(questions)
        given, added = find_answers(
            rows, kept, name=questions.name, words=settings.words, overlap=settings.overlap
        )
        kept += added
        asked += given
    logger.info("%d passages, %d questions", len(kept), len(asked))
    by_split = split_questions(asked, seed=settings.seed) if len(asked) >= LEAST_QUESTIONS else {}
    if not all(by_split.get(name) for name in (TRAIN, DEV, TEST)):
        found = f"only {len(asked)} questions were found, too few to train on and to hold out"
        if not few:
            hint = "name a larger folder, give questions=FILE, or write the corpus alone with few=true"
            hint += "".join(f" ({name}: {reason})" for name, reason in list(bad.items())[:1])
            raise InputError(found, file=folder, hint=hint)
        logger.warning("%s: the corpus alone is written", found)
        by_split = {TRAIN: [], DEV: [], TEST: []}
    _write(target, kept, by_split, bad)
    kinds = Counter(one.kind for one in by_split[TEST])
    counts: dict[str, Any] = {
        "files": len(documents),
        "unread files": len(bad),
        "passages": len(kept),
        "near-duplicates left out": num_repeats,
    }
    counts |= {f"{split} questions": len(pairs) for split, pairs in by_split.items()}
    counts["test questions by kind"] = {kind: kinds[kind] for kind in KINDS if kinds[kind]}
    return counts


def split_questions(asked: Sequence[QuestionPair], *, seed: int) -> dict[str, list[QuestionPair]]:
    """The questions of train, dev and test; of each held-out passage one question, of train passages all.

    What is held out together: a file; where there are few, a part under an outer heading; where these are
    few, a section; if that leaves nothing for a split, since one section has nearly all passages, ``_PART``
    passages of a section. Of given questions those with the same best passage, or if that leaves nothing for
    a split, each alone.
    """
    given = [one for one in asked if one.kind == GIVEN]
    candidates = given or one_for_each_passage(asked)
    groupings: tuple[Callable[[QuestionPair], str], ...]
    groupings = (
        (lambda one: one.pieces[0].id, lambda one: one.text)
        if given
        else (_file, _outer_heading, _heading, _part)
    )
    for group_of in groupings:
        if (
            group_of is _part
        ):  # what is asked of several parts, of which one may be held out and another not, is left out
            asked = [one for one in asked if one.pieces[0].place // _PART == one.pieces[-1].place // _PART]
            candidates = one_for_each_passage(asked)
        sizes = {
            split: min(most, max(1, round(share * len(candidates))))
            for split, (share, most) in _HELD_OUT.items()
        }
        groups = [group_of(one) for one in candidates]
        split_of = dict(zip(groups, split_by_group(groups, sizes, seed=seed), strict=True))
        if (given or len(split_of) >= _FEW_GROUPS) and {DEV, TEST, TRAIN} <= set(split_of.values()):
            break
    by_split: dict[str, list[QuestionPair]] = {
        TRAIN: [one for one in asked if one.kind != GIVEN] if given else [],
        DEV: [],
        TEST: [],
    }
    for one in candidates:
        if given or split_of[group_of(one)] != TRAIN:
            by_split[split_of[group_of(one)]].append(one)
    if not given:
        by_split[TRAIN] = [one for one in asked if split_of.get(group_of(one), TRAIN) == TRAIN]
    return by_split


def _file(one: QuestionPair) -> str:
    return one.file


def _outer_heading(one: QuestionPair) -> str:
    return str(one.pieces[0].headings[:2][-1][0])


def _heading(one: QuestionPair) -> str:
    return str(one.pieces[0].headings[-1][0])


def _part(one: QuestionPair) -> str:
    return f"{_heading(one)}, part {one.pieces[0].place // _PART}"


def _write(
    target: Path,
    pieces: Sequence[Piece],
    by_split: dict[str, list[QuestionPair]],
    bad: Mapping[str, str],
) -> None:
    write_passages(target / CORPUS, (piece.passage() for piece in pieces))
    with durable_file(target / UNREAD) as out:
        for name, reason in bad.items():
            out.write(json.dumps({"file": name, "reason": reason}, ensure_ascii=False) + "\n")
    if not by_split[TRAIN]:
        return
    held_out = without_questions(pieces, [*by_split[DEV], *by_split[TEST]])
    write_passages(target / EVALUATION_CORPUS, held_out)
    for split in (TRAIN, DEV):
        samples = (TrainingSample(one.text, (one.positive(),)) for one in by_split[split])
        write_training_set(target / f"{split}.jsonl", samples)
    for split in (DEV, TEST):
        keys = [f"{split}-{number}" for number in range(len(by_split[split]))]
        write_questions(
            target / f"{split}_questions.jsonl",
            [Question(one.text, key) for key, one in zip(keys, by_split[split])],
        )
        write_qrels(
            target / f"{split}_qrels.tsv",
            {key: {piece.id: 1 for piece in one.pieces} for key, one in zip(keys, by_split[split])},
        )


def split_by_group(groups: Sequence[str], sizes: Mapping[str, int], *, seed: int) -> list[str]:
    """Names the split of each record; all records of a group get the same one.

    Groups are taken in an order that depends on ``seed`` and their names alone, and fill the held-out splits
    (``sizes``: name -> number of records) one after the other; the rest is ``train``. Small groups come
    first. A split exceeds its size by less than one group, and a group larger than a whole split never enters
    it, so a split can stay smaller than asked, or empty. None gets more than about a third.
    """
    members: defaultdict[str, int] = defaultdict(int)
    for group in groups:
        members[group] += 1
    # Hashes, not a shuffle: one more package in the environment does not move the others to another split.
    queue = sorted(members, key=lambda name: blake2b(f"{seed}\0{name}".encode(), digest_size=8).digest())
    split_of = dict.fromkeys(queue, TRAIN)
    for split, wanted in sizes.items():
        wanted = min(wanted, len(groups) // 3)
        filled = 0
        for share in LARGEST_SHARES:
            for group in queue:
                if filled < wanted and split_of[group] == TRAIN and members[group] <= max(1, wanted * share):
                    split_of[group] = split
                    filled += members[group]
    return [split_of[group] for group in groups]
