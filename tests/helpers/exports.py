"""Models of every shape that is exported, with random weights large enough for every token to count."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, BertTokenizer, T5Config, T5ForConditionalGeneration

from dpr.models.biencoder import BiEncoder
from dpr.models.settings import EncoderSettings
from tests.helpers.adapters import base_folder, randomize_adapters
from tests.helpers.decoders import decoder_folder
from tests.helpers.tiny import VOCABULARY, encoder_folder, static_folder, tiny_model

PROMPTS = {"query_prompt": "be: ", "passage_prompt": "ga: ", "prompts": {"web": "da: "}}
COSINE = {"pooling": "mean", "normalize": True}


def lively(model: BiEncoder) -> BiEncoder:
    """Larger weights: freshly made ones are so small that layers do next to nothing."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2 and weight.requires_grad:
                weight.mul_(4)
    return model.eval()


def bert(folder: Path, **settings: Any) -> BiEncoder:
    encoder_folder(folder, max_position_embeddings=128)
    return lively(
        tiny_model(folder, dtype=torch.float32, **{"sequence_length": 32, "question_length": 20, **settings})
    )


def shared(folder: Path, **settings: Any) -> BiEncoder:
    return bert(folder, **{"shared": True, "plain_apostrophes": False, "question_length": 0, **settings})


def static(folder: Path, **settings: Any) -> BiEncoder:
    static_folder(folder)
    return lively(
        tiny_model(folder, dtype=torch.float32, **{"pooling": "idf", "question_length": 20, **settings})
    )


def bag(folder: Path, **settings: Any) -> BiEncoder:
    """A static encoder whose tokenizer adds no token."""
    decoder_folder(folder)
    (folder / "config.json").write_text('{"model_type": "static", "vocab_size": 258, "hidden_size": 16}')
    values: dict[str, Any] = {"sequence_length": 40, "pooling": "mean", "shared": True}
    values |= {"plain_apostrophes": False, **settings}
    torch.manual_seed(0)
    return lively(
        BiEncoder.from_pretrained(str(folder), EncoderSettings(**values), pretrained=False, dropout=0.0)
    )


def rooted(folder: Path, **settings: Any) -> BiEncoder:
    """A static encoder as the quickstart's: special tokens, roots of counts, titles joined by a template."""
    template = "{title} {title} {title} {text}"
    values = {"pooling": "idf_sqrt", "shared": True, "question_length": 0, "normalize": True}
    values |= {"plain_apostrophes": False}
    return static(folder, **{**values, "title_template": template, **settings})


def adapters(folder: Path, **settings: Any) -> BiEncoder:
    values: dict[str, Any] = {"sequence_length": 32, "adapter": "lora", "lora_rank": 4, **settings}
    torch.manual_seed(0)
    model = BiEncoder.from_pretrained(
        str(base_folder(folder)), EncoderSettings(**values), dropout=0.0, do_lower_case=True
    )
    randomize_adapters(model)
    return model.eval()


def decoder(folder: Path, **settings: Any) -> BiEncoder:
    values: dict[str, Any] = {"sequence_length": 40, "pooling": "last", "append_eos": True, "normalize": True}
    values |= settings
    torch.manual_seed(0)
    decoder_folder(folder)
    return lively(
        BiEncoder.from_pretrained(str(folder), EncoderSettings(**values), pretrained=False, dropout=0.0)
    )


def question_writer(folder: Path) -> Path:
    """Writes a T5 of one layer whose random weights are so large that its output depends on its input."""
    tokenizer = BertTokenizer(str(folder / "vocab.txt"), eos_token="[SEP]")
    tokenizer.save_pretrained(folder)
    sizes: dict[str, Any] = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    tokens = {"pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": tokenizer.eos_token_id}
    torch.manual_seed(0)
    config = T5Config(vocab_size=len(tokenizer), initializer_factor=4.0, **sizes, **tokens)
    T5ForConditionalGeneration(config).save_pretrained(folder)
    return folder


def t5(folder: Path, **settings: Any) -> BiEncoder:
    """The encoder of a model that has a decoder too."""
    encoder_folder(folder)
    sizes: dict[str, Any] = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    sizes |= {"vocab_size": len(VOCABULARY), "pad_token_id": 0}
    AutoTokenizer.from_pretrained(str(folder)).save_pretrained(str(folder))
    T5Config(**sizes).save_pretrained(str(folder))
    return lively(tiny_model(folder, dtype=torch.float32, **{"pooling": "mean", **settings}))


MODELS: dict[str, Callable[[Path], BiEncoder]] = {
    "shared": shared,
    "shared, two lengths": lambda folder: shared(folder, question_length=12),
    "two towers": bert,
    "projection": lambda folder: bert(folder, projection_dim=6),
    "mean and cosine": lambda folder: bert(folder, **COSINE),
    "prompts": lambda folder: bert(folder, **PROMPTS),
    "prompts, shared, cosine": lambda folder: shared(folder, **PROMPTS, **COSINE),
    "title template": lambda folder: bert(folder, title_template="{title}: {text}"),
    "weighted mean": lambda folder: bert(folder, pooling="weighted_mean"),
    "cut": lambda folder: bert(folder, dimensions=5),
    "cut, cosine": lambda folder: bert(folder, dimensions=5, **COSINE),
    "cut, projection, cosine": lambda folder: bert(folder, dimensions=5, projection_dim=8, normalize=True),
    "static": static,
    "static, shared, cosine": lambda folder: static(
        folder, shared=True, plain_apostrophes=False, normalize=True, projection_dim=5
    ),
    "static without special tokens": bag,
    "static without special tokens, two towers": lambda folder: bag(
        folder, shared=False, plain_apostrophes=True, question_length=20, normalize=True, **PROMPTS
    ),
    "encoder of an encoder-decoder": t5,
    "adapters": adapters,
    "decoder": decoder,
    "decoder, shared": lambda folder: decoder(
        folder, shared=True, plain_apostrophes=False, query_prompt="Instruct: find\nQuery:"
    ),
}
