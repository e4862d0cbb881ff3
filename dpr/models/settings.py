"""Settings of the towers: their source, the vector of a text, and how they run."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

from dpr.core.errors import ConfigError
from dpr.core.settings import IDENTITY, MODEL, NO_EFFECT, START, UPDATES, WARNED, Settings, setting
from dpr.data.settings import TextOptions, TextSettings

PRETRAINED_MODEL = "bert-base-uncased"


POOLINGS = {
    "cls": "cls",
    "mean": "mean",
    "last": "lasttoken",
    "weighted_mean": "weightedmean",
    "idf": None,
    "idf_sqrt": None,
}
"""Built-in poolings with their ``pooling_mode`` in folders of sentence-transformers, if there is one. Any
other pooling is an import path, ``module:Class``."""


@dataclass
class BackboneSettings(Settings):
    """Source of the towers. ``pretrained_model_cfg`` names config, weights and tokenizer of both."""

    encoder_model_type: str = setting(
        "hf_bert",
        choices=("hf_bert", "hf_roberta", "hf_auto", "static"),
        on_resume=START,
    )
    """Key of the original DPR; hf_bert, hf_roberta and hf_auto have no effect, since ``AutoModel`` loads any
    Hugging Face encoder. static: the folder must be that of a static encoder."""
    pretrained_model_cfg: str = setting(PRETRAINED_MODEL, on_resume=MODEL, path="input")
    """Hugging Face name or local folder. With a checkpoint file of the original DPR: the model whose config
    and tokenizer it uses."""
    pretrained: bool = setting(True, on_resume=START)
    """true: the folder's weights; false: random weights of the model in its config.json."""
    dropout: float = setting(0.1, least=0, below=1, on_resume=UPDATES)
    """Hidden and attention dropout of both towers; 0 switches it off."""


@dataclass
class VectorSettings(Settings):
    """Settings of the towers that, besides the config of the backbone, determine the vector of a text.
    Settings left out are as the model's folder states them."""

    pooling: str | None = setting(None, choices=tuple(POOLINGS), or_class=True, on_resume=IDENTITY)
    """cls (last hidden state at position 0, without pooler, as in DPR), mean (over tokens), last (the last
    token, for causal backbones), weighted_mean (token i has weight i), idf (a learned weight for each token),
    idf_sqrt (the same; n repeats of a token in a text count sqrt(n) times), or user-defined: module:Class
    (docs/extending.md). Absent = as the folder states, else cls."""
    projection_dim: int | None = setting(None, least=0, on_resume=IDENTITY)
    """Width of a linear layer on top of the pooled vector; 0 = none. Absent = as the folder states, else 0."""
    normalize: bool | None = setting(None, on_resume=IDENTITY)
    """Scale vectors to length 1 (cosine similarity). Requires a loss.temperature of about 0.05 or less.
    Absent = as the folder states, else false."""
    shared: bool | None = setting(None, on_resume=IDENTITY)
    """One tower for questions and passages. Absent = as the folder states, else false."""
    static_questions: bool = setting(False, on_resume=IDENTITY)
    """Questions use a static embedding table, passages the transformer; a question costs microseconds
    (docs/static_encoders.md)."""
    sequence_length: int | None = setting(None, unit="tokens", least=3, on_resume=IDENTITY)
    """Longest question or passage in tokens, special tokens included. Absent = as the model states, else
    256."""
    question_length: int | None = setting(None, unit="tokens", least=0, on_resume=IDENTITY)
    """Longest question in tokens; 0 = sequence_length. Absent = as the model states, else 0."""
    dpr_trailing_sep: bool | None = setting(None, on_resume=IDENTITY)
    """Append the original's stray [SEP] to every sequence; absent = on for checkpoint files of the original
    and with compat=dpr, else off."""

    append_eos: bool = setting(False, on_resume=IDENTITY)
    """Append the tokenizer's end token to every text, if the tokenizer adds none itself; the text is cut to
    make room for it. Decoders with pooling=last need one."""

    adapter: str = setting("none", choices=("none", "lora"), on_resume=IDENTITY)
    """lora: both towers share one frozen backbone; each trains low-rank matrices beside all of its linear
    layers (docs/training.md)."""
    lora_rank: int = setting(16, least=1, on_resume=IDENTITY)
    """Rank of the adapters' matrices. Their output is scaled by 2."""

    dimensions: int = setting(0, unit="dimensions", least=0, on_resume=IDENTITY)
    """Cut vectors to their first dimensions, for models trained with loss.dimensions (Matryoshka); 0 =
    all."""


