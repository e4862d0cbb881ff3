"""Programs that serve folders of sentence-transformers, as rules: what each reads of a folder, and the vectors that follow from that.

Rules were read in the programs' sources on 2026-11-24: text-embeddings-inference, ``router/src/lib.rs`` and ``backends/candle``; vLLM,
``transformers_utils/config.py`` and its registry of embedding models; transformers.js 4.3.1, ``pipelines/feature-extraction.js``. The
programs themselves are not run: states are those of transformers or onnxruntime, pooled, projected and scaled as a program would do it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from dpr.core.errors import InputError
from dpr.core.offline import no_downloads
from dpr.export.checking import Checked, Texts, compared, nasty_texts, token_batches
from dpr.export.onnx_graph import STATES, GraphEncoder
from dpr.export.sentence_transformers import GRAPH
from dpr.export.transformers_folders import pooled
from dpr.models.backbones import auto_class
from dpr.models.biencoder import BiEncoder
from dpr.models.foreign_towers import CTX, QUESTION
from dpr.models.pretrained import CONFIG
from dpr.models.sentence_modules import dense_layer
from dpr.models.sentence_transformers import DENSE, MODULES, NORMALIZE, POOLING, type_of
from dpr.storage.durable import read_json
from dpr.storage.inside import inside

TOKENIZER, LENGTHS, LIBRARY = "tokenizer.json", "sentence_bert_config.json", "config_sentence_transformers.json"
_TEI_TYPES = (
    "bert camembert deberta-v2 distilbert gemma3_text gte new mpnet mistral modernbert nomic_bert qwen2 qwen3 roberta xlm-roberta"
).split()
_VLLM_CLASSES = (
    "BertModel Gemma2Model Gemma3TextModel GteModel LlamaModel MistralModel ModernBertModel NomicBertModel Qwen2Model Qwen3Model "
    "RobertaModel XLMRobertaModel"
).split()
_KEYS = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_lasttoken": "last"}


class Recipe(NamedTuple):
    """How a program makes vectors of a folder."""

    pooling: str
    """By the names of this toolkit."""
    longest: int
    dense: tuple[Path, ...] = ()
    normalize: bool = False


def text_embeddings_inference(folder: Path) -> Recipe:
    """The recipe of text-embeddings-inference. InputError says why it cannot serve the folder."""
    config = _object(folder / CONFIG, architectures=list, model_type=str)
    if not isinstance(config.get("max_position_embeddings", config.get("n_positions")), int):
        raise InputError("states no max_position_embeddings", file=folder / CONFIG)
    if any(str(name).endswith("Classification") for name in config["architectures"]):
        raise InputError("architectures name a classifier", file=folder / CONFIG)
    if config["model_type"] not in _TEI_TYPES:
        raise InputError(f"model_type is {config['model_type']}", file=folder / CONFIG, expected=f"one of {', '.join(_TEI_TYPES)}")
    _object(folder / "1_Pooling" / CONFIG, pooling_mode_cls_token=bool, pooling_mode_mean_tokens=bool)
    return _recipe(folder, folder / "1_Pooling" / CONFIG, "cls", "mean", "last")


def vllm(folder: Path) -> Recipe:
    """The recipe of vLLM. InputError says why it cannot serve the folder."""
    classes = _object(folder / CONFIG).get("architectures") or [None]
    if classes[0] not in _VLLM_CLASSES:
        raise InputError(f"architectures begins with {classes[0]}", file=folder / CONFIG, expected=f"one of {', '.join(_VLLM_CLASSES)}")
    if not (poolings := _places(folder, POOLING)):
        raise InputError(f"lists no {type_of(POOLING)}", file=folder / MODULES)
    return _recipe(folder, poolings[0] / CONFIG, "cls", "mean", "last")


def transformers_js(folder: Path) -> Recipe:
    """The recipe of transformers.js, which is told pooling and scaling; its last token is the last place of a padded batch. InputError says
    why it cannot serve the folder."""
    _object(folder / CONFIG)
    _require(folder / GRAPH, folder / "tokenizer_config.json")
    if _places(folder, DENSE):
        raise InputError("lists a Dense, which it does not read", file=folder / MODULES)
    return _recipe(folder, folder / "1_Pooling" / CONFIG, "cls", "mean")


SERVERS: dict[str, tuple[Callable[[Path], Recipe], str]] = {
    "text-embeddings-inference": (text_embeddings_inference, f"{CONFIG}, {TOKENIZER}, model.safetensors, 1_Pooling, {LENGTHS}, {MODULES}"),
    "vLLM": (vllm, f"{CONFIG}, {TOKENIZER}, model.safetensors, {MODULES}, 1_Pooling, {LENGTHS}"),
    "transformers.js": (transformers_js, f"{CONFIG}, {TOKENIZER}, {GRAPH}"),
}


def check_servers(model: BiEncoder, folder: Path) -> list[Checked]:
    """What each program makes of a folder that ``to=sentence-transformers`` wrote of ``model``: of passages without title, as they take one
    text. transformers.js is asked where there is a graph."""
    found, all_texts = [], nasty_texts(model.tensorizer)
    texts = Texts(all_texts.questions, [passage for passage in all_texts.passages if not passage.title])
    text = model.tensorizer.text
    given = (
        [model.tensorizer.question_text(question) for question in texts.questions],
        [text.passage_prompt + passage.text.strip() for passage in texts.passages],
    )
    expected = (model.encode_questions(texts.questions), model.encode_passages(texts.passages))
    has_graph = any(folder.rglob(GRAPH))
    for name, (rules, reads) in SERVERS.items():
        if name == "transformers.js" and not has_graph:
            continue
        try:
            recipe = rules(folder)
            graph = folder / GRAPH if name == "transformers.js" else None
            fits = [_fits(model, side, recipe.longest if graph else None) for side in given]
            vectors = [encode(folder, recipe, [side[row] for row in rows], graph) for side, rows in zip(given, fits, strict=True)]
        except InputError as error:
            where = Path(str(error.file)).relative_to(folder) if error.file else ""
            found.append(Checked(name, reads, "its rules", None, refusal=f"{where}: {error.found}"))
        else:
            by = "its rules, texts that fit: it cuts the token at the end of others" if graph else "its rules"
            difference = compared((vectors[0], vectors[1]), (expected[0][fits[0]], expected[1][fits[1]]))
            found.append(Checked(name, reads, by, difference))
    return found


def _fits(model: BiEncoder, texts: Sequence[str], longest: int | None) -> list[int]:
    """The rows of the texts of at most ``longest`` tokens; None: all."""
    lengths = [len(tokens) for tokens in model.tensorizer.tokenizer(list(texts), verbose=False)["input_ids"]]
    return [row for row, length in enumerate(lengths) if longest is None or length <= longest]


@torch.no_grad()
def encode(folder: Path, recipe: Recipe, texts: Sequence[str], graph: Path | None = None) -> np.ndarray:
    """Vectors (N, D) float32 of texts with their prompts, as the recipe says, of the states of transformers or of a ``graph``."""
    from transformers import AutoConfig, PreTrainedTokenizerFast

    pad = _object(folder / "tokenizer_config.json").get("pad_token")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / TOKENIZER), pad_token=pad, model_input_names=["input_ids", "attention_mask"]
    )
    with no_downloads():
        config: Any = AutoConfig.from_pretrained(str(folder))
        body: Any = (
            auto_class(config).from_pretrained(str(folder)).eval() if graph is None else GraphEncoder(graph, pad_id=0, output=STATES)
        )
    parts = []
    for tokens in token_batches(tokenizer, [list(texts)], truncation=True, max_length=recipe.longest):
        mask = tokens["attention_mask"]
        if graph is None:
            states = body(**tokens).last_hidden_state
        else:
            states = torch.from_numpy(body.run(tokens["input_ids"].numpy(), mask.numpy()))
        parts.append(pooled(states, mask, recipe.pooling))
    vectors = torch.cat(parts)
    for place in recipe.dense:
        weight, bias, activation = dense_layer(place)
        vectors = vectors @ weight.float().T + bias.float()
        vectors = vectors.tanh() if activation == "tanh" else vectors
    return np.asarray(torch.nn.functional.normalize(vectors, dim=-1) if recipe.normalize else vectors, np.float32)


def _recipe(folder: Path, pooling: Path, *known: str) -> Recipe:
    """What the programs read alike: one pooling of those that are ``known``, the length, linear layers, scaling; and what none of them
    reads. Of several poolings they would take one, of others none or another."""
    _require(folder / TOKENIZER, folder / "model.safetensors")
    stated, lengths, library = _object(pooling), _object(folder / LENGTHS, max_seq_length=int), _object(folder / LIBRARY)
    chosen = [key for key, value in stated.items() if key.startswith("pooling_mode_") and value is True]
    name = _KEYS.get(chosen[0]) if len(chosen) == 1 else None
    if name is None or name not in known:
        found = f"chooses {', '.join(chosen)}" if chosen else f"chooses no pooling_mode_*, but {stated.get('pooling_mode')}"
        raise InputError(found, file=pooling, expected=f"one of {', '.join(known)}")
    if stated.get("include_prompt") is False and any((library.get("prompts") or {}).values()):
        raise InputError("include_prompt is false, which it does not read", file=pooling)
    if (length := lengths.get("query_length") or lengths["max_seq_length"]) != lengths["max_seq_length"]:
        raise InputError(
            f"query_length is {length}, which it does not read", file=folder / LENGTHS, expected=str(lengths["max_seq_length"])
        )
    if width := library.get("truncate_dim"):
        raise InputError(f"truncate_dim is not read; ask for dimensions={width}", file=folder / LIBRARY)
    types = [str(module.get("type")) for module in read_json(folder / MODULES)]
    if others := [each for each in types if each.rpartition(".")[2] not in ("Transformer", POOLING, DENSE, NORMALIZE)]:
        raise InputError(f"lists {others[0]}, which it does not read", file=folder / MODULES)
    return Recipe(name, lengths["max_seq_length"], tuple(_places(folder, DENSE)), bool(_places(folder, NORMALIZE)))


def _places(folder: Path, kind: str) -> list[Path]:
    """The folders of the modules of a kind, by the name that all versions of the library know."""
    return [
        inside(folder, module.get("path"), stated_in=MODULES)
        for module in read_json(folder / MODULES)
        if module.get("type") == type_of(kind)
    ]


def _require(*files: Path) -> None:
    for file in files:
        if not file.is_file():
            towers = [name for name in (QUESTION, CTX) if (file.parent / name / CONFIG).is_file()]
            apart = f"; serve {' and '.join(towers)} apart, each with its pooling" if towers else ""
            raise InputError(f"there is no such file{apart}", file=file)


def _object(file: Path, **kinds: type) -> dict[str, Any]:
    """The object in a file, which has fields of these kinds."""
    _require(file)
    stated = read_json(file)
    for name, kind in kinds.items():
        if not isinstance(stated.get(name), kind):
            raise InputError(f"states no {name}", file=file)
    return dict(stated)
