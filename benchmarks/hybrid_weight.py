"""What a hybrid gains and loses by each way of fusing, over collections and encoders from poor to good.

    dpr evaluate suite=data/sets model_file=models/good output_dir=runs/good systems=[bm25,dense,static]
    python benchmarks/hybrid_weight.py runs/good:dense runs/good:static

reads the TREC runs that `dpr evaluate` wrote of each collection, fuses BM25's with the encoder's, and prints
for each way nDCG@10 as a share of the better side's: the worst of all pairs of a collection and an encoder,
and the mean; and the gain over BM25 alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dpr.formats.question_sets import read_qrels
from dpr.formats.results import read_trec_run
from dpr.indexer.ranking import Ranking, fuse_linear

WEIGHTS = np.arange(0.1, 0.95, 0.05)
CONSTANTS = (10, 60)


def ndcg(rankings: list[Ranking], judged: list[dict[str, int]]) -> float:
    """The mean nDCG@10."""
    discounts = 1 / np.log2(np.arange(2, 12))
    values = []
    for ranking, grades in zip(rankings, judged, strict=True):
        gains = [max(grades.get(passage, 0), 0) for passage, _ in ranking[:10]]
        best = sorted((grade for grade in grades.values() if grade > 0), reverse=True)[:10]
        values.append(
            float(gains @ discounts[: len(gains)] / (best @ discounts[: len(best)])) if best else 0.0
        )
    return float(np.mean(values))


def by_ranks(rankings: Sequence[Ranking], constant: int) -> Ranking:
    """Reciprocal-rank fusion: the sum of 1 / (constant + rank), over the lists a passage is in."""
    scores: dict[str, float] = {}
    for ranking in rankings:
        for rank, (passage, _) in enumerate(ranking, 1):
            scores[passage] = scores.get(passage, 0.0) + 1.0 / (constant + rank)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:10]


def measure(folder: Path, system: str) -> dict[str, float]:
    """nDCG@10 of both sides and of each way of fusing them."""
    qrels = read_qrels(folder / "qrels.txt")
    runs = [read_trec_run(folder / f"{name}.run") for name in ("bm25", system)]
    asked = [question for question, grades in qrels.items() if max(grades.values()) > 0]
    lexical, dense = ([run.get(question, []) for question in asked] for run in runs)
    judged = [qrels[question] for question in asked]
    values = {"bm25": ndcg(lexical, judged), "dense": ndcg(dense, judged)}
    for weight in WEIGHTS:
        fused = fuse_linear(dense, lexical, weight=float(weight), k=10)
        values[f"minmax {weight:.2f}"] = ndcg(fused, judged)
    for constant in CONSTANTS:
        both = [by_ranks(pair, constant) for pair in zip(dense, lexical, strict=True)]
        values[f"rrf {constant}"] = ndcg(both, judged)
    return values


def main() -> None:
    rows = {}
    for given in sys.argv[1:]:
        folder, _, system = given.partition(":")
        for file in sorted(Path(folder).glob(f"*/{system or 'dense'}.run")):
            name = f"{given} {file.parent.name}"
            rows[name] = measure(file.parent, system or "dense")
            print(
                f"{name:<44}"
                + " ".join(
                    f"{rows[name][way]:.3f}"
                    for way in ("bm25", "dense", "minmax 0.30", "minmax 0.50", "rrf 60")
                )
            )
    print(f"\n{'way':<12} {'worst share of the better side':<76} {'mean share':>10} {'less BM25':>10}")
    for way in next(iter(rows.values())):
        shares = {name: row[way] / max(row["bm25"], row["dense"]) for name, row in rows.items()}
        worst = min(shares, key=lambda name: shares[name])
        gain = np.mean([row[way] - row["bm25"] for row in rows.values()])
        print(
            f"{way:<12} {shares[worst]:<6.3f} {worst:<69} {np.mean(list(shares.values())):>10.3f}"
            f" {gain:>+10.3f}"
        )


if __name__ == "__main__":
    main()
