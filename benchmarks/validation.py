"""``python -m benchmarks.validation``: validation by retrieval. Growth of ``RssAnon`` after the imports, at
its highest, over the first validation on a generated corpus (counting, tokenising) and over the second, which
reads stored tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.memory import Watch
from benchmarks.memory_cases import write_model
from dpr.models.biencoder import BiEncoder
from dpr.models.settings import EncoderSettings
from dpr.training.validations.retrieval import RetrievalValidation, RetrievalValidationSettings

ROWS, QUESTIONS = (25_000, 250_000, 1_000_000), 1_000


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
    (folder / "qrels.tsv").write_text(
        "query-id\tcorpus-id\tscore\n" + "".join(f"q{row}\tdoc-{row}\t1\n" for row in asked)
    )
    write_model(folder / "encoder", folder / "unused", width=32)  # for its tokenizer
    vocabulary = len((folder / "encoder" / "vocab.txt").read_text().splitlines())
    (folder / "encoder" / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    (folder / "encoder" / "config.json").write_text(
        json.dumps({"model_type": "static", "hidden_size": 32, "vocab_size": vocabulary})
    )
    model = BiEncoder.from_pretrained(
        str(folder / "encoder"), EncoderSettings(pooling="mean", shared=True), pretrained=False
    )
    found: dict[str, float] = {"rows": rows}
    files: dict[str, Any] = {
        key: str(folder / name)
        for key, name in (("corpus", "corpus.tsv"), ("questions", "questions.jsonl"), ("qrels", "qrels.tsv"))
    }
    validation = RetrievalValidation(RetrievalValidationSettings(**files))
    for number in ("first", "second"):
        with Watch() as watch:
            started = time.perf_counter()
            validation(model)
            found[f"{number}_s"] = time.perf_counter() - started
        found[f"{number}_growth_mb"] = watch.growth / 2**20
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=0, help="used by the benchmark itself")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["DPR_CACHE"] = f"{temporary}/cache"
        if arguments.rows:
            print(json.dumps(measure_memory(Path(temporary), arguments.rows)))
        else:
            for rows in ROWS:
                subprocess.run([sys.executable, "-m", "benchmarks.validation", f"--rows={rows}"], check=True)


if __name__ == "__main__":
    main()
