"""``dpr report``: a run and its retrieval metrics on one page, ``report.html``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from dpr.core.errors import InputError
from dpr.core.settings import Settings, require_set, setting


@dataclass
class ReportSettings(Settings):
    """Writes one self-contained HTML page about a run folder: curves, metrics, settings."""

    EXAMPLES: ClassVar[str] = """\
dpr report runs/first
dpr report runs/first BM25=runs/first/bm25.json trained=runs/first/dense.json
dpr report runs/first DPR=dpr.json --out compared.html
"""
    folder: str | None = setting(None, operand="FOLDER", path="input")
    """Run folder; if it contains several runs, the longest is shown."""
    runs: list[str] = setting(list, operand="[[LABEL=]FILE ...]", path="input")
    """Metrics files (metrics_file=...), with the label of their line."""
    out: str | None = setting(None, path="output")
    """Where to write it; absent = FOLDER/report.html."""
    title: str | None = None
    """Heading; absent = the name of the folder."""

    def check_together(self, prefix: str) -> None:
        require_set(self, {"folder": "runs/first"})


def run(config: ReportSettings) -> None:
    """Writes the page."""
    from dpr.evaluation.report.page import write_report
    from dpr.jobs.compare import labelled
    from dpr.storage.outputs import require_writable
    from dpr.training.settings import BiEncoderTrainConfig

    folder = Path(str(config.folder))
    out = None if config.out is None else Path(config.out)
    if not folder.is_dir():
        raise InputError(
            "no such folder", file=folder, expected="the output_dir of a training run, or the folder above it"
        )
    if out is not None:
        require_writable(out)
    defaults = asdict(BiEncoderTrainConfig())
    target = write_report(folder, labelled(config.runs), out=out, title=config.title, defaults=defaults)
    print(f"{target} ({target.stat().st_size / 1000:.0f} kB)")
