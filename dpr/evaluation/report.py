"""The report page that ``dpr report`` and every training run write, rendered from templates/page.html. It
loads nothing from the network."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dpr.evaluation.page_text import cut, flatten, printable_text
from dpr.evaluation.ranking_metrics import heading_of, is_baseline, validated_names
from dpr.evaluation.runs import Retrieval, Training, read_training
from dpr.evaluation.significance import estimate
from dpr.formats.metrics_files import read_metrics
from dpr.storage.durable import durable_file
from dpr.storage.outputs import require_writable

Point = tuple[float, float]

_STYLES = ("-", "--", ":", "-.")


def curves_svg(
    title: str,
    curves: Mapping[str, Sequence[Point]],
    *,
    levels: Mapping[str, float] | None = None,
    x_label: str = "step",
    axis: str = "",
    log_x: bool = False,
) -> str:
    """Returns labelled curves over a common x, as SVG.

    Args:
        levels: values to compare the curves with, drawn as horizontal lines.
        axis: ``from zero``, so that a small change looks small; ``percent``, the same for shares.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    levels = levels or {}
    text = io.StringIO()
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reader's browser draws signs that matplotlib's font lacks
        matplotlib.rcdefaults()  # override any matplotlibrc
        matplotlib.rcParams["svg.fonttype"] = "none"
        matplotlib.rcParams["svg.hashsalt"] = repr((title, curves, levels))
        matplotlib.rcParams["text.parse_math"] = False
        matplotlib.rcParams["path.simplify_threshold"] = 1.0  # a long curve in a few kB, its peaks included
        figure = Figure(figsize=(6, 3))
        # Margins that hold the longest labels. Computing them would take as long as drawing.
        axes = figure.add_axes((0.14, 0.16, 0.84, 0.69))
        for number, (label, points) in enumerate(curves.items()):
            xs, ys = zip(*points, strict=True)
            style = _STYLES[number % len(_STYLES)]
            marker = "." if len(points) <= _FEW_POINTS else ""
            axes.plot(xs, ys, linestyle=style, marker=marker, label=printable_text(label))
        for number, (label, level) in enumerate(levels.items()):
            style = _STYLES[number % len(_STYLES)]
            axes.axhline(level, color="gray", linewidth=1, linestyle=style, label=printable_text(label))
        if log_x:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
        else:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if axis:
            axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
        if axis == "percent":
            axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.set_xlabel(x_label)
        axes.set_title(printable_text(title), loc="left", fontsize="medium")
        axes.legend(frameon=False, fontsize="small")
        figure.savefig(text, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = text.getvalue()
    # Groups have the same names in every picture, and a page has several.
    return re.sub(r'<g id="[^"]*"', "<g", svg[svg.index("<svg") :])


REPORT_FILE = "report.html"
_MOST_CURVES = 8
_FEW_POINTS = 25
_CHARTS = (
    ("Training loss", r"train/loss", ""),
    ("Loss on dev sets", r"eval/nll_loss", ""),
    ("In-batch accuracy in training", r"train/in_batch_acc", "percent"),
    ("In-batch accuracy on dev sets", r"eval/in_batch_acc", "percent"),
    ("Loss by train set", r"train/.+/loss", ""),
    ("nDCG@10", r"eval/.*ndcg@10", "percent"),
    ("MRR@10", r"eval/.*mrr@10", "percent"),
    ("Accuracy@20", r"eval/.*accuracy@20", "percent"),
    ("Average rank", r"eval/avg_rank", ""),
    ("Similarity in a global batch", r"pool/.+_similarity", ""),
    ("Effective rank of a global batch", r"pool/effective_rank", "from zero"),
    ("Learning rate", r"optim/lr", "from zero"),
    ("Gradient norm", r"optim/grad_norm", "from zero"),
    ("Questions per second", r"perf/questions_per_s", "from zero"),
    ("Tokens per second", r"perf/tokens_per_s", "from zero"),
    ("Padding share", r"perf/padding_share", "percent"),
    ("Peak memory, GiB", r"perf/mem_gb", "from zero"),
)
"""Charts: title, pattern of the metrics in it, and form of the axis. A chart combines comparable metrics
only: a loss or an accuracy depends on the number of candidates, which differs between dev sets and
training."""


def write_report(
    folder: Path,
    runs: Sequence[tuple[str, Path]] = (),
    *,
    out: Path | None = None,
    notes: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> Path:
    """Writes ``report.html`` for a run folder and the metrics files given as (label, file), and returns its
    path. Settings equal to ``defaults`` are not shown.

    Raises:
        InputError: a metrics file is missing or is not one.
        OutputError: the page cannot be written.
    """
    folder = Path(folder)
    target = out if out is not None else folder / REPORT_FILE
    require_writable(target)
    retrievals = [Retrieval(label, read_metrics(file)) for label, file in runs]
    page = build_page(
        folder.resolve().name,
        read_training(folder),
        retrievals,
        notes=notes,
        defaults=defaults,
    )
    with durable_file(target, note={}) as file:
        file.write(page)
    return target


def build_page(
    title: str,
    training: Training | None,
    retrievals: Sequence[Retrieval],
    *,
    notes: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> str:
    """Returns the HTML text. ``notes`` are remarks on the figures. Settings equal to
    ``defaults`` are not shown."""
    run = training or Training(
        "", notes=["No training run found: neither the folder nor a folder in it has a metrics.jsonl."]
    )
    groups: dict[tuple[str, int, int], list[Retrieval]] = {}
    for one in retrievals:
        same_questions = (one.file.question_set, one.file.num_questions, one.num_judged)
        groups.setdefault(same_questions, []).append(one)
    metrics = {name for line in run.validations for name in line if name.startswith("eval/")}
    # Metrics of all sets come before those of single sets, @5 before @20. With a single set both are the same
    # and appear once.
    columns = sorted(
        (name for name in metrics if not is_baseline(name)),
        key=lambda name: (name.count("/"), re.sub(r"\d+", lambda digits: digits[0].zfill(9), name)),
    )
    values = {name: [line.get(name) for line in run.validations] for name in columns}
    columns = [
        name for place, name in enumerate(columns) if values[name] not in map(values.get, columns[:place])
    ]
    default_values = flatten(dict(defaults or {}))
    page = {
        "title": title,
        "training": training,
        "run": run,
        "notes": notes,
        "retrievals": [_retrieval_section(runs) for runs in groups.values()],
        "charts": _training_charts(run),
        "columns": columns,
        "settings": {key: value for key, value in run.settings.items() if value != default_values.get(key)},
    }
    return printable_text(_TEMPLATES.get_template("page.html").render(page))


def _training_charts(run: Training) -> list[str]:
    """Returns the charts of all metrics that were logged at least twice. A metric that was measured only
    before the first step, such as BM25's, becomes a level in the chart of its kind."""
    series: dict[str, dict[float, float]] = {}
    for line in (*run.logs, *run.validations):
        for name, value in line.items():
            if math.isfinite(value):
                series.setdefault(name, {})[line["step"]] = value
    charts = []
    for title, pattern, axis in _CHARTS:
        named = {cut(name, 60): points for name, points in series.items() if re.fullmatch(pattern, name)}
        curves = {name: sorted(points.items()) for name, points in named.items() if len(points) > 1}
        levels = {name: points[0] for name, points in named.items() if points.keys() == {0}}
        if any(
            value for points in curves.values() for _, value in points
        ):  # of zeros there is nothing to see
            kept = dict(list(curves.items())[:_MOST_CURVES])
            charts.append(curves_svg(title, kept, levels=levels, axis=axis))
    return charts


def _retrieval_section(runs: Sequence[Retrieval]) -> dict[str, Any]:
    """Returns the section on runs over the same questions, with a table line and a curve for each run."""
    total = runs[0].file.num_questions
    judged = runs[0].num_judged
    counted = f"{total:,} questions" if judged == total else f"{judged:,} of {total:,} questions judged"
    metrics = [name for name in validated_names() if any(name in one.file.metrics for one in runs)]
    metrics = metrics or sorted({name for one in runs for name in one.file.metrics})[:8]
    curves = {cut(one.label, 40): one.accuracy_curve() for one in runs[:_MOST_CURVES] if one.rank_counts}
    title = "Accuracy@k: a relevant passage among the first k"
    rows = []
    for one in runs:
        each = one.file.each
        ends = {}
        for name in metrics:
            if each and name in each.values and (judged_values := each.judged(name)):
                ends[name] = estimate([*judged_values.values()]).ends
        rows.append((one.label, one.file.metrics, ends))
    return {
        "heading": ", ".join(part for part in (runs[0].file.question_set, counted) if part),
        "columns": {name: heading_of(name) for name in metrics},
        "rows": rows,
        "chart": curves_svg(title, curves, x_label="k", axis="percent", log_x=True) if curves else "",
    }


_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)
_TEMPLATES.filters["cut"] = cut
_TEMPLATES.filters["number"] = lambda value: f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