@dataclass
class EncoderSettings(VectorSettings, TextSettings):
    """Settings that, besides the config of the backbone, determine the vector of a text. Stored in every checkpoint."""

    pooling: str = setting("cls", choices=tuple(POOLINGS), or_class=True)
    projection_dim: int = setting(0, least=0)
    normalize: bool = False
    shared: bool = False
    sequence_length: int = setting(256, least=3)
    question_length: int = setting(0, least=0)
    dpr_trailing_sep: bool = False
    """The original's stray [SEP] after every sequence: an additional token at position sequence_length - 1
    that every shorter sequence attends to."""
    lora_alpha: float = 32.0
    """Adapters are scaled by lora_alpha / lora_rank."""
    lora_targets: str = "all"
    """Linear layers that have an adapter: all, or names with commas between (q_proj,v_proj)."""
    projection_activation: str = "none"
    """tanh: the output of the projection goes through the hyperbolic tangent, as in LaBSE."""

    def __new__(cls, *values: Any, **named: Any) -> Self:
        made = super().__new__(cls, *values, **named)
        # a given value may equal the default; dataclasses.replace gives all of them
        vars(made)["named"] = named if len(named) < len(fields(cls)) else {}
        return made

    def over(self, own: EncoderSettings) -> EncoderSettings:
        """Returns the settings ``own`` of a model, overridden by those that were given here."""
        given = asdict(self)
        default = asdict(EncoderSettings())
        named = vars(self)["named"]
        return replace(
            own, **{name: value for name, value in given.items() if name in named or value != default[name]}
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns names and values. Later settings appear only if they differ from their defaults, so that
        fingerprints of other models stay the same."""
        values = asdict(self) | {"prompts": dict(sorted(self.prompts.items()))}
        default = EncoderSettings()
        later = ["projection_activation", "dpr_trailing_sep", "append_eos", "static_questions", "dimensions"]
        later += [item.name for item in fields(TextSettings)]
        for name in later:
            if values[name] == getattr(default, name):
                del values[name]
        if self.adapter == "none":
            for name in ("adapter", "lora_rank", "lora_alpha", "lora_targets"):
                del values[name]
        return values


@dataclass
class GivenTextSettings(TextOptions):
    """Prompts, titles and apostrophes of a job. Those left out are the model's own."""

    allow_other_prompts: bool = setting(
        False,
        on_resume=NO_EFFECT,
    )
    """Use these five settings even if the model was trained with others, which changes its vectors."""

    def unused(self) -> Iterator[str]:
        yield from super().unused()
        if all(getattr(self, item.name) in (None, {}) for item in fields(TextOptions)):
            yield "allow_other_prompts"

    def text_of(
        self, own: TextSettings | None = None, *, stated: Collection[str] = (), source: Any = None
    ) -> TextSettings:
        """Returns the text settings in effect: those given here, else ``own``.

        Args:
            own: settings of the model; None for a new one.
            stated: names of the settings that the model states and that may not change.
            source: source of the model, for the message.

        Raises:
            ConfigError: a given setting differs from the model's, without ``allow_other_prompts``.
        """
        own = own or TextSettings()
        given = {
            item.name: value
            for item in fields(TextSettings)
            if (value := getattr(self, item.name)) not in (None, {})
        }
        prompts = own.prompts | self.prompts
        for name, value in given.items():
            was = getattr(own, name)
            # a further prompt does not change the model's own
            differs = prompts | was != prompts if name == "prompts" else value != was
            if differs and name in stated and not self.allow_other_prompts:
                raise ConfigError(
                    f"encoder.{name}={value!r}, but {source} was trained with {was!r}; leave it out, or set "
                    "encoder.allow_other_prompts=true to use it with yours"
                )
        return replace(own, **given | {"prompts": prompts})


@dataclass
class RunningSettings(Settings):
    """Settings of how the towers run."""

    fix_ctx_encoder: bool = setting(False, on_resume=IDENTITY)
    """Freeze the context tower: no dropout, no gradient, not in the optimizer."""
    packed: bool = setting(True, on_resume=WARNED)
    """Compute real tokens only; false: pad every batch to its longest sequence (slower, same vectors)."""
    attention: str = setting("sdpa", choices=("sdpa", "varlen"), on_resume=WARNED)
    """Attention of packed towers. sdpa: torch's, over sequences of similar length. varlen: torch's kernel for
    sequences end to end, on CUDA in bf16 or fp16 without attention dropout; sdpa everywhere else."""
    attention_dropout: float | None = setting(None, least=0, below=1, on_resume=UPDATES)
    """Dropout of attention; absent = encoder.dropout."""


@dataclass
class TemperatureSettings(Settings):
    """Divisor of the scores before the softmax; part of the model."""

    temperature: float | None = setting(None, above=0, on_resume=IDENTITY)
    """Divisor of the scores. Absent = that of model_file, else 0.05 if vectors are normalised and 1 for other
    dot products, as in DPR."""
    learn_temperature: bool = setting(False, on_resume=IDENTITY)
    """Start from ``temperature`` and learn its logarithm."""


@dataclass
class TowerOptions(TemperatureSettings, RunningSettings):
    """Settings of how the towers run, and the temperature of their scores."""


@dataclass
class TowerSettings(RunningSettings, VectorSettings, GivenTextSettings, BackboneSettings):
    """The two towers. ``pretrained_model_cfg`` names config, weights and tokenizer of both."""

    def named_model(self) -> str | None:
        """Returns ``pretrained_model_cfg`` unless it is the default, which the user may not have chosen."""
        return None if self.pretrained_model_cfg == PRETRAINED_MODEL else self.pretrained_model_cfg

    def unused(self) -> Iterator[str]:
        yield from super().unused()
        if self.adapter != "lora":
            yield "lora_rank"

    def check_together(self, prefix: str) -> None:
        super().check_together(prefix)
        adapter = f"adapter={self.adapter}"
        has_adapter = self.adapter != "none"
        for first, second, are_both in (
            ("static_questions=true", "shared=true", self.static_questions and self.shared),
            ("static_questions=true", adapter, self.static_questions and has_adapter),
            (adapter, "fix_ctx_encoder=true", has_adapter and self.fix_ctx_encoder),
            (adapter, "pretrained=false", has_adapter and not self.pretrained),
            # with one tower nothing would train
            ("shared=true", "fix_ctx_encoder=true", self.shared and self.fix_ctx_encoder),
        ):
            if are_both:
                raise _exclusive(prefix + first, prefix + second)
        if self.question_length in (1, 2):
            raise ConfigError(
                f"{prefix}question_length={self.question_length} is out of range; it must be at least 3, or 0"
            )

    def check_attention(self, *, precision: str, trains: bool) -> None:
        """Checks the other settings that ``attention`` requires."""
        if self.attention != "varlen":
            return
        if not self.packed:
            raise _exclusive("encoder.attention=varlen", "encoder.packed=false")
        if precision == "fp32":
            raise ConfigError(
                "encoder.attention=varlen needs train.precision=bf16 or fp16, its kernel has no other; or"
                " leave it out"
            )
        if trains and self.attention_dropout is None:
            refuse_attention_dropout("encoder.dropout", self.dropout)
        elif trains:
            refuse_attention_dropout("encoder.attention_dropout", self.attention_dropout or 0.0)


def refuse_attention_dropout(key: str, probability: float) -> None:
    """Raises ConfigError if ``encoder.attention=varlen`` would have to apply dropout."""
    if probability > 0:
        raise ConfigError(
            f"encoder.attention=varlen has no attention dropout, which {key}={probability} asks for; set"
            " encoder.attention_dropout=0 (encoder.dropout stays for everything else), or"
            " encoder.attention=sdpa"
        )


def _exclusive(first: str, second: str) -> ConfigError:
    return ConfigError(f"{first} and {second} are mutually exclusive; leave one of them out")
