"""What each format of another library promises, and the check that it keeps it: what was exported, opened by
that library, must give the vectors that the model gives here."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpr.core.errors import DprError, InputError, first_line
from dpr.core.lazy import version_of
from dpr.core.logs import get_logger
from dpr.core.records import Passage
from dpr.data.tensorizer import Tensorizer
from dpr.export.onnx_graph import overlap
from dpr.export.settings import MODEL_FORMATS
from dpr.formats.text_input import iter_lines
from dpr.models.biencoder import BiEncoder

logger = get_logger(__name__)

_BATCH = 8

_SHORT = (
    "what is a dense retriever",
    "who wrote the paper?",
    "Who's there? It's me, isn't it",
    "Who\u2019s there? It\u2019s me, isn\u2019t it",
    "\u00dcn\u00efc\u00f6d\u00e9: na\u00efve caf\u00e9 Stra\u00dfe \u2014 \u201equoted\u201c",
    "\u4e2d\u6587 \u65e5\u672c\u8a9e \u30c6\u30b9\u30c8 \U0001f600",
    "tabs\tand\nlines",
    'an "odd" <tag> & {braces} 1,234.5 % #x@y.z',
    "a",
)


@dataclass(frozen=True)
class Format:
    """How a model is written in a format, and how the library that it is for encodes with what was
    written."""

    require_sayable: Callable[[BiEncoder, str], None]
    """``require_sayable(model, source)``: InputError names what the format cannot say; ``source`` is the
    model's name in messages."""
    write: Callable[..., None]
    """``write(model, folder, *, source)`` fills an existing folder, once ``require_sayable`` has passed.
    ``model`` has no adapters any more."""
    encode: Callable[[Path, str, Sequence[Any]], np.ndarray]
    """``encode(folder, side, items)``: vectors (N, D) float32 of questions (``side`` question, texts) or
    passages (ctx, ``Passage``), by the other library alone."""
    usage: Callable[[BiEncoder], str]
    """Lines of Python that load the folder PATH with that library and encode a question and a passage."""
    library: str
    """The package that ``encode`` imports."""
    install: str
    """What pip installs for it."""
    sides: tuple[str, ...] = ("question", "ctx")
    """Those that ``encode`` knows."""
    bar: float = 1e-5
    """The largest difference of a number of a vector, in units of the vectors' largest number if that is
    above 1."""


def format_of(name: str) -> Format:
    """The format of a name, whose module is imported now."""
    form: Format = importlib.import_module(MODEL_FORMATS[name]).FORMAT
    return form


class Difference(NamedTuple):
    """The largest difference of a number of a vector on each side, in the format's units, the number of
    texts, and the share of the ten best passages of a question that stay. Where a library encodes one side
    alone, the other is the model's."""

    questions: float
    passages: float
    texts: int
    top10: float


class Texts(NamedTuple):
    """What both libraries encode."""

    questions: list[str]
    passages: list[Passage]


