"""``python -m benchmarks.negatives --data FOLDER --out FOLDER``: what hard negatives are worth, on small
public QA sets.

A small encoder is trained from nothing with the passages of other questions as its only negatives. Then it is
trained on for equal numbers of steps in three ways: without hard negatives as before, with BM25's, and with
those that it finds itself. Each is judged, beside BM25, by the share of questions whose passage is the first,
or among the first 20, of all passages: of questions held out from training about the same articles and
subjects, and of questions about others. With --from-scratch the three ways begin at random weights instead.
Every step is one of the public commands and is skipped when it is done, so a run that was killed goes on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from benchmarks.negatives_data import SETS, hold_out, write_sets

MODELS = ("first", "in_batch", "bm25", "mined")
PARTS = {
    "held": "questions held out, of articles and subjects in training",
    "test": "questions about other articles and subjects",
}


class Experiment:
    """Everything below one folder."""

    def __init__(self, out: Path, *, steps: int) -> None:
        self.out, self.steps = out, steps
        self.corpus = out / "all" / "corpus.jsonl"

    def dpr(self, made: Path, *arguments: object) -> None:
        """Runs a command unless what it makes is there."""
        if made.exists():
            return
        command = [sys.executable, "-m", "dpr", *map(str, arguments)]
        print("$ dpr", *command[3:], flush=True)
        subprocess.run(command, check=True)

    def prepare(self, data: Path) -> None:
        """Training and test data, their passages as one corpus, a vocabulary, BM25's negatives."""
        if not (self.out / "raw").is_dir():
            write_sets(data, self.out / "raw")
        columns = ["format=columns", "question=question", "positive=answer", "title=focus"]
        for part in ("train", "test"):
            for name in SETS:
                raw = self.out / "raw" / part / (f"{name}.jsonl" if name == "medquad" else f"{name}.json")
                form = columns if name == "medquad" else ["format=squad"]
                made = self.files("all_train" if part == "train" else part, name)
                self.dpr(made, "prepare", raw, *form, f"out={made}")
        for name in SETS:
            hold_out(self.files("all_train", name), self.files("train", name), self.files("held", name))
            for part in PARTS:
                self.dpr(
                    self.judged(part, name),
                    "prepare",
                    self.files(part, name),
                    "to=beir",
                    f"out={self.judged(part, name)}",
                )
        self.dpr(
            self.corpus.parent,
            "prepare",
            *self.sets("all_train"),
            *self.sets("test"),
            "to=beir",
            f"out={self.corpus.parent}",
        )
        self.dpr(
            self.out / "encoder", "new-encoder", "--corpus", self.corpus, "--questions", self.files("train", "squad"),
            "--out", self.out / "encoder", "--vocab-size", 12000, "--layers", 1, "--hidden", 256,
        )  # fmt: skip
        subprocess.run([sys.executable, "-m", "dpr", "check-data", *map(str, self.sets("train"))], check=True)
        self.mine("bm25")

    def mine(self, kind: str, *how: object) -> None:
        for name in SETS:
            made = self.files(kind, name)
            self.dpr(
                made,
                "mine",
                self.files("train", name),
                f"corpus={self.corpus}",
                f"out={made}",
                "per_question=4",
                *how,
            )

    def train(self, name: str, files: list[Path], *, hard_negatives: int, after: str | None = None) -> None:
        """A model from random weights, or from those of another one for half as many steps; and its vectors
        of the corpus."""
        settings = {
            "encoder": "quickstart",
            "train": "quickstart",
            "encoder.pretrained_model_cfg": self.out / "encoder",
            "encoder.sequence_length": 192,
            "loss.temperature": 0.07,
            "train.hard_negatives": hard_negatives,
            "train.max_steps": self.steps // 2 if after else self.steps,
            "train.learning_rate": 5e-4 if after else 1e-3,
            "train.eval_every_steps": 0,
            "train.augment.crop_tokens": 64,
            "train_datasets": f"[{','.join(map(str, files))}]",
            "output_dir": self.model(name),
        } | ({"model_file": self.model(after)} if after else {})
        # The vectors are made last: while they are not there, training is asked for again and does what is
        # left of it.
        made = self.vectors(name) / "manifest.json"
        self.dpr(made, "train", *(f"{key}={value}" for key, value in settings.items()))
        self.dpr(
            made,
            "embed",
            f"model_file={self.model(name)}",
            f"ctx_src={self.corpus}",
            f"out_file={self.out / 'vectors' / name}",
        )

    def judge(self, name: str, *how: object) -> dict[str, list[str]]:
        """For each part and set, top-1 and top-20 accuracy in per cent."""
        return {part: [self._figures(name, part, dataset, *how) for dataset in SETS] for part in PARTS}

    def _figures(self, name: str, part: str, dataset: str, *how: object) -> str:
        figures, judged = self.out / "metrics" / f"{name}.{part}.{dataset}.json", self.judged(part, dataset)
        questions = (f"qa_dataset={judged / 'queries.jsonl'}", f"qrels={judged / 'qrels' / 'train.tsv'}")
        self.dpr(
            figures, "retrieve", *questions, f"ctx_datatsets={self.corpus}", f"metrics_file={figures}", *how
        )
        metrics = json.loads(figures.read_text(encoding="utf-8"))["metrics"]
        return f"{100 * metrics['accuracy@1']:.1f} / {100 * metrics['accuracy@20']:.1f}"

    def judge_model(self, name: str) -> dict[str, list[str]]:
        return self.judge(name, f"model_file={self.model(name)}", f"encoded_ctx_files=[{self.vectors(name)}]")

    def files(self, kind: str, name: str) -> Path:
        return self.out / kind / f"{name}.jsonl"

    def judged(self, part: str, name: str) -> Path:
        return self.out / "judged" / part / name

    def sets(self, kind: str) -> list[Path]:
        return [self.files(kind, name) for name in SETS]

    def model(self, name: str) -> Path:
        return self.out / "models" / name

    def vectors(self, name: str) -> Path:
        return self.out / "vectors" / f"{name}_0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with squad/, squadshifts/, medquad/ and qed/"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--from-scratch", action="store_true", help="hard negatives from the first step on")
    arguments = parser.parse_args()
    run = Experiment(arguments.out, steps=arguments.steps)
    run.prepare(arguments.data)
    start = None if arguments.from_scratch else "first"
    run.train("first", run.sets("train"), hard_negatives=0)
    run.train("in_batch", run.sets("train"), hard_negatives=0, after=start)
    run.train("bm25", run.sets("bm25"), hard_negatives=1, after=start)
    run.mine(
        "mined",
        f"model_file={run.model('first')}",
        f"vectors={run.vectors('first')}",
        "max_relative_score=0.95",
    )
    run.train("mined", run.sets("mined"), hard_negatives=1, after=start)
    rows = {"BM25": run.judge("words", "indexer=bm25", f"bm25_index_path={run.out / 'bm25_index'}")}
    rows |= {name: run.judge_model(name) for name in MODELS}
    for part, what in PARTS.items():
        print(f"\nfirst / among 20: {what}\n\n| | {' | '.join(SETS)} |\n|---|{'---:|' * len(SETS)}")
        for name, found in rows.items():
            print(f"| {name} | {' | '.join(found[part])} |")


if __name__ == "__main__":
    main()
