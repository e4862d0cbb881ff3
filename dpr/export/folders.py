"""A folder for another library: written, opened by that library, compared, and only then given its name."""

from __future__ import annotations

from pathlib import Path

from dpr.core.logs import get_logger
from dpr.export.adapters import merged
from dpr.export.checking import Texts, check, described
from dpr.export.registry import format_of
from dpr.export.tower_files import without_bars
from dpr.formats.durable import durable_folder
from dpr.formats.outputs import output
from dpr.models.biencoder import BiEncoder

logger = get_logger(__name__)

README = "README.md"


def export_folder(model: BiEncoder, target: Path, name: str, *, source: str, more: Texts | None = None) -> None:
    """Writes ``model`` to ``target`` in the format ``name``, adapters merged; nothing if it is there already, made of the same model.

    Args:
        source: the model's name in messages.
        more: texts to compare besides the usual ones.

    Raises:
        InputError: the format cannot say what the model does, the other library gives other vectors, or ``target`` is something else.
        OutputError: it cannot be written.
    """
    form, made_of = format_of(name), {"format": name, "model": model.fingerprint}
    with output(target, made_of, overwrite=None) as is_missing:
        if not is_missing:
            return
        whole = merged(model)
        with durable_folder(target, metadata={"kind": f"export for {name}", "made_of": made_of}) as folder:
            form.write(whole, folder, source=source)
            (folder / README).write_text(_readme(target.name, name, form.usage(whole)), encoding="utf-8")
            with without_bars():
                difference = check(whole, folder, form, source, more=more)
    if difference is not None:
        logger.info("%s", described(difference, form))
    logger.info("%s written: %d weights of %d dimensions", target, len(whole.weights()), whole.dimension)


def _readme(title: str, name: str, usage: str) -> str:
    return f"# {title}\n\nMade by `dpr export to={name}`. Its vectors, where PATH is this folder:\n\n```python\n{usage}```\n"
