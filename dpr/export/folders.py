"""Folders for other libraries. Each is written, opened by that library, compared, and only then given its
name.

An exported model must give the same vectors there as here. A tower is written as the files of a Hugging Face
model: config, weights and tokenizer, as plain transformers loads them.
"""

from __future__ import annotations

import copy
import importlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dpr.core.errors import DprError, InputError, first_line
from dpr.core.logs import get_logger
from dpr.core.machine import version_of
from dpr.core.records import Passage
from dpr.core.version import __version__
from dpr.data.tensorizer import Tensorizer
from dpr.data.text import TYPOGRAPHIC_APOSTROPHE
from dpr.export.settings import MODEL_FORMATS
from dpr.formats import checkpoints
from dpr.models.backbones import quiet_loading
from dpr.models.biencoder import BiEncoder
from dpr.models.encoder import Encoder
from dpr.models.folders.hugging_face_dpr import CTX, QUESTION
from dpr.models.folders.peft_adapter import NAME, WEIGHTS
from dpr.models.pooling import IdfPooling, RootIdfPooling, is_user_defined
from dpr.models.properties import is_static
from dpr.storage.durable import durable_file, durable_folder
from dpr.storage.outputs import output

README = "README.md"
_TEMPLATE = """---
{{ card_data }}
---

# {{ metadata.name }}

A bi-encoder for dense retrieval: {{ towers }}. The score of a passage is the dot product of its vector and that of the question
{%- if settings.normalize %}, which have length 1 (cosine similarity){% endif %}.

| | |
|---|---|
| architecture | {{ architecture }} |
| vectors | {{ dimension }} dimensions; pooling: {{ settings.pooling }}
{%- if settings.projection_dim %}; projection to {{ settings.projection_dim }}{% endif %}
{%- if settings.projection_activation == "tanh" %} and its hyperbolic tangent{% endif %}
{%- if settings.dimensions %}; cut to the first {{ settings.dimensions }}{% endif %} |
| longest question | {{ question_length }} tokens |
| longest passage | {{ settings.sequence_length }} tokens, title included |
{%- for name, text in prompts.items() if text %}
| {{ name }} | `{{ text|replace("\\n", "\\\\n")|replace("|", "\\\\|")|replace("`", "'") }}` |
{%- endfor %}

## Use

PATH is this folder, or the name of the repository.

```python
{{ usage }}```
{%- if is_read_here %}

With the toolkit that made it:

```python
from dpr.core.records import Passage
from dpr.models.biencoder import BiEncoder

model = BiEncoder.load("PATH")
questions = model.encode_questions(["a question"])
passages = model.encode_passages([Passage("A text.", title="A title")])
scores = questions @ passages.T
```
{%- endif %}
{%- if metadata.validation %}

## Measured

By the validation of the training:

| metric | value |
|---|---:|
{%- for name, value in metadata.validation.items() %}
| {{ name }} | {{ "%.4f"|format(value) }} |
{%- endfor %}
{%- endif %}
{%- if checked %}

## Checked

This folder was {{ checked }}.
{%- endif %}

## Training

Trained and exported with dpr {{ version }}{% if metadata.seed is not none %}, seed {{ metadata.seed }}{% endif %}.
{%- if metadata.data %}

| data | fingerprint |
|---|---|
{%- for name, found in metadata.data.items() %}
{%- for each in found %}
| {{ name }} | `{{ each }}` |
{%- endfor %}
{%- endfor %}
{%- endif %}
"""


@dataclass(frozen=True, slots=True)
class CardMetadata:
    """Contents of a model card beyond the model itself; unknown values are left out of the card."""

    name: str
    base_model: str | None = None
    """Name of the model that training started from, if it is one of a hub and not a folder."""
    seed: int | None = None
    data: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Fingerprints of the data, by the role of the data."""
    validation: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the checkpoint's own validation."""


