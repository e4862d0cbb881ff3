"""Special tokens of DPR, in slots of the vocabulary that nothing uses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dpr.core.errors import ConfigError


def with_special_tokens(tokenizer: Any, special_tokens: Sequence[str]) -> Any:
    """Gives token i the vocabulary slot of ``[unused i]``, so that the embedding table keeps its size and old checkpoints their rows."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary = state["model"].get("vocab")
    for number, token in enumerate(special_tokens):
        slot = f"[unused{number}]"
        if not isinstance(vocabulary, dict) or (slot not in vocabulary and token not in vocabulary):
            found = f"the vocabulary has no slot {slot} for {token!r}"
            raise ConfigError(f"special_tokens: {found}; use a model with [unusedN] slots or fewer special tokens")
        if token not in vocabulary:
            vocabulary[token] = vocabulary.pop(slot)
        entry = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        if not any(added["content"] == token for added in state["added_tokens"]):
            state["added_tokens"].append({"id": vocabulary[token], "content": token, **entry})
    return type(tokenizer)(tokenizer_object=type(tokenizer.backend_tokenizer).from_str(json.dumps(state)))
