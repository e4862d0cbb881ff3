"""Names of the metrics of a validation: those of baselines, and those that judge a run."""

from __future__ import annotations

from collections.abc import Sequence

BASELINES = {"bm25": "BM25", "hybrid": "hybrid", "guard": "guard"}
"""Labels of the baselines beside the model in metrics of step 0: ``eval/<set>/bm25/ndcg@10``."""
_FINEST = ("ndcg@10", "mrr@10", "accuracy@20")


def is_baseline(name: str) -> bool:
    """True if a metric of a validation is that of a baseline beside the model."""
    parts = name.split("/")
    return len(parts) > 3 and parts[-2] in BASELINES


def finest(names: Sequence[str]) -> list[str]:
    """Returns, for each set that was searched, the metric that distinguishes small differences best."""
    heads = dict.fromkeys(name.rpartition("/")[0] for name in names if "@" in name)
    names_of_heads = (
        next((f"{head}/{kind}" for kind in _FINEST if f"{head}/{kind}" in names), None) for head in heads
    )
    return [name for name in names_of_heads if name]