def model_card(model: BiEncoder, metadata: CardMetadata, *, to: str, usage: str, checked: str) -> str:
    """Returns README.md of a folder of the format ``to``.

    Args:
        usage: lines of Python that load it.
        checked: result of the check by the program it is for; empty if there was none.
    """
    from huggingface_hub import ModelCard, ModelCardData

    library = "transformers" if to == "hf-dpr" else to
    data = ModelCardData(
        base_model=metadata.base_model,
        library_name=library,
        pipeline_tag="sentence-similarity" if to == "sentence-transformers" else "feature-extraction",
        tags=["dense-retrieval", "bi-encoder", *([] if library == to and to != "onnx" else [to])],
    )

    settings = model.settings
    text = model.tensorizer.text
    config = model.ctx_model.config
    towers = "a tower for questions and one for passages"
    if settings.static_questions:
        towers = "a table of token vectors for questions and a tower for passages"
    elif settings.shared:
        towers = "one tower for questions and passages"
    millions = sum(tensor.numel() for tensor in model.weights().values()) / 1e6
    layers = getattr(config, "num_hidden_layers", 0)
    prompts = {"prompt of questions": text.query_prompt, "prompt of passages": text.passage_prompt}
    prompts |= {f"prompt {name}": prompt for name, prompt in sorted(text.prompts.items())}
    card = ModelCard.from_template(
        data,
        template_str=_TEMPLATE,
        metadata=metadata,
        settings=settings,
        towers=towers,
        architecture=f"{config.model_type}, {layers} layers, {millions:,.1f} million weights",
        dimension=model.dimension,
        question_length=model.tensorizer.question_length,
        prompts=prompts | {"title and text": text.title_template},
        usage=usage,
        is_read_here=to in ("sentence-transformers", "hf-dpr") and not weights_tokens(model),
        checked=checked,
        version=__version__,
    )
    return f"{card}\n"


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


class Difference(NamedTuple):
    """Largest difference of a number of a vector, in the format's units; the number of texts; and the version
    of the other library."""

    largest: float
    texts: int
    version: str


class Texts(NamedTuple):
    """Texts that both libraries encode."""

    questions: list[str]
    passages: list[Passage]


def edge_cases(tensorizer: Tensorizer) -> Texts:
    """Returns texts on which two libraries usually differ: none, one word, longer than the window, with and
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
    return Texts(texts, passages)


def check(model: BiEncoder, folder: Path, form: Format, name: str) -> Difference | None:
    """Encodes the ``edge_cases`` with the other library and here. Returns None, with a warning, if that
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
        largest = float("inf")
        row = 0
        if found.shape == expected.shape and np.isfinite(found).all():
            differences = np.abs(expected - found).max(1) / max(1.0, float(np.abs(expected).max()))
            row = int(differences.argmax())
            largest = float(differences[row])
        if largest > form.bar:
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


_SPECIAL = ("eos_token", "bos_token", "unk_token", "cls_token", "sep_token", "mask_token")


def refuse(
    problems: dict[str, bool],
    source: str,
    *,
    expected: str | None = None,
    hint: str = "to=onnx can say more, and to=model writes it for this toolkit",
) -> None:
    """Raises InputError with the reasons that apply."""
    if reasons := [reason for reason, holds in problems.items() if holds]:
        raise InputError(
            f"cannot be said in this format: {', and '.join(reasons)}",
            file=source,
            expected=expected,
            hint=hint,
        )


def only_here(model: BiEncoder) -> dict[str, bool]:
    """Returns the ways to make vectors that no other library knows, and whether the model has them."""
    settings = model.settings
    return {
        f"its pooling is the user-defined {settings.pooling}": is_user_defined(settings.pooling),
        "it reads the original's [SEP] at the end of the window": settings.dpr_trailing_sep,
    }


def weights_tokens(model: BiEncoder) -> bool:
    """True if weights of tokens, or their counts in a text, affect vectors in a way that the rows of a table
    cannot express."""
    pooling = model.ctx_model.pooling
    return isinstance(pooling, RootIdfPooling) or (
        isinstance(pooling, IdfPooling) and not is_static(model.ctx_model.backbone)
    )


