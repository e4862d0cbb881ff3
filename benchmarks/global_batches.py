"""``python -m benchmarks.global_batches --data ../shared/data --out runs/global_batches``: random global batches beside
global batches of rows that share words.

Static encoders from the same random rows, with equally many steps, on parts of ``benchmarks.study_data`` and
on pairs cut from Cranfield's abstracts. Prints for each the means over seeds, and the difference with its 95
% interval over the test's questions.
"""

from __future__ import annotations

import argparse
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.study import dpr
from benchmarks.study_data import qrels_of, write_set
from benchmarks.study_table import Measured, per_question, table
from dpr import BiEncoder, BiEncoderTrainer, EncoderSettings, Passage, PseudoPairs, open_training_set
from dpr.core.seeding import seed_torch
from dpr.data.settings import SamplingSettings
from dpr.evaluation.ranking_metrics import evaluate_questions
from dpr.formats.corpora import read_passages
from dpr.formats.question_sets import read_qrels, read_questions
from dpr.models.settings import TowerOptions

DEPTH, WIDTH, VOCABULARY = 20, 512, 12_000


@dataclass(frozen=True)
class Case:
    source: str
    batch: int
    rate: float
    epochs: int
    metric: str = "mrr@10"
    is_cut: bool = False
    """Trained on pairs cut from the passages that are searched, in place of the labelled rows."""
    temperature: float = 0.05


CASES = {
    "MedQuAD, 32": Case("medquad", 32, 0.01, 1),
    "MedQuAD, 128": Case("medquad", 128, 0.01, 2),
    "SQuAD, 32": Case("squad", 32, 0.002, 1),
    "SQuAD, 128": Case("squad", 128, 0.002, 2),
    "Cranfield, 32": Case("cranfield", 32, 0.002, 3, "ndcg@10"),
    "pairs of Cranfield, 64": Case("cranfield", 64, 0.01, 8, "ndcg@10", is_cut=True, temperature=0.15),
}


def measure(case: Case, folder: Path, seed: int, *, by_words: bool) -> Measured:
    """Trains from the random rows of a seed and judges on the test part. The seconds include reading the
    words."""
    seed_torch(1, seed)
    settings = EncoderSettings(pooling="idf_sqrt", normalize=True, shared=True)
    options = TowerOptions(temperature=case.temperature)
    model = BiEncoder.from_pretrained(str(folder / "encoder"), settings, options=options, dropout=0.0)
    corpus = folder / "test" / "corpus.jsonl"
    source = PseudoPairs(corpus) if case.is_cut else open_training_set(folder / "train.jsonl", name="train")
    seconds, run = sum(os.times()[:2]), folder / "run"
    trainer = BiEncoderTrainer(
        *(model, [source]),
        output_dir=run,
        defaults=False,
        batch_size=case.batch,
        num_train_epochs=case.epochs,
        learning_rate=case.rate,
        hard_negatives=0,
        num_workers=0,
        seed=seed,
        sampling=SamplingSettings(group_by_words=by_words),
    )
    trainer.train()
    seconds = sum(os.times()[:2]) - seconds
    shutil.rmtree(run)
    model.eval()
    passages, qrels = list(read_passages(corpus)), read_qrels(qrels_of(folder / "test"))
    asked = [
        question
        for question in read_questions(folder / "test" / "queries.jsonl")
        if qrels.get(str(question.id))
    ]
    vectors = model.encode_passages([Passage(passage.text, passage.title) for passage in passages])
    scores = model.encode_questions([question.text for question in asked]) @ vectors.T
    best = np.argsort(-scores, axis=1, kind="stable")[:, :DEPTH]
    found = {
        str(asked[row].id): [(str(passages[hit].id), float(scores[row, hit])) for hit in hits]
        for row, hits in enumerate(best)
    }
    values = evaluate_questions(found, qrels, (10, DEPTH))
    metrics = {
        name: {question: each[name] for question, each in values.items()}
        for name in (case.metric, f"accuracy@{DEPTH}")
    }
    return Measured(metrics, seconds, seconds)


def prepare(case: Case, data: Path, out: Path) -> Path:
    """The parts of a case's set and its encoder, made unless they are there."""
    folder = out / case.source
    write_set(case.source, data, folder, dpr)
    texts = (f"--corpus={folder / 'texts.jsonl'}", f"--questions={folder / 'train.jsonl'}")
    made = folder / "encoder"
    dpr(
        made,
        "new-encoder",
        *texts,
        f"--vocab-size={VOCABULARY}",
        f"--hidden={WIDTH}",
        f"--out={made}",
        "--layers=0",
    )
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with squad/, medquad/ and cranfield/"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    arguments = parser.parse_args()
    for name in arguments.cases:
        case = CASES[name]
        folder = prepare(case, arguments.data, arguments.out)
        runs: dict[str, dict[int, Measured]] = {"random global batches": {}, "global batches by words": {}}
        for seed in arguments.seeds:
            for condition in runs:
                runs[condition][seed] = found = measure(
                    case, folder, seed, by_words=condition == "global batches by words"
                )
                print(
                    f"{name}, seed {seed}, {condition}: {case.metric}"
                    f" {per_question([found], case.metric).mean():.4f}",
                    flush=True,
                )
        print(
            f"\n{name}\n\n{table(runs, (case.metric, f'accuracy@{DEPTH}'), 'random global batches')}\n",
            flush=True,
        )


if __name__ == "__main__":
    main()
