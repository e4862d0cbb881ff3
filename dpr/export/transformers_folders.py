"""A model as folders that transformers loads.

``transformers``: for AutoModel and AutoTokenizer, which give states of tokens, not vectors. What makes a
vector of them stands in ``vectors.json``; the usage below does the same in a few lines.

``hf-dpr``: two folders of transformers' own DPR classes, DPRQuestionEncoder and DPRContextEncoder. Token types
are zeros here. The classes' tokenizers number the text of a pair 1; both rows of the table of types are
written as row 0, so that the vectors do not depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpr.core.machine import no_downloads
from dpr.core.records import Passage
from dpr.data.settings import TextSettings
from dpr.data.text import presented
from dpr.export.folders import Format, in_order, token_batches
from dpr.export.tower_files import (
    refuse,
    refuse_one_sided_apostrophes,
    refuse_token_weights,
    refuse_unknown_vectors,
    sides,
    standard_backbone,
    standard_pooling,
    write_tower,
)
from dpr.formats import checkpoints
from dpr.models.backbones import auto_class
from dpr.models.biencoder import BiEncoder
from dpr.models.encoder import Encoder
from dpr.models.foreign_towers import CTX, QUESTION
from dpr.storage.durable import read_json

VECTORS = "vectors.json"
_POOLED = {
    "cls": "states[:, 0]",
    "last": "states[range(len(states)), tokens.attention_mask.sum(1) - 1]",
    "mean": "(states * mask).sum(1) / mask.sum(1)",
    "max": "states.masked_fill(mask == 0, float('-inf')).amax(1)",
    "weighted_mean": "(states * mask.cumsum(1) * mask).sum(1) / (mask.cumsum(1) * mask).sum(1)",
}


def require_sayable(model: BiEncoder, source: str) -> None:
    """InputError where what decides its vectors cannot be said there."""
    refuse_unknown_vectors(model, source)
    refuse_token_weights(model, source)
    refuse_one_sided_apostrophes(model, source)
    has_projection = model.ctx_model.encode_proj is not None
    refuse(
        {"its questions go through a static table": model.settings.static_questions},
        source,
        hint="to=sentence-transformers can say it",
    )
    refuse({"AutoModel has no projection": has_projection}, source, hint="to=sentence-transformers writes it")


def write(model: BiEncoder, folder: Path, *, source: str) -> None:
    """Fills ``folder``: a shared tower directly, two towers as ``question_encoder`` and ``ctx_encoder``.

    Raises:
        InputError: what decides its vectors cannot be said there.
    """
    require_sayable(model, source)
    settings = model.settings
    for side in sides(model):
        write_tower(model, side, folder)
    stated = {
        "class": _class(model),
        "pooling": standard_pooling(model),
        "dimensions": model.dimension,
        "normalize": settings.normalize,
        "question_length": model.tensorizer.question_length,
        "sequence_length": settings.sequence_length,
        "query_prompt": settings.query_prompt,
        "passage_prompt": settings.passage_prompt,
        "prompts": settings.prompts,
        "title_template": settings.title_template,
    }
    checkpoints.write_json_file(folder, VECTORS, stated)


def _class(model: BiEncoder) -> str:
    """Of T5 and its like, ``AutoModel`` would load a decoder too."""
    backbone = standard_backbone(model.question_model, 1)
    return str(auto_class(backbone.config).__name__)


def encode(folder: Path, side: str, items: Sequence[Any]) -> np.ndarray:
    """Vectors by AutoModel, AutoTokenizer and what ``vectors.json`` says."""
    from transformers import AutoModel, AutoModelForTextEncoding, AutoTokenizer

    stated = read_json(folder / VECTORS)
    loads: Any = AutoModelForTextEncoding if stated["class"] == "AutoModelForTextEncoding" else AutoModel
    body = folder / {"question": QUESTION, "ctx": CTX}[side]
    with no_downloads():
        place = str(body if body.is_dir() else folder)
        model, tokenizer = loads.from_pretrained(place).eval(), AutoTokenizer.from_pretrained(place)
    length = stated["question_length" if side == "question" else "sequence_length"]
    text = TextSettings(passage_prompt=stated["passage_prompt"], title_template=stated["title_template"])

    @torch.no_grad()
    def vectors(*texts: list[str]) -> np.ndarray:
        parts = []
        for tokens in token_batches(tokenizer, texts, truncation=True, max_length=length):
            states = model(**tokens).last_hidden_state
            parts.append(
                pooled(states, tokens["attention_mask"], stated["pooling"])[:, : stated["dimensions"]]
            )
        stacked = torch.cat(parts)
        return np.asarray(
            torch.nn.functional.normalize(stacked, dim=-1) if stated["normalize"] else stacked, np.float32
        )

    def of_passages(passages: list[Passage]) -> np.ndarray:
        shown = [presented(passage, text) for passage in passages]
        titles, texts = [part.title for part in shown], [part.text for part in shown]
        return vectors(titles, texts) if titles[0] else vectors(texts)

    if side == "question":
        return vectors([stated["query_prompt"] + question for question in items])
    return in_order(items, of_passages)


def pooled(states: torch.Tensor, attention_mask: torch.Tensor, pooling: str) -> torch.Tensor:
    """States (N, L, H) pooled: (N, V); ``pooling`` by its name here, ``attention_mask`` (N, L) 1 at real
    tokens."""
    if pooling == "cls":
        return states[:, 0]
    if pooling == "last":
        return states[torch.arange(len(states)), attention_mask.sum(1) - 1]
    mask = attention_mask[..., None]
    if pooling == "max":
        return states.masked_fill(mask == 0, -torch.inf).amax(1)
    weights = mask.cumsum(1) * mask if pooling == "weighted_mean" else mask
    return (states * weights).sum(1) / weights.sum(1)


def usage(model: BiEncoder) -> str:
    """How it is loaded."""
    settings = model.settings
    of_question, of_passage = ("PATH", "PATH") if settings.shared else (f"PATH/{QUESTION}", f"PATH/{CTX}")
    title, text = repr(f"{settings.passage_prompt}A title"), '"A text."'
    if settings.title_template:
        title, text = (
            repr(settings.passage_prompt + settings.title_template.format(title="A title", text="A text.")),
            "",
        )
    scaled = "torch.nn.functional.normalize(vectors, dim=-1)" if settings.normalize else "vectors"
    loads = _class(model)
    return f"""import torch
