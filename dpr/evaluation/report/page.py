"""The report page, rendered from templates/page.html. It is small enough for a mail and loads nothing from the
network."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dpr.evaluation.ranking_metrics import heading_of, validated_names
from dpr.evaluation.report.examples import NUM_EXAMPLES, TEXT_LIMIT, cut
from dpr.evaluation.report.figures import Point, curves_svg, printable_text
from dpr.evaluation.report.reading import Retrieval, Training
from dpr.evaluation.significance import Estimate, estimate
from dpr.formats.metrics_files import PerQuestion, is_beside

LARGEST = 1_000_000
_MOST_CURVES = 8
_CHARTS = (
    ("Loss", r"train/loss|eval/nll_loss", False),
    ("In-batch accuracy", r"(train|eval)/in_batch_acc", True),
    ("Loss by train set", r"train/.+/loss", False),
    ("nDCG@10", r"eval/.*ndcg@10", True),
    ("MRR@10", r"eval/.*mrr@10", True),
    ("Accuracy@20", r"eval/.*accuracy@20", True),
    ("Average rank", r"eval/avg_rank", False),
    ("Similarity in a pool", r"pool/.+_similarity", False),
    ("Effective rank of a pool", r"pool/effective_rank", False),
    ("Learning rate", r"optim/lr", False),
    ("Gradient norm", r"optim/grad_norm", False),
    ("Questions per second", r"perf/questions_per_s", False),
    ("Tokens per second", r"perf/tokens_per_s", False),
    ("Padding share", r"perf/padding_share", True),
    ("Peak memory, GiB", r"perf/mem_gb", False),
)
"""Like with like: title, the metrics in the picture, and whether they are shares."""


@dataclass
class Report:
    """Everything on the page. Settings with the value that ``defaults`` has for them are not shown."""

    title: str
    training: Training | None = None
    retrievals: list[Retrieval] = field(default_factory=list)
    environment: Mapping[str, str] = field(default_factory=dict)
    """What the page was written with."""
    notes: list[str] = field(default_factory=list)
    defaults: Mapping[str, str] = field(default_factory=dict)


def build_page(report: Report) -> str:
    """The HTML text, below ``LARGEST`` bytes: if it would be longer, hits of the examples are shortened and
    finally omitted."""
    run = report.training or Training("")
    groups: dict[tuple[str, int, int, str], list[Retrieval]] = {}
    examples: dict[tuple[str, str], list[tuple[str, Any]]] = {}
    for one in report.retrievals:
        same_questions = (one.question_set, one.num_questions, one.num_judged, one.fingerprint)
        groups.setdefault(same_questions, []).append(one)
        for example in one.examples:
            examples.setdefault((example["id"], example["question"]), []).append((one.label, example))
    metrics = {name for line in run.validations for name in line if name.startswith("eval/")}
    page = {
        "report": report,
        "run": run,
        "notes": [*report.notes, *run.notes][:20],
        "retrievals": [_retrieval_section(runs) for runs in groups.values()],
        "examples": list(examples.values())[:NUM_EXAMPLES],
        "charts": _training_charts(run),
        # those of all sets before those of single ones
        "columns": sorted(
            (name for name in metrics if not is_beside(name)), key=lambda name: (name.count("/"), name)
        ),
        "settings": {key: value for key, value in run.settings.items() if value != report.defaults.get(key)},
    }
    for limit in (TEXT_LIMIT, 100, 0):
        text = printable_text(_TEMPLATES.get_template("page.html").render(page, text_limit=limit))
        if len(text.encode()) < LARGEST:
            break
    return text


def _training_charts(run: Training) -> list[str]:
    """The pictures of the metrics that were logged twice or more. One that was measured before the first step
    alone, such as BM25's, is a level in the picture of its like."""
    series: dict[str, dict[float, float]] = {}
    for line in (*run.logs, *run.validations):
        for name, value in line.items():
            if math.isfinite(value):
                series.setdefault(name, {})[line["step"]] = value
    charts = []
    for title, pattern, percent in _CHARTS:
        named = {cut(name, 60): points for name, points in series.items() if re.fullmatch(pattern, name)}
        curves = {name: sorted(points.items()) for name, points in named.items() if len(points) > 1}
        levels = {name: points[0] for name, points in named.items() if points.keys() == {0}}
        if curves:
            kept = dict(list(curves.items())[:_MOST_CURVES])
            charts.append(curves_svg(title, kept, levels=levels, percent=percent))
    return charts


def _retrieval_section(runs: Sequence[Retrieval]) -> dict[str, Any]:
    """Runs over the same questions: a line of the table and a curve for each."""
    total, judged = runs[0].num_questions, runs[0].num_judged
    counted = f"{total:,} questions" if judged == total else f"{judged:,} of {total:,} questions judged"
    metrics = [name for name in validated_names() if any(name in one.metrics for one in runs)]
    metrics = metrics or sorted({name for one in runs for name in one.metrics})[:8]
    curves: dict[str, list[Point]] = {}
    bands: dict[str, list[Point]] = {}
    for one in runs[:_MOST_CURVES]:
        points: list[Point] = [(k, share) for k, share in one.accuracy_curve() if k <= 20 or k % 5 == 0]
        if len(points) > 1:
            label = cut(one.label, 40)
            curves[label] = points
            freedom = max(judged - 1, 1)
            spread = [Estimate.of(share, share * (1 - share) / freedom, freedom) for _, share in points]
            bands[label] = [_ends(found) for found in spread]
    title = "Accuracy@k: a right passage among the first k"
    chart = curves_svg(title, curves, bands=bands, x_label="k", percent=True, log_x=True) if curves else ""
    rows = []
    for one in runs[:50]:
        each = one.each or PerQuestion([], [], {})
        values = {name: list(each.judged(name).values()) for name in metrics if name in each.values}
        ends = {name: _ends(estimate(of_questions)) for name, of_questions in values.items() if of_questions}
        rows.append((one, ends))
    return {
        "heading": ", ".join(part for part in (runs[0].question_set, counted) if part),
        "columns": {name: heading_of(name) for name in metrics},
        "rows": rows,
        "chart": chart,
    }


def _ends(found: Estimate) -> Point:
    """The interval; no mean of these metrics lies outside 0 to 1."""
    return max(found.low, 0.0), min(found.high, 1.0)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)
_TEMPLATES.filters["cut"] = cut
_TEMPLATES.filters["number"] = _number
