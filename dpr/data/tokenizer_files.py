"""The tokenizer of a model folder. Its files are checked before libraries read them: some damage makes these
panic or exhaust memory, and they follow any link or name. Loaded tokenizers can get DPR's special tokens in
unused slots of the vocabulary, or an end token after every text."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.errors import ConfigError, InputError, first_line
from dpr.core.machine import panics_caught, reading
from dpr.core.settings import listed
from dpr.formats.model_folder import CONFIG, look
from dpr.storage.untrusted import describe, inside

TOKENIZER = "tokenizer.json"
_OBJECTS = (
    TOKENIZER,
    CONFIG,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
)
_MAX_ID = 1 << 24
_UNUSUAL = "\ue000 \u4e00"  # characters that few vocabularies have
# Patterns of settings that count parts, and the largest value allowed; a config of 100 bytes could ask for
# all memory.
_MOST = {
    r"(.*_)?(layers?|blocks|depth)": 1000,
    r"num_labels|(.*_)?num_experts|n_routed_experts": 10_000,
    r".*": 1 << 31,
}
_NODES_AT_ONCE = 4096
_LONGEST_TEXT = 1 << 14
_GROWTH = {"BertNormalizer": 3, "Metaspace": 2, "ByteLevel": 4}
_GROWTH_OF_FORMS = {"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18, "Lowercase": 3}
"""Characters made of a letter that an earlier step writes. Hardly any letter of a text becomes longer."""
_MOST_GROWTH = 1000
"""Maximum number of characters that a tokenizer's steps may make from one. A table of SentencePiece makes up
to 18, and steps that put spaces around punctuation 12 each."""


def check_tokenizer_files(folder: str | os.PathLike[str]) -> None:
    """Raises InputError as ``look`` does, and for files that are not JSON objects, an unknown kind of
    vocabulary, names of files elsewhere, and tables that point outside themselves."""
    found = look(folder)
    names = [*_OBJECTS]
    for name in names:  # the list grows in the loop
        if not found.has(name):
            continue
        file = found.path / name
        state = found.settings(name)
        if name == CONFIG:
            check_numbers(state, file)  # the tokenizer's loader makes a config too
        if name == "special_tokens_map.json":
            for key in state:  # the tokenizer takes them for its own arguments
                if key.endswith("_file"):
                    raise InputError(
                        f"{key} is {describe(state[key])}", file=file, expected="no path of another file"
                    )
        for other in listed(state.get("fast_tokenizer_files")):
            inside(found.path, other, stated_in=name)
            names.append(other)
        if name not in _OBJECTS[1:] and (fault := _fault(state)):
            raise InputError(fault, file=file, hint="copy the tokenizer's files again")


def check_numbers(values: Any, file: str | Path) -> None:
    """Raises InputError for numbers of a config that would exhaust memory when a model is made, and for a
    config that is not an object."""
    if not isinstance(values, dict):
        raise InputError(f"is {describe(values)}", file=file, expected="an object")
    parts = [values]
    for part in parts:  # the list grows in the loop; a config may be nested as deep as Python can read
        parts += [value for value in part.values() if isinstance(value, dict)]
        for name, value in part.items():
            most = next(most for pattern, most in _MOST.items() if re.fullmatch(pattern, name))
            if isinstance(value, int) and abs(value) > most:
                raise InputError(f"{name} is {describe(value)}", file=file, expected=f"at most {most}")


def _fault(state: dict[str, Any]) -> str | None:
    model = state.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        is_sound = all(type(number) is int and 0 <= number < _MAX_ID for number in vocabulary.values())
    else:
        is_sound = isinstance(vocabulary, list) and all(
            isinstance(entry, list) and len(entry) == 2 for entry in vocabulary
        )
    if not is_sound:
        return "its model has no vocabulary of tokens and their numbers"
    growth = _growth([*steps_of(state.get("normalizer")), *steps_of(state.get("pre_tokenizer"))])
    if not growth:
        return "the precompiled_charsmap of its normalizer is damaged"
    if growth > _MOST_GROWTH:
        return f"its steps can make {growth:,.0f} characters of one (at most {_MOST_GROWTH})"
    names = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "added_tokens")
    steps = [state.get(name) for name in names]
    for step in steps:  # the list grows in the loop
        if isinstance(step, str) and len(step) > _LONGEST_TEXT:
            return f"it holds a text of more than {_LONGEST_TEXT:,} characters beside its vocabulary"
        if isinstance(step, list):
            steps += step
        elif isinstance(step, dict):
            steps += [value for key, value in step.items() if key != "precompiled_charsmap"]
    return None


def steps_of(part: Any) -> list[dict[str, Any]]:
    """Returns the normalizers, or pre-tokenizers, that texts pass one after the other."""
    if not isinstance(part, dict):
        return []
    if part.get("type", "Sequence") != "Sequence":
        return [part]
    inner = [*listed(part.get("normalizers")), *listed(part.get("pretokenizers"))]
    return [step for each in inner for step in steps_of(each)]


def lower_cases(tokenizer: Any) -> bool:
    """True if texts are lower-cased before they are looked up in the vocabulary."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    steps = steps_of(state.get("normalizer"))
    return any(bool(step.get("lowercase")) or step.get("type") == "Lowercase" for step in steps)


