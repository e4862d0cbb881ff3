"""A model as a folder that onnxruntime and tokenizers serve, without torch: a graph and a tokenizer for each
side.

onnx/question_encoder.onnx   input_ids, attention_mask (batch, length) -> sentence_embedding (batch, D);
onnx/encoder.onnx if shared onnx/ctx_encoder.onnx        further files of the same names end in _fp16 and
_int8 question_tokenizer.json      with the length that it cuts to ctx_tokenizer.json serving.json
which file is which side's, and what is put around texts
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.lazy import require
from dpr.core.logs import get_logger
from dpr.core.records import Passage
from dpr.data.settings import TextSettings
from dpr.data.text import TYPOGRAPHIC_APOSTROPHE
from dpr.export.checking import Format, Texts
from dpr.export.onnx_graph import EXTRA, GraphEncoder, tokenizer_for_serving, write_graph, write_precisions
from dpr.formats.checkpoints import write_json_file
from dpr.models.biencoder import BiEncoder
from dpr.models.trials import pad_id
from dpr.storage.durable import read_json
from dpr.storage.inside import inside

logger = get_logger(__name__)

SERVING = "serving.json"
FORMAT_VERSION = 1
SIDES = ("question", "ctx")


def require_sayable(model: BiEncoder, source: str) -> None:
    """Nothing: whether towers can be traced shows when they are."""


def write(model: BiEncoder, folder: Path, *, source: str) -> None:
    """Writes graphs, tokenizers and ``serving.json`` of a model without adapters into an existing folder.

    Raises:
        ConfigError: the packages of the extra ``onnx`` are not installed.
        InputError: a tower cannot be traced.
    """
    (folder / "onnx").mkdir()
    tensorizer, text = model.tensorizer, model.tensorizer.text
    lengths = {"question": tensorizer.question_length, "ctx": tensorizer.sequence_length}
    serving: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "dimension": model.dimension,
        "similarity": model.similarity,
        "pad_id": pad_id(model.question_model.config),
        "empty": tensorizer.empty_tokens,
    }
    for side in SIDES:
        graph = _graph(model, side)
        if not (folder / graph).exists():
            write_graph(model.tower(side), folder / graph, source=source)
        tokenizer = f"{side}_tokenizer.json"
        tokenizer_for_serving(tensorizer, lengths[side]).save(str(folder / tokenizer))
        serving[side] = {"graph": graph, "tokenizer": tokenizer, **_around(text, side)}
    write_json_file(folder, SERVING, serving)


def _graph(model: BiEncoder, side: str) -> str:
    return "onnx/encoder.onnx" if model.question_model is model.ctx_model else f"onnx/{side}_encoder.onnx"


def _around(text: TextSettings, side: str) -> dict[str, Any]:
    """What is put around the texts of a side."""
    if side == "ctx":
        return {"prompt": text.passage_prompt, "title_template": text.title_template}
    replaced = {TYPOGRAPHIC_APOSTROPHE: "'"} if text.plain_apostrophes else {}
    return {"prompt": text.query_prompt, "prompts": dict(text.prompts), "replace": replaced}


def encode(folder: Path, side: str, items: Sequence[Any], *, precision: str = "fp32") -> np.ndarray:
    """Vectors (N, D) float32 of questions (texts) or passages, by onnxruntime and tokenizers and what the
    folder says alone.

    Raises:
        ConfigError: these packages are not installed.
    """
    serving = read_json(folder / SERVING)
    part = serving[side]
    tokenizer = require("tokenizers", extra=EXTRA, purpose="checking a written graph").Tokenizer.from_file(
        str(inside(folder, part["tokenizer"], stated_in=SERVING))
    )
    given = [_question(text, part) if isinstance(text, str) else _passage(text, part) for text in items]
    sequences = [encoding.ids or serving["empty"] for encoding in tokenizer.encode_batch(given)]
    return GraphEncoder(
        _of_precision(inside(folder, part["graph"], stated_in=SERVING), precision), pad_id=serving["pad_id"]
    ).encode(sequences)


def _question(text: str, part: dict[str, Any]) -> str:
    for old, new in part["replace"].items():
        text = text.replace(old, new)
    return str(part["prompt"] + text)


def _passage(passage: Passage, part: dict[str, Any]) -> str | tuple[str, str]:
    title, text, prompt = passage.title, passage.text.strip(), part["prompt"]
    if not title:
        return str(prompt + text)
    if template := part["title_template"]:
        return f"{prompt}{template.removesuffix('{text}').replace('{title}', title)}{text}"
    return prompt + title, text


def _of_precision(graph: Path, precision: str) -> Path:
    return graph if precision == "fp32" else graph.with_name(f"{graph.stem}_{precision}.onnx")


def write_lower_graphs(
    model: BiEncoder, folder: Path, precisions: Sequence[str], texts: Texts
) -> dict[str, dict[str, float]]:
    """As ``write_precisions``, into ``serving.json`` too."""
    serving = read_json(folder / SERVING)

    def vectors(precision: str) -> tuple[np.ndarray, np.ndarray]:
        questions, passages = (
            encode(folder, *of, precision=precision)
            for of in (("question", texts.questions), ("ctx", texts.passages))
        )
        return questions, passages

    graphs = [folder / graph for graph in dict.fromkeys(serving[side]["graph"] for side in SIDES)]
    measured = write_precisions(graphs, precisions, _of_precision, vectors)
    write_json_file(folder, SERVING, serving | {"precisions": measured})
    return measured


def usage(model: BiEncoder) -> str:
    """How it is loaded."""
    text = model.tensorizer.text
    graphs = [f"PATH/{_graph(model, side)}" for side in SIDES]
    if text.title_template:
        passage = repr(text.passage_prompt + text.title_template.format(title="A title", text="A text."))
    else:
        passage = f'({text.passage_prompt + "A title"!r}, "A text.")'
    return f"""import numpy as np
import onnxruntime
from tokenizers import Tokenizer


def encode(graph, tokenizer, text):
    tokens = np.array([Tokenizer.from_file(tokenizer).encode(*(text if isinstance(text, tuple) else (text,))).ids])
    return onnxruntime.InferenceSession(graph).run(None, {{"input_ids": tokens, "attention_mask": np.ones_like(tokens)}})[0]


question = encode("{graphs[0]}", "PATH/question_tokenizer.json", {text.query_prompt + "a question"!r})
passage = encode("{graphs[1]}", "PATH/ctx_tokenizer.json", {passage})
score = question @ passage.T
"""


FORMAT = Format(require_sayable, write, encode, usage, library="onnxruntime", install="onnxruntime", bar=1e-4)
