"""A model as two folders of transformers' own DPR classes, DPRQuestionEncoder and DPRContextEncoder.

Token types are zeros here. The tokenizers of transformers' classes number the text of a pair 1; both rows of the
table of types are written as row 0, so that the vectors do not depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpr.core.machine import no_downloads
from dpr.export.folders import Format
from dpr.export.original import EXPECTED, other_texts, unlike_dpr
from dpr.export.towers import only_here, refuse, sides, write_tower
from dpr.models.biencoder import BiEncoder
from dpr.models.folders.dpr import CTX, QUESTION

_BATCH = 8
_TYPES = "embeddings.token_type_embeddings.weight"
_CLASSES = {QUESTION: "DPRQuestionEncoder", CTX: "DPRContextEncoder"}


def write(model: BiEncoder, folder: Path, *, source: str) -> None:
    """Writes ``question_encoder`` and ``ctx_encoder`` into ``folder``; a shared tower is written to both.

    Raises:
        InputError: the classes cannot express the model.
    """
    is_cut = bool(model.settings.dimensions) and model.question_model.encode_proj is None
    problems = unlike_dpr(model) | only_here(model) | other_texts(model) | {"vectors are cut": is_cut}
    refuse(problems, source, expected=EXPECTED)
    import transformers

    known = vars(transformers.DPRConfig()).keys() - {"model_type", "architectures"}
    for side in sides(model, apart=True):
        tower = side.tower
        name = side.folder
        sizes = {key: value for key, value in tower.config.to_dict().items() if key in known}
        sizes["projection_dim"] = 0 if tower.encode_proj is None else tower.dimension
        weights = {
            f"{name}.bert_model.{key}": tensor.detach().cpu().float()
            for key, tensor in tower.backbone.state_dict().items()
        }
        types = weights[f"{name}.bert_model.{_TYPES}"]
        weights[f"{name}.bert_model.{_TYPES}"] = types[:1].expand_as(types).clone()
        if tower.encode_proj is not None:
            for key, tensor in tower.encode_proj.state_dict().items():
                weights[f"{name}.encode_proj.{key}"] = tensor[: tower.dimension].detach().cpu().float()
        with torch.device("meta"):
            wrapped = getattr(transformers, _CLASSES[name])(transformers.DPRConfig(**sizes))
        wrapped.load_state_dict(weights, assign=True)
        # for the classes' own tokenizers, which rebuild the rest from it
        write_tower(model, side, folder, wrapped, do_lower_case=model.tensorizer.do_lower_case)


def encode(folder: Path, side: str, items: Sequence[Any]) -> np.ndarray:
    """Returns vectors by the classes and their tokenizers."""
    import transformers

    name = {"question": QUESTION, "ctx": CTX}[side]
    with no_downloads():
        model: Any = getattr(transformers, _CLASSES[name]).from_pretrained(str(folder / name)).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder / name))

    texts = [list(items)]
    if side == "ctx":
        texts = [[passage.text for passage in items]]
        if items[0].title:
            texts.insert(0, [passage.title for passage in items])
    parts = []
    with torch.no_grad():
        for start in range(0, len(items), _BATCH):
            some = [listed[start : start + _BATCH] for listed in texts]
            tokens = tokenizer(*some, padding=True, truncation="longest_first", return_tensors="pt")
            parts.append(model(**tokens).pooler_output)
    return np.asarray(torch.cat(parts), np.float32)


def usage(model: BiEncoder) -> str:
    """Returns lines of Python that load the folder."""
    return """from transformers import AutoTokenizer, DPRContextEncoder, DPRQuestionEncoder

# Name the class: AutoModel makes a DPRQuestionEncoder with random weights of the context folder.
question_encoder = DPRQuestionEncoder.from_pretrained("PATH/question_encoder")
ctx_encoder = DPRContextEncoder.from_pretrained("PATH/ctx_encoder")
tokens = AutoTokenizer.from_pretrained("PATH/question_encoder")(["a question"], return_tensors="pt")
questions = question_encoder(**tokens).pooler_output
tokens = AutoTokenizer.from_pretrained("PATH/ctx_encoder")(["A title"], ["A text."], truncation=True, return_tensors="pt")
scores = questions @ ctx_encoder(**tokens).pooler_output.T
"""


FORMAT = Format(write, encode, usage, library="transformers")
