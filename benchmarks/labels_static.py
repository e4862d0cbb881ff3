"""A static table in place of a fine-tuned model: what of the gain remains. Part of benchmarks/results/labels.md.

    python -m examples.minilm models/minilm
    python -m benchmarks.labels_static --data ../shared/data --model models/minilm --out runs/labels_static

For each collection ``dpr adapt`` runs with ``static=questions`` or ``static=both``, with and without 600 labelled
questions (benchmarks/labels.py splits them). The test questions then search the folders that it leaves.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.adapt_trained import METRIC
from benchmarks.fine_tuning import once
from benchmarks.labels import collections, split
from benchmarks.labels_table import difference_cell_of, markdown
from dpr import Retriever, evaluate
from dpr.core.records import TrainingSample
from dpr.evaluation.significance import estimate
from dpr.formats.corpora import write_passages
from dpr.formats.training_files.dpr import write_training_set

SETS = ("MedQuAD", "Amazon", "SQuAD", "New Wikipedia")
LABELS = 600


def prepared(name: str, folder: Path, data: Path) -> tuple[dict[str, str], dict[str, dict[str, int]]]:
    """Writes the corpus and the labelled questions of a collection. Returns the test questions, and the judged
    passages of each."""
    made = collections(data)[name]()
    sides = split(made, LABELS, 0)
    folder.mkdir(parents=True, exist_ok=True)
    write_passages(folder / "corpus.jsonl", made.passages)
    texts = {str(passage.id): passage for passage in made.passages}
    for file, side in (("train.jsonl", "train"), ("dev.jsonl", "choice")):
        samples = []
        for key in sides[side]:
            positives = tuple(texts[name] for name in made.qrels[key])
            samples.append(TrainingSample(made.questions[key], positives, ()))
        write_training_set(folder / file, samples)
    asked = {key: made.questions[key] for key in sides["test"]}
    return asked, {key: made.qrels[key] for key in asked}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=SETS)
    given = parser.parse_args()
    rows = []
    for name in given.sets:
        folder = given.out / name.replace(" ", "-")
        asked, qrels = prepared(name, folder, given.data)
        command = [sys.executable, "-m", "dpr", "adapt", str(folder / "corpus.jsonl")]
        command += [f"model={given.model}"]
        labelled = [f"train={folder / 'train.jsonl'}", f"dev={folder / 'dev.jsonl'}"]
        for static in ("none", "questions", "both"):
            values = {}
            for kind, options in (("base", []), ("labels", labelled)):
                run = folder / f"{kind}-{static}"
                if static == "none" and kind == "base":
                    retriever = Retriever.build(str(given.model), folder / "corpus.jsonl")
                else:
                    words = [*command, *options, f"out={run}"]
                    if static != "none":
                        words.append(f"static={static}")
                    once(words, run.with_suffix(".took.json"))
                    retriever = Retriever.open(run)
                for mode in ("dense", "hybrid"):
                    found = evaluate(retriever, asked, qrels=qrels, metrics=[METRIC], mode=mode)
                    values[kind, mode] = found.per_question[METRIC]
            for mode in ("dense", "hybrid"):
                ours = values["labels", mode]
                base = values["base", mode]
                gains = [ours[key] - base[key] for key in base]
                means = [f"{sum(each.values()) / len(each):.3f}" for each in (base, ours)]
                rows.append([name, static, mode, *means, difference_cell_of(estimate(gains))])
    print(markdown(["", "static", "search", "without labels", "with labels", "difference"], rows))


if __name__ == "__main__":
    main()
