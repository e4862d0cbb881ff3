"""``python -m benchmarks.scaling_on_paper``: what a step sends and scores on many GPUs, from the formulas of
benchmarks/results/scaling.md.

Nothing is measured here.
"""

from __future__ import annotations

from dataclasses import dataclass

LATENCY_S = 5e-6  # of one step of a ring, launch included
BUCKET_BYTES = 25 * 2**20  # PyTorch's default
BLOCK_SCORES = 1 << 22  # ``BiEncoderNllLoss``: more are never held
LINKS = {"NVLink": 200e9, "400 Gbit/s": 50e9, "100 Gbit/s": 12.5e9}
"""Bytes a second in one direction that a ring is assumed to reach: inside a node, and where it leaves it (one
adapter a node)."""


@dataclass(frozen=True)
class Case:
    """``ranks`` W, ``questions`` B of each, ``slots`` per question, ``dimension`` D, ``parameters`` P that
    are trained, in fp32."""

    ranks: int
    questions: int
    slots: int = 2
    dimension: int = 768
    parameters: float = 220e6

    @property
    def global_batch(self) -> int:
        return self.ranks * self.questions

    @property
    def contexts(self) -> int:
        return self.global_batch * self.slots

    @property
    def gather_bytes(self) -> float:
        """Through one rank, for the vectors; the sum of their gradients takes as many again."""
        return (self.ranks - 1) / self.ranks * self.contexts * self.dimension * 4

    @property
    def facts_bytes(self) -> float:
        return (self.ranks - 1) / self.ranks * self.contexts * 24

    @property
    def gradient_bytes(self) -> float:
        return 2 * (self.ranks - 1) / self.ranks * self.parameters * 4

    def gather_s(self, bandwidth: float) -> float:
        """Ids, vectors and the sum of gradients, one after the other, hidden behind nothing."""
        return (self.facts_bytes + 2 * self.gather_bytes) / bandwidth + 3 * (self.ranks - 1) * LATENCY_S

    def gradient_s(self, bandwidth: float) -> float:
        buckets = -(-self.parameters * 4 // BUCKET_BYTES)
        return self.gradient_bytes / bandwidth + buckets * 2 * (self.ranks - 1) * LATENCY_S

    @property
    def scores(self) -> int:
        return self.questions * self.contexts

    @property
    def loss_flops(self) -> float:
        """Scores forward, two products backward; in blocks the scores once more."""
        return (8 if self.scores > BLOCK_SCORES else 6) * self.scores * self.dimension


CASES = [Case(8, 16), Case(8, 128), Case(8, 1024), Case(64, 16), Case(64, 128), Case(64, 1024)]


def main() -> None:
    print(
        "| GPUs | B | global batch Q | slots M | gather + sum, MB | gradients, MB | scores, MB | loss, GFLOP |"
    )
    print("|" + "---:|" * 8)
    for case in CASES:
        scores = f"{case.scores * 4 / 1e6:,.1f}" + (" (blocks: 16.8)" if case.scores > BLOCK_SCORES else "")
        print(
            f"| {case.ranks} | {case.questions:,} | {case.global_batch:,} | {case.contexts:,} |"
            f" {2 * case.gather_bytes / 1e6:,.1f} | {case.gradient_bytes / 1e6:,.0f} | {scores} |"
            f" {case.loss_flops / 1e9:,.1f} |"
        )
    print(
        "\n| GPUs | B | "
        + " | ".join(f"{link}: gather / gradients, ms" for link in LINKS)
        + " |\n|---:|---:|---:|---:|---:|"
    )
    for case in CASES:
        usable = {link: speed for link, speed in LINKS.items() if case.ranks <= 8 or link != "NVLink"}
        cells = {
            link: f"{1e3 * case.gather_s(speed):,.1f} / {1e3 * case.gradient_s(speed):,.0f}"
            for link, speed in usable.items()
        }
        print(
            f"| {case.ranks} | {case.questions:,} | "
            + " | ".join(cells.get(link, "") for link in LINKS)
            + " |"
        )


if __name__ == "__main__":
    main()
