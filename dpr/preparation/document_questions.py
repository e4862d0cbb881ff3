"""Questions derived from the headings and first sentences of documents, and the choice of those that are held
out for dev and test."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from dpr.core.records import Passage, composed
from dpr.data.words import split_words
from dpr.indexer.bm25 import lexical_tokens
from dpr.preparation.passages import Piece

FAQ = "faq"
TITLE = "title"
HEADING = "heading"
SENTENCE = "sentence"
GIVEN = "given"
KINDS = (GIVEN, FAQ, HEADING, TITLE, SENTENCE)
"""Kinds of questions, the most realistic first."""
_WORD = re.compile(r"[^\W\d_]{2,}|\d+")
_NUMBERING = re.compile(r"^(?:\d+(?:\.\d+)*[.)]?|[A-Z][.)]|chapter \d+[.:]?|step \d+[.:]?)\s+", re.IGNORECASE)
_FIELD = re.compile(
    r"[*\w.]+ *(\([^)]*\))?\)*"
    r" *:|(args|arguments|parameters|returns?|attributes|examples?|notes?|todo|fixme)\b *:?$",
    re.I,
)
_REFERS = re.compile(
    r"(?:it|its|they|them|their|this|these|those|that|such|he|she|his|her|here|there|then|both|each|also"
    r"|otherwise|else|thus|hence|so|and|but|or|however|further|furthermore|moreover|therefore|similarly|in addition"
    r"|as a result|for example|for instance|the following|the same|the former|the latter)\b",
    re.IGNORECASE,
)
"""Pattern of the beginning of a sentence that depends on the text before it."""
_NO_WORD = re.compile(r"\W*-{1,2}\w.*|.*\w[=/\\_<>{}|@#:]+\w.*|\W*(?:\d.*|[b-hj-zB-HJ-Z])?\W*")
"""Pattern of text between spaces that is no word, in code and formulas."""
_MOST_NO_WORDS = 0.25
_HEADING_WORDS = 2
_SENTENCE_WORDS = range(4, 26)
_MOST_WORDS = 40
_PASSAGE_WORDS = 12
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


@dataclass(frozen=True, slots=True)
class QuestionPair:
    """A question, and the passages that answer it, best first."""

    text: str
    kind: str
    pieces: tuple[Piece, ...]
    hidden_heading: int = 0
    """Number of the heading that it was made from; 0 = none."""

    @property
    def hides_first(self) -> bool:
        """True if it was made from the first sentence of its passage."""
        return self.kind == SENTENCE

    @property
    def file(self) -> str:
        return self.pieces[0].file

    def positive(self) -> Passage:
        """Returns the best passage, without the part that the question was made from."""
        hidden = frozenset((self.hidden_heading,)) if self.hidden_heading else frozenset[int]()
        return self.pieces[0].passage(hidden, hide_first=self.hides_first)


def made_questions(pieces: Sequence[Piece]) -> list[QuestionPair]:
    """Returns all questions that the passages hold, in the order of the passages. None occurs twice, whatever
    its punctuation.

    A heading of one word or two is asked for together with the title ("numpy: basic usage"). A sentence is no
    question if it needs the one before it, announces what follows it, or is code.
    """
    under: dict[int, list[Piece]] = defaultdict(list)  # the passages directly under each heading
    for piece in pieces:
        under[piece.headings[-1][0]].append(piece)
    pairs: list[QuestionPair] = []
    for piece in pieces:
        if piece.place == 0:
            pairs += _of_headings(piece, under)
        written = piece.first.split()
        is_sentence = (
            len(split_words(piece.first, _WORD)) in _SENTENCE_WORDS
            and not _FIELD.match(piece.first)
            and not _REFERS.match(piece.first)
            and not piece.first.endswith(":")
            and sum(bool(_NO_WORD.fullmatch(part)) for part in written) <= _MOST_NO_WORDS * len(written)
        )
        if is_sentence and len(split_words(piece.rest, _WORD)) >= _PASSAGE_WORDS:
            pairs.append(QuestionPair(piece.first, SENTENCE, (piece,)))
    times = Counter(words_of(asked.text) for asked in pairs)
    return [asked for asked in pairs if times[words_of(asked.text)] == 1]


def without_questions(pieces: Sequence[Piece], held_out: Iterable[QuestionPair]) -> list[Passage]:
    """Returns the corpus in which held-out questions are searched. Their headings and first sentences are
    hidden wherever these occur."""
    asked = list(held_out)
    headings = frozenset(one.hidden_heading for one in asked if one.hidden_heading)
    first = {piece.id for one in asked if one.hides_first for piece in one.pieces}
    return [piece.passage(headings, hide_first=piece.id in first) for piece in pieces]


def one_for_each_passage(questions: Iterable[QuestionPair]) -> list[QuestionPair]:
    """Returns at most one question of every passage, of the most realistic kind."""
    taken: set[str] = set()
    kept = []
    for asked in sorted(questions, key=lambda one: KINDS.index(one.kind)):
        if asked.kind == GIVEN or not taken & {piece.id for piece in asked.pieces}:
            kept.append(asked)
            taken |= {piece.id for piece in asked.pieces}
    return kept


def words_of(text: str) -> str:
    """Reduces a text to its words, by which repetitions are found."""
    return " ".join(re.findall(r"\w+", composed(text).casefold()))


def _of_headings(piece: Piece, under: Mapping[int, Sequence[Piece]]) -> list[QuestionPair]:
    """Returns the question of the section that the passage begins, and, if it begins the document, that of
    the title."""
    number, heading = piece.headings[-1]
    pieces = tuple(under[number])
    if sum(len(split_words(one.passage().text, _WORD)) for one in pieces) < _PASSAGE_WORDS:
        return []
    if piece.is_question:
        is_long = len(split_words(heading, _WORD)) >= _HEADING_WORDS
        return [QuestionPair(heading, FAQ, pieces, number)] if is_long else []
    if not piece.asks_headings:
        return []
    text = _NUMBERING.sub("", heading).rstrip(":")
    size = len(split_words(text, _WORD))
    if len(piece.headings) == 1:
        return [QuestionPair(text, TITLE, pieces, number)] if _HEADING_WORDS < size <= _MOST_WORDS else []
    if size and len(lexical_tokens(text)) <= _HEADING_WORDS:
        text = f"{piece.headings[0][1]}: {text}"
    return [QuestionPair(text, HEADING, pieces, number)] if 1 <= size <= _MOST_WORDS else []


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
