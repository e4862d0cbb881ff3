"""Folders for other libraries. Each is written, opened by that library, compared, and only then given its
name. An exported model must give the same vectors there as here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpr.core.logs import get_logger
from dpr.export.formats import format_of
from dpr.export.library_check import check
from dpr.export.merging import merged
from dpr.export.model_card import README, CardMetadata, model_card
from dpr.models.backbones import quiet_loading
from dpr.models.biencoder import BiEncoder
from dpr.storage.durable import durable_file, durable_folder
from dpr.storage.outputs import output

logger = get_logger(__name__)


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
                "%s written: %d weights of %d dimensions", target, len(model.weights()), model.dimension
            )
