"""A tiny vocabulary, tiny encoders and hand-made samples, all built from a seed and nothing else."""

import json
import random
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpr.core.records import Passage, TrainingSample
from dpr.formats.token_frequencies import TokenFrequencies
from dpr.formats.training_files.dpr import write_training_set
from dpr.models.biencoder import BiEncoder, TowerOptions
from dpr.models.encoder import EncoderSettings

WORDS = tuple(one + two for one in "b c d f g h k l m n p r s t v w".split() for two in "a e i o u".split())
VOCABULARY = (*"[PAD] [unused0] [unused1] [unused2] [UNK] [CLS] [SEP] [MASK] ' - ?".split(), *WORDS)


def encoder_folder(folder: Path, **config: Any) -> Path:
    """Writes config.json and vocab.txt of a BERT with 2 layers, 16 wide."""
    from transformers import BertConfig

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    defaults = {"vocab_size": len(VOCABULARY), "max_position_embeddings": 64, "pad_token_id": 0, **sizes}
    BertConfig(**{**defaults, **config}).save_pretrained(str(folder))
    return folder


def transformers_folder(folder: Path, kind: str = "AutoModel") -> Path:
    """Writes a BERT of one label as transformers saves it, with random weights and its tokenizer."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(encoder_folder(folder), num_labels=1)
    torch.manual_seed(0)
    getattr(transformers, kind).from_config(config).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    return folder


def training_folder(folder: Path, *, train: int, dev: int) -> Path:
    """Writes a tiny encoder and training and dev sets of so many questions into the folder."""
    encoder_folder(folder / "encoder")
    write_training_set(folder / "train.json", make_samples(train))
    write_training_set(folder / "dev.json", make_samples(dev, seed=1))
    return folder


def static_folder(folder: Path, *, width: int = 16, counted: bool = True) -> Path:
    """Writes a static encoder with a tokenizer and, where ``counted``, made-up frequencies of its tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "BertTokenizer", "do_lower_case": true}'
    )
    (folder / "config.json").write_text(
        json.dumps({"model_type": "static", "vocab_size": len(VOCABULARY), "hidden_size": width})
    )
    if counted:
        TokenFrequencies(100, np.arange(len(VOCABULARY)) % 100, 12.5).write(folder)
    return folder


def tiny_model(
    folder: Path,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    dropout: float = 0.0,
    options: TowerOptions | None = None,
    **settings: Any,
) -> BiEncoder:
    """Two random towers (the same weights for the same seed on every rank)."""
    if not (folder / "config.json").exists():
        encoder_folder(folder)
    torch.manual_seed(seed)
    merged: dict[str, Any] = {"sequence_length": 24, **settings}
    return BiEncoder.from_pretrained(
        str(folder),
        EncoderSettings(**merged),
        pretrained=False,
        dropout=dropout,
        do_lower_case=True,
        options=options,
    ).to(dtype)


def sentence(rng: random.Random, num_words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(num_words))


def make_samples(count: int, *, seed: int = 0, num_passages: int = 40) -> list[TrainingSample]:
    """Questions with uneven numbers of passages from one small corpus; some passages have a title, some an id."""
    rng = random.Random(seed)
    corpus = [
        Passage(
            sentence(rng, rng.randint(2, 14)),
            sentence(rng, 2) if number % 3 else "",
            f"p{number}" if number % 2 else None,
        )
        for number in range(num_passages)
    ]
    samples = []
    for _ in range(count):
        chosen = rng.sample(corpus, 9)
        num_positives, num_hard, num_other = rng.randint(1, 3), rng.randint(0, 3), rng.randint(0, 3)
        hard = chosen[num_positives : num_positives + num_hard]
        other = chosen[num_positives + num_hard : num_positives + num_hard + num_other]
        samples.append(
            TrainingSample(
                sentence(rng, rng.randint(2, 6)), tuple(chosen[:num_positives]), tuple(hard), tuple(other)
            )
        )
    return samples


class ListSource:
    """A training set held in memory."""

    def __init__(self, samples: Sequence[TrainingSample], name: str = "tiny") -> None:
        self.samples, self.name = list(samples), name
        self.fingerprint = sha256(repr(self.samples).encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> TrainingSample:
        return self.samples[row]

    def known_positives(self, row: int) -> tuple[Passage, ...]:
        question = self.samples[row].question
        return tuple(
            passage for sample in self.samples if sample.question == question for passage in sample.positives
        )
