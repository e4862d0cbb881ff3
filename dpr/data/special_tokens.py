"""Tokens that a tokenizer is given: special ones of DPR, in unused slots of the vocabulary, and an end token
behind every text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dpr.core.errors import ConfigError


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
    """Makes a fast tokenizer end every text and every pair with its end token, where it does not so far. The
    token counts towards the length, and what is cut is the text.

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
    state["post_processor"] = _ending(state["post_processor"], tokenizer.eos_token, end)
    backend.post_processor = type(backend).from_str(json.dumps(state)).post_processor


def _ending(processor: dict[str, Any] | None, token: str, number: int) -> dict[str, Any]:
    """A post-processor with the token at the end of its template; templates one after the other would panic,
    so there is one."""
    parts = [processor] if processor is not None else []
    if processor is not None and processor["type"] == "Sequence":
        parts = processor["processors"]
    others = [part for part in parts if part["type"] != "TemplateProcessing"]
    if strange := [part["type"] for part in others if part["type"] != "ByteLevel"]:
        raise ConfigError(
            f"encoder.append_eos=true, but this tokenizer adds special tokens by {strange[0]}; set it to"
            " false"
        )
    template = next((part for part in parts if part["type"] == "TemplateProcessing"), _plain_template())
    for kind in ("single", "pair"):
        template[kind] = [*template[kind], {"SpecialToken": {"id": token, "type_id": 0}}]
    template["special_tokens"] |= {token: {"id": token, "ids": [number], "tokens": [token]}}
    return {"type": "Sequence", "processors": [*others, template]}


def _plain_template() -> dict[str, Any]:
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {"type": "TemplateProcessing", "single": [first], "pair": [first, second], "special_tokens": {}}
