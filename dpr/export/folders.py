"""Folders for other libraries, and adapters as folders of peft. A model's folder is written, opened by that library,
compared, and only then given its name. An exported model must give the same vectors there as here."""

from __future__ import annotations

import copy
import importlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpr.core.errors import DprError, InputError, first_line
from dpr.core.logs import get_logger
from dpr.core.machine import version_of
from dpr.core.records import Passage
from dpr.data.tensorizer import Tensorizer
from dpr.export.model_card import README, CardMetadata, model_card
from dpr.export.settings import MODEL_FORMATS
from dpr.export.towers import merged
from dpr.formats import checkpoints
from dpr.models.backbones import quiet_loading
from dpr.models.biencoder import BiEncoder
from dpr.models.folders.peft_adapter import NAME, WEIGHTS
from dpr.storage.durable import durable_file, durable_folder
from dpr.storage.outputs import output

logger = get_logger(__name__)
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
    """A format: how a model is written in it, and how the library it is for encodes with the written files."""

    write: Callable[..., None]
    """``write(model, folder, *, source)`` fills an existing folder. InputError names the properties that the
    format cannot express. ``source`` is the model's name in messages; ``model`` has no adapters any more."""
    encode: Callable[[Path, str, Sequence[Any]], np.ndarray]
    """``encode(folder, side, items)`` returns vectors (N, D) float32 of questions (``side`` question, texts)
    or passages (ctx, ``Passage``, all with a title or all without), by the other library alone."""
    usage: Callable[[BiEncoder], str]
    """Lines of Python that load the folder PATH with that library and encode a question and a passage."""
    library: str
    """Package that ``encode`` needs, by its name for pip."""
    bar: float = 1e-5
    """Largest difference of a number of a vector, in units of the vectors' largest number if above 1."""


def format_of(name: str) -> Format:
    """Returns the format of a name; its module is imported only now."""
    module, _, attribute = MODEL_FORMATS[name].partition(":")
    form: Format = getattr(importlib.import_module(module), attribute)
    return form


class Difference(NamedTuple):
    """Largest difference of a number of a vector, in the format's units; the number of texts; and the version
    of the other library."""

    largest: float
    texts: int
    version: str


class EdgeCases(NamedTuple):
    """Texts that both libraries encode."""

    questions: list[str]
    passages: list[Passage]


def export_folder(
    model: BiEncoder, target: Path, name: str, *, source: str, metadata: CardMetadata | None = None
) -> None:
    """Writes ``model`` to ``target`` in the format ``name``, with adapters merged. Does nothing if it is
    there already, made of the same model.

    Args:
        source: the model's name in messages.
        metadata: contents of the model card that the model does not show.

    Raises:
        InputError: the format cannot express the model, the other library gives other vectors, or ``target``
        is something else.
        OutputError: it cannot be written.
    """
    form = format_of(name)
    metadata = metadata or CardMetadata(target.name)
    whole = merged(model)

    def fill(folder: Path) -> None:
        form.write(whole, folder, source=source)
        checked = ""
        with quiet_loading():
            found = check(whole, folder, form, source)
        if found is not None:
            checked = (
                f"checked by {form.library} {found.version}: {found.texts} texts, vectors differ by at most"
                f" {found.largest:.1e}"
            )
            logger.info("%s", checked)
        card = model_card(whole, metadata, to=name, usage=form.usage(whole), checked=checked)
        with durable_file(folder / README) as out:
            out.write(card)

    write_once(target, {"format": name, "model": model.fingerprint}, whole, fill)


def write_once(target: Path, made_of: dict[str, Any], model: BiEncoder, fill: Callable[[Path], None]) -> None:
    """Writes ``model`` to ``target`` by ``fill``, which gets the empty folder. Does nothing if it is there
    already, made of the same.

    Raises:
        InputError: ``target`` is something else.
        OutputError: it cannot be written.
    """
    with output(target, made_of, overwrite=None) as is_missing:
        if is_missing:
            with durable_folder(target, metadata={"kind": "export", "made_of": made_of}) as folder:
                fill(folder)
            logger.info(
                "%s written: %d weight tensors, vectors of %d dimensions",
                target,
                len(model.weights()),
                model.dimension,
            )