def _growth(steps: Sequence[dict[str, Any]]) -> float:
    """Returns an upper bound of the characters that steps, applied in order, make from one; 0 if a table is
    damaged.

    From the last step to the first, every character has a bound: the characters that the later steps make
    from it. The output of a step is divided among the characters that it replaces.
    """
    texts = [str(step.get("content", step.get("prepend", ""))) for step in steps]
    growing = [len(unicodedata.normalize("NFKD", text.lower())) > len(text) for text in texts]
    bounds = {"": 1.0}  # this one is that of all other characters
    for number in reversed(range(len(steps))):
        step = steps[number]
        kind = str(step.get("type"))
        written = texts[number]
        made = sum(bounds.get(letter, bounds[""]) for letter in written)
        pattern = step.get("pattern")
        replaced = str(pattern.get("String", "")) if isinstance(pattern, dict) else ""
        for letter in replaced:
            bounds[letter] = max(made / len(replaced), bounds.get(letter, bounds[""]))
        if not replaced:  # an expression may match beside any character
            table = step.get("precompiled_charsmap")
            kinds = _GROWTH | _GROWTH_OF_FORMS if any(growing[:number]) else _GROWTH
            longest = _longest_in(table) if kind == "Precompiled" else kinds.get(kind, 1)
            bounds = {"": max(bounds.values()) * longest + made}
    return max(bounds.values())


def _longest_in(charsmap: Any) -> int:
    """Returns the length of the longest text that the table writes in place of another; 0 if a text could
    lead the look-up outside the table.

    The table is the size of a double array (4 bytes), the array's units of 4 bytes, then texts that end with
    NUL. A unit holds the byte it stands for, the offset to its children, and whether a value, the place of a
    text, is the first of them.
    """
    try:
        data = base64.b64decode(charsmap, validate=True)
        size = int.from_bytes(data[:4], "little")
        texts = data[4 + size :]
        longest = max(map(len, texts.decode().split("\0")))
        units = np.frombuffer(data, dtype="<u4", count=size // 4, offset=4).astype(np.int64)
    except (TypeError, ValueError, binascii.Error):
        return 0
    offsets = (units >> 10) << ((units & (1 << 9)) >> 6)
    starts = np.array([byte & 0xC0 != 0x80 for byte in texts] + [True])  # starts of characters, and the end
    seen = np.zeros(len(units), dtype=bool)
    waiting = offsets[:1] if size % 4 == 0 else np.empty(0, dtype=np.int64)
    if not len(waiting):
        return 0
    while len(waiting):
        nodes = waiting[:_NODES_AT_ONCE]
        waiting = waiting[_NODES_AT_ONCE:]
        if (nodes | 0xFF).max() >= len(units):
            return 0
        seen[nodes] = True
        places = nodes[:, None] ^ np.arange(1, 256)
        places = places[(units[places] & (1 << 31 | 0xFF)) == np.arange(1, 256)[None, :]]
        children = places ^ offsets[places]
        if children.size and children.max() >= len(units):
            return 0
        values = units[children[(units[places] >> 8) & 1 == 1]] & ((1 << 31) - 1)
        if values.size and (values.max() > len(texts) or not starts[values].all()):
            return 0
        waiting = np.concatenate([waiting, np.unique(children[~seen[children]])])
    return max(longest, 1)


def load_tokenizer(name_or_folder: str | os.PathLike[str], *, rows: int | None = None, **options: Any) -> Any:
    """Loads the tokenizer of a Hugging Face model or folder. A folder is read without the network. Code in it
    is never run. ``rows`` is the number of rows of the model's embeddings, if no config beside the tokenizer states it.

    Raises:
        InputError: there is none, or it is damaged.
    """
    from transformers import AutoTokenizer, PretrainedConfig
    from transformers.utils import has_file

    name = str(name_or_folder)
    if Path(name).exists():
        check_tokenizer_files(name_or_folder)
    try:
        with reading(name), panics_caught():
            tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False, **options)
            # fails if the unknown token is not in the vocabulary
            tokenizer(_UNUSUAL, verbose=False)
    except Exception as error:  # the tokenizers package raises plain Exceptions over damaged files
        hint = (
            "set encoder.pretrained_model_cfg to a local model folder or to a model name that is in the"
            " Hugging Face cache"
        )
        found = f"no tokenizer could be loaded ({first_line(error)})"
        if "/" in name and not Path(name).exists():
            is_path = name.startswith((".", "/")) or name.count("/") > 1
            found = "no such folder" if is_path else f"no such folder, and {found}"
        raise InputError(found, file=name, hint=hint) from error
    if not isinstance(tokenizer.model_max_length, int | float):
        raise InputError("model_max_length is not a number", file=Path(name) / "tokenizer_config.json")
    files = [
        TOKENIZER,
        *tokenizer.vocab_files_names.values(),
        *tokenizer.init_kwargs.get("fast_tokenizer_files", ()),
    ]
    # else transformers makes one of nothing
    is_read = any(has_file(name, file, local_files_only=True) for file in files)
    if not is_read or len(tokenizer) <= len(tokenizer.all_special_ids):
        raise InputError(
            "has no vocabulary",
            file=name,
            expected="tokenizer.json or vocab.txt beside config.json",
        )
    config: dict[str, Any] = {}
    if Path(name).is_dir():
        config = look(name_or_folder).settings(CONFIG)
    elif has_file(name, CONFIG, local_files_only=True):  # of the hub
        config = PretrainedConfig.get_config_dict(name, local_files_only=True)[0]
    rows = config.get("vocab_size", rows)
    if type(rows) is int:
        _remove_tokens_without_row(tokenizer, rows)
    return tokenizer


