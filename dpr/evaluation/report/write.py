"""Reports from files: what ``dpr report`` and every training run write."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from dpr.core.lazy import version_of
from dpr.core.version import __version__
from dpr.evaluation.report.page import Report, build_page
from dpr.evaluation.report.reading import flatten, read_retrieval, read_training
from dpr.storage.durable import durable_file
from dpr.storage.outputs import require_writable

REPORT_FILE = "report.html"
_PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "datasets",
    "numpy",
    "faiss-cpu",
    "bm25s",
    "pytrec-eval-terrier",
)


def write_report(
    folder: Path,
    runs: Sequence[tuple[str, Path]] = (),
    *,
    out: Path | None = None,
    title: str | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Path:
    """Writes ``report.html`` about a run folder and the retrieval runs given as (label, file); returns its
    path. Settings that are as in ``defaults`` are not shown.

    Raises:
        InputError: a retrieval file is missing or is not one.
        OutputError: the page cannot be written.
    """
    folder = Path(folder)
    target = out if out is not None else folder / REPORT_FILE
    require_writable(target)
    training = read_training(folder)
    report = Report(
        title=title or folder.resolve().name,
        training=training,
        retrievals=[read_retrieval(label, file) for label, file in runs],
        environment=versions(),
        defaults=flatten(dict(defaults or {})),
    )
    if training is None:
        report.notes.append(
            "No training run found: neither the folder nor a folder in it has a metrics.jsonl."
        )
    with durable_file(target, note={}) as file:
        file.write(build_page(report))
    return target


@cache
def versions() -> dict[str, str]:
    """Versions of this package, of Python and of what metrics can depend on; nothing about the user or the
    host."""
    known = {
        "dpr": __version__,
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    return known | {name: version for name in _PACKAGES if (version := version_of(name)) is not None}
