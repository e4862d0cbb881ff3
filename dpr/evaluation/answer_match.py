"""Matching of answers in passages by DPR's rules, so that metrics can be compared with published ones.

Only the passage's text counts, not its title. Text and answers are NFD-normalised; accents are kept.

* ``string``: tokens are runs of letters, numbers and marks, or else single characters that are neither space
  nor control. The lower-cased tokens of an answer must occur in the text one after the other.
* ``regex``: the answer is a pattern of the ``regex`` package. The search ignores case, and ``^`` and ``$``
  match at every line. An invalid pattern does not match, nor does one that takes longer than a second on one
  text.

An answer without tokens, such as "" or a space, matches no text (in DPR it matches every text).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import regex

from dpr.core.logs import counted, get_logger
from dpr.core.records import Question

KINDS = ("string", "regex")
REGEX_TIMEOUT_S = 1.0

_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")
_SEPARATOR = "\x1f"  # a control character, so never part of a token
_log = get_logger(__name__)


def has_answer(answers: Iterable[str], text: str, kind: str = "string") -> bool:
    """Returns whether ``text`` holds one of ``answers``; ``kind`` is ``string`` or ``regex``."""
    return _match_text(text, [_with_tokens(answers)], kind)[0]


def is_empty(answer: str) -> bool:
    """Returns whether an answer has no token, so that it matches nothing."""
    return not _needle(answer)[1]


def warn_of_empty_answers(questions: Sequence[Question]) -> None:
    """Warns of answers without tokens."""
    empty = [(question, answer) for question in questions for answer in question.answers if is_empty(answer)]
    if empty:
        question, answer = empty[0]
        place = f"line {question.line} of the questions" if question.line else f"question {question.id!r}"
        _log.warning(
            "%d answers are empty, the first of them %r at %s: they match no text", len(empty), answer, place
        )


def _with_tokens(answers: Iterable[str]) -> tuple[str, ...]:
    return tuple(answer for answer in answers if not is_empty(answer))


def match_hits(
    answers: Sequence[Sequence[str]],
    hits: Sequence[Sequence[str]],
    texts: Mapping[str, str],
    *,
    kind: str = "string",
) -> list[list[bool]]:
    """Returns, for each hit of each question, whether the passage holds an answer.

    Args:
        hits: passage ids of each question, best first.
        texts: text of every passage in ``hits``. Each is tokenised once, for all questions that found it.
    """
    asked: dict[str, list[tuple[int, int]]] = {}
    for question, listed in enumerate(hits):
        for rank, passage_id in enumerate(listed):
            asked.setdefault(passage_id, []).append((question, rank))
    matching = [_with_tokens(of_question) for of_question in answers]
    matched = [[False] * len(listed) for listed in hits]
    for passage_id, places in counted(asked.items(), "looking for answers"):
        flags = _match_text(texts[passage_id], [matching[question] for question, _ in places], kind)
        for (question, rank), flag in zip(places, flags, strict=True):
            matched[question][rank] = flag
    return matched


def _match_text(text: str, askers: list[tuple[str, ...]], kind: str) -> list[bool]:
    """Returns, for each asker, whether the text holds one of its answers."""
    if kind == "regex":
        normalised = unicodedata.normalize("NFD", text)
        return [any(_finds(answer, normalised) for answer in answers) for answers in askers]
    if kind != "string":
        raise ValueError(f"match={kind!r} is not known; choose one of {', '.join(KINDS)}")

    # A text is tokenised only if all tokens of some answer occur in it as plain substrings. That is rare, and
    # this check is ten times as fast. Lower-casing a whole text equals lower-casing its tokens except for the
    # capital sigma, whose lower case depends on the next character.
    lowered = None if "\N{GREEK CAPITAL LETTER SIGMA}" in text else unicodedata.normalize("NFD", text).lower()
    joined: str | None = None
    matched = []
    for answers in askers:
        is_found = False
        for needle, tokens in map(_needle, answers):
            if lowered is not None and not all(token in lowered for token in tokens):
                continue
            joined = _joined_tokens(text) if joined is None else joined
            if needle in joined:
                is_found = True
                break
        matched.append(is_found)
    return matched


def _joined_tokens(text: str) -> str:
    tokens = _TOKEN.findall(unicodedata.normalize("NFD", text))
    return _SEPARATOR + "".join(token.lower() + _SEPARATOR for token in tokens)


@lru_cache(maxsize=65536)
def _needle(answer: str) -> tuple[str, tuple[str, ...]]:
    joined = _joined_tokens(answer)
    return joined, tuple(joined.split(_SEPARATOR)[1:-1])


@lru_cache(maxsize=65536)
def _compiled(pattern: str) -> regex.Pattern[str] | None:
    try:
        return regex.compile(
            unicodedata.normalize("NFD", pattern), regex.IGNORECASE | regex.UNICODE | regex.MULTILINE
        )
    except (regex.error, OverflowError, RecursionError) as error:
        _log.warning("answer pattern %r is not valid and matches nothing: %s", pattern, error)
        return None


def _finds(pattern: str, text: str) -> bool:
    compiled = _compiled(pattern)
    if compiled is None:
        return False
    try:
        return compiled.search(text, timeout=REGEX_TIMEOUT_S) is not None
    except TimeoutError:
        _log.warning(
            "answer pattern %r took more than %g s on a text and counts as no match", pattern, REGEX_TIMEOUT_S
        )
        return False