from transformers import {loads}, AutoTokenizer


def encode(folder, length, texts, *titled):
    tokenizer, model = AutoTokenizer.from_pretrained(folder), {loads}.from_pretrained(folder).eval()
    tokens = tokenizer(texts, *titled, padding=True, truncation=True, max_length=length, return_tensors="pt")
    with torch.no_grad():
        states = model(**tokens).last_hidden_state
    mask = tokens.attention_mask[..., None]
    vectors = {_POOLED[standard_pooling(model)]}
    vectors = vectors[:, :{model.dimension}]
    return {scaled}


questions = encode("{of_question}", {model.tensorizer.question_length}, [{settings.query_prompt + "a question"!r}])
passages = encode("{of_passage}", {settings.sequence_length}, [{title}]{f", [{text}]" if text else ""})
scores = questions @ passages.T
"""


FORMAT = Format(require_sayable, write, encode, usage, library="transformers", install="transformers")


_TYPES = "embeddings.token_type_embeddings.weight"
_CLASSES = {QUESTION: "DPRQuestionEncoder", CTX: "DPRContextEncoder"}


def require_dpr(model: BiEncoder, source: str) -> None:
    """InputError where the classes know no such model."""
    refuse_unknown_vectors(model, source)
    settings, kind = model.settings, model.question_model.config.model_type
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


def write_dpr(model: BiEncoder, folder: Path, *, source: str) -> None:
    """Fills ``folder`` with ``question_encoder`` and ``ctx_encoder``; a shared tower is written to both.

    Raises:
        InputError: the classes know no such model.
    """
    require_dpr(model, source)
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


def encode_dpr(folder: Path, side: str, items: Sequence[Any]) -> np.ndarray:
    """Vectors by the classes and their tokenizers."""
    import transformers

    name = {"question": QUESTION, "ctx": CTX}[side]
    with no_downloads():
        model: Any = getattr(transformers, _CLASSES[name]).from_pretrained(str(folder / name)).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder / name))

    @torch.no_grad()
    def vectors(*texts: list[str]) -> np.ndarray:
        parts = [
            model(**tokens).pooler_output
            for tokens in token_batches(tokenizer, texts, truncation="longest_first")
        ]
        return np.asarray(torch.cat(parts), np.float32)

    def of_passages(passages: list[Passage]) -> np.ndarray:
        titles, texts = [passage.title for passage in passages], [passage.text for passage in passages]
        return vectors(titles, texts) if titles[0] else vectors(texts)

    return vectors(list(items)) if side == "question" else in_order(items, of_passages)


def usage_dpr(model: BiEncoder) -> str:
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


DPR_FORMAT = Format(
    require_dpr, write_dpr, encode_dpr, usage_dpr, library="transformers", install="transformers"
)
