"""Trains and evaluates a retriever for texts on this machine, with the public commands. No network, some
minutes on two CPU cores.

    python -m examples.quickstart

Everything is written to runs/quickstart, which is removed first. Each command is printed as one would type
it. All run in one process, so that torch is imported once. The same environment gives the same numbers.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import time
from pathlib import Path

from dpr.cli.main import main as dpr
from examples.docstring_corpus.__main__ import main as docstring_corpus

Q = "runs/quickstart"
DATA = f"{Q}/data"
CORPUS = f"corpus={DATA}/corpus.tsv"
STATIC = [
    "encoder=static",
    f"encoder.pretrained_model_cfg={Q}/encoder",
    "encoder.pooling=idf_sqrt",
    "encoder.title_template='{title} {title} {title} {text}'",
    "loss.temperature=0.03",
    "train.hard_negatives=0",
    "train.eval_per_epoch=0",
]


def say(text: str) -> None:
    """Prints a line of explanation."""
    bold, plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("", "")
    print(f"\n{bold}# {text}{plain}", flush=True)


def run(*words: str) -> None:
    """Prints a command as one would type it, then runs it."""
    # double quotes, since settings may hold single ones
    print("$", *(word if shlex.quote(word) == word else f'"{word}"' for word in words), flush=True)
    if words[0] == "dpr":
        code = dpr(list(words[1:]))
    else:
        code = docstring_corpus(list(words[3:]))
    if code:
        sys.exit(code)


def questions(part: str) -> list[str]:
    """Returns the arguments of a search with held-out questions."""
    return [f"questions={DATA}/{part}_questions.jsonl", f"qrels={DATA}/{part}_qrels.tsv", CORPUS]


def main() -> None:
    """Runs all steps."""
    start = time.monotonic()
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    shutil.rmtree(Q, ignore_errors=True)

    say(
        "1. Data: docstrings of the installed packages. The first sentence is the question, the rest is the"
        " passage that answers it."
    )
    run("python", "-m", "examples.docstring_corpus", "--out", DATA, "--hard-negatives", "0")

    say(
        "2. A new static encoder: it learns a vocabulary from these texts and gives each token a random vector."
    )
    run(
        "dpr",
        "new-encoder",
        CORPUS,
        f"questions={DATA}/train.json",
        f"out={Q}/encoder",
        "vocab_size=8000",
        "layers=0",
        "hidden=1024",
    )

    say(
        "3. Train it on the questions and on pseudo-questions cut from the passages. The vector of a text is the"
        " weighted mean of its tokens' vectors; the title counts three times."
    )
    pairs = f"train_datasets=[{DATA}/train.json,{{file: {DATA}/corpus.tsv, pairs: mixed}}]"
    schedule = ["train.batch_size=2048", "train.learning_rate=0.005", "train.num_train_epochs=5"]
    run("dpr", "train", *STATIC, pairs, *schedule, "train.log_batch_step=5", f"out={Q}/model")

    say("   The baseline: the same encoder with its random vectors (one step with learning rate 0).")
    nothing = ["train.learning_rate=0", "train.max_steps=1", "train.warmup_steps=0"]
    run("dpr", "train", *STATIC, f"train_datasets={DATA}/train.json", *nothing, f"out={Q}/untrained")

    say("4. Embed the corpus with both encoders.")
    run("dpr", "embed", f"model={Q}/model", CORPUS, f"out={Q}/vectors")
    run("dpr", "embed", f"model={Q}/untrained", CORPUS, f"out={Q}/untrained/vectors")

    say(
        "5. Retrieve. Training has seen passages of the modules that the test questions ask about, but none of"
        " their questions."
    )
    metrics = {name: f"{Q}/metrics/{name}.json" for name in ("bm25", "untrained", "trained", "hybrid", "dev")}
    dense = [f"model={Q}/model", f"vectors={Q}/vectors_0"]
    hybrid = [*dense, "hybrid=linear", f"bm25_index_path={Q}/bm25_index"]
    run(
        "dpr",
        "retrieve",
        *questions("test"),
        "indexer=bm25",
        f"bm25_index_path={Q}/bm25_index",
        f"metrics_file={metrics['bm25']}",
    )
    run(
        "dpr",
        "retrieve",
        *questions("test"),
        f"model={Q}/untrained",
        f"vectors={Q}/untrained/vectors_0",
        f"metrics_file={metrics['untrained']}",
    )
    run("dpr", "retrieve", *questions("test"), *dense, f"metrics_file={metrics['trained']}")

    say("   The hybrid of both: its weight is chosen on the dev questions, then used for the test questions.")
    run(
        "dpr",
        "retrieve",
        *questions("dev"),
        *hybrid,
        "tune_hybrid_weight=true",
        f"metrics_file={metrics['dev']}",
        f"search_folder={Q}",
    )
    weight = json.loads(Path(metrics["dev"]).read_text())["hybrid_weight"]
    run(
        "dpr",
        "retrieve",
        *questions("test"),
        *hybrid,
        f"hybrid_weight={weight}",
        f"metrics_file={metrics['hybrid']}",
    )

    say("6. The result")
    columns = [
        f"BM25={metrics['bm25']}",
        f"untrained={metrics['untrained']}",
        f"trained={metrics['trained']}",
        f"hybrid={metrics['hybrid']}",
    ]
    run("dpr", "compare", *columns, f"out={Q}/metrics.json")
    run("dpr", "report", Q, *columns)

    program = shutil.which("dpr") or "dpr"
    if "VIRTUAL_ENV" not in os.environ and Path(program).is_relative_to(Path.cwd()):
        # make's own environment, which is not on the caller's PATH
        program = str(Path(program).relative_to(Path.cwd()))
    else:
        program = "dpr"
    minutes, seconds = divmod(int(time.monotonic() - start), 60)
    print(
        f"""
top-k is the share of questions whose passage is among the first k. The encoder was trained from scratch on these texts, without any
question about the modules in the test set. BM25 matches equal words; the encoder has learned which words occur together; the hybrid
combines both. Finished in {minutes} min {seconds} s.

Report:           {Q}/report.html
Search:           {program} search {Q} "read a csv file"
                  {program} search {Q} --mode dense "read a csv file"   (or bm25, hybrid)
Your own folder:  {program} quickstart path/to/folder
Your own pairs:   docs/training_data.md; the files in {DATA} are examples of the formats"""
    )


if __name__ == "__main__":
    main()
