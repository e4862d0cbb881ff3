"""Conversion of text into token ids, as checkpoints expect it. Only this module calls the tokenizer."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import get_logger, warn_once
from dpr.core.machine import panics_caught
from dpr.core.records import Passage, StoredPassage, json_sha256
from dpr.data.settings import TextSettings
from dpr.data.text import JoinRule, check_room, normalize_question, presented, with_suffix
from dpr.data.tokenizer_files import append_end_token, load_tokenizer, lower_cases, with_special_tokens

logger = get_logger(__name__)

_IDS_ONLY: dict[str, Any] = {"padding": False, "return_attention_mask": False, "return_token_type_ids": False}
# The tokenizer keeps some 100 bytes for every token of a call (offsets, pieces) until the call's result is
# dropped.
_TEXTS_PER_CALL = 128
# For a pair that is cut, it makes every window of one with every window of the other: gigabytes, if
# both are long.
_LONG_TITLE = 4  # characters, in units of the sequence length

# share of unknown tokens
SHARE_SAID = 0.05
_SHARE_REFUSED = 0.5
_LEAST_TOKENS = 50  # fewer tell nothing about a language


class Tensorizer:
    """Turns questions and passages into token id lists, with the prompts and the title template of ``text``.

    A passage with a title is encoded as the pair (title, text), without one as the text alone; both are cut
    longest-first to ``sequence_length`` tokens in total. With a title template they are one text. The prompt
    is never cut. Token type ids are never used: all segments are 0, as in DPR.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        sequence_length: int,
        question_length: int = 0,
        special_tokens: Sequence[str] = (),
    ) -> None:
        if not getattr(tokenizer, "is_fast", False):
            hint = "encoder.pretrained_model_cfg must name a model with a fast tokenizer"
            raise ConfigError(f"{type(tokenizer).__name__} has no fast version; {hint}")
        self.tokenizer = with_special_tokens(tokenizer, special_tokens) if special_tokens else tokenizer
        self.sequence_length = sequence_length
        self.question_length = question_length or sequence_length
        self.special_tokens = tuple(special_tokens)
        for key, length, what in (
            ("sequence", sequence_length, "a title and a text"),
            ("question", self.question_length, "a question"),
        ):
            needed = self.tokenizer.num_special_tokens_to_add(pair=key == "sequence")
            if length < needed:
                raise ConfigError(
                    f"encoder.{key}_length={length} is less than the {needed} special tokens of {what}; set it"
                    f" to {needed} or more"
                )
        self.text = TextSettings()
        """Prompts, title template and apostrophe rule; ``set_text_settings`` replaces them."""

    def set_text_settings(self, text: TextSettings) -> None:
        """Replaces the prompts, the title template and the apostrophe rule.

        Raises:
            ConfigError: a prompt does not fit, or the tokenizer would cut it off.
        """
        text.check("encoder.")
        check_room(
            self.tokenizer,
            text,
            {
                "encoder.question_length": self.question_length,
                "encoder.sequence_length": self.sequence_length,
            },
        )
        self.text = text

    @classmethod
    def load(
        cls,
        name_or_folder: str | os.PathLike[str],
        *,
        sequence_length: int,
        question_length: int = 0,
        do_lower_case: bool | None = None,
        special_tokens: Sequence[str] = (),
        append_eos: bool = False,
    ) -> Tensorizer:
        """Loads the tokenizer of a Hugging Face model or folder. With ``append_eos`` it ends every sequence
        with its end token. Code in the folder is never run.

        Raises:
            InputError: the folder holds no tokenizer, a damaged one, or the name is unknown here.
        """
        tokenizer = load_tokenizer(
            name_or_folder, **({} if do_lower_case is None else {"do_lower_case": do_lower_case})
        )
        if append_eos:
            append_end_token(tokenizer)
        made = cls(
            tokenizer,
            sequence_length=sequence_length,
            question_length=question_length,
            special_tokens=special_tokens,
        )
        if do_lower_case not in (None, made.do_lower_case):
            warn_once(
                logger,
                "do_lower_case=%s has no effect on the tokenizer of %s",
                do_lower_case,
                str(name_or_folder),
            )
        return made

    def save(self, folder: Path) -> None:
        """Writes the tokenizer files into an existing folder, without the cutting and padding of the last
        call, which the tokenizer remembers."""
        saved = copy.deepcopy(self.tokenizer)  # other threads may be using this one
        saved.backend_tokenizer.no_truncation()
        saved.backend_tokenizer.no_padding()
        saved.save_pretrained(str(folder))

    @property
    def sep_id(self) -> int:
        """Returns the id of the token between two texts and after the last. Raises ConfigError if the
        tokenizer has none."""
        if self.tokenizer.sep_token_id is None:
            raise ConfigError(
                "encoder.dpr_trailing_sep=true, but the tokenizer has no [SEP]; set it to false"
            )
        return int(self.tokenizer.sep_token_id)

    def check_end_token(self) -> None:
        """Raises ConfigError if the last token of a text would be one of its words."""
        if self.join_rule is None or not self.join_rule.single[1]:
            raise ConfigError(
                "encoder.pooling=last reads the last token of a text, and the tokenizer puts no end token"
                " behind it; set encoder.append_eos=true"
            )

    @property
    def do_lower_case(self) -> bool:
        """True if texts are lower-cased before they are looked up in the vocabulary."""
        return lower_cases(self.tokenizer)

    @property
    def fingerprint(self) -> str:
        """Returns a hash that changes with the vocabulary, the normalisation rules and the lengths."""
        return json_sha256([self._state(), self.sequence_length, self.question_length])[:16]

    @property
    def vocabulary_fingerprint(self) -> str:
        """Returns a hash that changes with everything that determines the tokens of a text before they are
        cut and special tokens are added."""
        from tokenizers import __version__

        return json_sha256([self._state(), type(self.tokenizer).__name__, __version__])[:32]

    @property
    def largest_id(self) -> int:
        """Returns the largest token id of the vocabulary."""
        return int(max(self.tokenizer.get_vocab().values()))

    @cached_property
    def join_rule(self) -> JoinRule | None:
        """Returns the rule that joins title and text, tokenised separately, to a sequence; None if this
        tokenizer shows no such rule."""
        examples = [
            self.tokenizer(*texts, add_special_tokens=True, verbose=False).encodings[0]
            for texts in (("1",), ("1", "2"))
        ]
        single, pair = ((example.ids, example.sequence_ids) for example in examples)
        return JoinRule.from_examples(single, pair, cut_start=self.tokenizer.truncation_side == "left")

    def check_known(self, tokens: np.ndarray, source: str, *, refuse: bool = True) -> None:
        """Warns if many tokens of texts stand for something that the vocabulary lacks (``unknown_share``).

        Raises:
            InputError: most tokens do, and ``refuse`` is set.
        """
        share, count = self.unknown_share(tokens)
        if share <= SHARE_SAID:
            return
        found = (
            f"{share:.0%} of the tokens of {source} are {self.tokenizer.unk_token}, which stands for words"
            " that the vocabulary lacks"
        )
        hint = (
            "use an encoder for this language (encoder.pretrained_model_cfg), or make one from these texts with"
            " dpr new-encoder"
        )
        if refuse and share > _SHARE_REFUSED and count >= _LEAST_TOKENS:
            raise InputError(found, hint=hint)
        warn_once(logger, "%s; %s", found, hint)

    def unknown_share(self, tokens: np.ndarray) -> tuple[float, int]:
        """Returns the share of ordinary tokens that stand for something the vocabulary lacks, and the number
        of ordinary tokens.

        Vocabularies of bytes and characters lack nothing. Their token of that name may serve as another
        special token, too.
        """
        unknown = self.tokenizer.unk_token_id
        count = int((~self._is_special[tokens]).sum())
        names = dict(self.tokenizer.special_tokens_map)
        if unknown is None or names.pop("unk_token") in names.values():
            return 0.0, count
        num_unknown = int((tokens == unknown).sum())
        return num_unknown / max(count + num_unknown, 1), count + num_unknown

    def question_text(
        self,
        question: str,
        *,
        prompt: str | None = None,
        prefix: str | None = None,
        suffix: str | None = None,
    ) -> str:
        """Returns a question as it is tokenised: after the model's prompt, or the prompt named ``prompt``,
        and ``prefix``."""
        if self.text.plain_apostrophes:
            question = normalize_question(question)
        return self.text.question_prompt(prompt) + (prefix or "") + with_suffix(question, suffix)

    def question_tokens(
        self,
        questions: Sequence[str | list[int]],
        *,
        prompt: str | None = None,
        prefix: str | None = None,
        suffix: str | None = None,
    ) -> list[list[int]]:
        """Returns token ids of questions (``question_text``), special tokens included.

        Questions of a token store (token ids) already contain their prompt, prefix and suffix.
        """
        texts = [
            self.question_text(question, prompt=prompt, prefix=prefix, suffix=suffix)
            for question in questions
            if isinstance(question, str)
        ]
        encoded = iter(self._encode(texts, self.question_length))
        result = (
            next(encoded)
            if isinstance(question, str)
            else self._rule().join(None, question, self.question_length)
            for question in questions
        )
        return [tokens or self.empty_tokens for tokens in result]

    def passage_tokens(self, passages: Sequence[Passage | StoredPassage]) -> list[list[int]]:
        """Returns token ids of passages, special tokens included. The text is stripped; the title is not."""
        result: list[list[int]] = [[] for _ in passages]
        texts: dict[int, str | tuple[str, str]] = {}
        for row, passage in enumerate(passages):
            if isinstance(passage, StoredPassage):
                title, text = passage.tokens()[:2]
                if self.text.title_template:
                    title, text = None, [*(title or ()), *text]
                result[row] = self._rule().join(title, text, self.sequence_length)
                continue
            shown = presented(passage, self.text)
            if len(shown.title) > _LONG_TITLE * self.sequence_length and self.join_rule is not None:
                title, text = self.bare_tokens([shown.title, shown.text])
                result[row] = self.join_rule.join(title, text, self.sequence_length)
            else:
                texts[row] = (shown.title, shown.text) if shown.title else shown.text
        encoded = self._encode([*texts.values()], self.sequence_length)
        for row, tokens in zip(texts, encoded, strict=True):
            result[row] = tokens
        return [tokens or self.empty_tokens for tokens in result]

    def bare_tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns token ids of texts as they are: without special tokens, at any length."""
        if not texts:
            return []
        encoded = self._tokenize(
            list(texts), add_special_tokens=False, truncation=False, verbose=False, **_IDS_ONLY
        )
        return [list(tokens) for tokens in encoded["input_ids"]]

    def passage_parts(self, passages: Sequence[Passage]) -> list[tuple[list[int] | None, list[int]]]:
        """Returns token ids of titles (None for no title) and texts as a token store keeps them: uncut,
        without special tokens, after the prompt. With a title template the first part is everything before
        the text."""
        shown = [presented(passage, self.text) for passage in passages]
        if self.text.title_template and passages:
            encoded = self._tokenize(
                [each.text for each in shown], add_special_tokens=False, truncation=False, verbose=False
            )
            parts: list[tuple[list[int] | None, list[int]]] = []
            for each, encoding in zip(shown, encoded.encodings, strict=True):
                place = sum(end <= each.head for _, end in encoding.offsets) if each.head else 0
                parts.append((encoding.ids[:place] if each.head else None, encoding.ids[place:]))
            return parts
        texts = self.bare_tokens([each.text for each in shown])
        titles = dict.fromkeys(each.title for each in shown if each.title)
        title_tokens = dict(zip(titles, self.bare_tokens(list(titles)), strict=True))
        return [(title_tokens.get(each.title), text) for each, text in zip(shown, texts, strict=True)]

    def cropped_passage_tokens(
        self,
        passage: Passage | StoredPassage,
        max_tokens: int,
        generator: np.random.Generator,
        *,
        prefix: str | None = None,
    ) -> list[int]:
        """Returns tokens as ``passage_tokens`` does, with a random window of the text in place of its
        beginning; at most ``max_tokens`` in all.

        A text without title keeps ``prefix``, with which it begins, before the window, as it does the model's
        prompt.
        """
        before = [each.strip() for each in (self.text.passage_prompt, prefix or "")]
        head = sum(map(len, self.bare_tokens([each for each in before if each])))
        if isinstance(passage, StoredPassage):
            title, text = passage.tokens()[:2]
        else:
            title, text = self.passage_parts([passage])[0]
        if self.text.title_template:
            head = len(title) if title is not None else head
            title, text = None, [*(title or ()), *text]
        return self._rule().crop(title, text, max_tokens, generator, head=head) or self.empty_tokens

    def masked(self, tokens: list[int], probability: float, generator: np.random.Generator) -> list[int]:
        """Replaces ordinary tokens by the mask token, each with the given probability."""
        if (mask := self.tokenizer.mask_token_id) is None:
            raise ConfigError(
                "train.augment.mask_probability is set, but the tokenizer has no mask token; set it to 0"
            )
        ids = np.array(tokens, dtype=np.int64)
        ids[(generator.random(len(ids)) < probability) & ~self._is_special[ids]] = mask
        return list(ids.tolist())

    def representation_positions(self, sequences: list[list[int]], selector: int | str | None) -> list[int]:
        """Returns the position at which each question's vector is read: 0, a fixed position (the last one of
        shorter questions), or the first occurrence of a token (0 if it is absent). Raises ConfigError as
        ``check_selector`` does."""
        self.check_selector(selector)
        if selector is None:
            return [0] * len(sequences)
        if isinstance(selector, int):
            return [min(selector, len(tokens) - 1) for tokens in sequences]
        token_id = self.tokenizer.convert_tokens_to_ids(selector)
        return [tokens.index(token_id) if token_id in tokens else 0 for tokens in sequences]

    def check_selector(self, selector: int | str | None) -> None:
        """Raises ConfigError unless it is a position inside a question or a token of the vocabulary."""
        if selector is None:
            return
        if isinstance(selector, str) and selector:
            if self.tokenizer.convert_tokens_to_ids(selector) in (None, self.tokenizer.unk_token_id):
                raise ConfigError(
                    f"selector={selector!r} is not a token of the vocabulary; add it to special_tokens"
                )
        elif type(selector) is not int:
            raise ConfigError(f"selector={selector!r} is neither a position (a whole number) nor a token")
        elif not 0 <= selector < self.question_length:
            raise ConfigError(
                f"selector={selector} is out of range; questions have at most {self.question_length} tokens,"
                " counted from 0"
            )

    @property
    def separates_titles(self) -> bool:
        """True if a special token comes between the two texts of a pair."""
        return self.join_rule is None or bool(self.join_rule.pair[1])

    @cached_property
    def empty_tokens(self) -> list[int]:
        """Returns tokens that stand for a text without any token. A tokenizer without special tokens gives
        none for an empty text."""
        names = ("eos_token_id", "bos_token_id", "pad_token_id", "unk_token_id")
        return [next((token for name in names if (token := getattr(self.tokenizer, name)) is not None), 0)]

    @cached_property
    def _is_special(self) -> np.ndarray:
        """Returns, for each token id, whether it is a special token's. A look-up is a hundred times cheaper
        than a search."""
        is_special = np.zeros(max(self.largest_id, *self.tokenizer.all_special_ids) + 1, dtype=bool)
        is_special[self.tokenizer.all_special_ids] = True
        return is_special

    def _rule(self) -> JoinRule:
        if self.join_rule is None:
            raise ConfigError(
                "this tokenizer puts special tokens between those of a text, so that texts are neither cropped"
                " (set train.augment.crop_tokens=0) nor stored as tokens (train.token_store=off)"
            )
        return self.join_rule

    def _state(self) -> Any:
        state = json.loads(self.tokenizer.backend_tokenizer.to_str())
        for of_last_call in ("truncation", "padding"):
            state.pop(of_last_call, None)
        return state

    def _tokenize(self, texts: Sequence[str | tuple[str, str]], **options: Any) -> Any:
        """Calls the tokenizer. Raises InputError for half a character, which it cannot read, and if it
        fails."""
        try:
            with panics_caught():
                return self.tokenizer(texts, **options)
        except TypeError as error:
            from dpr.formats.record_fields import has_lone_surrogate  # training does not load it otherwise

            parts = (part for text in texts for part in ([text] if isinstance(text, str) else text))
            odd = next(filter(has_lone_surrogate, parts), None)
            if odd is None:
                raise
            hint = "read the text in the encoding that it was written in (UTF-8, or latin-1)"
            raise InputError(
                f"the text {odd[:60]!a} holds half a character (a lone surrogate)",
                expected="whole characters",
                hint=hint,
            ) from error

    def _encode(self, texts: Sequence[str | tuple[str, str]], max_length: int) -> list[list[int]]:
        """Returns token ids of texts, or of pairs of a title and a text."""
        result: list[list[int]] = []
        for start in range(0, len(texts), _TEXTS_PER_CALL):
            encoded = self._tokenize(
                texts[start : start + _TEXTS_PER_CALL],
                add_special_tokens=True,
                truncation="longest_first",
                max_length=max_length,
                **_IDS_ONLY,
            )
            result += encoded["input_ids"]
        return result
