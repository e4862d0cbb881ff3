"""The report page, rendered from templates/. It is small enough for a mail and loads nothing from the
network."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dpr.evaluation.report.charts import Chart, bar_chart, line_chart, number_text, place_text
from dpr.evaluation.report.examples import NUM_EXAMPLES, TEXT_LIMIT, Example, cut
from dpr.evaluation.report.overview import duel, headline, interval
from dpr.evaluation.report.reading import Retrieval, Training
from dpr.formats.metrics_files import BESIDE, finest, is_beside

LARGEST = 1_000_000
_MOST_RUNS = 6
_MOST_SETTINGS = 250
_RANK_GROUPS = ((1, 1), (2, 5), (6, 10), (11, 20), (21, 50), (51, 100), (101, 1000))
_METRICS = {
    "accuracy@1": "top-1",
    "accuracy@5": "top-5",
    "accuracy@20": "top-20",
    "accuracy@100": "top-100",
    "recall@20": "recall@20",
    "recall@100": "recall@100",
    "mrr@10": "MRR@10",
    "ndcg@10": "nDCG@10",
}
# Characters that XML cannot hold, and controls that change the reading direction of everything after them.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]"
)


@dataclass
class Report:
    """Everything on the page."""

    title: str
    training: Training | None = None
    retrievals: list[Retrieval] = field(default_factory=list)
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    table: tuple[str, list[list[str]]] | None = None
    """Heading and lines of cells, the first of them headings; before everything else."""


def build_page(report: Report) -> str:
    """The HTML text, below ``LARGEST`` bytes: if it would be longer, hits of the examples are shortened and
    finally omitted."""
    training = report.training
    content = {
        "title": cut(report.title, 150) or "run",
        "subtitle": _subtitle(report),
        "headline": _headline(report),
        "tiles": _tiles(report),
        "notes": [*report.notes, *(training.notes if training else [])][:20],
        "table": report.table,
        "training": training and _training_section(training),
        "retrievals": _retrieval_sections(report.retrievals),
        "most_runs": _MOST_RUNS,
        "examples": _examples(report.retrievals),
        "settings": [
            ("Configuration", "settings of the run", _setting_groups(training.settings if training else {})),
            ("Environment", "versions", _environment(report)),
        ],
    }
    content["contents"] = _contents(content)
    for limit in (TEXT_LIMIT, 200, 60, 0):
        page = render("page.html", content | {"text_limit": limit})
        if len(page.encode()) < LARGEST:
            break
    return page


def _contents(content: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Anchors and headings of the page's sections."""
    sections = [(group["anchor"], f"Retrieval: {group['heading']}") for group in content["retrievals"]]
    sections += [("examples", "Example questions")] * bool(content["examples"]) + [
        ("training", "Training")
    ] * bool(content["training"])
    return sections + [(heading.lower(), heading) for heading, _, groups in content["settings"] if groups]


