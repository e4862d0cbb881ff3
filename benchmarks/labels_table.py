"""Tables of ``python -m benchmarks.labels``: recipes, collections, sentence-transformers, and the rule of choice.

A question that is tested with several seeds counts once, with the mean of its differences. Means are over
collections with equal weights; intervals are over questions of the same collections.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.adapt_trained import METRIC, Collection
from benchmarks.labels import THEIRS, Record, split
from dpr.adaptation.choices import WEIGHT_OF_GIVEN
from dpr.adaptation.label_choice import (
    AVERAGE,
    BASE,
    MARGIN,
    TUNED,
    WEIGHTS,
    Measured,
    chosen_model,
    chosen_weight,
)
from dpr.evaluation.significance import Estimate, estimate, mean_of
from dpr.formats.metrics_files import MetricsFile, PerQuestion

PLAIN = "plain"
BM25 = "BM25"
CHOSEN = "chosen model"
BASE_HYBRID = "hybrid of the base model"
CHOSEN_HYBRID = "hybrid of the chosen model"
MARGINS = (0.0, 0.5, 1.0, 1.28, 1.645)
DEV_QUESTIONS = (25, 50, 100, 200)
EFFECTS = (-0.03, -0.02, -0.01, 0.0, 0.01, 0.02, 0.03, 0.05)
AVERAGE_SHARE = 0.6
"""Effect of the average in the simulation, as a share of that of the fine-tuned model."""
WORSE = 0.002
"""A model counts as worse than the base model if its nDCG@10 is lower by more than this."""


@dataclass(frozen=True)
class Run:
    """Results with one split of a collection.

    Attributes:
        keys: ids of the choice questions, then of the test questions.
        base: nDCG@10 of each question by weight of the base model in the hybrid.
        results: records by recipe, as its file is named.
    """

    name: str
    seed: int
    keys: list[str]
    num_choice: int
    base: dict[str, list[float]]
    results: dict[str, Record]

    def measured(self, recipe: str) -> Measured:
        """Returns the metrics of the choice questions, as ``dpr adapt`` measures them."""
        systems = {BASE: self.base}
        systems[AVERAGE] = self.results[recipe]["average"]
        systems[TUNED] = self.results[recipe]["tuned"]
        return {
            (name, weight): metrics_of(values[f"{weight:g}"][: self.num_choice])
            for name, values in systems.items()
            for weight in WEIGHTS
        }

    def chosen(self, recipe: str) -> str:
        """Returns the name of the model that ``dpr adapt`` chooses."""
        return chosen_model(self.measured(recipe))

    def test_values(self, recipe: str, system: str) -> dict[str, float]:
        """Returns nDCG@10 of each test question by a system of this recipe."""
        result = self.results[recipe]
        if system == BM25:
            values = self.base["0"]
        elif system == BASE:
            values = self.base["1"]
        elif system in (AVERAGE, TUNED):
            values = result["average" if system == AVERAGE else "tuned"]["1"]
        else:
            measured = self.measured(recipe)
            name = BASE if system == BASE_HYBRID else chosen_model(measured)
            weight = 1.0 if system == CHOSEN else chosen_weight(measured, name)
            by_weight = {BASE: self.base, AVERAGE: result["average"], TUNED: result["tuned"]}[name]
            values = by_weight[f"{weight:g}"]
        return dict(zip(self.keys[self.num_choice :], values[self.num_choice :], strict=True))


def metrics_of(values: list[float]) -> MetricsFile:
    """Returns the metrics of questions without texts."""
    names = [str(row) for row in range(len(values))]
    each = PerQuestion(names, names, {METRIC: list(values)})
    return MetricsFile("", len(values), {METRIC: float(np.mean(values))}, {}, each)


def read_runs(out: Path, num_labels: int, readers: Mapping[str, Callable[[], Collection]]) -> list[Run]:
    """Reads all results with this number of labels, in the order of ``readers``."""
    runs = []
    for name, read in readers.items():
        prefix = f"{name}-{num_labels}-".replace(" ", "-")
        folders = {}
        for file in out.glob(f"{prefix}*/base.json"):
            folders[int(file.parent.name.removeprefix(prefix))] = file.parent
        if not folders:
            continue
        made = read()
        for seed, folder in sorted(folders.items()):
            sides = split(made, num_labels, seed)
            base, results = read_results(folder)
            keys = [*sides["choice"], *sides["test"]]
            if len(keys) != len(base["1"]):
                raise ValueError(f"{folder}: {len(base['1'])} questions, but the split has {len(keys)}")
            runs.append(Run(name, seed, keys, len(sides["choice"]), base, results))
    return runs


def read_results(folder: Path) -> tuple[dict[str, list[float]], dict[str, Record]]:
    """Returns the values of the base model, and the record of each recipe."""
    records = {
        file.stem: json.loads(file.read_text(encoding="utf-8"))
        for file in sorted(folder.glob("*.json"), key=lambda file: file.name)
    }
    return records.pop("base")["base"], records


Values = Callable[[Run], dict[str, float]]
"""Values of a run's test questions by id."""