def refuse_one_sided_apostrophes(model: BiEncoder, source: str) -> None:
    """Raises InputError if one tokenizer would have to change questions alone."""
    if not model.settings.plain_apostrophes:
        return
    mark = TYPOGRAPHIC_APOSTROPHE
    if model.settings.shared:
        first, second = model.tensorizer.bare_tokens([f"don{mark}t {mark}", "don't '"])
        # if this vocabulary does not distinguish the two, nothing is changed
        problem = "questions and passages have one tokenizer, which makes typographic apostrophes plain in questions alone"
        hint = "encoder.plain_apostrophes=false encoder.allow_other_prompts=true writes it without that rule"
        refuse({problem: first != second}, source, hint=hint)
    else:
        prompts = [model.settings.query_prompt, *model.settings.prompts.values()]
        problem = "its prompts have typographic apostrophes, and those of questions become plain"
        refuse({problem: mark in "".join(prompts)}, source)


class Side(NamedTuple):
    """A tower in its written form: its folder, and the rules of its tokenizer."""

    folder: str
    """Name of the folder; empty for the exported folder itself."""
    tower: Encoder
    longest: int
    """Length in tokens at which texts are cut."""
    plain_apostrophes: bool


def sides(model: BiEncoder, *, apart: bool = False) -> list[Side]:
    """Returns the towers; a shared one once, unless each side needs its own folder (``apart``)."""
    settings = model.settings
    if settings.shared and not apart:
        return [Side("", model.question_model, settings.sequence_length, plain_apostrophes=False)]
    question = Side(
        QUESTION, model.question_model, model.tensorizer.question_length, settings.plain_apostrophes
    )
    return [question, Side(CTX, model.ctx_model, settings.sequence_length, plain_apostrophes=False)]


def write_tower(
    model: BiEncoder, side: Side, target: Path, backbone: Any = None, **tokenizer_config: Any
) -> Any:
    """Writes config, weights and tokenizer of a side. Returns the backbone that was written, by default the
    side's as transformers knows it. A pooler, which some families have and no vector needs, is written as
    zeros; without one, transformers would make a random one and warn of it."""
    from transformers import AutoModel

    backbone = backbone or standard_backbone(side.tower, max(side.longest, model.settings.sequence_length))
    weights = {name: tensor.detach().cpu() for name, tensor in backbone.state_dict().items()}
    with suppress(
        ValueError, RuntimeError
    ):  # no Auto class has this family, or it cannot be made without memory
        with torch.device("meta"):
            whole = AutoModel.from_config(backbone.config)
        for name, tensor in whole.state_dict().items() if type(whole) is type(backbone) else ():
            if name not in weights and "pooler" in name:
                weights[name] = torch.zeros(tensor.shape)
    folder = target / side.folder
    folder.mkdir(parents=True, exist_ok=True)
    with quiet_loading():
        backbone.save_pretrained(str(folder), state_dict=weights)
    write_tokenizer(model.tensorizer, side, target, **tokenizer_config)
    return backbone


def standard_backbone(tower: Encoder, longest: int) -> Any:
    """Returns the backbone as a family that transformers knows.

    A static encoder becomes a GPT without layers. Its positions, ``longest`` of them, are zeros, so its
    states are the rows of its table. The weights of ``idf`` pooling become part of the rows.
    """
    from transformers import OpenAIGPTConfig, OpenAIGPTModel

    if not is_static(tower.backbone):
        return tower.backbone
    rows = static_rows(tower)
    config = OpenAIGPTConfig(
        vocab_size=len(rows),
        n_embd=rows.shape[1],
        n_positions=longest,
        n_layer=0,
        n_head=1,
        pad_token_id=tower.config.pad_token_id,
    )
    backbone = OpenAIGPTModel(config)
    backbone.load_state_dict(
        {"tokens_embed.weight": rows, "positions_embed.weight": torch.zeros(longest, rows.shape[1])}
    )
    return backbone.eval()


