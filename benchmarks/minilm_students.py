"""Static encoders and question tables taught by all-MiniLM-L6-v2: the last table of benchmarks/results/students.md.

    python -m examples.minilm models/minilm
    python -m benchmarks.minilm_students --data ../shared/data --model models/minilm --out runs/students

What is there is not made again. The teacher's figures and the data sets are those of benchmarks.fine_tuning, whose folder
may be given as --out.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from benchmarks.fine_tuning import difference, dpr, evaluated, mean, once, prepare, splits
from benchmarks.students import microseconds
from dpr import BiEncoder

TABLE = ["encoder.static_questions=true", "encoder.fix_ctx_encoder=true"]
BY_VECTORS = ["loss.nll_weight=0", "train.hard_negatives=0", "train.learning_rate=0.01", "train.keep_last=1"]
STUDENT = [
    "encoder=static",
    "encoder.pooling=idf",
    "encoder.shared=true",
    "encoder.normalize=true",
    "encoder.sequence_length=256",
    "encoder.title_template='{title} {text}'",
    "encoder.plain_apostrophes=false",
]
LABELS = [
    "loss.temperature=0.05",
    "train.batch_size=32",
    "train.num_train_epochs=4",
    "train.hard_negatives=0",
]


def rows_of_tokens(model: Path, corpus: Path, made: Path) -> Path:
    """A static encoder whose rows begin as the vectors that the model gives the tokens alone."""
    if not (made / "ready").exists():
        once(
            dpr("new-encoder", f"corpus={corpus}", f"out={made}-counted", "layers=0", f"tokenizer={model}"),
            made.with_suffix(".took.json"),
        )
        loaded = BiEncoder(str(model))
        loaded.use_static_questions()
        loaded.question_model.backbone.save_pretrained(str(made))
        loaded.tensorizer.save(made)
        shutil.copy(f"{made}-counted/token_frequencies.json", made)
        (made / "ready").touch()
    return made


def students(model: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """Of each line of the table its name and its model."""
    corpus = folder / "test" / "corpus.jsonl"
    pseudo = f"train_datasets=[{{file: {corpus}, pairs: mixed}}]"
    runs = folder / "students"

    def train(name: str, *words: str) -> Path:
        run = runs / name
        once(dpr("train", *words, f"out={run}"), runs / f"{name}.train.json")
        return run

    teacher = f"loss.teacher={model}"
    begun = [f"model={model}", *TABLE, *BY_VECTORS, teacher, pseudo]
    table = train("table", *begun, "train.batch_size=64", "train.max_steps=560", "train.num_train_epochs=40")
    yield "a question table, no label", table

    rows = rows_of_tokens(model, corpus, runs / "rows")
    begun = [*STUDENT, f"encoder.pretrained_model_cfg={rows}", *BY_VECTORS, teacher, pseudo]
    student = train(
        "student", *begun, "train.batch_size=32", "train.max_steps=320", "train.num_train_epochs=12"
    )
    yield "a static student, no label", student

    labels = [*LABELS, f"train_datasets={folder / 'train.jsonl'}"]
    yield (
        "the student, then the labels",
        train("student_labels", f"model={student}", *labels, "train.learning_rate=0.003"),
    )

    adapted = runs / "adapted"
    once(dpr("adapt", str(corpus), f"out={adapted}"), runs / "adapted.train.json")
    yield "static, no teacher, no label (dpr adapt)", adapted / "model"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=["squad", "medquad", "scifact"])
    given = parser.parse_args()

    for set_name in given.sets:
        folder = given.out / set_name
        prepare(splits(given.data)[set_name](), folder)
        start = evaluated(given.model, folder / "test", folder / "start")
        keys = list(start["dense"])
        print(f"\n{set_name}: the teacher {mean(start['dense']):.3f}, BM25 {mean(start['bm25']):.3f}")
        print(f"hybrid of the teacher {difference(start['hybrid'], start['bm25'], keys)} to BM25")
        print("| | dense | to the teacher | hybrid | to BM25 | CPU s |\n|---|---:|---:|---:|---:|---:|")
        for name, model in students(given.model, folder):
            run = model.parent if model.name == "model" else model
            found = evaluated(model, folder / "test", run.with_name(f"{run.name}-evaluated"))
            took = json.loads(run.with_name(f"{run.name}.train.json").read_text(encoding="utf-8"))
            cells = [
                name,
                f"{mean(found['dense']):.3f}",
                difference(found["dense"], start["dense"], keys),
                f"{mean(found['hybrid']):.3f}",
                difference(found["hybrid"], found["bm25"], keys),
                f"{took['cpu']:.0f}",
            ]
            print("| " + " | ".join(cells) + " |", flush=True)

    first = given.out / given.sets[0] / "students"
    models = {"the teacher": given.model, "table": first / "table", "student": first / "student"}
    print(microseconds(models, given.out))


if __name__ == "__main__":
    main()
