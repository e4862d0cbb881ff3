"""What is computed: texts with the lengths of SQuAD, and BERTs of a stated size with random weights."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

SHARED = Path(__file__).resolve().parents[2] / "shared"
SQUAD = SHARED / "data" / "squad" / "squad-v1.1-train.800-paragraphs.jsonl.gz"
VOCABULARY = SHARED / "models" / "bert-base-uncased-vocab" / "vocab.txt"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True)
class Texts:
    """Question i is answered by passage i; passage i + half is its hard negative."""

    questions: list[str]
    passages: list[str]
    source: str


def load_texts(count: int) -> Texts:
    """SQuAD questions and paragraphs where the file is at hand; else made-up words with the same spread of
    lengths."""
    if SQUAD.is_file():
        with gzip.open(SQUAD, "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file][:count]
        if len(rows) == count:
            return Texts(
                [row["qas"][0]["question"] for row in rows], [row["context"] for row in rows], "SQuAD"
            )
    rng = random.Random(0)

    def text(mean: float, spread: float, least: int, most: int) -> str:
        return " ".join(
            f"w{rng.randrange(5000)}" for _ in range(min(most, max(least, round(rng.gauss(mean, spread)))))
        )

    return Texts(
        [text(11, 4, 4, 30) for _ in range(count)],
        [text(120, 45, 20, 220) for _ in range(count)],
        "synthetic",
    )


def write_encoder(
    folder: Path, texts: Texts, *, layers: int, width: int, pieces: Sequence[str] | None = None
) -> None:
    """A BERT folder (config, and as vocabulary ``pieces``, BERT's, or else one of the texts' words) for every
    side to load."""
    from transformers import BertConfig, BertModel

    folder.mkdir(parents=True, exist_ok=True)
    if pieces is not None:
        (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    elif VOCABULARY.is_file():
        (folder / "vocab.txt").write_bytes(VOCABULARY.read_bytes())
    else:
        _write_vocabulary(folder, texts)
    config = BertConfig(
        vocab_size=30522,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        BertModel(config, add_pooling_layer=False).save_pretrained(str(folder))


def _write_vocabulary(folder: Path, texts: Texts) -> None:
    words = sorted({word for text in (*texts.questions, *texts.passages) for word in text.lower().split()})
    pieces = dict.fromkeys(
        [
            *SPECIAL,
            *"abcdefghijklmnopqrstuvwxyz0123456789.,?'\"()-",
            *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz0123456789"),
            *words,
        ]
    )
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