def standard_pooling(model: BiEncoder) -> str:
    """Returns the pooling over the states of ``standard_backbone``. If questions use a static embedding
    table, which has a mean, it is the pooling of passages."""
    return "mean" if model.settings.pooling == "idf" else model.settings.pooling


def static_rows(tower: Encoder) -> Tensor:
    """Returns the table (V, D) of a static encoder. The mean of its rows over the tokens of a text is the
    text's vector before the projection."""
    rows: Tensor = tower.backbone.get_input_embeddings().weight.detach().cpu().float()
    if isinstance(tower.pooling, IdfPooling):
        rows = rows * tower.pooling.token_weights.detach().cpu()[:, None]
    return rows


def write_tokenizer(
    tensorizer: Tensorizer, side: Side, target: Path, *, truncated: bool = False, **config: Any
) -> None:
    """Writes tokenizer.json and tokenizer_config.json of a side; ``config`` adds to the latter.

    The tokenizer class is the general one, which takes tokenizer.json as it is; the class of a family
    rebuilds parts of it. Token types are left out. ``truncated`` also writes the length into tokenizer.json,
    for libraries that read nothing else.
    """
    tokenizer = tensorizer.tokenizer
    folder = target / side.folder
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    state["padding"] = None
    state["truncation"] = None
    if side.plain_apostrophes:
        plain = {"type": "Replace", "pattern": {"String": TYPOGRAPHIC_APOSTROPHE}, "content": "'"}
        own = [state["normalizer"]] if state.get("normalizer") else []
        state["normalizer"] = {"type": "Sequence", "normalizers": [plain, *own]}
    if truncated:
        state["truncation"] = {
            "direction": tokenizer.truncation_side.capitalize(),
            "max_length": side.longest,
            "strategy": "LongestFirst",
            "stride": 0,
        }
    folder.mkdir(parents=True, exist_ok=True)
    checkpoints.write_json_file(folder, "tokenizer.json", state)
    special = {name: str(token) for name in _SPECIAL if (token := getattr(tokenizer, name)) is not None}
    filler = tokenizer.pad_token or next(iter(special.values()), None)
    if filler is None:
        raise InputError(
            "its tokenizer has no special token to fill batches up with",
            expected="a pad_token",
            file=folder.name,
        )
    stated = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": side.longest,
        "model_input_names": ["input_ids", "attention_mask"],
        "padding_side": "right",
        "truncation_side": tokenizer.truncation_side,
        "clean_up_tokenization_spaces": False,
        "pad_token": str(filler),
    }
    checkpoints.write_json_file(folder, "tokenizer_config.json", stated | special | config)


def merged(model: BiEncoder) -> BiEncoder:
    """Returns the model with each tower's adapter added to the weights of a backbone of its own; a model
    without adapters is returned as it is.

    Weights are added in fp32 or more, and stay so: in bf16 the sum would lose much of an adapter.
    """
    if model.base is None:
        return model
    towers = []
    for tower in model.towers:
        whole = copy.deepcopy(tower)
        whole.to(torch.promote_types(next(tower.parameters()).dtype, torch.float32))
        adapter = whole.adapter
        whole.adapter = None
        assert adapter is not None
        with torch.no_grad():
            for name, layer in adapter.layers.items():
                layer.merge(safe_merge=True, adapter_names=[adapter.name])
                whole.backbone.set_submodule(name, layer.get_base_layer())
        whole.requires_grad_(True)
        towers.append(whole)
    settings = replace(model.settings, adapter="none")
    merged_model = BiEncoder(towers[0], towers[-1], model.tensorizer, settings, model.options)
    merged_model.log_temperature = copy.deepcopy(model.log_temperature)
    return merged_model.train(model.training)


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