def _remove_tokens_without_row(tokenizer: Any, rows: int) -> None:
    """Removes added tokens that the model beside the tokenizer has no row for, such as Gemma's token of images in a
    model of texts. A text that holds the name of one is read as its letters. Tokens that every sequence has remain."""
    if len(tokenizer) <= rows or not tokenizer.is_fast:
        return
    backend = tokenizer.backend_tokenizer
    state = json.loads(backend.to_str())
    in_vocabulary = backend.get_vocab(with_added_tokens=False)
    needed = {tokenizer.pad_token_id, *tokenizer("1", "1", verbose=False)["input_ids"]}
    removed = {
        token["content"]
        for token in state["added_tokens"]
        if token["id"] >= rows and token["id"] not in needed and token["content"] not in in_vocabulary
    }
    if not removed:
        return
    for name, token in list(tokenizer.special_tokens_map.items()):
        if token in removed:
            setattr(tokenizer, name, None)
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] not in removed]
    tokenizer._tokenizer = type(backend).from_str(json.dumps(state))  # no public way removes a token


def with_special_tokens(tokenizer: Any, special_tokens: Sequence[str]) -> Any:
    """Gives token i the vocabulary slot of ``[unused i]``, so that the embedding table keeps its size and old
    checkpoints their rows."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary = state["model"].get("vocab")
    for index, token in enumerate(special_tokens):
        slot = f"[unused{index}]"
        if not isinstance(vocabulary, dict) or (slot not in vocabulary and token not in vocabulary):
            found = f"the vocabulary has no slot {slot} for {token!r}"
            raise ConfigError(
                f"special_tokens: {found}; use a model with [unusedN] slots or fewer special tokens"
            )
        if token not in vocabulary:
            vocabulary[token] = vocabulary.pop(slot)
        entry = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        if not any(added["content"] == token for added in state["added_tokens"]):
            state["added_tokens"].append({"id": vocabulary[token], "content": token, **entry})
    return type(tokenizer)(tokenizer_object=type(tokenizer.backend_tokenizer).from_str(json.dumps(state)))


def append_end_token(tokenizer: Any) -> None:
    """Makes a fast tokenizer end every text and every pair with its end token, if it does not yet. The token
    counts towards the length; only the text is cut.

    Raises:
        ConfigError: it has no end token.
    """
    if tokenizer.eos_token is None:
        raise ConfigError(
            "encoder.append_eos=true, but the tokenizer has no end token (eos_token); set it to false"
        )
    end: int = tokenizer.eos_token_id
    if tokenizer("1", verbose=False)["input_ids"][-1:] == [end]:
        return
    backend = tokenizer.backend_tokenizer
    state = json.loads(backend.to_str())
    processor = state["post_processor"]
    # for a sequence, its parts
    parts: list[Any] = [] if processor is None else processor.get("processors", [processor])
    others = [part for part in parts if part["type"] != "TemplateProcessing"]
    if strange := [part["type"] for part in others if part["type"] != "ByteLevel"]:
        raise ConfigError(
            f"encoder.append_eos=true, but this tokenizer adds special tokens by {strange[0]}; set it to"
            " false"
        )
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    template: dict[str, Any] = {
        "type": "TemplateProcessing",
        "single": [first],
        "pair": [first, second],
        "special_tokens": {},
    }
    template = next((part for part in parts if part["type"] == "TemplateProcessing"), template)
    token = tokenizer.eos_token
    for kind in ("single", "pair"):
        template[kind] = [*template[kind], {"SpecialToken": {"id": token, "type_id": 0}}]
    template["special_tokens"] |= {token: {"id": token, "ids": [end], "tokens": [token]}}
    # Templates one after the other would panic, so there is one.
    state["post_processor"] = {"type": "Sequence", "processors": [*others, template]}
    backend.post_processor = type(backend).from_str(json.dumps(state)).post_processor
