"""Questions that are held out for dev and test, so that no passage or topic of theirs is trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import blake2b

from dpr.preparation.document_questions import GIVEN, QuestionPair, one_for_each_passage

TRAIN = "train"
DEV = "dev"
TEST = "test"

_FEW_GROUPS = 50
_PART = 20  # passages
# A group above the first share of a held-out set would make it a test of one topic; larger ones are taken if
# nothing else is left.
LARGEST_SHARES = (0.15, 0.5, 1.0)

_HELD_OUT = {TEST: (0.25, 1000), DEV: (0.15, 500)}
"""Share of the questions, and the largest number of them, by split."""


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
    members = Counter(groups)
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