def by_set(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Returns the runs of each collection."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.name, []).append(run)
    return found


def over_questions(runs: Sequence[Run], values: Values, less: Values | None = None) -> Estimate:
    """Returns the mean over collections of a system's values, or of their differences to another's."""
    parts = []
    for same_set in by_set(runs).values():
        found: dict[str, list[float]] = {}
        for run in same_set:
            subtracted = less(run) if less else {}
            for key, value in values(run).items():
                found.setdefault(key, []).append(value - subtracted.get(key, 0.0))
        parts.append(estimate([float(np.mean(listed)) for listed in found.values()]))
    return mean_of(parts)


def system_of(recipe: str, system: str) -> Values:
    """Returns what reads the values of a system."""
    return partial(Run.test_values, recipe=recipe, system=system)


def mean_cell(runs: Sequence[Run], values: Values) -> str:
    """Returns a mean."""
    return f"{over_questions(runs, values).mean:.3f}"


def difference_cell(runs: Sequence[Run], values: Values, less: Values) -> str:
    """Returns a mean difference with its interval."""
    return difference_cell_of(over_questions(runs, values, less))


def difference_cell_of(found: Estimate) -> str:
    """Returns a mean difference with its interval."""
    return f"{found.mean:+.3f} ({found.low:+.3f} to {found.high:+.3f})"


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table whose first column has names."""
    lines = [f"| {' | '.join(heads)} |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines)


def tables(runs: Sequence[Run], ours: str) -> str:
    """Returns all tables of what was measured. ``ours`` is the recipe that is compared by collection."""
    with_ours = [run for run in runs if ours in run.results]
    if not with_ours:
        raise SystemExit(f"there is no result of {ours}")
    parts = ["## Recipes, less `plain`", recipe_table(runs), f"## Collections, with `{ours}`"]
    parts += [set_table(with_ours, ours)]
    theirs = sorted({name for run in with_ours for name in run.results if name.startswith(THEIRS)})
    if theirs:
        parts += ["## sentence-transformers, vectors alone"]
        parts += [their_table(with_ours, ours, name) for name in theirs]
        parts += ["## Costs of a training, means", cost_table(with_ours, [ours, *theirs])]
    return "\n\n".join(parts)


def recipe_table(runs: Sequence[Run]) -> str:
    """Returns the table of the recipes' differences to ``plain``, where both were measured."""
    names = {name for run in runs for name in run.results if not name.startswith(THEIRS)}
    rows = []
    for name in sorted(names - {PLAIN}):
        both = [run for run in runs if name in run.results and PLAIN in run.results]
        if not both:
            continue
        cells = [name, str(len(by_set(both))), str(len(both))]
        for system in (TUNED, AVERAGE, CHOSEN):
            cells.append(difference_cell(both, system_of(name, system), system_of(PLAIN, system)))
        ratios = [run.results[name]["train seconds"] / run.results[PLAIN]["train seconds"] for run in both]
        cells.append(f"{np.exp(np.mean(np.log(ratios))):.2f}")
        rows.append(cells)
    return markdown(["recipe", "sets", "runs", TUNED, AVERAGE, CHOSEN, "CPU time of training, ratio"], rows)


def set_table(runs: Sequence[Run], recipe: str) -> str:
    """Returns the table of all systems by collection."""
    systems = (BM25, BASE, AVERAGE, TUNED, CHOSEN, BASE_HYBRID, CHOSEN_HYBRID)
    differences = ((CHOSEN, BASE), (CHOSEN_HYBRID, BASE_HYBRID), (CHOSEN_HYBRID, BM25))
    heads = ["", "runs", *systems]
    heads += [f"{system} less {other}" for system, other in differences]
    heads += [f"chosen: {BASE}", AVERAGE, TUNED]
    rows = []
    for name, some in {**by_set(runs), "mean": runs}.items():
        cells = [name, str(len(some))]
        for system in systems:
            cells.append(mean_cell(some, system_of(recipe, system)))
        for system, other in differences:
            cells.append(difference_cell(some, system_of(recipe, system), system_of(recipe, other)))
        chosen = [run.chosen(recipe) for run in some]
        cells += [str(chosen.count(system)) for system in (BASE, AVERAGE, TUNED)]
        rows.append(cells)
    return markdown(heads, rows)


def number_table(runs_by_number: Mapping[int, Sequence[Run]], recipe: str) -> str:
    """Returns the table of gains over the base model by the number of labels: of the chosen model by collection,
    and the means of the average, the fine-tuned model and the hybrid. Splits that some number lacks are left out."""
    splits = [{(run.name, run.seed) for run in runs} for runs in runs_by_number.values()]
    shared = set.intersection(*splits)
    runs_by_number = {
        number: [run for run in runs if (run.name, run.seed) in shared]
        for number, runs in runs_by_number.items()
    }
    names = list(dict.fromkeys(run.name for runs in runs_by_number.values() for run in runs))
    rows = []
    for number, runs in sorted(runs_by_number.items()):
        cells = [str(number)]
        for name in names:
            some = [run for run in runs if run.name == name]
            cells.append(
                difference_cell(some, system_of(recipe, CHOSEN), system_of(recipe, BASE)) if some else ""
            )
        for system in (CHOSEN, AVERAGE, TUNED):
            cells.append(difference_cell(runs, system_of(recipe, system), system_of(recipe, BASE)))
        cells.append(difference_cell(runs, system_of(recipe, CHOSEN_HYBRID), system_of(recipe, BASE_HYBRID)))
        rows.append(cells)
    heads = ["labels", *names, f"mean, {CHOSEN}", f"mean, {AVERAGE}", f"mean, {TUNED}", "mean, hybrid"]
    return markdown(heads, rows)


def their_table(runs: Sequence[Run], ours: str, theirs: str) -> str:
    """Returns the table of a training by sentence-transformers beside ours."""
    both = [run for run in runs if theirs in run.results]

    def of_theirs(run: Run) -> dict[str, float]:
        values = run.results[theirs]["tuned"]["1"]
        return dict(zip(run.keys[run.num_choice :], values[run.num_choice :], strict=True))

    heads = ["", "runs", BASE, theirs, TUNED, CHOSEN, f"{theirs} less {BASE}"]
    heads += [f"{TUNED} less {theirs}", f"{CHOSEN} less {theirs}"]
    rows = []
    for name, some in {**by_set(both), "mean": both}.items():
        cells = [name, str(len(some))]
        for values in (system_of(ours, BASE), of_theirs, system_of(ours, TUNED), system_of(ours, CHOSEN)):
            cells.append(mean_cell(some, values))
        cells.append(difference_cell(some, of_theirs, system_of(ours, BASE)))
        cells.append(difference_cell(some, system_of(ours, TUNED), of_theirs))
        cells.append(difference_cell(some, system_of(ours, CHOSEN), of_theirs))
        rows.append(cells)
    return markdown(heads, rows)


def cost_table(runs: Sequence[Run], recipes: Sequence[str]) -> str:
    """Returns the table of seconds and memory. Each row is of the runs in which this recipe and the first one
    were both trained in a process of their own."""
    costs = {
        "training, CPU s": "train seconds",
        "choice, CPU s": "choice seconds",
        "process, CPU s": "cpu",
        "process, wall s": "wall",
        "peak GiB": "gb",
    }
    rows = []
    for recipe in recipes:
        pair = (recipes[0], recipe)
        both = [run for run in runs if all("wall" in run.results.get(name, {}) for name in pair)]
        if not both:
            continue
        cells = [recipe, str(len(both))]
        for key in costs.values():
            mean = np.mean([run.results[recipe][key] for run in both])
            of_first = np.mean([run.results[recipes[0]][key] for run in both])
            cells.append(f"{mean:.1f} ({mean / of_first:.2f})")
        rows.append(cells)
    return markdown(["", "runs", *(f"{cost} (ratio)" for cost in costs)], rows)


@dataclass(frozen=True)
class Draws:
    """Differences to the base model, of dev questions that were drawn at random.

    Attributes:
        average: of the average with the base model, one row for each draw.
        tuned: of the fine-tuned model, parallel to it.
    """

    average: np.ndarray
    tuned: np.ndarray

    def choices(self, margin: float) -> tuple[np.ndarray, np.ndarray]:
        """Returns the draws that choose the average, and those that choose the fine-tuned model, as
        ``chosen_model`` does."""
        is_average_better = are_better(self.average, margin)
        over_base = are_better(self.tuned, margin)
        over_average = are_better(self.tuned - self.average, margin)
        chooses_tuned = np.where(is_average_better, over_average, over_base)
        return is_average_better & ~chooses_tuned, chooses_tuned


def are_better(differences: np.ndarray, margin: float) -> np.ndarray:
    """Returns the rows whose mean exceeds a margin of its standard errors."""
    errors = differences.std(axis=1, ddof=1) / np.sqrt(differences.shape[1])
    return differences.mean(axis=1) > margin * errors


def simulation(out: Path, num_labels: int, recipes: Sequence[str] | None, draws: int) -> str:
    """Returns tables of how often the rule chooses another model than the base model, and what that gains."""
    measured = []
    for file in sorted(out.glob(f"*-{num_labels}-*/base.json")):
        base, results = read_results(file.parent)
        for recipe, record in results.items():
            names = [name.replace(" ", "-") for name in recipes or [recipe]]
            if recipe in names and "average" in record:
                measured.append(
                    (score(record["average"]) - score(base), score(record["tuned"]) - score(base))
                )
    parts = [f"## The rule, {len(measured)} runs, {draws} draws of each. The margin is {MARGIN:g}."]
    parts += ["### Measured differences", real_table(measured, draws)]
    for num_questions in DEV_QUESTIONS:
        what = "share of draws that choose another model (mean gain), by the true effect"
        parts.append(f"### {num_questions} dev questions: {what}")
        parts.append(shifted_table(measured, num_questions, draws))
    return "\n\n".join(parts)


def score(values: Mapping[str, list[float]]) -> np.ndarray:
    """Returns what a question counts for the choice: the mean of the model alone and its hybrid."""
    return (np.array(values["1"]) + np.array(values[f"{WEIGHT_OF_GIVEN:g}"])) / 2


def drawn(
    average: np.ndarray, tuned: np.ndarray, num_questions: int, draws: int, rng: np.random.Generator
) -> Draws:
    """Returns draws of questions with replacement."""
    rows = rng.integers(0, len(average), (draws, num_questions))
    return Draws(average[rows], tuned[rows])


def real_table(measured: Sequence[tuple[np.ndarray, np.ndarray]], draws: int) -> str:
    """Returns the table with the differences as they were measured; the truth is the mean over all questions."""
    rng = np.random.default_rng(0)
    best = [max(0.0, average.mean(), tuned.mean()) for average, tuned in measured]
    rows = []
    for num_questions in DEV_QUESTIONS:
        some = [drawn(average, tuned, num_questions, draws, rng) for average, tuned in measured]
        for margin in MARGINS:
            others = []
            worse = []
            gains = []
            for (average, tuned), sample in zip(measured, some, strict=True):
                chooses_average, chooses_tuned = sample.choices(margin)
                gain = chooses_average * average.mean() + chooses_tuned * tuned.mean()
                others.append((chooses_average | chooses_tuned).mean())
                worse.append((gain < -WORSE).mean())
                gains.append(gain.mean())
            cells = [f"{num_questions}", f"{margin:g}", f"{np.mean(others):.3f}", f"{np.mean(worse):.3f}"]
            rows.append([*cells, f"{np.mean(gains):+.4f}", f"{np.mean(best):+.4f}"])
    heads = ["dev questions", "margin", "another model", f"worse by more than {WORSE:g}", "mean gain"]
    return markdown([*heads, "gain of the best choice"], rows)


def shifted_table(measured: Sequence[tuple[np.ndarray, np.ndarray]], num_questions: int, draws: int) -> str:
    """Returns the table with differences that are shifted to a true effect of the fine-tuned model, and
    ``AVERAGE_SHARE`` of it of the average. Where the effect is negative, each choice of another model is wrong."""
    cells = {margin: [f"{margin:g}"] for margin in MARGINS}
    for effect in EFFECTS:
        rng = np.random.default_rng(0)
        others: dict[float, list[float]] = {margin: [] for margin in MARGINS}
        gains: dict[float, list[float]] = {margin: [] for margin in MARGINS}
        for average, tuned in measured:
            shifted_average = average - average.mean() + AVERAGE_SHARE * effect
            shifted_tuned = tuned - tuned.mean() + effect
            sample = drawn(shifted_average, shifted_tuned, num_questions, draws, rng)
            for margin in MARGINS:
                chooses_average, chooses_tuned = sample.choices(margin)
                others[margin].append(float((chooses_average | chooses_tuned).mean()))
                gain = chooses_average.mean() * AVERAGE_SHARE * effect + chooses_tuned.mean() * effect
                gains[margin].append(float(gain))
        for margin in MARGINS:
            cells[margin].append(f"{np.mean(others[margin]):.2f} ({np.mean(gains[margin]):+.4f})")
    return markdown(["margin", *(f"{effect:+.2f}" for effect in EFFECTS)], cells.values())
