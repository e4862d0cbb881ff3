"""The results of a ladder, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpr.evaluation.ranking_metrics import RETRIEVAL_COLUMNS, format_table
from dpr.formats.checkpoints import resolve_checkpoint
from dpr.jobs.ladder.stages import RECORD, Stage
from dpr.storage.durable import read_json, write_json

FILE = "ladder.json"
COLUMNS = {
    "eval/nll_loss": "NLL",
    "eval/in_batch_acc": "in-batch acc.",
    "eval/avg_rank": "average rank",
    "best_value": "best",
    **RETRIEVAL_COLUMNS,
    "minutes": "minutes",
}


@dataclass(frozen=True)
class Round:
    """A training, and the evaluation of its model if one was asked for."""

    number: int
    train: Stage
    evaluation: Stage | None


def summarize(rounds: Sequence[Round], folder: Path, *, mode: str) -> float | None:
    """Prints a table of all rounds and writes ``ladder.json``; returns the best validation value of the last round."""
    found = [_report(entry) for entry in rounds]
    lines = {f"{report['round']}: {report['trained']}": _metrics(report) for report in found}
    print(format_table(lines, COLUMNS))
    summary = {"mode": mode, "rounds": found}
    if not (folder / FILE).is_file() or read_json(folder / FILE) != summary:
        write_json(folder / FILE, summary)
    best = found[-1]["dev"].get("best_value")
    return None if best is None else float(best)


def _report(entry: Round) -> dict[str, Any]:
    stages = [entry.train] + ([entry.evaluation] if entry.evaluation else [])
    report: dict[str, Any] = {
        "round": entry.number,
        "trained": entry.train.what,
        "model": str(resolve_checkpoint(entry.train.folder)),
        "dev": read_json(entry.train.folder / "metrics.json"),
        "seconds": {stage.name: read_json(stage.folder / RECORD)["seconds"] for stage in stages},
    }
    if entry.evaluation is not None:
        retrieved = read_json(entry.evaluation.folder / "metrics.json")
        report["retrieval"] = {"num_questions": retrieved["num_questions"], **retrieved["metrics"]}
    return report


def _metrics(report: dict[str, Any]) -> dict[str, float]:
    values = {**report["dev"], **report.get("retrieval", {}), "minutes": report["seconds"][f"train-{report['round']}"] / 60}
    return {name: float(values[name]) for name in COLUMNS if isinstance(values.get(name), int | float)}
