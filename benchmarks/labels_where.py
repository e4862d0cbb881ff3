"""Which passages to label: those that people ask for, or others. Part of benchmarks/results/labels.md.

    python -m examples.minilm models/minilm
    python -m benchmarks.labels_where --data ../shared/data --model models/minilm --out runs/labels

The test questions ask for a fifth of the passages. all-MiniLM-L6-v2 is fine-tuned as ``dpr adapt`` does, with as many
labelled questions of the same passages, of other passages, and of half of each. Each result is kept in --out.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks.adapt_trained import Collection
from benchmarks.labels import Judge, Record, average_with_base, collections, train_ours
from benchmarks.labels_table import difference_cell_of, markdown
from dpr import BiEncoder
from dpr.evaluation.significance import estimate

SETS = ("SQuAD", "New Wikipedia", "Amazon")
MOST_TEST_QUESTIONS = 500
SYSTEMS = ("tuned", "average")
WHERE = ("same passages", "half of each", "other passages")


def questions_by_side(made: Collection, num_labels: int, seed: int) -> tuple[list[str], dict[str, list[str]]]:
    """Returns the test questions, and the labelled questions by the passages that they ask for."""
    rng = random.Random(seed)
    by_passage: dict[str, list[str]] = {}
    for key, judged in made.qrels.items():
        by_passage.setdefault(next(iter(judged)), []).append(key)
    for keys in by_passage.values():
        rng.shuffle(keys)
    names = sorted(by_passage)
    rng.shuffle(names)
    num_asked = len(names) // 5

    tests: list[str] = []
    same: list[str] = []
    for name in names[:num_asked]:
        keys = by_passage[name]
        half = len(keys) // 2
        tests += keys[:half]
        same += keys[half:]
    rng.shuffle(tests)
    rng.shuffle(same)
    # As many labels for a passage as ``same`` has on average.
    per_passage = min(num_labels, len(same)) / num_asked
    others: list[str] = []
    for name in names[num_asked:]:
        others += by_passage[name][: max(1, round(per_passage))]
    num_labels = min(num_labels, len(same), len(others))
    half = num_labels // 2
    labels = {
        "same passages": same[:num_labels],
        "half of each": same[:half] + others[: num_labels - half],
        "other passages": others[:num_labels],
    }
    return tests[:MOST_TEST_QUESTIONS], labels


def measure(name: str, seed: int, given: argparse.Namespace) -> Record:
    """Returns nDCG@10 of each test question by the base model, the fine-tuned model and their average, for each
    choice of passages; reads it from --out if it is there."""
    folder = given.out / f"{name}-where-{seed}".replace(" ", "-")
    result = folder / "where.json"
    if result.exists():
        found: Record = json.loads(result.read_text(encoding="utf-8"))
        return found
    made = collections(given.data)[name]()
    tests, labels = questions_by_side(made, given.labels, seed)
    judge = Judge(made, {"choice": [], "test": tests})
    base = BiEncoder(str(given.model))
    record: Record = {"base": judge.of(base), "labels": {}}
    passages = {str(passage.id): passage for passage in made.passages}
    for where, keys in labels.items():
        run = folder / where.replace(" ", "-")
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir(parents=True)
        pairs = [(made.questions[key], passages[next(iter(made.qrels[key]))]) for key in keys]
        train_ours(made, pairs, "plain", model=given.model, run=run, seed=seed)
        tuned = BiEncoder(str(run / "model"))
        record[where] = {"tuned": judge.of(tuned)}
        average_with_base(tuned, base, run)
        record[where]["average"] = judge.of(tuned)
        record["labels"][where] = len(keys)
        shutil.rmtree(run)
    result.write_text(json.dumps(record), encoding="utf-8")
    return record


def table(results: Sequence[tuple[str, Record]]) -> str:
    """Returns the gains of each choice of passages, by collection, of the model alone."""
    rows = []
    for name, record in results:
        base = record["base"]["1"]
        for where in WHERE:
            cells = [name, where, str(record["labels"][where]), f"{sum(base) / len(base):.3f}"]
            for system in SYSTEMS:
                values = record[where][system]["1"]
                gains = [value - other for value, other in zip(values, base, strict=True)]
                cells.append(difference_cell_of(estimate(gains)))
            rows.append(cells)
    heads = ["", "labelled", "labels", "base model", "fine-tuned less base model", "average less base model"]
    return markdown(heads, rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--labels", type=int, default=450)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    given = parser.parse_args()
    results = []
    for name in given.sets:
        for seed in given.seeds:
            results.append((f"{name}, seed {seed}", measure(name, seed, given)))
    print(table(results))


if __name__ == "__main__":
    main()
