"""What an untrained static encoder keeps of BM25, by its width, its pooling and what its rows begin with.

    python -m benchmarks.static_start ../shared/data/cranfield ../shared/data/npl --out runs/static_start

Each folder has the layout of BEIR. Prints for each the share of the first 10 passages of BM25 over the same
tokens that are among the encoder's, and nDCG@10.
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path

import numpy as np
import torch

from dpr import BiEncoder, EncoderSettings, EncoderShape, new_encoder
from dpr.core.records import Passage
from dpr.data.tensorizer import Tensorizer
from dpr.evaluation.ranking_metrics import evaluate_questions
from dpr.formats.corpora import read_passages
from dpr.formats.question_sets import read_qrels, read_questions
from dpr.indexer.bm25 import Bm25Index
from dpr.indexer.registry import Texts
from dpr.indexer.settings import Bm25Settings

DEPTH, LENGTH = 10, 1024
POOLINGS = {"bm25": False, "idf_sqrt": True}
"""With whether vectors are normalised."""


class Collection:
    """Passages, judged questions and BM25's first passages of each."""

    def __init__(self, folder: Path, out: Path) -> None:
        self.name, self.corpus = folder.name, folder / "corpus.jsonl"
        if not self.corpus.exists():
            self.corpus = out / f"{folder.name}.jsonl"
            self.corpus.write_bytes(gzip.decompress((folder / "corpus.jsonl.gz").read_bytes()))
        self.passages = list(read_passages(self.corpus))
        self.qrels = read_qrels(folder / "qrels" / "test.tsv")
        self.questions = [
            question
            for question in read_questions(folder / "queries.jsonl")
            if self.qrels.get(str(question.id))
        ]
        self.asked = [question.text for question in self.questions]
        self.by_words = self.bm25(
            [f"{passage.title} {passage.text}" for passage in self.passages], self.asked
        )
        self.by_tokens: list[list[int]] = []

    def tokenise(self, encoder: Path) -> None:
        """Searches for the tokens of an encoder, by BM25."""
        tensorizer = Tensorizer.load(encoder, sequence_length=LENGTH)
        tokens = tensorizer.passage_tokens(self.passages), tensorizer.question_tokens(self.asked)
        self.by_tokens = self.bm25(
            *([" ".join(f"t{token}" for token in text) for text in texts] for texts in tokens)
        )

    def bm25(self, texts: list[str], questions: list[str]) -> list[list[int]]:
        index = Bm25Index.build(Texts([str(row) for row in range(len(texts))], texts), Bm25Settings())
        return [[int(row) for row in rows] for rows in index.search(questions, DEPTH)[1]]

    def ndcg(self, found: list[list[int]]) -> float:
        ids = [
            [(str(self.passages[row].id), float(-place)) for place, row in enumerate(rows)] for rows in found
        ]
        run = {str(question.id): rows for question, rows in zip(self.questions, ids, strict=True)}
        return float(
            np.mean(
                [each[f"ndcg@{DEPTH}"] for each in evaluate_questions(run, self.qrels, (DEPTH,)).values()]
            )
        )

    def overlap(self, found: list[list[int]]) -> float:
        return float(
            np.mean(
                [len({*ours} & {*theirs}) / DEPTH for ours, theirs in zip(found, self.by_tokens, strict=True)]
            )
        )

    def found(self, folder: Path, pooling: str) -> list[list[int]]:
        """The first passages of each question, by an untrained encoder."""
        settings = EncoderSettings(
            pooling=pooling, normalize=POOLINGS[pooling], shared=True, sequence_length=LENGTH
        )
        torch.manual_seed(0)  # of random rows
        model = BiEncoder.from_pretrained(str(folder), settings)
        passages = [Passage(passage.text, passage.title) for passage in self.passages]
        scores = model.encode_questions(self.asked) @ model.encode_passages(passages).T
        return [[int(row) for row in rows] for rows in np.argsort(-scores, axis=1, kind="stable")[:, :DEPTH]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--widths", type=int, nargs="+", default=[256, 512, 1024, 2048, 4096])
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    kinds = [(pooling, rows) for pooling in POOLINGS for rows in ("random", "svd")]
    for folder in arguments.folders:
        collection = Collection(folder, arguments.out)
        vocabulary = arguments.out / f"{collection.name}_vocabulary"
        new_encoder(vocabulary, collection.corpus, shape=EncoderShape(num_layers=0, hidden_size=1))
        collection.tokenise(vocabulary)
        words, tokens = collection.by_words, collection.by_tokens
        print(
            f"\n{collection.name}: BM25 over tokens, nDCG@10 {collection.ndcg(tokens):.3f}; over words,"
            f" {collection.ndcg(words):.3f}, ",
            end="",
        )
        print(f"shares {collection.overlap(words):.2f} of its first {DEPTH}\n")
        print("| width |" + "".join(f" `{pooling}`, {rows} rows |" for pooling, rows in kinds))
        print("|---:|" + "---:|" * len(kinds), flush=True)
        for width in arguments.widths:
            cells = []
            for pooling, rows in kinds:
                made = arguments.out / f"{collection.name}_{width}_{rows}"
                shape = EncoderShape(num_layers=0, hidden_size=width)
                new_encoder(made, collection.corpus, shape=shape, tokenizer=str(vocabulary), rows=rows)
                found = collection.found(made, pooling)
                cells.append(f" {collection.overlap(found):.2f}, {collection.ndcg(found):.3f} |")
            print(f"| {width:,} |" + "".join(cells), flush=True)


if __name__ == "__main__":
    main()
