"""Settings of ``dpr tune-index``: those of the retrieval that the index is for, and where the curve goes."""

from __future__ import annotations

from dataclasses import dataclass, fields

from dpr.core.errors import ConfigError
from dpr.core.settings import setting
from dpr.indexer.settings import KINDS
from dpr.retrieval.settings import IndexerConfig, RetrievalConfig

_OF_RESULTS = ("out_file", "trec_run_file", "metrics_file", "search_folder", "qrels", "hybrid", "tune_hybrid_weight", "n_docs", "match")


@dataclass
class TunedIndexerConfig(IndexerConfig):
    """The index that is measured."""

    target_recall: float = setting(0.95, above=0, most=1)
    """Recall@100 that the breadth must reach that is printed; an index that is built learns it too (probes=0)."""


@dataclass
class TuneIndexConfig(RetrievalConfig):
    """Measures the recall of an index, and the time of its search, at each breadth; builds the index where there is none."""

    num_questions: int = setting(400, unit="questions", least=2)
    """Questions that are searched, taken evenly from qa_dataset: one half to choose by, the other to measure on."""
    indexer: TunedIndexerConfig = setting(TunedIndexerConfig)
    curve_file: str | None = None
    """SVG file to write, the curve as a picture, e.g. runs/first/index.svg; the numbers go to a JSON file beside it."""

    def check_together(self, prefix: str) -> None:
        super().check_together(prefix)
        usual = {item.name: item.default for item in fields(RetrievalConfig)}
        for name in _OF_RESULTS:
            if (value := getattr(self, name)) != usual[name]:
                raise ConfigError(f"{name}={value} is not for tune-index, which compares the first 10 and 100 passages with exact search")
        others = [kind for kind, made in KINDS.items() if not made.is_exact]
        if self.indexer.kind in KINDS and self.indexer.kind not in others:
            raise ConfigError(f"indexer={self.indexer.kind} is exact: there is nothing to tune; choose one of {', '.join(others)}")
        if self.curve_file and not self.curve_file.endswith(".svg"):
            raise ConfigError(f"curve_file={self.curve_file} is not a picture; end it with .svg")
