"""A model as two folders of transformers' own DPR classes, DPRQuestionEncoder and DPRContextEncoder.

Token types are zeros here. The classes' tokenizers number the text of a pair 1; both rows of the table of types
are written as row 0, so that the vectors do not depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpr.core.machine import no_downloads
from dpr.core.records import Passage
from dpr.export.folders import Format, in_order
from dpr.export.tower_files import refuse, refuse_unknown_vectors, sides, write_tower
from dpr.models.biencoder import BiEncoder
from dpr.models.encoder import Encoder
from dpr.models.foreign_towers import CTX, QUESTION

_BATCH = 8
_TYPES = "embeddings.token_type_embeddings.weight"
_CLASSES = {QUESTION: "DPRQuestionEncoder", CTX: "DPRContextEncoder"}


def require_supported(model: BiEncoder, source: str) -> None:
    """InputError where the classes know no such model."""
    refuse_unknown_vectors(model, source)
    settings = model.settings
    kind = model.question_model.config.model_type
    problems = {
        f"its backbone is {kind}": kind != "bert",
        f"pooling is {settings.pooling}": settings.pooling != "cls",
        "its vectors are normalised": settings.normalize,
        "its projection has an activation": settings.projection_activation != "none",
        "it puts prompts before texts": model.tensorizer.text.has_prompts,
        "it joins title and text by a template": bool(settings.title_template),
        "vectors are cut": bool(settings.dimensions) and model.question_model.encode_proj is None,
    }
    expected = "BERT towers read at their first token, as DPR's were"
    refuse(problems, source, expected=expected, hint="to=sentence-transformers can say more")


def write(model: BiEncoder, folder: Path, *, source: str) -> None:
    """Fills ``folder`` with ``question_encoder`` and ``ctx_encoder``; a shared tower is written to both.

    Raises:
        InputError: the classes know no such model.
    """
    require_supported(model, source)
    for side in sides(model, apart=True):
        # for the classes' own tokenizers, which rebuild the rest from it
        lower = {"do_lower_case": model.tensorizer.do_lower_case}
        write_tower(model, side, folder, _wrapped(side.tower, side.folder, _CLASSES[side.folder]), **lower)


def _wrapped(tower: Encoder, name: str, class_name: str) -> Any:
    import transformers

    known = vars(transformers.DPRConfig()).keys()
    sizes = {
        key: value
        for key, value in tower.config.to_dict().items()
        if key in known and key not in ("model_type", "architectures")
    }
    config = transformers.DPRConfig(
        **sizes | {"projection_dim": 0 if tower.encode_proj is None else tower.dimension}
    )
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
        wrapped = getattr(transformers, class_name)(config)
    wrapped.load_state_dict(weights, assign=True)
    return wrapped


def encode(folder: Path, side: str, items: Sequence[Any]) -> np.ndarray:
    """Vectors by the classes and their tokenizers."""
    import transformers

    name = {"question": QUESTION, "ctx": CTX}[side]
    with no_downloads():
        model: Any = getattr(transformers, _CLASSES[name]).from_pretrained(str(folder / name)).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder / name))

    @torch.no_grad()
    def vectors(*texts: list[str]) -> np.ndarray:
        parts = []
        for start in range(0, len(texts[0]), _BATCH):
            some = [listed[start : start + _BATCH] for listed in texts]
            tokens = tokenizer(*some, padding=True, truncation="longest_first", return_tensors="pt")
            parts.append(model(**tokens).pooler_output)
        return np.asarray(torch.cat(parts), np.float32)

    def of_passages(passages: list[Passage]) -> np.ndarray:
        titles = [passage.title for passage in passages]
        texts = [passage.text for passage in passages]
        return vectors(titles, texts) if titles[0] else vectors(texts)

    return vectors(list(items)) if side == "question" else in_order(items, of_passages)


def usage(model: BiEncoder) -> str:
    """How it is loaded."""
    return """from transformers import AutoTokenizer, DPRContextEncoder, DPRQuestionEncoder

# Name the class: AutoModel makes a DPRQuestionEncoder with random weights of the context folder.
question_encoder = DPRQuestionEncoder.from_pretrained("PATH/question_encoder")
ctx_encoder = DPRContextEncoder.from_pretrained("PATH/ctx_encoder")
tokens = AutoTokenizer.from_pretrained("PATH/question_encoder")(["a question"], return_tensors="pt")
questions = question_encoder(**tokens).pooler_output
tokens = AutoTokenizer.from_pretrained("PATH/ctx_encoder")(["A title"], ["A text."], truncation=True, return_tensors="pt")
scores = questions @ ctx_encoder(**tokens).pooler_output.T
"""


FORMAT = Format(require_supported, write, encode, usage, library="transformers", install="transformers")
