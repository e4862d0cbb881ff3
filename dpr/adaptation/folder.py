"""The folder that ``dpr adapt`` and ``dpr quickstart`` write: a stage's outputs lie in the folder of its name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class AdaptFolder:
    """Paths in the folder ``out``."""

    out: Path

    @property
    def model(self) -> Path:
        """Returns the folder of the run that ends as the model to search with."""
        return self.out / "model"

    @property
    def untrained(self) -> Path:
        """Returns the folder of the encoder that training begins with, if no model is given."""
        return self.out / "encoder" / "untrained"

    @property
    def vectors(self) -> Path:
        """Returns the vectors of the passages to search."""
        return self.out / "vectors" / "corpus_0"

    @property
    def evaluation_vectors(self) -> Path:
        """Returns the vectors of the passages without the text that became a question."""
        return self.out / "evaluation" / "corpus_0"

    @property
    def evaluation_index(self) -> Path:
        """Returns the BM25 index of the same passages, which the stage ``weight`` makes."""
        return self.out / "weight" / "index"

    def metrics(self, stage: str) -> Path:
        """Returns the metrics of a stage that searches with questions."""
        return self.out / stage / "metrics.json"
