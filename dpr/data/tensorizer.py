"""Text -> token ids, as checkpoints expect it (the only place that knows the tokenizer)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.errors import ConfigError, InputError
from dpr.core.records import Passage
from dpr.data.text import decorate_question

# The tokenizer keeps some 100 bytes for every token of a call (offsets, pieces) until the call's result is dropped.
_TEXTS_PER_CALL = 128


class Tensorizer:
    """Turns questions and passages into token id lists.

    A passage with a title is encoded as the pair (title, text), without one as the text alone; both are cut longest-first to
    ``sequence_length`` tokens in total. Token type ids are never used: all segments are 0, as in DPR.
    """

    def __init__(self, tokenizer: Any, *, sequence_length: int, question_length: int = 0, special_tokens: Sequence[str] = ()) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise ConfigError(
                f"{type(tokenizer).__name__} has no fast version; encoder.pretrained_model_cfg must name a model with a fast tokenizer"
            )
        self.tokenizer = _with_special_tokens(tokenizer, special_tokens) if special_tokens else tokenizer
        self.sequence_length = sequence_length
        self.question_length = question_length or sequence_length
        self.special_tokens = tuple(special_tokens)
        self.pad_id: int = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else 0
        self._special_ids = np.array(sorted(self.tokenizer.all_special_ids), dtype=np.int64)

    @classmethod
    def load(
        cls,
        name_or_folder: str | Path,
        *,
        sequence_length: int,
        question_length: int = 0,
        do_lower_case: bool | None = None,
        special_tokens: Sequence[str] = (),
        local_files_only: bool = False,
    ) -> Tensorizer:
        """Loads the tokenizer of a Hugging Face model or folder, if ``local_files_only`` from this machine. Code in it is never run.

        Raises:
            InputError: the folder holds no tokenizer, or the name is unknown here.
        """
        from transformers import AutoTokenizer

        options = {"local_files_only": local_files_only} | ({} if do_lower_case is None else {"do_lower_case": do_lower_case})
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(name_or_folder), trust_remote_code=False, **options)
        except Exception as error:  # the tokenizers package raises plain Exceptions over damaged files
            raise InputError(
                f"no tokenizer could be loaded ({(str(error).splitlines() or [type(error).__name__])[0]})",
                file=name_or_folder,
                hint="set encoder.pretrained_model_cfg to a local model folder or to a model name that is in the Hugging Face cache",
            ) from error
        if len(tokenizer) <= len(tokenizer.all_special_ids):  # what transformers makes of a folder without tokenizer files
            raise InputError("has no vocabulary", file=name_or_folder, expected="tokenizer.json or vocab.txt beside config.json")
        return cls(tokenizer, sequence_length=sequence_length, question_length=question_length, special_tokens=special_tokens)

    def save(self, folder: Path) -> None:
        """Writes the tokenizer files into an existing folder."""
        self.tokenizer.save_pretrained(str(folder))

    @property
    def sep_id(self) -> int:
        """The token between two texts and after the last.

        Raises:
            ConfigError: the tokenizer has none.
        """
        if self.tokenizer.sep_token_id is None:
            raise ConfigError("encoder.dpr_trailing_sep=true, but the tokenizer has no [SEP]; set it to false")
        return int(self.tokenizer.sep_token_id)

    @property
    def do_lower_case(self) -> bool:
        """Whether the vocabulary's texts are lower-cased before they are looked up."""
        normalizer = json.loads(self.tokenizer.backend_tokenizer.to_str()).get("normalizer") or {}
        return any(
            bool(step.get("lowercase")) or step.get("type") == "Lowercase" for step in [normalizer, *normalizer.get("normalizers", [])]
        )

    @property
    def fingerprint(self) -> str:
        """Changes with the vocabulary, the normalisation rules and the lengths."""
        state = json.loads(self.tokenizer.backend_tokenizer.to_str())
        # What the last call asked for, not what the tokenizer is.
        for passing in ("truncation", "padding"):
            state.pop(passing, None)
        settings = json.dumps([state, self.sequence_length, self.question_length], sort_keys=True)
        return sha256(settings.encode()).hexdigest()[:16]

    def question_tokens(self, texts: Sequence[str], *, prefix: str | None = None, suffix: str | None = None) -> list[list[int]]:
        """Token ids of questions, special tokens included; apostrophes are normalised as DPR does."""
        return self._encode([decorate_question(text, prefix=prefix, suffix=suffix) for text in texts], None, self.question_length)

    def passage_tokens(self, passages: Sequence[Passage]) -> list[list[int]]:
        """Token ids of passages, special tokens included. The text is stripped, the title is not."""
        result: list[list[int]] = [[] for _ in passages]
        for titled in (False, True):
            rows = [row for row, passage in enumerate(passages) if bool(passage.title) == titled]
            if rows:
                texts = [passages[row].text.strip() for row in rows]
                titles = [passages[row].title for row in rows]
                encoded = self._encode(titles, texts, self.sequence_length) if titled else self._encode(texts, None, self.sequence_length)
                for row, tokens in zip(rows, encoded, strict=True):
                    result[row] = tokens
        return result

    def cropped_passage_tokens(self, passage: Passage, max_tokens: int, generator: np.random.Generator) -> list[int]:
        """As ``passage_tokens``, with a random window of the text in place of its beginning; at most ``max_tokens`` in all."""
        pair = (passage.title, passage.text.strip()) if passage.title else (passage.text.strip(),)
        encoding = self.tokenizer(*pair, add_special_tokens=True, truncation=False, verbose=False).encodings[0]
        tokens, segments = encoding.ids, encoding.sequence_ids
        if len(tokens) <= max_tokens:
            return list(tokens)
        of_text = [index for index, segment in enumerate(segments) if segment == len(pair) - 1]
        of_title = [index for index, segment in enumerate(segments) if len(pair) == 2 and segment == 0]
        num_special = len(tokens) - len(of_text) - len(of_title)
        kept_title = of_title[: (max_tokens - num_special) // 2]
        room = max_tokens - num_special - len(kept_title)
        start = int(generator.integers(max(len(of_text) - room, 0) + 1))
        kept = {*kept_title, *of_text[start : start + room], *(index for index, segment in enumerate(segments) if segment is None)}
        return [token for index, token in enumerate(tokens) if index in kept]

    def masked(self, tokens: list[int], probability: float, generator: np.random.Generator) -> list[int]:
        """Replaces ordinary tokens by the mask token, each with the given probability."""
        mask_id = self.tokenizer.mask_token_id
        if mask_id is None:
            raise ConfigError("train.augment.mask_probability is set, but the tokenizer has no mask token; set it to 0")
        ids = np.array(tokens, dtype=np.int64)
        ids[(generator.random(len(ids)) < probability) & ~np.isin(ids, self._special_ids)] = mask_id
        return list(ids.tolist())

    def representation_positions(self, sequences: list[list[int]], selector: int | str | None) -> list[int]:
        """Where each question's vector is read: position 0, a fixed position, or the first occurrence of a token (0 where it is absent)."""
        if selector is None:
            return [0] * len(sequences)
        if isinstance(selector, int):
            return [min(selector, len(tokens) - 1) for tokens in sequences]
        token_id = self.tokenizer.convert_tokens_to_ids(selector)
        if token_id is None or token_id == self.tokenizer.unk_token_id:
            raise ConfigError(f"selector={selector!r} is not a token of the vocabulary; add it to special_tokens")
        return [tokens.index(token_id) if token_id in tokens else 0 for tokens in sequences]

    def _encode(self, first: list[str], second: list[str] | None, max_length: int) -> list[list[int]]:
        result: list[list[int]] = []
        for start in range(0, len(first), _TEXTS_PER_CALL):
            part = slice(start, start + _TEXTS_PER_CALL)
            encoded = self.tokenizer(
                first[part],
                None if second is None else second[part],
                add_special_tokens=True,
                truncation="longest_first",
                max_length=max_length,
                padding=False,
                return_attention_mask=False,
                return_token_type_ids=False,
            )
            result += encoded["input_ids"]
        return result


def _with_special_tokens(tokenizer: Any, special_tokens: Sequence[str]) -> Any:
    """Gives token i the vocabulary slot of ``[unused i]``, so that the embedding table keeps its size and old checkpoints their rows."""
    from tokenizers import Tokenizer

    state = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary = state["model"].get("vocab")
    for number, token in enumerate(special_tokens):
        slot = f"[unused{number}]"
        if not isinstance(vocabulary, dict) or (slot not in vocabulary and token not in vocabulary):
            raise ConfigError(
                f"special_tokens: the vocabulary has no slot {slot} for {token!r}; use a model with [unusedN] slots or fewer special tokens"
            )
        if token not in vocabulary:
            vocabulary[token] = vocabulary.pop(slot)
        entry = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        if not any(added["content"] == token for added in state["added_tokens"]):
            state["added_tokens"].append({"id": vocabulary[token], "content": token, **entry})
    return type(tokenizer)(tokenizer_object=Tokenizer.from_str(json.dumps(state)))
