"""A decoder of the shape of Qwen3-0.6B, its last token read: LoRA adapters (peft), and all weights trained;
tokens per second, memory."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks import sides
from benchmarks.gpu.record import PEAK, Record
from benchmarks.gpu.workload import (
    DTYPE,
    LENGTH,
    PRECISION,
    Sizes,
    attention_of,
    batches_of,
    is_out_of_memory,
    lengths_of,
    options,
    peak_gib,
    start_memory,
    vocabulary,
)
from benchmarks.measuring import take_turns
from dpr.models.biencoder import BiEncoder
from dpr.models.encoder import EncoderSettings
from dpr.training.throughput import TowerCost


def part(record: Record, sizes: Sizes) -> None:
    attention = attention_of(record)
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_decoder(Path(temporary) / "decoder", sizes)
        cases: dict[str, dict[str, Any]] = {"LoRA": {"adapter": "lora"}, "all weights": {}}
        if find_spec("peft") is None:
            record.add("LoRA", "not measured: encoder.adapter=lora needs peft, which is not installed")
            del cases["LoRA"]
        for name, settings in cases.items():
            for kind in dict.fromkeys([attention, "sdpa"]):
                record.add(f"{name}, {kind}", _training(record, sizes, folder, kind, settings))


def write_decoder(folder: Path, sizes: Sizes) -> Path:
    """Config, a tokenizer with an end token, and random weights."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import AutoModel, PreTrainedTokenizerFast, Qwen3Config

    end = "[SEP]"
    tokenizer = Tokenizer(
        models.WordPiece({piece: number for number, piece in enumerate(vocabulary())}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=end, pad_token="[PAD]", unk_token="[UNK]"
    ).save_pretrained(str(folder))
    heads = sizes.decoder_width // 64
    config = Qwen3Config(
        vocab_size=sizes.decoder_vocabulary,
        hidden_size=sizes.decoder_width,
        num_hidden_layers=sizes.decoder_layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        head_dim=128 if sizes.decoder_width >= 1024 else 32,
        intermediate_size=3 * sizes.decoder_width,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=vocabulary().index(end),
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModel.from_config(config).save_pretrained(str(folder))
    return folder


def _training(
    record: Record, sizes: Sizes, folder: Path, attention: str, settings: dict[str, Any]
) -> dict[str, Any]:
    start_memory(record.device)
    torch.manual_seed(0)
    encoder = EncoderSettings(
        shared=True, pooling="last", append_eos=True, sequence_length=LENGTH, **settings
    )
    try:
        model = BiEncoder.from_pretrained(str(folder), encoder, dropout=0.0, options=options(attention))
        batches = batches_of(model, sizes.decoder_batch, 1)
        work = sides.our_training(model, batches, record.device, precision=PRECISION)
        lengths = lengths_of(batches)
        tokens, flops = int(lengths.sum()), TowerCost(model.ctx_model).of(lengths)
        rounds = {"rounds": min(sizes.rounds, 3), "warmups": min(sizes.warmups, 1)}
        figures = take_turns(
            {"": work}, units=tokens, flops=flops, device=record.device, dtype=DTYPE, **rounds
        )[""]
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return {"questions": sizes.decoder_batch, "out of memory": True}
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    return {
        "questions": sizes.decoder_batch,
        "weights, trained": [sum(weight.numel() for weight in model.parameters()), trained],
        "tokens/s": figures.rate,
        "share of 989 TFLOP/s": figures.rate * flops / tokens / PEAK,
        "share of a measured product": figures.share,
        "GiB": peak_gib(record.device),
    }
