"""Writes training data: questions that a sequence-to-sequence model (T5, BART; doc2query, GenQ) generates for
the passages of a corpus.

    python examples/write_questions.py corpus.jsonl models/doc2query-t5 written.jsonl --questions 3
    dpr mine written.jsonl out=mined.jsonl keep_within=20

A model also writes questions that its passage does not answer. ``keep_within=20`` of ``dpr mine`` leaves out
those whose passage is not among the first 20 that BM25 finds. Each word is one of the ten likeliest, drawn by
the seed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import torch
import transformers

import dpr


def written(
    passages: list[dpr.Passage], model: Any, tokenizer: Any, given: argparse.Namespace
) -> Iterator[dpr.TrainingSample]:
    """Yields the questions of each passage, without empty and repeated ones."""
    for start in range(0, len(passages), given.batch):
        batch = passages[start : start + given.batch]
        texts = [given.prefix + f"{passage.title} {passage.text}".strip() for passage in batch]
        inputs = tokenizer(
            texts,
            truncation=True,
            max_length=512,
            padding=True,
            return_token_type_ids=False,
            return_tensors="pt",
        )
        with torch.inference_mode():
            tokens = model.generate(
                **inputs.to(model.device),
                max_new_tokens=64,
                do_sample=True,
                top_k=10,
                num_return_sequences=given.questions,
            )
        questions = [
            " ".join(text.split()) for text in tokenizer.batch_decode(tokens, skip_special_tokens=True)
        ]
        for number, passage in enumerate(batch):
            own = questions[number * given.questions : (number + 1) * given.questions]
            for question in dict.fromkeys(filter(None, own)):
                yield dpr.TrainingSample(question, (passage,))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", help="passages, in any format that dpr embed reads")
    parser.add_argument("model", help="folder or name of the model")
    parser.add_argument("out", help="file to write, .jsonl")
    parser.add_argument("--questions", type=int, default=3, help="number of questions for each passage")
    parser.add_argument("--prefix", default="", help='put before every passage, e.g. "generate question: "')
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(given.model)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(given.model, use_safetensors=True).eval()
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    count = dpr.write_training_set(
        given.out, written(list(dpr.read_passages(given.corpus)), model, tokenizer, given)
    )
    print(f"{given.out}: {count:,} questions")


if __name__ == "__main__":
    main()
