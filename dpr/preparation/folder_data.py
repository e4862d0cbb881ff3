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
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any

from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import get_logger
from dpr.core.records import Question, TrainingSample
from dpr.data.words import find_near_duplicates
from dpr.formats.corpora import write_passages
from dpr.formats.question_sets import write_qrels, write_questions
from dpr.formats.training_sets import write_training_set
from dpr.preparation.folder_files import BadFile, ReadFile, find_documents, name_in, read_documents
from dpr.preparation.given_questions import find_answers, read_given
from dpr.preparation.passages import Piece, cut
from dpr.preparation.question_pairs import (
    GIVEN,
    KINDS,
    QuestionPair,
    made_questions,
    one_for_each_passage,
    without_questions,
)
from dpr.preparation.settings import FolderSettings
from dpr.storage.checksums import content_sha256
from dpr.storage.durable import durable_file, durable_folder, read_manifest
from dpr.storage.outputs import output, require_writable

logger = get_logger(__name__)

TRAIN, DEV, TEST = "train", "dev", "test"
CORPUS, EVALUATION_CORPUS, UNREAD = "corpus.jsonl", "evaluation_corpus.jsonl", "unread.jsonl"
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
    hashes = [[name_in(folder, path), _sha256(path)] for path in files]
    questions = None if settings.questions is None else Path(settings.questions)
    made_of: dict[str, Any] = asdict(settings)
    made_of["files"] = hashes
    made_of["questions"] = None if questions is None else content_sha256(questions)
    metadata: dict[str, Any] = {"kind": "folder of documents", "made_of": made_of}
    with output(out, made_of, overwrite=overwrite) as is_missing:
        if not is_missing:
            return dict(read_manifest(out)["metadata"]["counts"])
        with durable_folder(out, overwrite=overwrite, metadata=metadata) as target:
            metadata["counts"] = counts = _make(target, folder, files, settings, questions, few=few)
    return counts


def _sha256(path: Path) -> str:
    try:
        return content_sha256(path)
    except InputError:  # it is listed later, with the reason
        return ""


def _make(
    target: Path,
    folder: Path,
    files: Sequence[Path],
    settings: FolderSettings,
    questions: Path | None,
    *,
    few: bool,
) -> dict[str, Any]:
    logger.info("reading %d files", len(files))
    read = list(read_documents(folder, files))
    bad = [one for one in read if isinstance(one, BadFile)]
    pieces = list(
        cut(
            (one for one in read if isinstance(one, ReadFile)), words=settings.words, overlap=settings.overlap
        )
    )
    repeats = find_near_duplicates([piece.passage().text for piece in pieces], threshold=_ALIKE)
    kept = [piece for piece, original in zip(pieces, repeats, strict=True) if original is None]
    asked = made_questions(kept)
    if questions is not None:
        given, added = find_answers(
            read_given(questions), kept, name=questions.name, words=settings.words, overlap=settings.overlap
        )
        kept += added
        asked += given
    logger.info("%d passages, %d questions", len(kept), len(asked))
    by_split = split_questions(asked, seed=settings.seed) if len(asked) >= LEAST_QUESTIONS else {}
    if not all(by_split.get(name) for name in (TRAIN, DEV, TEST)):
        found = f"only {len(asked)} questions were found, too few to train on and to hold out"
        if not few:
            hint = "name a larger folder, give questions=FILE, or write the corpus alone with few=true"
            if bad:
                hint += f" ({bad[0].name}: {bad[0].reason})"
            raise InputError(found, file=folder, hint=hint)
        logger.warning("%s: the corpus alone is written", found)
        by_split = {TRAIN: [], DEV: [], TEST: []}
    _write(target, kept, by_split, bad)
    kinds = Counter(one.kind for one in by_split[TEST])
    return {
        "files": len(read) - len(bad),
        "unread files": len(bad),
        "passages": len(kept),
        "near-duplicates left out": len(pieces) - sum(original is None for original in repeats),
        **{f"{split} questions": len(pairs) for split, pairs in by_split.items()},
        "test questions by kind": {kind: kinds[kind] for kind in KINDS if kinds[kind]},
    }


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
    bad: Sequence[BadFile],
) -> None:
    write_passages(target / CORPUS, (piece.passage() for piece in pieces))
    with durable_file(target / UNREAD) as out:
        for one in bad:
            out.write(json.dumps({"file": one.name, "reason": one.reason}, ensure_ascii=False) + "\n")
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
