"""Text before it is tokenised: cleaned up as in DPR, as checkpoints expect it, and placed after the model's
prompts. Title and text become one text if a template says so. Otherwise they are tokenised separately and
joined as the tokenizer joins a pair: special tokens added, cut longest-first.

The special tokens before, between and after the texts are learned from two examples; cutting follows the rule
of the ``tokenizers`` library. ``tests/unit/data/test_joining.py`` compares both with tokenizers of several
kinds, and a token store compares them with its own texts whenever it is opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from dpr.core.errors import ConfigError
from dpr.core.records import Passage, items_of
from dpr.data.settings import TextSettings

SPACED_TITLE = "{title} {text}"
"""The template of new models whose tokenizer puts nothing between the two texts of a pair."""
TYPOGRAPHIC_APOSTROPHE = "\N{RIGHT SINGLE QUOTATION MARK}"


def normalize_question(text: str) -> str:
    """Replaces the typographic apostrophe by the plain one. Applied to questions, in training and in
    retrieval, unless a model says otherwise (``encoder.plain_apostrophes``)."""
    return text.replace(TYPOGRAPHIC_APOSTROPHE, "'")


def normalize_passage(text: str) -> str:
    """Replaces newlines by spaces and typographic apostrophes by plain ones, and removes one leading and one
    trailing double quote. Off by default."""
    text = text.replace("\n", " ").replace(TYPOGRAPHIC_APOSTROPHE, "'")
    text = text.removeprefix('"')
    return text.removesuffix('"')


def with_suffix(question: str, suffix: str | None) -> str:
    """Appends ``suffix`` unless the question ends with it."""
    return question + suffix if suffix and not question.endswith(suffix) else question


def decorate_passage(passage: Passage, prefix: str) -> Passage:
    """Returns the passage with ``prefix`` at its beginning: before the title or, without one, before the
    text."""
    if passage.title:
        return replace(passage, title=prefix + passage.title)
    return replace(passage, text=prefix + passage.text.strip())


def checked_items(given: Any, kinds: tuple[type, ...], method: str, expected: str) -> list[Any]:
    """Returns one item, several items, or the rows of a table as a list. Raises TypeError for anything of
    another kind."""
    if isinstance(given, kinds):
        return [given]
    items = items_of(given)
    if items is None:
        raise TypeError(f"{method} takes {expected}, or a list of them, not {type(given).__name__}")
    for index, item in enumerate(items):
        if not isinstance(item, kinds):
            raise TypeError(
                f"{method} takes {expected}, or a list of them, but item {index} is of type"
                f" {type(item).__name__}"
            )
    return items


class PresentedPassage(NamedTuple):
    """A passage as it is tokenised: the pair of ``title`` and ``text``, or ``text`` alone if the title is
    empty.

    With a template, ``head`` is the number of characters of ``text`` before the passage's own text.
    """

    title: str
    text: str
    head: int = 0


def presented(passage: Passage, text: TextSettings) -> PresentedPassage:
    """Returns the passage after the model's prompt, by its title template. The text is stripped; the title is
    not."""
    prompt = text.passage_prompt
    body = passage.text.strip()
    if not passage.title:
        return PresentedPassage("", prompt + body)
    if not text.title_template:
        return PresentedPassage(prompt + passage.title, body)
    head = prompt + text.head(passage.title)
    return PresentedPassage("", head + body, len(head))


def check_room(tokenizer: Any, text: TextSettings, lengths: Mapping[str, int]) -> None:
    """Raises ConfigError if a prompt would be cut at ``lengths``. These are lengths by the names of their
    settings; ``..question_length`` is that of questions.

    A title and the prompt before it may get only half the room.
    """
    of_questions = {f"prompts.{name}": prompt for name, prompt in text.prompts.items()}
    of_questions["query_prompt"] = text.query_prompt
    for key, length in lengths.items():
        is_pair = not key.endswith("question_length")
        for name, prompt in ({"passage_prompt": text.passage_prompt} if is_pair else of_questions).items():
            if not prompt:
                continue
            if tokenizer.truncation_side == "left":
                raise ConfigError(
                    f"encoder.{name}={prompt!r} would be cut off, since the tokenizer cuts texts at their"
                    ' beginning; set "truncation_side": "right" in its tokenizer_config.json'
                )
            size = len(tokenizer(prompt, add_special_tokens=False, verbose=False)["input_ids"])
            needed = tokenizer.num_special_tokens_to_add(pair=is_pair) + size * (1 + is_pair) + 1
            if size and length < needed:
                raise ConfigError(
                    f"{key}={length} leaves no room after the {size} tokens of encoder.{name}; set it to"
                    f" {needed} or more"
                )


Segments = Sequence[int | None]


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Returns the numbers of tokens to keep of two sequences of these lengths if ``room`` tokens fit."""
    if first + second <= room:
        return first, second
    shorter = min(first, second)
    longer = shorter if shorter > room else max(shorter, room - shorter)
    if shorter + longer > room:
        shorter = room // 2
        longer = room - shorter
    return (longer, shorter) if first > second else (shorter, longer)