def edge_cases(tensorizer: Tensorizer) -> EdgeCases:
    """Returns questions and passages on which two libraries usually differ: none, one word, longer than the window, with and
    without a title, a title longer than the window, apostrophes, accents, other scripts. Numbers of words
    vary widely, so that batches are padded.

    If the tokenizer adds no token to an empty text, libraries differ on it, and no empty text is included.
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
        texts = [*texts, ""]
        passages = [*passages, Passage(""), Passage("", texts[0])]
    return EdgeCases(texts, passages)


def check(model: BiEncoder, folder: Path, form: Format, name: str) -> Difference | None:
    """Encodes the ``edge_cases`` with the library that a folder is for and here. Returns None, with a warning, if that
    library is not installed.

    Raises:
        InputError: a vector differs by more than the format allows.
    """
    library = form.library
    version = version_of(library)
    if version is None:
        logger.warning("not checked, since %s is not installed: pip install %s", library, library)
        return None
    questions, passages = edge_cases(model.tensorizer)
    untitled = [passage for passage in passages if not passage.title]
    titled = [passage for passage in passages if passage.title]
    lists: list[tuple[str, Sequence[Any]]] = [("question", questions), ("ctx", untitled), ("ctx", titled)]
    worst = 0.0
    for side, texts in lists:
        expected = model.encode_questions(texts) if side == "question" else model.encode_passages(texts)
        try:
            found = form.encode(folder, side, texts)
        except DprError:
            raise
        except Exception as error:  # another library raises anything
            raise InputError(
                f"{library} {version} cannot use what was written ({type(error).__name__}:"
                f" {first_line(error)}); nothing was kept",
                file=name,
                hint=f"another version may: pip install -U {library}",
            ) from error
        differences = np.array([np.inf])
        if found.shape == expected.shape:
            differences = np.abs(expected - found).max(1) / max(1.0, float(np.abs(expected).max()))
        row = int(differences.argmax())
        largest = float(differences[row])
        if not largest <= form.bar:  # NaN is not
            text: Any = texts[row]
            shown = f"{text.title} | {text.text}" if isinstance(text, Passage) else text
            kind = "question" if side == "question" else "passage"
            raise InputError(
                f"the vector of the {kind} {shown[:60]!r} differs by {largest:.2g} in {library} {version};"
                " nothing was kept",
                file=name,
                expected=f"at most {form.bar:g}",
            )
        worst = max(worst, largest)
    return Difference(worst, len(questions) + len(passages), version)


def write_adapters(model: BiEncoder, folder: Path, *, source: str) -> None:
    """Writes ``adapter_question`` and ``adapter_ctx`` (``adapter`` of a shared tower) into a new folder, each
    in the form of peft. Does nothing if they are there already, made of the same model.

    Raises:
        InputError: the model has no adapters, or has other trained weights that peft's format cannot hold; or
        ``folder`` is something else.
    """
    if model.base is None:
        raise InputError("has no adapters", file=source, hint="to=model writes the whole model")
    if others := [name for name in model.weights() if "lora_" not in name and name != "log_temperature"]:
        raise InputError(
            f"has other trained weights ({others[0]})",
            file=source,
            hint="to=model writes a model that has them all",
        )
    names = ("adapter_question", "adapter_ctx") if len(model.towers) > 1 else ("adapter",)

    def fill(temporary: Path) -> None:
        for name, tower in zip(names, model.towers, strict=False):
            adapter = tower.adapter
            assert adapter is not None
            part = temporary / name
            part.mkdir()
            config = copy.deepcopy(adapter.config)
            config.inference_mode = True
            config.save_pretrained(str(part))
            weights = {
                NAME.format(layer=layer_name, kind=kind): getattr(layer, kind)[adapter.name].weight
                for layer_name, layer in adapter.layers.items()
                for kind in ("lora_A", "lora_B")
            }
            checkpoints.write_tensors(part, WEIGHTS, weights)
            model.tensorizer.save(part)

    write_once(folder, {"format": "peft", "model": model.fingerprint}, model, fill)
