"""The page: sections in the order in which one asks. Small enough for a mail, whole without a network."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from dpr.evaluation.report.charts import Series, bar_chart, figure, line_chart, number_text
from dpr.evaluation.report.examples import NUM_EXAMPLES, TEXT_LIMIT, Example, ExampleHit
from dpr.evaluation.report.markup import Markup, cut, join, tag
from dpr.evaluation.report.reading import Retrieval, Training
from dpr.evaluation.report.style import STYLE

LARGEST = 1_000_000
_MOST_RUNS = 6
_MOST_ROWS = 20
_MOST_SETTINGS = 250
_RANK_GROUPS = ((1, 1), (2, 5), (6, 10), (11, 20), (21, 50), (51, 100), (101, 1000))
_FIGURES = {
    "accuracy@1": "top-1",
    "accuracy@5": "top-5",
    "accuracy@20": "top-20",
    "accuracy@100": "top-100",
    "recall@20": "recall@20",
    "recall@100": "recall@100",
    "mrr@10": "MRR@10",
    "ndcg@10": "nDCG@10",
}
# Nothing is loaded and nothing runs, even if a text should find its way past the escaping.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


@dataclass
class Report:
    """Everything on the page."""

    title: str
    training: Training | None = None
    retrievals: list[Retrieval] = field(default_factory=list)
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def build_page(report: Report) -> str:
    """The HTML text, below ``LARGEST`` bytes: the hits of the examples are cut shorter, and then left out, where it would be more."""
    for limit in (TEXT_LIMIT, 200, 60, 0):
        page = _page(report, limit)
        if len(page.encode()) < LARGEST:
            break
    return page


def _page(report: Report, text_limit: int) -> str:
    training = report.training
    title = cut(report.title, 150) or "run"
    body = [tag("h1", title), tag("p", _subtitle(report), class_="soft"), _tiles(report)]
    body += [tag("p", cut(note, 400), class_="note") for note in [*report.notes, *(training.notes if training else [])][:20]]
    body += _training_sections(training)
    body += _retrieval_sections(report.retrievals)
    body += _example_section(report.retrievals, text_limit)
    if training is not None:
        body += _configuration(training)
    body += _environment(report)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{title} - report"),
        tag("style", Markup(STYLE)),
    )
    return "<!DOCTYPE html>\n" + tag("html", head, tag("body", tag("main", *body)), lang="en") + "\n"


def _subtitle(report: Report) -> str:
    parts = []
    if report.training is not None and report.training.logs:
        parts.append(f"training run {cut(report.training.name, 80)}, {report.training.step:.0f} steps")
    if report.retrievals:
        parts.append(f"{len(report.retrievals)} retrieval runs")
    return "; ".join(parts) or "nothing measured yet"


def _tiles(report: Report) -> Markup:
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
        for key, words in (("perf/questions_per_s", "questions/s, median"), ("perf/tokens_per_s", "tokens/s, median")):
            if values := _column(run.logs, key):
                tiles.append((words, number_text(median(value for _, value in values))))
        if values := _column(run.logs, "perf/padding_share"):
            tiles.append(("padding share, median", f"{median(value for _, value in values):.1%}"))
        if values := _column(run.logs, "perf/mem_gb"):
            tiles.append(("peak memory", f"{max(value for _, value in values):.1f} GiB"))
    for one in report.retrievals[:_MOST_RUNS]:
        name = next((name for name in ("accuracy@20", "mrr@10") if name in one.metrics), None)
        if name is not None:
            tiles.append((f"{_FIGURES[name]}, {cut(one.label, 40)}", f"{one.metrics[name]:.1%}"))
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value), class_="tile") for name, value in tiles), class_="tiles")


def _training_sections(run: Training | None) -> list[Markup]:
    if run is None:
        return []
    if not run.logs and not run.validations:
        return [tag("h2", "Training"), tag("p", "No figures yet: metrics.jsonl has no line.", class_="none")]
    pairs = {
        "Loss": (("training", run.logs, "train/loss"), ("validation (NLL)", run.validations, "eval/nll_loss")),
        "In-batch accuracy": (("training", run.logs, "train/in_batch_acc"), ("validation", run.validations, "eval/in_batch_acc")),
        "Average rank (validation)": (("average rank", run.validations, "eval/avg_rank"),),
        "Learning rate": (("learning rate", run.logs, "optim/lr"),),
        "Gradient norm": (("gradient norm", run.logs, "optim/grad_norm"),),
    }
    charts = _charts(pairs, percent={"In-batch accuracy"}, always={"Loss", "Learning rate"})
    speed = {
        "Questions per second": (("questions/s", run.logs, "perf/questions_per_s"),),
        "Tokens per second": (("tokens/s", run.logs, "perf/tokens_per_s"),),
        "Padding share": (("padding", run.logs, "perf/padding_share"),),
    }
    sections = [tag("h2", "Training"), tag("div", *charts, _validation_table(run), class_="charts")]
    if shown := _charts(speed, percent={"Padding share"}, from_zero=True):
        sections += [tag("h2", "Throughput"), tag("div", *shown, class_="charts")]
    return sections


Sources = Sequence[tuple[str, Sequence[Mapping[str, float]], str]]


def _charts(wanted: Mapping[str, Sources], *, percent: set[str], always: set[str] | None = None, from_zero: bool = False) -> list[Markup]:
    charts = []
    for title, sources in wanted.items():
        series = [Series(label, points) for label, entries, key in sources if (points := _column(entries, key))]
        if series or title in (always or ()):
            charts.append(line_chart(title, series, percent=title in percent, from_zero=from_zero))
    return charts


def _column(entries: Sequence[Mapping[str, float]], key: str) -> list[tuple[float, float]]:
    return [(entry["step"], entry[key]) for entry in entries if math.isfinite(entry.get(key, math.nan))]


def _validation_table(run: Training) -> Markup:
    if not run.validations:
        return figure("Validations", tag("p", "None so far; dev_datasets names the data for them.", class_="none"))
    names = list(dict.fromkeys(key for entry in reversed(run.validations) for key in entry if key.startswith("eval/")))
    # With a single dev set its own columns repeat the totals.
    if len({name.split("/")[1] for name in names if name.count("/") > 1}) < 2:
        names = [name for name in names if name.count("/") == 1]
    names = names[:12]
    rows = [
        [number_text(entry["step"]), *(number_text(entry[name]) if math.isfinite(entry.get(name, math.nan)) else "-" for name in names)]
        for entry in reversed(run.validations[-_MOST_ROWS:])
    ]
    skipped = len(run.validations) - len(rows)
    note = [tag("p", f"The {skipped} before are left out.", class_="soft")] if skipped else []
    return figure("Validations", _table(["step", *(_metric_words(name) for name in names)], rows), *note)


def _metric_words(name: str) -> str:
    words = cut(name.removeprefix("eval/"), 60).replace("nll_loss", "NLL").replace("in_batch_acc", "in-batch accuracy")
    return words.replace("avg_rank", "average rank").replace("_", " ").replace("/", ": ")


def _retrieval_sections(retrievals: Sequence[Retrieval]) -> list[Markup]:
    if not retrievals:
        hint = "No retrieval figures here. To add them: dpr retrieve ... metrics_file=FILE, then dpr report FOLDER LABEL=FILE."
        return [tag("h2", "Retrieval"), tag("p", hint, class_="none")]
    groups: dict[tuple[str, int, int, str], list[Retrieval]] = {}
    for one in retrievals:
        groups.setdefault((one.question_set, one.num_questions, one.num_judged, one.fingerprint), []).append(one)
    sections: list[Markup] = []
    for (name, number, judged, _), runs in groups.items():
        counted = f"{number:,} questions" if judged == number else f"{judged:,} of {number:,} questions judged"
        sections += [tag("h2", f"Retrieval: {cut(name, 80) + ', ' if name else ''}{counted}"), *_comparison(runs)]
    return sections


def _comparison(runs: Sequence[Retrieval]) -> list[Markup]:
    drawn = runs[:_MOST_RUNS]
    labels = [cut(one.label, 40) for one in drawn]
    curves = [Series(label, one.accuracy_curve()) for label, one in zip(labels, drawn, strict=True)]
    charts = [line_chart("Accuracy@k: a right passage among the first k", curves, x_label="k", percent=True, log_x=True)]
    recalls = [Series(label, one.metric_curve("recall")) for label, one in zip(labels, drawn, strict=True)]
    # With one relevant passage for each question, recall and accuracy are the same.
    if any(one.metric_curve("recall") not in ([], one.metric_curve("accuracy")) for one in drawn):
        charts.append(line_chart("Recall@k: share of the relevant passages", recalls, x_label="k", percent=True, log_x=True))
    ranked = [(label, one) for label, one in zip(labels, drawn, strict=True) if one.rank_counts]
    if ranked:
        groups, shares = rank_histogram([one for _, one in ranked])
        bars = [(label, share) for (label, _), share in zip(ranked, shares, strict=True)]
        charts.append(bar_chart("Rank of the first right passage", groups, bars, x_label="rank; share of the questions"))
    sections = [tag("div", *charts, class_="charts" if len(charts) > 2 else "charts pair"), _figures_table(runs)]
    if len(ranked) < len(drawn):
        sections.append(tag("p", "Runs without stored ranks have no histogram, and curves of few points.", class_="soft"))
    if len(runs) > _MOST_RUNS:
        sections.append(tag("p", f"The charts show the first {_MOST_RUNS} of {len(runs)} runs.", class_="soft"))
    return sections


def rank_histogram(runs: Sequence[Retrieval]) -> tuple[list[str], list[list[float]]]:
    """Names of the groups of ranks, and for each run the share of its questions in each; the last group is those without."""
    deepest = max(len(one.rank_counts or ()) for one in runs)
    spans = [(low, high) for low, high in _RANK_GROUPS if low <= deepest]
    shares = []
    for one in runs:
        counts = one.rank_counts or []
        total = max(sum(counts) + one.num_without, 1)
        shares.append([sum(counts[low - 1 : high]) / total for low, high in spans] + [one.num_without / total])
    names = [str(low) if low == min(high, deepest) else f"{low}-{min(high, deepest)}" for low, high in spans]
    return [*names, "none"], shares


def _figures_table(runs: Sequence[Retrieval]) -> Markup:
    names = {name: heading for name, heading in _FIGURES.items() if any(name in one.metrics for one in runs)}
    if all(one.metrics.get(f"recall@{k}") == one.metrics.get(f"accuracy@{k}") for one in runs for k in (20, 100)):
        names = {name: heading for name, heading in names.items() if not name.startswith("recall")}
    names = names or dict.fromkeys(sorted({name for one in runs for name in one.metrics})[:8], "")
    best = {name: max(one.metrics.get(name, -math.inf) for one in runs) for name in names} if len(runs) > 1 else {}
    rows: list[list[str]] = []
    for one in runs[:50]:
        cells: list[str] = [cut(one.label, 60)]
        for name in names:
            value = one.metrics.get(name)
            text = "-" if value is None else f"{value:.3f}"
            cells.append(tag("td", text, class_="best") if value is not None and value == best.get(name) else text)
        rows.append(cells)
    return _table(["", *(heading or cut(name, 40) for name, heading in names.items())], rows)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    head = tag("thead", tag("tr", *(tag("th", text, scope="col") for text in headings)))
    body = tag("tbody", *(tag("tr", *(cell if isinstance(cell, Markup) else tag("td", cell) for cell in row)) for row in rows))
    return tag("div", tag("table", head, body), class_="scroll", tabindex=0)


def _example_section(retrievals: Sequence[Retrieval], text_limit: int) -> list[Markup]:
    runs = [one for one in retrievals if one.examples][:_MOST_RUNS]
    if not runs:
        if not retrievals:
            return []
        hint = "None stored: metrics files hold them when dpr retrieve is given the texts, ctx_datasets=[...]."
        return [tag("h2", "Example questions"), tag("p", hint, class_="none")]
    by_run = [(cut(one.label, 40), {(example.id, example.question): example for example in one.examples}) for one in runs]
    wanted = list(dict.fromkeys(key for _, found in by_run for key in found))[:NUM_EXAMPLES]
    hint = "The number is the rank of the first right passage. Open a question to see the first hits; right ones are green."
    blocks = []
    for number, key in enumerate(wanted):
        found = [(label, examples[key]) for label, examples in by_run if key in examples]
        blocks.append(_example(found, text_limit, is_open=number == 0))
    return [tag("h2", "Example questions"), tag("p", hint, class_="soft"), *blocks]


def _example(found: Sequence[tuple[str, Example]], text_limit: int, *, is_open: bool) -> Markup:
    first = found[0][1]
    chips = []
    for label, example in found:
        rank = example.first_right_rank
        chips.append(tag("span", f"{label} {'-' if rank is None else rank}", class_="chip right" if rank == 1 else "chip"))
    parts: list[str] = []
    if first.answers:
        parts.append(tag("p", "Answers: ", tag("b", "; ".join(first.answers)), class_="soft"))
    if text_limit:
        shown: list[str] = []
        for label, example in found:
            hits = [_hit(rank, hit, example.answers, text_limit) for rank, hit in enumerate(example.hits, 1)]
            shown.append(tag("section", tag("h3", label), tag("ol", *hits) if hits else tag("p", "No hits.", class_="none")))
        parts.append(tag("div", *shown, class_="sides"))
    else:
        parts.append(tag("p", "The hits are left out to keep the file small.", class_="none"))
    summary = tag("summary", first.question or "(empty question)", tag("span", *chips, class_="ranks"))
    return tag("details", summary, tag("div", *parts, class_="example"), open="open" if is_open else None)


def _hit(rank: int, hit: ExampleHit, answers: Sequence[str], text_limit: int) -> Markup:
    score = f"{hit.score:.4g}" if math.isfinite(hit.score) else "-"
    head = [tag("b", f"{rank}. {hit.title}"), tag("span", score, class_="soft")]
    if hit.right:
        head.append(tag("span", "right", class_="badge"))
    text = tag("p", _marked(cut(hit.text, text_limit), answers), dir="auto")
    return tag("li", tag("div", *head, class_="head"), text, class_="hit right" if hit.right else "hit")


def _marked(text: str, answers: Sequence[str]) -> Markup:
    """The text with its answers marked."""
    wanted = [re.escape(answer) for answer in sorted(answers, key=len, reverse=True) if answer.strip()]
    if not wanted:
        return join((text,))
    pieces = re.split(f"(?i)(?<!\\w)({'|'.join(wanted)})(?!\\w)", text)
    return join([tag("mark", piece) if number % 2 else piece for number, piece in enumerate(pieces)])


def _configuration(run: Training) -> list[Markup]:
    if not run.settings:
        return []
    groups: dict[str, dict[str, str]] = {}
    for key, value in list(run.settings.items())[:_MOST_SETTINGS]:
        group, dot, name = key.partition(".")
        groups.setdefault(group if dot else "run", {})[name if dot else key] = value
    ordered = sorted(groups.items(), key=lambda item: (item[0] != "run", item[0]))
    return [tag("h2", "Configuration"), _settings(ordered, "settings of the run")]


def _environment(report: Report) -> list[Markup]:
    groups = []
    if report.training is not None and report.training.environment:
        groups.append(("training ran with", report.training.environment))
    if report.environment:
        groups.append(("report written with", dict(report.environment)))
    return [tag("h2", "Environment"), _settings(groups, "versions")] if groups else []


def _settings(groups: Sequence[tuple[str, Mapping[str, str]]], summary: str) -> Markup:
    sections = []
    for name, values in groups:
        rows = [part for key, value in values.items() for part in (tag("dt", cut(key, 80)), tag("dd", cut(value, 160) or "-"))]
        sections.append(tag("section", tag("h3", cut(name, 80)), tag("dl", *rows)))
    return tag("details", tag("summary", summary), tag("div", *sections, class_="settings"), open="open")