@dataclass(frozen=True, slots=True)
class JoinRule:
    """The special tokens around one sequence and around a pair. ``cut_start`` is True if the tokenizer cuts
    from the left."""

    single: tuple[list[int], list[int]]
    pair: tuple[list[int], list[int], list[int]]
    cut_start: bool = False

    @classmethod
    def from_examples(
        cls, single: tuple[Sequence[int], Segments], pair: tuple[Sequence[int], Segments], *, cut_start: bool
    ) -> JoinRule | None:
        """Derives the rule from the token ids and segments (None: special) of a sequence and a pair. Returns
        None if they show no such rule."""
        around_one = _specials(*single, count=1)
        around_two = _specials(*pair, count=2)
        if around_one is None or around_two is None:
            return None
        return cls((around_one[0], around_one[1]), (around_two[0], around_two[1], around_two[2]), cut_start)

    def join(self, title: Sequence[int] | None, text: Sequence[int], max_length: int) -> list[int]:
        """Returns at most ``max_length`` tokens of title and text; of the text alone if ``title`` is None."""
        if title is None:
            before, after = self.single
            room = max(max_length - len(before) - len(after), 0)
            return [*before, *self._cut(text, min(len(text), room)), *after]
        before, between, after = self.pair
        room = max(max_length - len(before) - len(between) - len(after), 0)
        kept_title, kept_text = longest_first(len(title), len(text), room)
        return [*before, *self._cut(title, kept_title), *between, *self._cut(text, kept_text), *after]

    def crop(
        self,
        title: Sequence[int] | None,
        text: Sequence[int],
        max_length: int,
        generator: np.random.Generator,
        *,
        head: int = 0,
    ) -> list[int]:
        """Joins as ``join`` does, with a random window of the text in place of its beginning. Without a
        title, the first ``head`` tokens stay. These tokens, or the title, take at most half of the available
        length."""
        room = max(max_length - sum(map(len, self.single if title is None else self.pair)), 0)
        first, rest = (text[:head], text[head:]) if title is None else (title, text)
        if len(first) + len(rest) > room:
            kept = min(len(first), room // 2)
            start = int(generator.integers(max(len(rest) - (room - kept), 0) + 1))
            first = first[:kept]
            text = rest[start : start + room - kept]
            if title is None:
                text = [*first, *text]
            else:
                title = first
        return self.join(title, text, max_length)

    def _cut(self, tokens: Sequence[int], kept: int) -> Sequence[int]:
        return tokens[len(tokens) - kept :] if self.cut_start else tokens[:kept]


def _specials(tokens: Sequence[int], segments: Segments, *, count: int) -> list[list[int]] | None:
    """Returns the special tokens before, between and after ``count`` consecutive sequences; None unless each
    has a token."""
    parts: list[list[int]] = [[]]
    seen: list[int] = []
    for token, segment in zip(tokens, segments, strict=True):
        if segment is None:
            parts[-1].append(token)
        elif segment not in seen:
            seen.append(segment)
            parts.append([])
        elif segment != seen[-1] or parts[-1]:
            return None
    return parts if seen == list(range(count)) else None


@dataclass(frozen=True, slots=True)
class QuestionForm:
    """Form in which questions of a set are given to the model; DPR's options of a question set.

    ``prefix`` is a token put before the question, with a space between. ``query_prefix`` is a text put
    between them as it is. ``suffix`` is appended unless the question ends with it. ``selector`` is where the
    vector is read: a position, or the first occurrence of a token. ``encoder_type`` is the tower,
    ``question`` or ``ctx``. ``prompt`` is the name of the model's prompt for these questions.
    """

    prefix: str | None = None
    suffix: str | None = None
    selector: int | str | None = None
    encoder_type: str = "question"
    query_prefix: str | None = None
    prompt: str | None = None

    def agreed(self, text: TextSettings) -> QuestionForm:
        """Returns the form for a model that puts prompts before questions, without a prefix that repeats the
        prompt.

        Raises:
            ConfigError: the prefix is another one, or the model has no prompt of that name.
        """
        prefix = text.agreed_prefix(
            self.before_questions, text.question_prompt(self.prompt), key="query_prefix"
        )
        return self if prefix else replace(self, prefix=None, query_prefix=None)

    @property
    def before_questions(self) -> str | None:
        """Returns token and text before each question, as one text, in the order of
        ``DataSetSettings.before_questions`` in training."""
        return (f"{self.prefix} " if self.prefix else "") + (self.query_prefix or "") or None

    def text(self, question: str) -> str:
        """Returns the question as results show it: apostrophes normalised, with suffix, without the text put
        before it."""
        return with_suffix(normalize_question(question), self.suffix)

    def query_text(self, question: str) -> str:
        """Returns the question as retrievers get it: with suffix."""
        return with_suffix(question, self.suffix)
