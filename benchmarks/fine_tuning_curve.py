"""nDCG@10 of all-MiniLM-L6-v2 after each epoch of its fine-tuning on SciFact, alone and with BM25, drawn:
benchmarks/results/fine_tuning.svg.

    python -m examples.minilm models/minilm
    python -m benchmarks.fine_tuning_curve --data ../shared/data --model models/minilm --out runs/fine_tuning_curve

The test questions are searched for the drawing alone; no setting and no checkpoint is chosen by them. What is
there is not made again, so that a killed run goes on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks import plot
from benchmarks.fine_tuning import dpr, mean, once, prepare, scifact

SYSTEMS = {"dense": "the model", "hybrid": "the model and BM25"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--precision", default="fp32", help="of the searches; the training has fp32")
    given = parser.parse_args()

    given.out.mkdir(parents=True, exist_ok=True)
    prepare(scifact(given.data / "scifact"), given.out)
    run = given.out / "run"
    words = [f"model={given.model}", f"train_datasets={given.out / 'train.jsonl'}", f"out={run}", "seed=0"]
    once(dpr("train", "train=finetune", *words), given.out / "train.json")

    models = {0: given.model}
    for folder in run.glob("*.step*"):
        models[int(folder.name.rpartition("step")[2])] = folder
    found = {}
    for step in sorted(models):
        evaluation = given.out / f"step{step}"
        words = [f"model={models[step]}", f"precision={given.precision}"]
        words += [f"set={given.out / 'test'}", f"out={evaluation}"]
        once(dpr("evaluate", *words), given.out / f"step{step}.json")
        found[step] = {name: ndcg(evaluation / "test" / f"{name}.json") for name in ("bm25", *SYSTEMS)}
        print(step, found[step], flush=True)

    drawing = plot.curves(
        "nDCG@10 on the 300 test claims of SciFact, by optimizer step",
        [*found],
        {words: [values[name] for values in found.values()] for name, words in SYSTEMS.items()},
        {"BM25": found[0]["bm25"]},
    )
    (given.out / "fine_tuning.svg").write_text(drawing, encoding="utf-8")


def ndcg(file: Path) -> float:
    """The mean nDCG@10 of an evaluation."""
    result = json.loads(file.read_text(encoding="utf-8"))["per_question"]
    values = result["values"]["ndcg@10"]
    return mean(dict(zip(result["ids"], values, strict=True)))


if __name__ == "__main__":
    main()
