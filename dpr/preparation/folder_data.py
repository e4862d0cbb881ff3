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
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, replace
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import counted, get_logger
from dpr.core.paths import as_text
from dpr.core.records import Question, TrainingSample, composed, text_sha256
from dpr.data.near_duplicates import find_near_duplicates
from dpr.formats.bounded_reading import read_documents
from dpr.formats.corpora import is_json_name, write_passages
from dpr.formats.document_files import READERS
from dpr.formats.documents import (
    ANSWERS,
    QUESTIONS,
    Block,
    Document,
    Section,
    column,
    decoded,
    one_line,
    written_rows,
)
from dpr.formats.json_records import iter_json_objects
from dpr.formats.question_sets import write_qrels, write_questions
from dpr.formats.training_sets import write_training_set
from dpr.preparation.passages import (
    GIVEN,
    KINDS,
    Piece,
    QuestionPair,
    cut,
    cut_section,
    made_questions,
    one_for_each_passage,
    passage_prefix,
    without_questions,
    words_of,
)
from dpr.preparation.settings import FolderSettings
from dpr.storage.checksums import content_sha256
from dpr.storage.durable import durable_file, durable_folder, read_manifest
from dpr.storage.outputs import output, require_writable

SKIPPED_FOLDERS = frozenset(
    "__pycache__ node_modules site-packages dist-packages build dist venv env".split()
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
    """Returns one hash of the names and contents of documents."""
    listed = []
    for name, path in files.items():
        content = ""
        with suppress(InputError):  # it is listed later, with the reason
            content = content_sha256(path)
        listed.append([name, content])
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
# A group above the first share of a held-out set would make it a test of one topic; larger ones are taken if
# nothing else is left.
LARGEST_SHARES = (0.15, 0.5, 1.0)
_ALIKE = 0.8
_HELD_OUT = {TEST: (0.25, 1000), DEV: (0.15, 500)}
"""Share of the questions, and the largest number of them, by split."""


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
        raise ConfigError(f"out={out} lies in {folder}, whose files are read; name a folder beside it")
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
            return dict(read_manifest(out)["metadata"]["counts"])
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
            "only %d questions were found, too few to train on and to hold out: the corpus alone is written;"
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


def split_questions(pairs: Sequence[QuestionPair], seed: int) -> dict[str, list[QuestionPair]]:
    """Returns the questions of train, dev and test: one question of each held-out passage, and all questions
    of train passages.

    The questions of a file are held out together. If there are few files, it is the questions of a part under
    an outer heading; if there are few parts, of a section. If that leaves nothing for a split, since one
    section has nearly all passages, it is those of ``_PART`` passages of a section. Given questions are held
    out together if they have the same best passage or, if that leaves nothing for a split, each alone.
    """
    given = [one for one in pairs if one.kind == GIVEN]
    candidates = given or one_for_each_passage(pairs)
    for depth in range(2 if given else 4):
        if (
            depth == 3
        ):  # questions about several parts are left out, since one of the parts may be held out and another not
            pairs = [one for one in pairs if one.pieces[0].place // _PART == one.pieces[-1].place // _PART]
            candidates = one_for_each_passage(pairs)
        sizes = {
            split: min(most, max(1, round(share * len(candidates))))
            for split, (share, most) in _HELD_OUT.items()
        }
        groups = [_group(one, depth) for one in candidates]
        split_of = dict(zip(groups, split_by_group(groups, sizes, seed=seed), strict=True))
        if (given or len(split_of) >= _FEW_GROUPS) and {DEV, TEST, TRAIN} <= set(split_of.values()):
            break
    by_split: dict[str, list[QuestionPair]] = {TRAIN: [], DEV: [], TEST: []}
    if given:
        by_split[TRAIN] = [one for one in pairs if one.kind != GIVEN]
    else:
        by_split[TRAIN] = [one for one in pairs if split_of.get(_group(one, depth), TRAIN) == TRAIN]
    for one in candidates:
        split = split_of[_group(one, depth)]
        if given or split != TRAIN:
            by_split[split].append(one)
    return by_split


def _group(one: QuestionPair, depth: int) -> str:
    """Returns the name of the group that a question is held out with; groups get smaller with ``depth``."""
    piece = one.pieces[0]
    section = str(piece.headings[-1][0])
    made = (one.file, str(piece.headings[:2][-1][0]), section, f"{section}, part {piece.place // _PART}")
    return (piece.id, one.text)[depth] if one.kind == GIVEN else made[depth]


def split_by_group(groups: Sequence[str], sizes: Mapping[str, int], *, seed: int) -> list[str]:
    """Returns the split of each record; all records of a group get the same one.

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


FILES = ("file", "document", "path", "source")
_COMPARED_WORDS = 30


class GivenRow(NamedTuple):
    """A question with its answer: a text, or a file of the folder."""

    question: str
    answer: str
    line: int


def read_given(path: Path) -> list[GivenRow]:
    """Reads TSV, CSV or JSON lines. A header names the columns (question; answer or file), else they are the
    first two.

    Raises:
        InputError: a row without question or answer; names the file and line.
    """
    rows = []
    expected = "a question and its answer, or the file that answers it"
    for line, names, cells in _records(path):
        texts = []
        for wanted in (QUESTIONS, ANSWERS + FILES):
            place = column(names, wanted)
            found = "" if place is None or place >= len(cells) else cells[place]
            if isinstance(found, list) and found:
                found = found[0]
            texts.append(one_line(found) if isinstance(found, str) else "")
        if not all(texts):
            raise InputError("a row without question or answer", file=path, line=line, expected=expected)
        rows.append(GivenRow(texts[0], texts[1], line))
    if not rows:
        raise InputError("no rows", file=path, expected=expected)
    return rows


def _records(path: Path) -> Iterator[tuple[int, Sequence[str], Sequence[Any]]]:
    """Yields line, names and values of each row."""
    if is_json_name(path):
        for line, value in iter_json_objects(path):
            yield line, list(value), list(value.values())
        return
    rows = written_rows(decoded(path.read_bytes()), path, commas=True)
    names: Sequence[str] = rows[0][1] if rows else ()
    if column(names, QUESTIONS) is None or column(names, ANSWERS + FILES) is None:
        names = ("question", "answer")
    for line, row in rows:
        if row != names:
            yield line, names, row


def find_answers(
    rows: Sequence[GivenRow], pieces: Sequence[Piece], *, name: str, words: int, overlap: int
) -> tuple[list[QuestionPair], list[Piece]]:
    """Returns the questions with the passages that answer them, and the passages that had to be added for
    answers that the folder does not hold.

    An answer is the name of a file (all of its passages answer), or a text: the passages that contain it,
    compared word by word over its first 30 words, else new passages under the name of the questions' file.
    """
    # Names that an answer may give: files by path and, if only one has it, by name.
    files: dict[str, list[Piece]] = {}
    for piece in pieces:
        files.setdefault(piece.file, []).append(piece)
    times = Counter(PurePosixPath(path).name for path in files)
    answering = {}
    for path, members in files.items():
        answering[composed(path).casefold()] = members
        if times[last := PurePosixPath(path).name] == 1:
            answering[composed(last).casefold()] = members

    texts = [f" {words_of(piece.passage().text)} " for piece in pieces]
    added: list[Piece] = []
    pairs: list[QuestionPair] = []
    for row in counted(rows, "looking for answers", unit="questions"):
        answer = row.answer if row.answer in answering else composed(row.answer).casefold()
        if answer not in answering:
            answer = row.answer
            first = f" {' '.join(words_of(answer).split()[:_COMPARED_WORDS])} "
            holders = [piece for piece, text in zip(pieces, texts, strict=True) if first in text]
            if not first.strip() or not holders:
                holders = []
                for piece in cut_section(
                    Section((), (Block(answer),), row.line), words=words, overlap=overlap
                ):
                    key = f"{passage_prefix(name)}#{len(added) + 1}"
                    added.append(
                        replace(piece, id=key, file=name, headings=((-1, name),), asks_headings=False)
                    )
                    holders.append(added[-1])
            answering[answer] = holders
        pairs.append(QuestionPair(row.question, GIVEN, tuple(answering[answer])))
    known = sum(one.file != name for one in pairs)
    message = "%d of %d questions are answered in the folder; the answers of the others become passages"
    logger.info(message, known, len(pairs))
    return pairs, added
