"""examples/write_questions.py: a model writes questions for passages, as training data."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dpr.core.records import Passage
from dpr.formats.corpora import write_passages
from dpr.formats.training_sets import open_training_set
from examples.write_questions import main
from tests.helpers.tiny import VOCABULARY


def model_folder(folder: Path) -> Path:
    """A T5 of one layer with random weights, so large that what it writes depends on what it reads, and its
    tokenizer."""
    from transformers import BertTokenizer, T5Config, T5ForConditionalGeneration

    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    BertTokenizer(str(folder / "vocab.txt"), eos_token="[SEP]").save_pretrained(folder)
    torch.manual_seed(0)
    shape = {
        "vocab_size": len(VOCABULARY),
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 32,
        "num_layers": 1,
        "num_heads": 2,
    }
    tokens = {"pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": VOCABULARY.index("[SEP]")}
    T5ForConditionalGeneration(T5Config(**shape, **tokens, initializer_factor=4.0)).save_pretrained(folder)
    return folder


def test_each_passage_gets_its_questions_and_the_seed_decides_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passages = [
        Passage(f"ba be bi {word}", "", f"p{number}")
        for number, word in enumerate(("bo", "bu", "ca", "ce", "ci"))
    ]
    write_passages(tmp_path / "corpus.tsv", passages)
    folder = model_folder(tmp_path / "model")

    def questions(name: str, seed: int) -> list[tuple[str, str]]:
        out = tmp_path / name
        given = [
            str(tmp_path / "corpus.tsv"),
            str(folder),
            str(out),
            "--questions",
            "2",
            "--batch",
            "2",
            "--seed",
            str(seed),
        ]
        monkeypatch.setattr("sys.argv", ["write_questions.py", *given])
        main()
        data = open_training_set(out, name="written")
        return [
            (sample.question, str(sample.positives[0].id))
            for sample in (data[row] for row in range(len(data)))
        ]

    first = questions("first.jsonl", 0)
    assert {key for _, key in first} == {passage.id for passage in passages} and len(first) == len(
        set(first)
    ) <= 10
    assert questions("again.jsonl", 0) == first
    assert questions("other.jsonl", 1) != first