def nasty_texts(tensorizer: Tensorizer) -> Texts:
    """Texts on which two libraries usually differ: none, one word, longer than the window, with and without a
    title, a title longer than the window, apostrophes, accents, other scripts, and words of the vocabulary of
    very different number, so that batches are padded.

    A tokenizer that adds no token to an empty text makes nothing of it; there libraries differ, and no empty
    text is encoded.
    """
    rng = random.Random(0)
    special = set(tensorizer.tokenizer.all_special_ids)
    ids = sorted(token for token in tensorizer.tokenizer.get_vocab().values() if token not in special)

    def words(count: int) -> str:
        return " ".join(tensorizer.tokenizer.decode(rng.choices(ids, k=count)).split())

    lengths = (3, 7, 12, tensorizer.sequence_length // 2)
    short = [text for text in (*_SHORT, *(words(count) for count in lengths for _ in range(2))) if text]
    long = words(2 * tensorizer.sequence_length)
    texts = [*short, long]
    passages = [Passage(text) for text in texts]
    passages += [Passage(text, title) for text, title in zip(short[1:], short[:-1], strict=True)]
    passages += [Passage(long, short[0]), Passage(short[0], long), Passage(long, long)]
    if tensorizer.tokenizer("", add_special_tokens=True)["input_ids"]:
        texts, passages = [*texts, ""], [*passages, Passage(""), Passage("", texts[0])]
    return Texts(texts, passages)


def made_up_texts(tensorizer: Tensorizer, *, questions: int, passages: int) -> Texts:
    """Random words of the vocabulary, 4 to 12 in a question and 20 to 80 in a passage, the same for the same
    tokenizer."""
    rng = random.Random(1)
    special = set(tensorizer.tokenizer.all_special_ids)
    ids = sorted(token for token in tensorizer.tokenizer.get_vocab().values() if token not in special)

    def words(fewest: int, most: int) -> str:
        return str(tensorizer.tokenizer.decode(rng.choices(ids, k=rng.randint(fewest, most))))

    return Texts(
        [words(4, 12) for _ in range(questions)],
        [Passage(words(20, 80), words(2, 4)) for _ in range(passages)],
    )


def read_texts(path: Path) -> Texts:
    """A text a line, encoded as a question and as a passage; what stands before a tab is the passage's title.

    Raises:
        InputError: the file cannot be read, or is empty.
    """
    parts = [line.partition("\t") for _, line in iter_lines(path) if line.strip()]
    if not parts:
        raise InputError(
            "holds no text", file=path, expected="a text a line, perhaps with a title and a tab before it"
        )
    passages = [Passage(text.strip(), title) if tab else Passage(title.strip()) for title, tab, text in parts]
    return Texts([passage.text for passage in passages], passages)


def compared(found: tuple[np.ndarray, np.ndarray], expected: tuple[np.ndarray, np.ndarray]) -> Difference:
    """Vectors of questions and passages against the model's."""
    worst = [_worst(one, other)[0] for one, other in zip(expected, found, strict=True)]
    top10 = overlap(found, expected)["top10_overlap"] if np.isfinite(worst).all() else 0.0
    return Difference(worst[0], worst[1], len(expected[0]) + len(expected[1]), top10)


def check(
    model: BiEncoder, folder: Path, form: Format, name: str, *, more: Texts | None = None
) -> Difference | None:
    """Encodes the nasty texts, and ``more``, with the other library and here. None, with a warning, where
    that library is not installed.

    Raises:
        InputError: a vector differs by more than the format allows.
    """
    version = version_of(form.library.replace("_", "-"))
    if version is None:
        logger.warning("not checked, since %s is not installed: pip install %s", form.library, form.install)
        return None
    texts = nasty_texts(model.tensorizer)
    if more is not None:
        texts = Texts(texts.questions + more.questions, texts.passages + more.passages)
    sides: list[tuple[str, str, Sequence[Any], np.ndarray]] = [
        ("question", "question", texts.questions, model.encode_questions(texts.questions)),
        ("ctx", "passage", texts.passages, model.encode_passages(texts.passages)),
    ]
    found = []
    for side, kind, of_side, own in sides:
        found.append(_encoded(form, folder, side, of_side, name, version) if side in form.sides else own)
        worst, row = _worst(own, found[-1])
        if not worst <= form.bar:
            shown = (
                f"the vector of the {kind} {_shown(of_side[row])} differs by {worst:.2g} in {form.library}"
                f" {version}"
            )
            raise InputError(f"{shown}; nothing was kept", file=name, expected=f"at most {form.bar:g}")
    return compared((found[0], found[1]), (sides[0][3], sides[1][3]))


def _encoded(
    form: Format, folder: Path, side: str, texts: Sequence[Any], name: str, version: str
) -> np.ndarray:
    try:
        return form.encode(folder, side, texts)
    except DprError:
        raise
    except Exception as error:  # another library raises anything
        found = (
            f"{form.library} {version} cannot use what was written ({type(error).__name__}:"
            f" {first_line(error)}); nothing was kept"
        )
        raise InputError(
            found, file=name, hint=f"another version may: pip install -U {form.install}"
        ) from error


def _shown(text: Any) -> str:
    shown = f"{text.title} | {text.text}" if isinstance(text, Passage) else str(text)
    return repr(shown if len(shown) <= 60 else f"{shown[:57]}...")


def _worst(expected: np.ndarray, found: np.ndarray) -> tuple[float, int]:
    """The largest difference and its row; infinite where shapes differ or a number is none."""
    if found.shape != expected.shape or not np.isfinite(found).all():
        return float("inf"), 0
    differences = np.abs(expected - found).max(1) / max(1.0, float(np.abs(expected).max()))
    row = int(differences.argmax())
    return float(differences[row]), row


def checked_by(form: Format, difference: Difference) -> str:
    """The line of an export's report: how far the vectors that the library makes of the folder are from the
    model's."""
    library = form.library.replace("_", "-")
    most = max(difference.questions, difference.passages)
    return (
        f"checked by {library} {version_of(library)}: {difference.texts} texts, vectors differ by at"
        f" most {most:.1e}; of the ten best passages {difference.top10:.3f} stay"
    )


def in_order(passages: Sequence[Passage], encode: Callable[[list[Passage]], np.ndarray]) -> np.ndarray:
    """Vectors of passages in their order; ``encode`` gets those without a title, then the others."""
    untitled = [row for row, passage in enumerate(passages) if not passage.title]
    titled = [row for row, passage in enumerate(passages) if passage.title]
    parts = [(rows, encode([passages[row] for row in rows])) for rows in (untitled, titled) if rows]
    vectors = np.empty((len(passages), parts[0][1].shape[1]), np.float32)
    for rows, found in parts:
        vectors[rows] = found
    return vectors


def token_batches(tokenizer: Any, texts: Sequence[list[str]], **options: Any) -> Iterator[Any]:
    """What a tokenizer of transformers gives for ``texts`` alone, or for the pairs of two lists, some at a
    time."""
    for start in range(0, len(texts[0]), _BATCH):
        yield tokenizer(
            *(part[start : start + _BATCH] for part in texts), padding=True, return_tensors="pt", **options
        )
