"""``dpr prepare-pairs``: pseudo-questions of a corpus to choose settings by, and pairs as a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from dpr.core.settings import require_set, setting
from dpr.preparation.settings import PairFileSettings


@dataclass
class PreparePairsSettings(PairFileSettings):
    """Cuts questions from the passages of a corpus, and writes the corpus without them, to compare settings
    where there are no questions. Scores on pseudo-questions are optimistic, and say nothing of the quality of
    a model. With rounds=N, writes training pairs too, for dpr mine and dpr score."""

    EXAMPLES: ClassVar[str] = """\
dpr prepare-pairs corpus.tsv out=data/pseudo
dpr prepare-pairs corpus.jsonl out=data/pseudo rounds=4 pairs=[crops,title]
"""
    corpus: str | None = setting(None, operand="CORPUS", path="input")
    """Passages, in any format that dpr embed reads."""
    out: str | None = setting(None, path="output")
    """Folder to write."""
    overwrite: bool = False
    """Replace what is at out."""

    def check_together(self, prefix: str) -> None:
        super().check_together(prefix)
        require_set(self, {"corpus": "corpus.tsv", "out": "data/pseudo"})


def run(config: PreparePairsSettings) -> None:
    """Writes the folder and prints how much of everything there is."""
    from dpr.preparation.pseudo_questions import prepare_pairs

    settings = config.part(PairFileSettings)
    counts = prepare_pairs(
        Path(str(config.corpus)), Path(str(config.out)), settings, overwrite=config.overwrite
    )
    print(f"{config.out}: " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))
