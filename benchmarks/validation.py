"""``python -m benchmarks.validation memory`` or ``... estimates --data runs/quickstart/data --model runs/quickstart/model``: validation by
retrieval.

memory: growth of ``RssAnon`` after the imports, at its highest, over the first validation on a generated corpus (counting, tokenising) and
over the second, which reads stored tokens. estimates: how far estimates from a sample are from the whole, over draws by ten seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.memory import Watch
from benchmarks.memory_cases import write_model
from dpr.embedding.source import PassageSource
from dpr.formats.question_sets import read_questions
from dpr.formats.results import write_trec_run
from dpr.indexer.bm25 import Bm25Index
from dpr.indexer.ranking import to_rankings
from dpr.indexer.registry import Texts
from dpr.models.biencoder import BiEncoder
from dpr.models.settings import EncoderSettings
from dpr.training.validations.retrieval import RetrievalValidation
from dpr.training.validations.retrieval_settings import RetrievalValidationSettings

ROWS, QUESTIONS = (25_000, 250_000, 1_000_000), 1_000
SIZES, SEEDS, METRICS = (1_000, 3_000, 6_000), range(10), ("accuracy@20", "accuracy@100")


def measure_memory(folder: Path, rows: int) -> dict[str, float]:
    """Passages of some 55 bytes, searched twice with a static encoder 32 wide."""
    with open(folder / "corpus.tsv", "w", encoding="ascii") as out:
        out.write("id\ttext\ttitle\n")
        for row in range(rows):
            out.write(f"doc-{row}\tword{row % 1999} word{row % 997} word{row % 491}\tword{row % 100}\n")
    asked = range(0, rows, rows // QUESTIONS)
    (folder / "questions.jsonl").write_text(
        "".join(f'{{"id": "q{row}", "question": "word{row % 1999} word{row % 997}"}}\n' for row in asked)
    )
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(f"q{row}\tdoc-{row}\t1\n" for row in asked))
    write_model(folder / "encoder", folder / "unused", width=32)  # for its tokenizer
    vocabulary = len((folder / "encoder" / "vocab.txt").read_text().splitlines())
    (folder / "encoder" / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    (folder / "encoder" / "config.json").write_text(json.dumps({"model_type": "static", "hidden_size": 32, "vocab_size": vocabulary}))
    model = BiEncoder.from_pretrained(str(folder / "encoder"), EncoderSettings(pooling="mean", shared=True), pretrained=False)
    found: dict[str, float] = {"rows": rows}
    files: dict[str, Any] = {
        key: str(folder / name) for key, name in (("corpus", "corpus.tsv"), ("questions", "questions.jsonl"), ("qrels", "qrels.tsv"))
    }
    validation = RetrievalValidation(RetrievalValidationSettings(**files))
    for number in ("first", "second"):
        with Watch() as watch:
            started = time.perf_counter()
            validation(model)
            found[f"{number}_s"] = time.perf_counter() - started
        found[f"{number}_growth_mb"] = watch.growth / 2**20
    return found


def measure_estimates(folder: Path, data: Path, model: BiEncoder) -> None:
    """Prints a line for each number of passages drawn, and metric."""
    corpus, questions = data / "corpus.tsv", data / "test_questions.jsonl"
    files: dict[str, Any] = {"corpus": str(corpus), "questions": str(questions), "qrels": str(data / "test_qrels.tsv"), "name": "test"}
    passages, asked = list(PassageSource(corpus).read()), read_questions(questions)
    bm25 = Bm25Index.build(Texts([str(passage.id) for passage in passages], (f"{passage.title} {passage.text}" for passage in passages)))
    found = to_rankings(bm25.search([question.text for question in asked], 10))
    write_trec_run(folder / "bm25.trec", {question.id: ranking for question, ranking in zip(asked, found, strict=True)})
    whole = RetrievalValidation(RetrievalValidationSettings(**files))(model)
    for size in SIZES:
        errors, held = defaultdict[str, list[float]](list), defaultdict[str, list[bool]](list)
        for seed in SEEDS:
            options = RetrievalValidationSettings(**files, sample=size, seed=seed, hard_runs=[str(folder / "bm25.trec")])
            metrics = RetrievalValidation(options)(model)
            for name in METRICS:
                value, name_of = whole[f"eval/test/{name}"], f"eval/test/est_{name}"
                errors[name].append(metrics[name_of] - value)
                held[name].append(metrics[f"{name_of}_low"] <= value <= metrics[f"{name_of}_high"])
        for name, values in errors.items():
            mean, worst = np.abs(values).mean(), np.abs(values).max()
            print(
                f"{size} drawn, {name}: mean error {mean:.4f}, worst {worst:.4f}, interval holds it {sum(held[name])} of {len(SEEDS)}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("memory", "estimates"))
    parser.add_argument("--data", type=Path, help="folder of the quickstart's data")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--rows", type=int, default=0, help="used by the benchmark itself")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["DPR_CACHE"] = f"{temporary}/cache"
        if arguments.what == "estimates":
            measure_estimates(Path(temporary), arguments.data, BiEncoder.load(arguments.model))
        elif arguments.rows:
            print(json.dumps(measure_memory(Path(temporary), arguments.rows)))
        else:
            for rows in ROWS:
                subprocess.run([sys.executable, "-m", "benchmarks.validation", "memory", f"--rows={rows}"], check=True)


if __name__ == "__main__":
    main()
