"""The question tower as Pyserini's ``AutoQueryEncoder`` loads it, for an index of its layout
(docs/interop.md).

Passages are encoded here: its document encoders join titles and texts otherwise, and know of no passage
without a title.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.offline import no_downloads
from dpr.data.text import TYPOGRAPHIC_APOSTROPHE
from dpr.export.checking import Format
from dpr.export.tower_files import (
    refuse,
    refuse_token_weights,
    refuse_unknown_vectors,
    sides,
    standard_backbone,
    standard_pooling,
    write_tower,
)
from dpr.formats.checkpoints import write_json_file
from dpr.models.biencoder import BiEncoder
from dpr.storage.durable import read_json

ARGUMENTS = "pyserini.json"


def require_sayable(model: BiEncoder, source: str) -> None:
    """InputError where Pyserini's encoder cannot give the model's vectors of questions."""
    refuse_unknown_vectors(model, source)
    refuse_token_weights(model, source)
    settings, prompt = model.settings, model.tensorizer.text.query_prompt
    problems = {
        f"its pooling is {settings.pooling}": standard_pooling(model) not in ("cls", "mean"),
        "it has a projection": bool(settings.projection_dim),
        "its questions go through a static table": settings.static_questions,
        f"its vectors are cut to {settings.dimensions} dimensions": bool(settings.dimensions),
        f"the prompt of questions ({prompt!r}) does not end in a space, which Pyserini puts behind it": bool(
            prompt
        )
        and not prompt.endswith(" "),
        "its prompt has typographic apostrophes, and those of questions become plain": TYPOGRAPHIC_APOSTROPHE
        in prompt
        and settings.plain_apostrophes,
    }
    refuse(
        problems,
        source,
        hint="search with vectors of questions, from BiEncoder.encode_questions, or with dpr retrieve",
    )


def write(model: BiEncoder, folder: Path, *, source: str) -> None:
    """Fills ``folder``.

    Raises:
        InputError: Pyserini's encoder cannot give the model's vectors of questions.
    """
    require_sayable(model, source)
    side = sides(model, apart=True)[0]
    write_tower(model, side._replace(folder=""), folder, standard_backbone(side.tower, side.longest))
    write_json_file(folder, ARGUMENTS, _arguments(model))


def _arguments(model: BiEncoder) -> dict[str, Any]:
    """Those of ``AutoQueryEncoder``; it puts a space behind the prefix."""
    prompt = model.tensorizer.text.query_prompt
    return {
        "pooling": standard_pooling(model),
        "l2_norm": model.settings.normalize,
        "prefix": prompt.removesuffix(" ") or None,
    }


def encode(folder: Path, side: str, items: Sequence[Any]) -> np.ndarray:
    """Vectors of questions by transformers, one at a time, in the steps of Pyserini's
    ``AutoQueryEncoder``."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    stated = read_json(folder / ARGUMENTS)
    with no_downloads():
        model, tokenizer = AutoModel.from_pretrained(str(folder)), AutoTokenizer.from_pretrained(str(folder))
    vectors = []
    for question in items:
        text = f"{stated['prefix']} {question}" if stated["prefix"] else question
        tokens = tokenizer(
            text,
            add_special_tokens=True,
            return_tensors="pt",
            truncation="only_first",
            return_token_type_ids=False,
        )
        with torch.no_grad():
            states = model(**tokens)[0]
        vectors.append(states.mean(1)[0] if stated["pooling"] == "mean" else states[0, 0])
    stacked = torch.stack(vectors)
    return np.asarray(
        torch.nn.functional.normalize(stacked, dim=-1) if stated["l2_norm"] else stacked, np.float32
    )


def usage(model: BiEncoder) -> str:
    """How it is loaded."""
    stated = _arguments(model)
    prefix = f", prefix={stated['prefix']!r}" if stated["prefix"] else ""
    return f"""from pyserini.encode import AutoQueryEncoder
from pyserini.search.faiss import FaissSearcher

encoder = AutoQueryEncoder("PATH", pooling={stated["pooling"]!r}, l2_norm={stated["l2_norm"]}{prefix})
searcher = FaissSearcher("INDEX", encoder)  # INDEX is a folder with index and docid (docs/interop.md)
hits = searcher.search("a question", k=10)
"""


FORMAT = Format(
    require_sayable, write, encode, usage, library="transformers", install="transformers", sides=("question",)
)
