"""ONNX: a model as a folder that onnxruntime and tokenizers serve, without torch. It has a graph and a
tokenizer for each side.

onnx/question_encoder.onnx   input_ids, attention_mask (batch, length) -> sentence_embedding (batch, D);
onnx/ctx_encoder.onnx        onnx/encoder.onnx if shared
question_tokenizer.json      with the length that it cuts to
ctx_tokenizer.json
serving.json                 the files of each side, and the text put around its texts
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpr.core.errors import InputError, first_line
from dpr.core.machine import require
from dpr.data.text import TYPOGRAPHIC_APOSTROPHE
from dpr.export.folders import Format
from dpr.formats.checkpoints import write_json_file
from dpr.models.biencoder import BiEncoder
from dpr.models.encoder import Encoder
from dpr.models.properties import pad_id
from dpr.storage.untrusted import inside, read_json

SERVING = "serving.json"
FORMAT_VERSION = 1
SIDES = ("question", "ctx")
_INPUTS = ("input_ids", "attention_mask")
_OUTPUT = "sentence_embedding"
_LARGEST_FILE = 1 << 30
"""Bytes of weights above which they go into a file beside the graph: a file of the format holds 2 GiB at most."""
_TEXTS_PER_CALL = 32


def write(model: BiEncoder, folder: Path, *, source: str) -> None:
    """Writes graphs, tokenizers and ``serving.json`` of a model without adapters into an existing folder.

    Raises:
        ConfigError: the packages of the extra ``onnx`` are not installed.
        InputError: a tower cannot be traced.
    """
    (folder / "onnx").mkdir()
    tensorizer = model.tensorizer
    text = model.tensorizer.text
    lengths = {"question": tensorizer.question_length, "ctx": tensorizer.sequence_length}
    serving: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "dimension": model.dimension,
        "similarity": model.similarity_fn_name,
        "pad_id": pad_id(model.question_model.config),
        "empty": tensorizer.empty_tokens,
    }
    for side in SIDES:
        graph = _graph(model, side)
        if not (folder / graph).exists():
            write_graph(model.tower(side), folder / graph, source=source)
        # as the package ``tokenizers`` reads it, which cuts texts and pairs
        backend = tensorizer.tokenizer.backend_tokenizer
        plain = type(backend).from_str(backend.to_str())
        plain.no_padding()
        direction = tensorizer.tokenizer.truncation_side
        plain.enable_truncation(lengths[side], strategy="longest_first", direction=direction)
        plain.save(str(folder / f"{side}_tokenizer.json"))
        serving[side] = {"graph": graph, "tokenizer": f"{side}_tokenizer.json"}
    # the text put around the texts of a side
    replaced = {TYPOGRAPHIC_APOSTROPHE: "'"} if text.plain_apostrophes else {}
    serving["question"] |= {"prompt": text.query_prompt, "prompts": dict(text.prompts), "replace": replaced}
    serving["ctx"] |= {"prompt": text.passage_prompt, "title_template": text.title_template}
    write_json_file(folder, SERVING, serving)


def _graph(model: BiEncoder, side: str) -> str:
    return "onnx/encoder.onnx" if model.question_model is model.ctx_model else f"onnx/{side}_encoder.onnx"


class _PaddedTower(nn.Module):
    def __init__(self, tower: Encoder) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.tower.of_padded(input_ids, attention_mask.bool())


def write_graph(tower: Encoder, file: Path, *, source: str) -> None:
    """Writes ``tower`` in fp32, with the inputs ``input_ids`` and ``attention_mask`` (batch, length) int64
    and the output ``sentence_embedding`` (batch, D).

    Pooling, projection, cut and normalisation are part of the graph, as is the token that the original DPR
    puts at the end of its window.

    Raises:
        ConfigError: the packages of the extra ``onnx`` are not installed.
        InputError: the backbone cannot be traced.
    """
    for package in ("onnx", "onnxscript"):
        require(package, extra="onnx", purpose="a graph of ONNX")
    module = _PaddedTower(copy.deepcopy(tower)).float().cpu().eval()
    tokens = torch.ones(2, 7, dtype=torch.int64)
    mask = torch.ones(2, 7, dtype=torch.int64)
    mask[1, 4:] = 0
    shape = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    size = sum(parameter.numel() * 4 for parameter in module.parameters())
    try:
        with torch.no_grad(), _quiet():
            program = torch.onnx.export(
                module,
                (tokens, mask),
                input_names=_INPUTS,
                output_names=[_OUTPUT],
                dynamic_shapes=dict.fromkeys(_INPUTS, shape),
                dynamo=True,
                verbose=False,
            )
            assert program is not None
            # the lines of code, with their paths on this machine, that the exporter notes beside every node
            program.model.metadata_props.clear()
            program.model.graph.metadata_props.clear()
            for node in program.model.graph.all_nodes():
                node.metadata_props.clear()
                for value in node.outputs:
                    value.metadata_props.clear()
            program.save(str(file), external_data=size > _LARGEST_FILE)
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        what = f"{source}: a {type(tower.backbone).__name__} with this pooling"
        raise InputError(f"{what} could not be traced ({first_line(error)})") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences the notes of exporters on their own progress inside the block."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def encode(folder: Path, side: str, items: Sequence[Any]) -> np.ndarray:
    """Returns vectors (N, D) float32 of questions (texts) or passages, by onnxruntime and tokenizers and the
    contents of the folder alone.

    Raises:
        ConfigError: these packages are not installed.
    """
    purpose = "checking a written graph"
    tokenizers = require("tokenizers", extra="onnx", purpose=purpose)
    onnxruntime = require("onnxruntime", extra="onnx", purpose=purpose)
    serving = read_json(folder / SERVING)
    part = serving[side]
    tokenizer = tokenizers.Tokenizer.from_file(str(inside(folder, part["tokenizer"], stated_in=SERVING)))
    prompt = part["prompt"]
    given: list[str | tuple[str, str]] = []
    for item in items:
        if isinstance(item, str):
            for old, new in part["replace"].items():
                item = item.replace(old, new)
            given.append(prompt + item)
            continue
        title = item.title
        text = item.text.strip()
        if not title:
            given.append(prompt + text)
        elif template := part["title_template"]:
            given.append(f"{prompt}{template.removesuffix('{text}').replace('{title}', title)}{text}")
        else:
            given.append((prompt + title, text))
    sequences = [encoding.ids or serving["empty"] for encoding in tokenizer.encode_batch(given)]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    graph = inside(folder, part["graph"], stated_in=SERVING)
    session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    parts = []
    for start in range(0, len(sequences), _TEXTS_PER_CALL):
        batch = sequences[start : start + _TEXTS_PER_CALL]
        input_ids = np.full((len(batch), max(map(len, batch))), serving["pad_id"], dtype=np.int64)
        mask = np.zeros_like(input_ids)
        for row, tokens in enumerate(batch):
            input_ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        parts.append(session.run([_OUTPUT], {"input_ids": input_ids, "attention_mask": mask})[0])
    return np.concatenate(parts)


def usage(model: BiEncoder) -> str:
    """Returns lines of Python that load the folder."""
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


FORMAT = Format(write, encode, usage, library="onnxruntime", bar=1e-4)
