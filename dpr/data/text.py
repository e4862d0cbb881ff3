"""Text before it is tokenised: cleaned up as in DPR, which checkpoints were trained with, after the prompts of
the model, and title and text as one text where a template says how."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dpr.core.errors import ConfigError
from dpr.core.records import Passage
from dpr.data.settings import TextSettings

SPACED_TITLE = "{title} {text}"
"""The template of new models whose tokenizer puts nothing between the two texts of a pair."""
TYPOGRAPHIC_APOSTROPHE = "\N{RIGHT SINGLE QUOTATION MARK}"


def normalize_question(text: str) -> str:
    """Replaces the typographic apostrophe by the plain one. Applied to questions, in training and in
    retrieval, unless a model says otherwise (``encoder.plain_apostrophes``)."""
    return text.replace(TYPOGRAPHIC_APOSTROPHE, "'")


def normalize_passage(text: str) -> str:
    """Newlines to spaces, typographic apostrophes to plain ones, one leading and one trailing double quote
    removed. Off by default."""
    text = text.replace("\n", " ").replace(TYPOGRAPHIC_APOSTROPHE, "'")
    text = text.removeprefix('"')
    return text.removesuffix('"')


def plain(text: str) -> str:
    """A text without differences of case and spacing, by which equal texts are told."""
    return " ".join(text.casefold().split())


def decorate_question(
    text: str, *, prefix: str | None = None, suffix: str | None = None, plain_apostrophes: bool = True
) -> str:
    """Appends ``suffix`` unless the question ends with it, then puts the ``prefix`` before it as it is."""
    text = normalize_question(text) if plain_apostrophes else text
    if suffix and not text.endswith(suffix):
        text += suffix
    return f"{prefix or ''}{text}"


def decorate_passage(title: str, text: str, *, prefix: str) -> tuple[str, str]:
    """Title and text of a passage with ``prefix`` at its beginning: before the title or, without one, before
    the text."""
    return (prefix + title, text) if title else ("", prefix + text.strip())


def checked_items(given: Any, kinds: tuple[type, ...], method: str, expected: str) -> list[Any]:
    """One item, or several, as a list. Raises TypeError for anything of another kind."""
    if isinstance(given, kinds):
        return [given]
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping):
        raise TypeError(f"{method} takes {expected} or a list of them, not {type(given).__name__}")
    items = list(given)
    for index, item in enumerate(items):
        if not isinstance(item, kinds):
            raise TypeError(
                f"{method} takes {expected} or a list of them, but item {index} is of type"
                f" {type(item).__name__}"
            )
    return items


class PresentedPassage(NamedTuple):
    """A passage as it is tokenised: the pair of ``title`` and ``text``, or ``text`` alone where the title is
    empty.

    ``head``: by a template, the characters of ``text`` that come before the passage's own text.
    """

    title: str
    text: str
    head: int = 0


def presented(passage: Passage, text: TextSettings) -> PresentedPassage:
    """The passage after the model's prompt, by its title template. The text is stripped, the title is not."""
    prompt, body = text.passage_prompt, passage.text.strip()
    if not passage.title:
        return PresentedPassage("", prompt + body)
    if not text.title_template:
        return PresentedPassage(prompt + passage.title, body)
    head = prompt + text.head(passage.title)
    return PresentedPassage("", head + body, len(head))


def tokens_before(encoding: Any, characters: int) -> int:
    """How many tokens of a text end within its first ``characters`` characters; special tokens do not
    count."""
    spans = zip(encoding.offsets, encoding.sequence_ids, strict=True)
    ends = [end for (_, end), segment in spans if segment is not None]
    return next((index for index, end in enumerate(ends) if end > characters), len(ends))


def split_tokens(tokenizer: Any, passages: Sequence[PresentedPassage]) -> list[tuple[list[int], list[int]]]:
    """Token ids of each text, without special tokens and uncut: those of its head, and the rest."""
    if not passages:
        return []
    encodings = tokenizer(
        [passage.text for passage in passages], add_special_tokens=False, truncation=False, verbose=False
    ).encodings
    places = [
        tokens_before(encoding, passage.head) if passage.head else 0
        for encoding, passage in zip(encodings, passages, strict=True)
    ]
    return [
        (encoding.ids[:place], encoding.ids[place:])
        for encoding, place in zip(encodings, places, strict=True)
    ]


def check_room(tokenizer: Any, text: TextSettings, lengths: Mapping[str, int]) -> None:
    """Raises ConfigError where a prompt would be cut at ``lengths``: lengths by the names of their settings,
    ``..question_length`` that of questions.

    A title, and the prompt before it, may have to do with half the room.
    """
    of_questions = {
        "query_prompt": text.query_prompt,
        **{f"prompts.{name}": prompt for name, prompt in text.prompts.items()},
    }
    for key, length in lengths.items():
        is_pair = not key.endswith("question_length")
        for name, prompt in ({"passage_prompt": text.passage_prompt} if is_pair else of_questions).items():
            if prompt and tokenizer.truncation_side == "left":
                message = (
                    f"encoder.{name}={prompt!r} would be cut off, since the tokenizer cuts texts at their"
                    " beginning"
                )
                raise ConfigError(f'{message}; set "truncation_side": "right" in its tokenizer_config.json')
            size = (
                len(tokenizer(prompt, add_special_tokens=False, verbose=False)["input_ids"]) if prompt else 0
            )
            needed = tokenizer.num_special_tokens_to_add(pair=is_pair) + size * (1 + is_pair) + 1
            if size and length < needed:
                raise ConfigError(
                    f"{key}={length} leaves no room behind the {size} tokens of encoder.{name}; set it to"
                    f" {needed} or more"
                )
