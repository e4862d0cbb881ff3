"""Settings of data: one set, the sharing of an epoch among several sets, and random changes of texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dpr.core.errors import ConfigError
from dpr.core.settings import IDENTITY, NO_EFFECT, Settings, setting

LONGEST_PROMPT = 1 << 14
"""Maximum number of characters in a prompt, which is part of every text."""


@dataclass
class BadRowSettings(Settings):
    """Handling of rows that cannot be read."""

    on_bad_row: str = setting("fail", choices=("fail", "skip"), on_resume=NO_EFFECT)
    """fail ends the command at a bad row; skip leaves up to max_bad_rows out and lists them in a
    .rejected.jsonl."""
    max_bad_rows: int = setting(100, unit="rows", least=0, on_resume=NO_EFFECT)
    """Maximum number of rows that on_bad_row=skip leaves out; with more, the command ends."""


@dataclass
class TextOptions(Settings):
    """Prompts, titles and apostrophes; each may be left out."""

    query_prompt: str | None = setting(None, on_resume=IDENTITY)
    """Text before every question, e.g. "query: " or an instruction. Stored with the model, like the next four
    settings; absent = as stored."""
    passage_prompt: str | None = setting(None, on_resume=IDENTITY)
    """Text before every passage: before its title or, without a title, before its text."""
    prompts: dict[str, str] = setting(dict, on_resume=IDENTITY)
    """More prompts for questions, by name: {web: "...", code: "..."}. A data set selects one (prompt=web)
    instead of query_prompt."""
    title_template: str | None = setting(None, on_resume=IDENTITY)
    """Template that joins title and text; empty = the tokenizer's pair. Absent = as stored; in new models the
    pair, or "{title} {text}" if the tokenizer puts nothing between the two."""
    plain_apostrophes: bool | None = setting(None, on_resume=IDENTITY)
    """Replace typographic apostrophes in questions by plain ones. Absent = as stored; in new models true, as
    in DPR, unless the towers are shared."""

    def check_together(self, prefix: str) -> None:
        super().check_together(prefix)
        texts: dict[str, Any] = {f"prompts.{name}": text for name, text in self.prompts.items()}
        for name in ("query_prompt", "passage_prompt", "title_template"):
            texts[name] = getattr(self, name) or ""
        for name, text in texts.items():
            if not isinstance(text, str) or any("\ud800" <= letter <= "\udfff" for letter in text):
                raise ConfigError(f"{prefix}{name}={text!r} is not a text")
            if len(text) > LONGEST_PROMPT:
                raise ConfigError(
                    f"{prefix}{name} has {len(text):,} characters; at most {LONGEST_PROMPT:,} are allowed"
                )
        template = self.title_template
        if template and not re.fullmatch(r"([^{}]*\{title\})+[^{}]*\{text\}", template):
            raise ConfigError(
                f"{prefix}title_template={template!r} must have {{title}} and end with {{text}}, as in"
                " '{title} {text}'"
            )


@dataclass
class TextSettings(TextOptions):
    """Texts that a model expects around its inputs. Stored in every checkpoint and applied by every job.

    A title template such as "{title} {title} {text}" gives words of the title more weight if the pooling
    counts them.
    """

    query_prompt: str = ""
    passage_prompt: str = ""
    title_template: str = ""
    plain_apostrophes: bool = True

    @property
    def has_prompts(self) -> bool:
        return bool(self.query_prompt or self.passage_prompt or self.prompts)

    def question_prompt(self, name: str | None) -> str:
        """Returns the text before questions: that of the prompt ``name``, else ``query_prompt``. Raises
        ConfigError if there is no prompt of that name."""
        if name is None:
            return self.query_prompt
        if name not in self.prompts:
            known = ", ".join(sorted(self.prompts)) or "none; set encoder.prompts in training"
            raise ConfigError(f"prompt={name} is not a prompt of the model; it has {known}")
        return self.prompts[name]

    def agreed_prefix(self, prefix: str | None, prompt: str, *, key: str) -> str | None:
        """Returns the prefix ``key`` of a job, in addition to the model's ``prompt``; None if it repeats
        that.

        Raises:
            ConfigError: the model has prompts, and the prefix differs from them.
        """
        if not prefix or not self.has_prompts:
            return prefix
        if prefix == prompt:
            return None
        named = next(
            (f", name it by prompt={name}" for name, text in self.prompts.items() if text == prefix), ""
        )
        raise ConfigError(
            f"{key}={prefix!r}, but the model was trained with {prompt!r} there; leave {key} out{named}, or"
            " change the prompts of the model by encoder.query_prompt, encoder.passage_prompt and"
            " encoder.allow_other_prompts=true"
        )

    def stored_metadata(self, prompt: str | None) -> dict[str, Any]:
        """Returns the settings that determine the tokens of a set whose questions have the prompt ``prompt``,
        without those at their defaults."""
        metadata = asdict(replace(self, query_prompt=self.question_prompt(prompt), prompts={}))
        return {name: value for name, value in metadata.items() if value != getattr(TextSettings(), name)}

    def head(self, title: str) -> str:
        """Returns the text that ``title_template`` puts before the text of a passage with this title."""
        return self.title_template.removesuffix("{text}").replace("{title}", title)


@dataclass
class Augmentation(Settings):
    """Random changes of training texts only; each is a function of (seed, epoch, data set, row)."""

    crop_tokens: int = setting(0, unit="tokens", least=0, on_resume=IDENTITY)
    """Passages longer than this are cut to a random window of this many tokens; 0 = no cropping."""
    mask_probability: float = setting(0.0, least=0, below=1, on_resume=IDENTITY)
    """Share of tokens (of questions and passages) replaced by the mask token."""


@dataclass
class SamplingSettings(Settings):
    """Composition of an epoch's global batches (docs/training.md, "Several data sets")."""

    temperature: float | None = setting(None, above=0, on_resume=IDENTITY)
    """T: a set's share is proportional to rows ** (1/T). 1 = in proportion to the rows, large = equal
    shares."""
    mixed: bool = setting(False, on_resume=IDENTITY)
    """Draw every global batch from all sets together; false: every global batch from one set."""
    group_by_words: bool = setting(False, on_resume=IDENTITY)
    """Build global batches from rows that share words, for harder in-batch negatives."""

    def check_shares(self, rates: Sequence[float] | None) -> None:
        """Raises ConfigError if several settings determine the sets' shares, or no share is above 0."""
        if rates is None:
            return
        if self.temperature is not None:
            raise ConfigError(
                "train_sampling_rates and train.sampling.temperature are mutually exclusive, since both set"
                " the shares of data sets; leave one of them out"
            )
        if min(rates, default=0) < 0 or not any(rates):
            raise ConfigError(
                f"train_sampling_rates={list(rates)}: expected numbers of at least 0, at least one of them above 0"
            )