def render(template: str, content: Mapping[str, Any]) -> str:
    """A template of this package filled in. Every text is escaped, and what XML cannot carry is replaced."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", _TEMPLATES.get_template(template).render(content))


def _subtitle(report: Report) -> str:
    parts = []
    if report.training is not None and report.training.logs:
        parts.append(f"training run {cut(report.training.name, 80)}, {report.training.step:.0f} steps")
    if report.retrievals:
        parts.append(f"{len(report.retrievals)} retrieval runs")
    return "; ".join(parts) or "nothing measured yet"


def _headline(report: Report) -> dict[str, Any] | None:
    """What matters, of runs over the same questions, or of the training."""
    if report.table is not None:  # which says more
        return None
    groups = _groups(report.retrievals)
    if len(groups) == 1 and (shown := headline(groups[0][:_MOST_RUNS])):
        return shown
    run = report.training
    if run is None or report.retrievals:
        return None
    name, value = run.best.get("best_metric"), run.best.get("best_value")
    is_measured = isinstance(name, str) and isinstance(value, int | float)
    best = f"; its best {_metric_words(str(name))} is {number_text(float(value or 0))}" if is_measured else ""
    sentence = f"{cut(run.name, 80)} has been trained for {run.step:,.0f} steps{best}."
    sentence += f" Verdict: {cut(str(run.verdict.get('line')), 200)}." if run.verdict else ""
    return {"sentence": sentence, "note": "", "bars": []} if run.logs else None


def _tiles(report: Report) -> list[tuple[str, str]]:
    tiles: list[tuple[str, str]] = []
    run = report.training
    if run is not None and run.logs:
        last = run.logs[-1]
        tiles.append(("steps", number_text(run.step)))
        if not math.isnan(last.get("train/loss", math.nan)):
            tiles.append(("last training loss", number_text(last["train/loss"])))
        name, value = run.best.get("best_metric"), run.best.get("best_value")
        if isinstance(name, str) and isinstance(value, int | float):
            tiles.append((f"best {_metric_words(name)}", number_text(value)))
        for key, words in (
            ("perf/questions_per_s", "questions/s, median"),
            ("perf/tokens_per_s", "tokens/s, median"),
        ):
            if values := _column(run.logs, key):
                tiles.append((words, number_text(median(value for _, value in values))))
        if values := _column(run.logs, "perf/padding_share"):
            tiles.append(("padding share, median", f"{median(value for _, value in values):.1%}"))
        if values := _column(run.logs, "perf/mem_gb"):
            tiles.append(("peak memory", f"{max(value for _, value in values):.1f} GiB"))
    return tiles


def _training_section(run: Training) -> dict[str, Any]:
    if not run.logs and not run.validations:
        return {"charts": []}

    def chart(
        title: str,
        *sources: tuple[str, Sequence[Mapping[str, float]], str],
        is_kept: bool = False,
        **options: Any,
    ) -> list[Chart]:
        series = [(label, points) for label, entries, key in sources if (points := _column(entries, key))]
        return [line_chart(title, series, **options)] if series or is_kept else []

    def levels(key: str) -> list[Any]:
        """What the curve of a metric is to be compared with, as horizontal lines."""
        first = run.validations[0] if run.validations and run.step and not run.validations[0]["step"] else {}
        head, _, kind = key.rpartition("/")
        names = {"start": key, **{words: f"{head}/{name}/{kind}" for name, words in BESIDE.items()}}
        return [
            (words, [{"step": step, name: first[name]} for step in (0, run.step)], name)
            for words, name in names.items()
            if name in first
        ]

    logs, validations = run.logs, run.validations
    nll, accuracy = (
        ("validation (NLL)", validations, "eval/nll_loss"),
        ("validation", validations, "eval/in_batch_acc"),
    )
    charts = chart("Loss", ("training", logs, "train/loss"), nll, *levels(nll[2]), is_kept=True)
    charts += chart(
        "In-batch accuracy",
        ("training", logs, "train/in_batch_acc"),
        accuracy,
        *levels(accuracy[2]),
        percent=True,
    )
    charts += chart("Loss by train set", *((name.split("/")[1], logs, name) for name in _of_sets(logs)))
    similarities = (
        ("positives", logs, "pool/positive_similarity"),
        ("negatives", logs, "pool/negative_similarity"),
    )
    charts += chart("Similarity", *similarities) + chart(
        "Effective rank", ("passages", logs, "pool/effective_rank"), from_zero=True
    )
    charts += chart(
        "Average rank (validation)", ("average rank", validations, "eval/avg_rank"), *levels("eval/avg_rank")
    )
    newest = validations[::-1]
    names = [
        key
        for key in dict.fromkeys(key for entry in newest for key in entry)
        if key.startswith("eval/") and not is_beside(key)
    ]
    for key in finest(names)[:_MOST_RUNS]:
        charts += chart(
            f"{_metric_words(key)} (validation)", ("validation", validations, key), *levels(key), percent=True
        )
    charts += chart("Learning rate", ("learning rate", logs, "optim/lr"), is_kept=True)
    charts += chart("Gradient norm", ("gradient norm", logs, "optim/grad_norm"))
    speed = chart("Questions per second", ("questions/s", logs, "perf/questions_per_s"), from_zero=True)
    speed += chart("Tokens per second", ("tokens/s", logs, "perf/tokens_per_s"), from_zero=True)
    speed += chart("Padding share", ("padding", logs, "perf/padding_share"), percent=True, from_zero=True)
    # With a single dev set its own columns repeat the totals.
    if len({name.split("/")[1] for name in names if name.count("/") > 1}) < 2:
        names = [name for name in names if name.count("/") == 1]
    return {"charts": charts, "speed": speed, "validations": newest, "columns": names[:12]}


def _of_sets(logs: Sequence[Mapping[str, float]]) -> list[str]:
    """The losses of single train sets."""
    names = dict.fromkeys(name for line in logs for name in line)
    return [
        name
        for name in names
        if name.startswith("train/") and name.endswith("/loss") and name.count("/") == 2
    ][:_MOST_RUNS]


def _column(entries: Sequence[Mapping[str, float]], key: str) -> list[tuple[float, float]]:
    return [(entry["step"], entry[key]) for entry in entries if math.isfinite(entry.get(key, math.nan))]


def _metric_words(name: str) -> str:
    words = (
        cut(name.removeprefix("eval/"), 60)
        .replace("nll_loss", "NLL")
        .replace("in_batch_acc", "in-batch accuracy")
    )
    return words.replace("avg_rank", "average rank").replace("_", " ").replace("/", ": ")


def _groups(retrievals: Sequence[Retrieval]) -> list[list[Retrieval]]:
    """Runs over the same questions together."""
    groups: dict[tuple[str, int, int, str], list[Retrieval]] = {}
    for one in retrievals:
        groups.setdefault((one.question_set, one.num_questions, one.num_judged, one.fingerprint), []).append(
            one
        )
    return list(groups.values())


def _retrieval_sections(retrievals: Sequence[Retrieval]) -> list[dict[str, Any]]:
    sections: list[dict[str, Any]] = []
    for runs in _groups(retrievals):
        name, number, judged = runs[0].question_set, runs[0].num_questions, runs[0].num_judged
        counted = (
            f"{number:,} questions" if judged == number else f"{judged:,} of {number:,} questions judged"
        )
        heading = f"{cut(name, 80) + ', ' if name else ''}{counted}"
        anchor = f"retrieval-{len(sections) + 1}"
        sections.append(
            {"heading": heading, "anchor": anchor, "runs": runs, "duel": duel(runs), **_comparison(runs)}
        )
    return sections


def _comparison(runs: Sequence[Retrieval]) -> dict[str, Any]:
    drawn = [(cut(one.label, 40), one) for one in runs[:_MOST_RUNS]]
    options: dict[str, Any] = {"x_label": "k", "percent": True, "log_x": True}
    curves = [(label, one.accuracy_curve()) for label, one in drawn]
    bands = [{k: interval(share, one.num_judged) for k, share in one.accuracy_curve()} for _, one in drawn]
    charts = [line_chart("Accuracy@k: a right passage among the first k", curves, **options, bands=bands)]
    # With one relevant passage for each question, recall and accuracy are the same.
    if any(one.metric_curve("recall") not in ([], one.metric_curve("accuracy")) for _, one in drawn):
        recalls = [(label, one.metric_curve("recall")) for label, one in drawn]
        charts.append(line_chart("Recall@k: share of the relevant passages", recalls, **options))
    ranked = [(label, one) for label, one in drawn if one.rank_counts]
    if ranked:
        groups, shares = rank_histogram([one for _, one in ranked])
        bars = [(label, share) for (label, _), share in zip(ranked, shares, strict=True)]
        charts.append(
            bar_chart("Rank of the first right passage", groups, bars, x_label="rank; share of the questions")
        )
    columns = {
        name: heading for name, heading in _METRICS.items() if any(name in one.metrics for one in runs)
    }
    if all(
        one.metrics.get(f"recall@{k}") == one.metrics.get(f"accuracy@{k}") for one in runs for k in (20, 100)
    ):
        columns = {name: heading for name, heading in columns.items() if not name.startswith("recall")}
    columns = columns or {name: name for name in sorted({name for one in runs for name in one.metrics})[:8]}
    best = (
        {name: max(one.metrics.get(name, -math.inf) for one in runs) for name in columns}
        if len(runs) > 1
        else {}
    )
    return {"charts": charts, "columns": columns, "best": best, "lacks_ranks": len(ranked) < len(drawn)}


def rank_histogram(runs: Sequence[Retrieval]) -> tuple[list[str], list[list[float]]]:
    """Names of the groups of ranks, and for each run the share of its questions in each; the last group is
    those without."""
    deepest = max(len(one.rank_counts or ()) for one in runs)
    spans = [(low, high) for low, high in _RANK_GROUPS if low <= deepest]
    shares = []
    for one in runs:
        counts = one.rank_counts or []
        total = max(sum(counts) + one.num_without, 1)
        shares.append(
            [sum(counts[low - 1 : high]) / total for low, high in spans] + [one.num_without / total]
        )
    names = [str(low) if low == min(high, deepest) else f"{low}-{min(high, deepest)}" for low, high in spans]
    return [*names, "none"], shares


def _examples(retrievals: Sequence[Retrieval]) -> list[list[tuple[str, Example]]]:
    """Each question with what the runs found for it."""
    runs = [one for one in retrievals if one.examples][:_MOST_RUNS]
    by_run = [
        (cut(one.label, 40), {(example.id, example.question): example for example in one.examples})
        for one in runs
    ]
    wanted = list(dict.fromkeys(key for _, examples in by_run for key in examples))[:NUM_EXAMPLES]
    return [[(label, examples[key]) for label, examples in by_run if key in examples] for key in wanted]


def _pieces(text: str, answers: Sequence[str]) -> list[str]:
    """The text cut at the answers in it; every second piece is an answer."""
    wanted = "|".join(
        re.escape(answer) for answer in sorted(answers, key=len, reverse=True) if answer.strip()
    )
    return re.split(f"(?i)(?<!\\w)({wanted})(?!\\w)", text) if wanted else [text]


def _setting_groups(settings: Mapping[str, str]) -> dict[str, dict[str, str]]:
    groups: dict[str, dict[str, str]] = {}
    for key, value in list(settings.items())[:_MOST_SETTINGS]:
        group, dot, name = key.partition(".")
        groups.setdefault(group if dot else "run", {})[name if dot else key] = value
    return dict(sorted(groups.items(), key=lambda item: (item[0] != "run", item[0])))


def _environment(report: Report) -> dict[str, Mapping[str, str]]:
    trained = report.training.environment if report.training else {}
    groups = {"training ran with": trained, "report written with": report.environment}
    return {name: values for name, values in groups.items() if values}


_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)
_TEMPLATES.filters |= {
    "cut": cut,
    "metric_words": _metric_words,
    "number": number_text,
    "pieces": _pieces,
    "place": place_text,
}
_TEMPLATES.tests["finite"] = math.isfinite
