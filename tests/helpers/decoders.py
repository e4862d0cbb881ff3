"""Folders of tiny decoders with byte-level tokenizers."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, Qwen3Config

BEGIN, END = "<bos>", "<eos>"
ALPHABET = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
VOCABULARY = ALPHABET | {BEGIN: len(ALPHABET), END: len(ALPHABET) + 1}
KINDS = ("qwen2, gpt2", "llama", "qwen3 embedding")


def byte_tokenizer(kind: str = "qwen2, gpt2", **options: Any) -> PreTrainedTokenizerFast:
    """One token a byte, with nothing added, a token before every text, or one after it, by ``kind``."""
    tokenizer = Tokenizer(models.BPE(VOCABULARY, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens([BEGIN, END])
    level = processors.ByteLevel(trim_offsets=False)
    templates = {
        "llama": (f"{BEGIN} $A", f"{BEGIN} $A {BEGIN} $B"),
        "qwen3 embedding": (f"$A {END}", f"$A $B {END}"),
    }
    tokenizer.post_processor = level
    if kind in templates:
        single, pair = templates[kind]
        tokens = [(token, VOCABULARY[token]) for token in (BEGIN, END)]
        template = processors.TemplateProcessing(single=single, pair=pair, special_tokens=tokens)
        tokenizer.post_processor = processors.Sequence([level, template])
    special = {"bos_token": BEGIN, "eos_token": END, "pad_token": END} | options
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **{name: token for name, token in special.items() if token is not None}
    )


def decoder_folder(folder: Path, kind: str = "qwen2, gpt2", **config: Any) -> Path:
    """Writes config.json and tokenizer of a Qwen3 with 2 layers, 32 wide, without weights."""
    tokens = {"pad_token_id": VOCABULARY[END], "eos_token_id": VOCABULARY[END], "bos_token_id": None}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 2}
    sizes = {"hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 64}
    defaults = {"vocab_size": len(VOCABULARY), **tokens, **heads, **sizes}
    byte_tokenizer(kind).save_pretrained(str(folder))
    Qwen3Config(**{**defaults, **config}).save_pretrained(str(folder))
    return folder
