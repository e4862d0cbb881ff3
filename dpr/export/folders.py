"""A folder for another library: written, opened by that library, compared, and only then given its name; or
uploaded as a repository of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpr.core.logs import get_logger
from dpr.export import onnx_folder, sentence_transformers
from dpr.export.adapters import merged
from dpr.export.checking import Texts, check, checked_by, format_of, made_up_texts
from dpr.export.model_card import README, CardFacts, model_card
from dpr.export.tower_files import without_bars
from dpr.models.biencoder import BiEncoder
from dpr.storage.durable import durable_folder
from dpr.storage.outputs import output

logger = get_logger(__name__)

ATTRIBUTES = ".gitattributes"
LARGE_FILES = "".join(
    f"{pattern} filter=lfs diff=lfs merge=lfs -text\n"
    for pattern in ("*.safetensors", "*.onnx", "*.onnx.data")
)
"""What ``.gitattributes`` of a repository says, so that git stores large files apart, as the hub does."""


def export_folder(
    model: BiEncoder,
    target: Path,
    name: str,
    *,
    source: str,
    facts: CardFacts | None = None,
    more: Texts | None = None,
    precisions: Sequence[str] = (),
    onnx: bool = False,
) -> None:
    """Writes ``model`` to ``target`` in the format ``name``, adapters merged; nothing if it is there already,
    made of the same model.

    Args:
        source: the model's name in messages.
        facts: what the model card says besides what the model shows.
        more: texts to compare besides the usual ones.
        precisions: of further graphs.
        onnx: whether graphs are written too (format ``sentence-transformers``).

    Raises:
        InputError: the format cannot say what the model does, the other library gives other vectors, or
        ``target`` is something else.
        OutputError: it cannot be written.
    """
    form, facts = format_of(name), facts or CardFacts(target.name)
    more_files = {name: value for name, value in (("precisions", list(precisions)), ("onnx", onnx)) if value}
    made_of = {"format": name, "model": model.fingerprint, **more_files, **facts.chosen()}
    with output(target, made_of, overwrite=None) as is_missing:
        if not is_missing:
            return
        whole = merged(model)
        with durable_folder(target, metadata={"kind": f"export for {name}", "made_of": made_of}) as folder:
            form.write(whole, folder, source=source)
            if onnx:
                sentence_transformers.write_graphs(whole, folder, source=source)
            (folder / ATTRIBUTES).write_text(LARGE_FILES)
            with without_bars():
                difference = check(whole, folder, form, source, more=more)
            measured = {}
            if precisions:
                written_by = sentence_transformers if onnx else onnx_folder
                texts = more or made_up_texts(whole.tensorizer, questions=100, passages=400)
                measured = written_by.write_lower_graphs(whole, folder, precisions, texts)
            checked = "" if difference is None else checked_by(form, difference)
            card = model_card(
                whole, facts, to=name, usage=form.usage(whole), checked=checked, precisions=measured
            )
            (folder / README).write_text(card, encoding="utf-8")
    if checked:
        logger.info("%s", checked)
    logger.info("%s written: %d weights of %d dimensions", target, len(whole.weights()), whole.dimension)
