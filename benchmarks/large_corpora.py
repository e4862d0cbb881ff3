"""``python -m benchmarks.large_corpora DATA [--rows 1000000] [--stages embed exact ...] [--kill]``: whole
commands over millions of passages of real words, with what each costs.

Sentences of the collections below DATA are recombined, two a passage, 31 words on average; after a million
they are repeated under other ids. The 9,997 answers of SQuAD's pairs of question and sentence are spread
among the first: their questions are searched for, evaluated, and mined for. The encoder is static, trained on
these pairs. Of more than two million passages, one shard is embedded, and the vectors of the others are sums
of two of its vectors.

Every stage is a ``dpr`` command of its own. CPU seconds are those of the command and its children. Anonymous
memory (``RssAnon``) is the highest sum over both, looked at 20 times a second; imports take some 200 MB of
it. The peak is the command's highest resident memory, mapped files included. ``--data-gb`` limits private memory
(``prlimit --data``, which counts what is reserved, resident or not). ``--kill`` ends each stage with SIGKILL
after half of its CPU seconds, runs it again, and compares what it wrote with the undisturbed files.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.memory import anonymous_bytes
from dpr.formats.vector_shards import VectorShard, VectorShardWriter

PAIRS = "squad/squad-v1.1-train.10k-question-sentence.jsonl.gz"
FEW_QUESTIONS = 1000
DIMENSION = 64
MADE = 1_000_000  # passages, after which texts are repeated under other ids
SHARD = 250_000
WHOLE = 2_000_000  # passages, up to which all are embedded


@dataclass(frozen=True)
class Cost:
    """What a command took, in seconds and bytes."""

    code: int
    wall: float
    cpu: float
    anonymous: int
    peak: int


def sentences(data: Path) -> Iterator[str]:
    """Yields the sentences of all collections, of 5 to 40 words, without the pairs of questions and answers."""
    for file in sorted(data.rglob("*.gz")):
        if file.name in (Path(PAIRS).name, "queries.jsonl.gz"):
            continue
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for text in re.findall(
                r'"(?:text|context|answer|paragraph_text)": ("(?:[^"\\]|\\.)*")', lines.read()
            ):
                for sentence in re.split(r"(?<=[.!?]) ", " ".join(json.loads(text).split())):
                    if 5 <= len(sentence.split()) <= 40:
                        yield sentence


def write(folder: Path, data: Path, rows: int) -> None:
    """The corpus, the questions and their judgements, and training data for the encoder and for mining."""
    rng = random.Random(0)
    parts = [json.dumps(text)[1:-1] for text in dict.fromkeys(sentences(data))]
    with gzip.open(data / PAIRS, "rt", encoding="utf-8") as lines:
        pairs = [json.loads(line) for line in lines]
    made = min(rows, MADE)
    answers = {place: number for number, place in enumerate(rng.sample(range(made), len(pairs)))}
    texts = []
    for row in range(made):
        if row in answers:
            texts.append(json.dumps(pairs[answers[row]]["answer_sentence"])[1:-1])
        else:
            texts.append(f"{parts[int(rng.random() * len(parts))]} {parts[int(rng.random() * len(parts))]}")
    with open(folder / "corpus.jsonl", "w", encoding="utf-8") as out:
        for row in range(rows):
            out.write(f'{{"_id": "p{row}", "title": "", "text": "{texts[row % made]}"}}\n')
    places = {number: place for place, number in answers.items()}
    with (
        open(folder / "questions.jsonl", "w", encoding="utf-8") as questions,
        open(folder / "few.jsonl", "w", encoding="utf-8") as few,
        open(folder / "qrels.tsv", "w", encoding="utf-8") as qrels,
        open(folder / "train.jsonl", "w", encoding="utf-8") as train,
    ):
        qrels.write("query-id\tcorpus-id\tscore\n")
        for number, pair in enumerate(pairs):
            line = json.dumps({"_id": f"q{number}", "text": pair["question"]}) + "\n"
            questions.write(line)
            if number < FEW_QUESTIONS:
                few.write(line)
            qrels.write(f"q{number}\tp{places[number]}\t1\n")
            positive = {"title": "", "text": pair["answer_sentence"], "passage_id": f"p{places[number]}"}
            sample = {
                "question": pair["question"],
                "answers": [],
                "positive_ctxs": [positive],
                "hard_negative_ctxs": [],
            }
            train.write(json.dumps(sample) + "\n")


def run(
    command: list[str], environment: dict[str, str], *, data_gb: float = 0, kill_after: float = 0
) -> Cost:
    """Runs a command to its end, or until it has taken ``kill_after`` CPU seconds."""

    def limited() -> None:
        if data_gb:
            resource.setrlimit(resource.RLIMIT_DATA, (int(data_gb * 1e9),) * 2)

    started = time.perf_counter()
    process = subprocess.Popen(command, env=environment, preexec_fn=limited, stdout=subprocess.DEVNULL)
    ended = threading.Event()
    anonymous = [0]

    def look() -> None:
        while not ended.wait(0.05):
            with suppress(OSError):
                anonymous[0] = max(anonymous[0], sum(anonymous_bytes(each) for each in tree(process.pid)))
                if kill_after and cpu_seconds(process.pid) > kill_after:
                    process.send_signal(signal.SIGKILL)
                    return

    looking = threading.Thread(target=look)
    looking.start()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    ended.set()
    looking.join()
    cpu = usage.ru_utime + usage.ru_stime
    return Cost(process.returncode, wall, cpu, anonymous[0], usage.ru_maxrss * 1024)


def cpu_seconds(process: int) -> float:
    user, system = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def tree(process: int) -> Iterator[int]:
    """Yields a process and all that it has started."""
    yield process
    for thread in os.listdir(f"/proc/{process}/task"):
        with suppress(OSError):  # a thread or a child that has ended meanwhile
            for child in Path(f"/proc/{process}/task/{thread}/children").read_text().split():
                yield from tree(int(child))


def stages(folder: Path, rows: int) -> dict[str, tuple[list[str], str]]:
    """The commands in their order, each with the outputs (a pattern) that it makes."""
    model = f"model={folder.parent}/model"
    corpus = f"corpus={folder}/corpus.jsonl"
    vectors = f"vectors={folder}/vectors_*"
    few = f"questions={folder}/few.jsonl"
    many = f"questions={folder}/questions.jsonl"
    qrels = f"qrels={folder}/qrels.tsv"
    product = ["indexer=faiss", "indexer.factory=IVF1024,PQ32"]

    def retrieve(name: str, *arguments: str) -> tuple[list[str], str]:
        results = [f"trec_run_file={folder}/{name}.trec", f"metrics_file={folder}/{name}.metrics.json"]
        return ["retrieve", corpus, qrels, *results, *arguments], f"{name}.*"

    dense = (model, vectors)
    shards = rows // SHARD if rows > WHOLE else 1
    last = [f"num_shards={shards}", f"shard_id={shards - 1}"]
    found: dict[str, tuple[list[str], str]] = {
        "embed": (["embed", model, corpus, f"out={folder}/vectors", "out_dtype=float16", *last], f"vectors_{shards - 1}"),
        "exact": retrieve("exact", *dense, few),
        "exact_all": retrieve("exact_all", *dense, many),
        "mine": (["mine", f"{folder}/train.jsonl", model, corpus, vectors, f"out={folder}/mined.jsonl"], "mined.jsonl*"),
        "ivf": retrieve("ivf", *dense, few, "indexer=ivf", f"index_path={folder}/index_ivf"),
        "ivf_all": retrieve("ivf_all", *dense, many, "indexer=ivf", f"index_path={folder}/index_ivf"),
        "pq": retrieve("pq", *dense, few, *product, f"index_path={folder}/index_pq"),
        "pq_all": retrieve("pq_all", *dense, many, *product, f"index_path={folder}/index_pq"),
        "bm25": retrieve("bm25", few, "indexer=bm25", f"bm25_index_path={folder}/index_bm25"),
        "bm25_all": retrieve("bm25_all", many, "indexer=bm25", f"bm25_index_path={folder}/index_bm25"),
        "mine_bm25": (["mine", f"{folder}/train.jsonl", corpus, f"out={folder}/mined_bm25.jsonl"], "mined_bm25.jsonl*"),
    }  # fmt: skip
    for name in ("ivf", "pq", "bm25"):
        found[name] = (found[name][0], f"{{{name}.*,index_{name}}}")
    run_file = f"run_file={folder}/exact_all.trec"
    found["evaluate"] = (
        ["evaluate", run_file, qrels, f"metrics_file={folder}/evaluated.json"],
        "evaluated.json",
    )
    return found


def outputs(folder: Path, pattern: str) -> list[Path]:
    patterns = pattern.strip("{}").split(",")
    return sorted(path for each in patterns for path in folder.glob(each))


def size(paths: list[Path]) -> int:
    return sum(
        file.stat().st_size
        for path in paths
        for file in (path.rglob("*") if path.is_dir() else [path])
        if file.is_file()
    )


def digest(folder: Path, paths: list[Path]) -> dict[str, str]:
    """Hashes of the files of an output, by name. Lock files and times are no part of them."""
    files = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*")))]
    found = {}
    for file in files:
        if file.is_file() and not file.name.endswith(".lock"):
            with open(file, "rb") as opened:
                found[str(file.relative_to(folder))] = hashlib.file_digest(opened, "sha256").hexdigest()
    return found


def fill(folder: Path, shards: int) -> None:
    """Writes the other shards of a corpus: sums of two vectors of the embedded one, of length 1."""
    embedded = VectorShard(folder / f"vectors_{shards - 1}")
    ids, vectors = embedded.take(np.arange(embedded.num_vectors))
    stated = {
        name: value for name, value in embedded.metadata.items() if name not in ("num_vectors", "num_chunks")
    }
    chunk_size = int(stated["chunk_size"])
    for shard in range(shards - 1):
        rng = np.random.default_rng(shard)
        first = shard * SHARD
        metadata = stated | {"shard_id": shard, "first_row": first, "end_row": first + SHARD}
        metadata = {name: value for name, value in metadata.items() if name not in ("dimension", "dtype")}
        writer = VectorShardWriter(
            folder / f"vectors_{shard}", metadata=metadata, dimension=DIMENSION, dtype="float16"
        )
        for number, start in enumerate(range(0, SHARD, chunk_size)):
            count = min(chunk_size, SHARD - start)
            of = rng.integers(len(ids), size=(2, count))
            sums = vectors[of[0]].astype(np.float32) + vectors[of[1]]
            sums /= np.linalg.norm(sums, axis=1, keepdims=True)
            writer.write_chunk(number, [f"p{first + start + row}" for row in range(count)], sums)
        writer.finish()


def make_model(folder: Path, dpr: list[str], environment: dict[str, str]) -> None:
    """A static encoder of this toolkit, trained for three epochs on the pairs."""
    new = [
        "new-encoder",
        f"corpus={folder}/texts.jsonl",
        f"questions={folder}/train.jsonl",
        f"out={folder}/new",
        "layers=0",
    ]
    subprocess.run(
        [*dpr, *new, f"hidden={DIMENSION}"], env=environment, check=True, stdout=subprocess.DEVNULL
    )
    train = [
        "train",
        "encoder=static",
        f"encoder.pretrained_model_cfg={folder}/new",
        f"train_datasets={folder}/train.jsonl",
    ]
    subprocess.run(
        [*dpr, *train, "train.hard_negatives=0", f"out={folder.parent}/model"],
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder of squad, medquad, ...")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=Path("runs/large_corpora"))
    parser.add_argument("--stages", nargs="+", default=None)
    parser.add_argument("--data-gb", type=float, default=0)
    parser.add_argument("--kill", action="store_true")
    arguments = parser.parse_args()
    folder = arguments.folder / str(arguments.rows)
    folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "DPR_CACHE": str(folder / "cache")}
    dpr = [sys.executable, "-m", "dpr"]
    if not (folder / "train.jsonl").exists():
        write(folder, arguments.data, arguments.rows)
    if not (folder.parent / "model").exists():
        with (
            open(folder / "corpus.jsonl", encoding="utf-8") as lines,
            open(folder / "texts.jsonl", "w", encoding="utf-8") as out,
        ):
            out.writelines(line for line, _ in zip(lines, range(20_000)))
        make_model(folder, dpr, environment)
    print(
        "| stage | rows | wall s | CPU s | anonymous MB | peak MB | bytes | |\n|---|---:|---:|---:|---:|---:|---:|---|"
    )
    commands = stages(folder, arguments.rows)
    for name in arguments.stages or commands:
        command, pattern = commands[name]
        cost = run([*dpr, *command], environment, data_gb=arguments.data_gb)
        paths = outputs(folder, pattern)
        report(name, arguments.rows, cost, size(paths))
        if name == "embed" and arguments.rows > WHOLE:
            fill(folder, arguments.rows // SHARD)
        if arguments.kill:
            before = digest(folder, paths)
            for path in paths:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            killed = run([*dpr, *command], environment, data_gb=arguments.data_gb, kill_after=cost.cpu / 2)
            again = run([*dpr, *command], environment, data_gb=arguments.data_gb)
            after = digest(folder, outputs(folder, pattern))
            report(
                f"{name}, killed after {killed.cpu:.0f} CPU s",
                arguments.rows,
                again,
                size(outputs(folder, pattern)),
            )
            differing = sorted(
                file for file in before.keys() | after.keys() if before.get(file) != after.get(file)
            )
            print(f"  differing: {differing or 'none'}; exit codes {killed.code}, {again.code}", flush=True)


def report(name: str, rows: int, cost: Cost, written: int) -> None:
    memory = f"{cost.anonymous / 2**20:,.0f} | {cost.peak / 2**20:,.0f}"
    code = "" if cost.code == 0 else f"exit {cost.code}"
    print(
        f"| {name} | {rows:,} | {cost.wall:,.0f} | {cost.cpu:,.0f} | {memory} | {written:,} | {code} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
