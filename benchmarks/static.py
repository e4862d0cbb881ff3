"""Static encoders against sentence-transformers' StaticEmbedding: the same table, texts, loss and optimizer
rule, side by side.

    python -m benchmarks.static --rounds 5
    python -m benchmarks.static --encoding --rounds 5

Both sides get their batches made beforehand. A round runs every case once, so that all cases meet the same
machine; the table shows medians of CPU seconds, which other programs disturb less than the clock, and ratios
within rounds. Both sides see the same tokens (mean pooling, cosine, temperature 0.05, in-batch and hard
negatives); their loss is asserted to agree. ``--vocabularies`` adds rows that no text reads. ``--encoding``
measures passages from text to vectors instead, by a model and what ``dpr export to=sentence-transformers``
makes of it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.workload import Texts, load_texts, write_encoder
from dpr.core.batch import TokenBatch
from dpr.core.distributed import average_gradients
from dpr.core.records import Passage
from dpr.export import sentence_transformers
from dpr.models.biencoder import BiEncoder
from dpr.models.encoder import Encoder, EncoderSettings
from dpr.models.static import StaticBackbone, StaticConfig
from dpr.training.compute import clip_gradients, row_tables
from dpr.training.optimizer import RowAdamW

WIDTH, WORDS, TEMPERATURE, RATE = 512, 7000, 0.05, 0.02
Step = Callable[[], float]


@dataclass(frozen=True)
class Sequences:
    """Token ids of questions, their passages and one hard negative each."""

    questions: list[list[int]]
    positives: list[list[int]]
    negatives: list[list[int]]

    @staticmethod
    def of(texts: Texts, tokenizer: Any) -> Sequences:
        half = len(texts.questions) // 2
        columns = texts.questions[:half], texts.passages[:half], texts.passages[half : 2 * half]
        return Sequences(
            *(
                [found.ids for found in tokenizer.encode_batch(column, add_special_tokens=False)]
                for column in columns
            )
        )


def tokenizer_of(texts: Texts, vocab_size: int) -> Any:
    """The most frequent words of the texts, the same ones in any vocabulary; they lie evenly among tokens
    that no text has."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    counts = Counter(word for text in (*texts.questions, *texts.passages) for word in text.lower().split())
    words = ["[UNK]", *(word for word, _ in counts.most_common(WORDS - 1))]
    place = {number * vocab_size // len(words): word for number, word in enumerate(words)}
    tokenizer = Tokenizer(
        models.WordLevel(
            {place.get(number, f"unread {number}"): number for number in range(vocab_size)}, unk_token="[UNK]"
        )
    )
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.WhitespaceSplit()
    return tokenizer


def our_step(table: Tensor, sequences: Sequences) -> Step:
    """Forward, loss, backward, clipping and update of ours; returns the loss."""
    tower = Encoder(StaticBackbone(StaticConfig(*table.shape)), pooling="mean", normalize=True)
    tower.load_state_dict({"backbone.words.weight": table})
    batch = TokenBatch.from_lists([*sequences.questions, *sequences.positives, *sequences.negatives])
    optimizer = RowAdamW(tower.parameters(), lr=RATE, weight_decay=0.0, fused=True)
    count = len(sequences.questions)
    target = torch.arange(count)

    def step() -> float:
        vectors = tower(batch)
        loss = nn.functional.cross_entropy(vectors[:count] @ vectors[count:].T / TEMPERATURE, target)
        loss.backward()
        average_gradients(tower.parameters(), by_rows=row_tables(tower))
        clip_gradients(list(tower.parameters()), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


def their_step(table: Tensor, sequences: Sequences, tokenizer: Any) -> Step:
    """The same through StaticEmbedding and MultipleNegativesRankingLoss, with torch's fused AdamW over the
    whole table."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    model = SentenceTransformer(
        modules=[StaticEmbedding(tokenizer, embedding_weights=table.clone())], device="cpu"
    )
    objective = MultipleNegativesRankingLoss(model, scale=1 / TEMPERATURE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0, fused=True)
    features = []
    for column in (sequences.questions, sequences.positives, sequences.negatives):
        batch = TokenBatch.from_lists(column)
        features.append(
            {"input_ids": batch.tokens, "offsets": torch.cumsum(batch.lengths, 0) - batch.lengths}
        )
    labels = torch.arange(len(sequences.questions))

    def step() -> float:
        loss = objective([dict(column) for column in features], labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


def cpu_seconds(step: Callable[[], object]) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


def compare(vocabularies: list[int], *, questions: int, rounds: int) -> str:
    """The table; every case is run once before what is measured."""
    texts = load_texts(2 * questions)
    cases: dict[tuple[str, int], Step] = {}
    for size in vocabularies:
        tokenizer = tokenizer_of(texts, size)
        sequences = Sequences.of(texts, tokenizer)
        table = torch.randn(size, WIDTH, generator=torch.Generator().manual_seed(0)) * 0.1
        cases["dpr", size] = our_step(table, sequences)
        cases["sentence-transformers", size] = their_step(table, sequences, tokenizer)
        ours, theirs = cases["dpr", size](), cases["sentence-transformers", size]()
        assert abs(ours - theirs) < 1e-3, f"losses of the same work differ: {ours} and {theirs}"
    seconds: dict[tuple[str, int], list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, step in cases.items():
            seconds[name].append(cpu_seconds(step))
    lines = [
        "| vocabulary | dpr, ms of CPU a step | sentence-transformers | ratio | against the smallest |",
        "|---:|---:|---:|---:|---:|",
    ]
    for size in vocabularies:
        of_ours, of_theirs, of_least = (
            seconds[key] for key in (("dpr", size), ("sentence-transformers", size), ("dpr", vocabularies[0]))
        )
        first, second = (f"{1000 * statistics.median(times):.0f}" for times in (of_ours, of_theirs))
        lines.append(
            f"| {size:,} | {first} | {second} | {_median_ratio(of_theirs, of_ours):.1f} |"
            f" {_median_ratio(of_ours, of_least):.2f} |"
        )
    return f"{questions} questions, {2 * questions} passages of {texts.source}, {WIDTH} wide\n\n" + "\n".join(
        lines
    )


def compare_encoding(*, passages: int, rounds: int) -> str:
    """The table; both sides tokenise and encode the same texts, and their vectors are asserted to agree."""
    from sentence_transformers import SentenceTransformer

    texts = load_texts(passages)
    items = [Passage(text) for text in texts.passages]
    with tempfile.TemporaryDirectory() as temporary:
        folder, exported = Path(temporary) / "static", Path(temporary) / "exported"
        write_encoder(folder, texts, layers=1, width=64)  # for its tokenizer
        StaticConfig(
            len((folder / "vocab.txt").read_text(encoding="utf-8").splitlines()), WIDTH
        ).save_pretrained(str(folder))
        (folder / "tokenizer_config.json").write_text(
            '{"tokenizer_class": "BertTokenizer", "do_lower_case": true}', encoding="utf-8"
        )
        torch.manual_seed(0)
        settings = EncoderSettings(
            pooling="mean", normalize=True, shared=True, sequence_length=256, plain_apostrophes=False
        )
        model = BiEncoder.from_pretrained(str(folder), settings, pretrained=False)
        exported.mkdir()
        sentence_transformers.write(model, exported, source="the model")
        theirs = SentenceTransformer(str(exported), device="cpu")
        found = {
            "dpr": model.encode_passages(items),
            "sentence-transformers": theirs.encode_document(texts.passages),
        }
        assert abs(found["dpr"] - found["sentence-transformers"]).max() < 1e-5, (
            "vectors of the same texts differ"
        )
        sides = {
            "dpr": lambda: model.encode_passages(items),
            "sentence-transformers": lambda: theirs.encode_document(texts.passages),
        }
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name, encode in sides.items():
                seconds[name].append(cpu_seconds(encode))
    lines = ["| | passages a second of CPU | dpr is faster by |", "|---|---:|---:|"]
    for name, times in seconds.items():
        lines.append(
            f"| {name} | {passages / statistics.median(times):,.0f} |"
            f" {_median_ratio(times, seconds['dpr']):.2f} |"
        )
    return f"{passages} passages of {texts.source}, {WIDTH} wide\n\n" + "\n".join(lines)


def _median_ratio(seconds: list[float], others: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(seconds, others, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--vocabularies", type=int, nargs="+", default=[8_000, 30_000, 250_000])
    parser.add_argument("--questions", type=int, default=400)
    parser.add_argument(
        "--encoding", action="store_true", help="passages from text to vectors, instead of training steps"
    )
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.encoding:
        print(compare_encoding(passages=2 * arguments.questions, rounds=arguments.rounds))
        return
    print(compare(arguments.vocabularies, questions=arguments.questions, rounds=arguments.rounds))


if __name__ == "__main__":
    main()