@dataclass
class DataSetSettings(Settings):
    """Options of one training or dev set (an entry of ``datasets``)."""

    file: Any = setting(None, path="input")
    """Path, glob, or list of them."""
    selector: int | str | None = setting(None, least=0)
    """Position at which the question vector is read: absent = first token; an integer = that position; a
    string = first occurrence of that token."""
    prompt: str | None = None
    """Name of the prompt (encoder.prompts) of this set's questions; absent = encoder.query_prompt."""
    special_token: str | None = None
    """Token before every question of this set, followed by a space."""
    query_prefix: str | None = None
    """Text before every question, e.g. "query: " or an instruction; it follows special_token, if any. Unlike
    encoder.query_prompt, it is not stored with the model."""
    passage_prefix: str | None = None
    """Text before every passage: before its title or, without a title, before its text."""
    query_special_suffix: str | None = None
    """Appended to questions that do not end with it."""
    encoder_type: str | None = setting(None, choices=("question", "ctx"))
    """question or ctx: the tower that encodes both sides of this set."""
    shuffle_positives: bool = False
    """Draw one of the positives instead of the first."""
    normalize: bool = False
    """Clean passage texts (newlines, quotes) as DPR's normalize does."""
    exclude_gold: bool = False
    """Drop positives that have no ``score`` key, unless none would remain."""
    weight: float | None = setting(None, least=0)
    """Share of a train set in an epoch, relative to the weights of the other sets (train.sampling)."""
    loss_scale: float | None = setting(None, least=0)
    """Factor of the loss of a train set's questions; absent = 1, or the value in loss_scale_factors."""
    reader: str | None = None
    """A user-defined class, module:Class, a subclass of dpr.data.training_data.TrainingData; called with the
    files (docs/extending.md)."""
    source: str | None = None
    """Address at which the file is published, for the error message if the file is missing. Nothing is
    downloaded."""
    pairs: Any = None
    """The file is a corpus, and the set consists of pairs cut from its passages: mixed, or crops, sentence,
    title, module:Class, a list of these, or weights by name (docs/without_labels.md)."""
    held_back: float = setting(0.0, least=0, below=1)
    """Share of the documents held back: no pairs are cut from them, or with held_only all pairs."""
    held_only: bool = False
    """Cut pairs only from the documents held back, for a dev set: at most 1,000, always the same."""

    def check_together(self, prefix: str) -> None:
        super().check_together(prefix)
        if self.pairs is not None and self.reader is not None:
            raise ConfigError(
                f"{prefix}pairs and {prefix}reader are mutually exclusive; leave one of them out"
            )

        if self.held_only and not self.held_back:
            raise ConfigError(
                f"{prefix}held_only=true needs documents held back, but {prefix}held_back=0; set it above 0"
            )

    def before_questions(self) -> str | None:
        """Returns special token and prefix as one text."""
        return (f"{self.special_token} " if self.special_token else "") + (self.query_prefix or "") or None

    @property
    def of_questions(self) -> dict[str, str | None]:
        """Returns the arguments of the tensorizer for questions."""
        return {"prompt": self.prompt, "prefix": self.before_questions(), "suffix": self.query_special_suffix}

    @property
    def loss_weight(self) -> float:
        return 1.0 if self.loss_scale is None else self.loss_scale

    def agreed(self, name: str, text: TextSettings) -> DataSetSettings:
        """Returns the options of the set ``name`` for a model that puts prompts before texts: without a
        prefix that repeats one of them.

        Raises:
            ConfigError: the set has another prefix, or names a prompt that the model does not have.
        """
        query = text.agreed_prefix(
            self.before_questions(), text.question_prompt(self.prompt), key=f"datasets.{name}.query_prefix"
        )
        passage = text.agreed_prefix(
            self.passage_prefix, text.passage_prompt, key=f"datasets.{name}.passage_prefix"
        )
        return replace(self, special_token=None, query_prefix=query, passage_prefix=passage)

    def metadata(self, name: str) -> dict[str, Any]:
        """Returns the settings that determine the batches of the set ``name``, under the names that
        checkpoints and token stores use."""
        later = {"passage_prefix": self.passage_prefix or None, "weight": self.weight, "prompt": self.prompt}
        return {
            "namespace": name,
            "query_prefix": self.before_questions(),
            "query_suffix": self.query_special_suffix,
            "selector": self.selector,
            "encoder_type": self.encoder_type or "",
            "shuffle_positives": self.shuffle_positives,
            "normalize": self.normalize,
            "exclude_gold": self.exclude_gold,
            "loss_scale": self.loss_weight,
            # so that those of earlier versions compare equal
            **{key: value for key, value in later.items() if value is not None},
        }

    def stored_metadata(self, name: str, text: TextSettings) -> dict[str, Any]:
        """Returns the settings that determine the tokens of the set ``name`` with these text settings, as a
        token store states them."""
        metadata = self.metadata(name)
        stored = ("namespace", "query_prefix", "query_suffix", "normalize", "passage_prefix")
        return {key: metadata[key] for key in stored if key in metadata} | text.stored_metadata(self.prompt)
