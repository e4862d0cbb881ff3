"""Settings of the two towers (``encoder.*`` of ``dpr train``)."""

from __future__ import annotations

from dataclasses import dataclass

from dpr.config.checks import require_at_least, require_choice
from dpr.core.errors import ConfigError


@dataclass
class EncoderConfig:
    """The two towers. ``pretrained_model_cfg`` names config, weights and tokenizer of both."""

    encoder_model_type: str = "hf_bert"
    """DPR's key; any Hugging Face encoder is loaded by ``AutoModel`` whatever this says (hf_bert, hf_roberta, hf_auto)."""
    pretrained_model_cfg: str = "bert-base-uncased"
    """Hugging Face name or local folder. With a checkpoint file of the original: whose config and tokenizer belong to it."""
    pretrained: bool = True
    """False: random weights from the folder's config.json."""
    projection_dim: int = 0
    """Width of a linear layer on top of the pooled vector; 0 = none."""
    sequence_length: int = 256
    """Longest sequence in tokens, special tokens included; questions and passages."""
    question_length: int = 0
    """Longest question in tokens; 0 = sequence_length."""
    dropout: float = 0.1
    """Hidden and attention dropout of both towers; 0 switches it off."""
    attention_dropout: float | None = None
    """Attention dropout alone; absent = dropout."""
    fix_ctx_encoder: bool = False
    """Freeze the context tower: no dropout, no gradient, not in the optimizer."""
    shared: bool = False
    """One tower for questions and passages."""
    pooling: str = "cls"
    """cls (last hidden state at position 0, no pooler; DPR's) or mean over tokens."""
    packed: bool = True
    """Compute real tokens only; false pads every batch to its longest sequence (slower, the same vectors)."""
    attention: str = "sdpa"
    """How packed towers compute attention. sdpa: torch's, over sequences of like length. varlen: torch's kernel for sequences end to end,
    on CUDA in bf16 or fp16 without attention dropout; sdpa everywhere else."""
    normalize: bool = False
    """Scale vectors to length 1 (cosine similarity). Wants loss.temperature around 0.05 or below."""
    dpr_trailing_sep: bool | None = None
    """The original's stray [SEP] behind every sequence; absent = on for checkpoint files of the original and with compat=dpr, else off."""

    def named_model(self) -> str | None:
        """``pretrained_model_cfg`` where it is not the default, which nobody may have asked for."""
        default = EncoderConfig.pretrained_model_cfg
        return None if self.pretrained_model_cfg == default else self.pretrained_model_cfg

    def check(self) -> None:
        require_choice("encoder.encoder_model_type", self.encoder_model_type, ("hf_bert", "hf_roberta", "hf_auto"))
        require_choice("encoder.pooling", self.pooling, ("cls", "mean"))
        require_at_least("encoder.sequence_length", self.sequence_length, 3)
        require_at_least("encoder.projection_dim", self.projection_dim, 0)
        if self.question_length:
            require_at_least("encoder.question_length", self.question_length, 3)
        require_choice("encoder.attention", self.attention, ("sdpa", "varlen"))
        for key, value in (("dropout", self.dropout), ("attention_dropout", self.attention_dropout)):
            if value is not None and not 0 <= value < 1:
                raise ConfigError(f"encoder.{key}={value} is out of range; it must be in [0, 1)")
        if self.shared and self.fix_ctx_encoder:
            raise ConfigError("encoder.shared=true and encoder.fix_ctx_encoder=true contradict; with one tower nothing would train")

    def check_attention(self, *, precision: str, trains: bool) -> None:
        """What ``attention`` needs of other settings."""
        if self.attention != "varlen":
            return
        if not self.packed:
            raise ConfigError("encoder.attention=varlen and encoder.packed=false contradict; leave one of them out")
        if precision == "fp32":
            raise ConfigError("encoder.attention=varlen needs train.precision=bf16 or fp16, its kernel has no other; or leave it out")
        probability, key = self.attention_dropout, "encoder.attention_dropout"
        if probability is None:
            probability, key = self.dropout, "encoder.dropout"
        if trains and probability > 0:
            raise ConfigError(
                f"encoder.attention=varlen has no attention dropout, which {key}={probability} asks for; set encoder.attention_dropout=0 "
                "(encoder.dropout stays for everything else), or encoder.attention=sdpa"
            )
