"""Commands and calls besides training, on the CPU and on the simulated device, for a process of their own: prints
one line of JSON for each.

python -m tests.simulated.commands FOLDER
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpr.adaptation.linear_layer import add_fitted_layer
from dpr.cli.main import main
from dpr.core.records import Passage
from dpr.data.pairs import PseudoPairs
from dpr.formats.corpora import write_passages
from dpr.formats.training_files.dpr import write_training_set
from dpr.formats.vector_shards import open_shards
from dpr.indexer.exact import ExactIndex
from dpr.indexer.vectors import ArraySource
from dpr.models.biencoder import BiEncoder
from dpr.retrieval.retriever import Retriever
from tests.helpers.serving import served
from tests.helpers.tiny import tiny_model
from tests.simulated import device
from tests.simulated.runs import report
from tests.unit.mining.conftest import repeating_corpus, repeating_samples
from tests.unit.models.test_cross_encoder import classifier_folder
from tests.unit.training.test_retrieval_validation import write_retrieval_set

QUESTIONS = [sample.question for sample in repeating_samples(12)]
MODEL = "model=model"
CORPUS = "corpus=corpus.tsv"
Found = dict[str, Any]
"""``numbers`` agree within rounding, ``texts`` exactly."""


def prepare(folder: Path) -> None:
    """Writes models and texts, and makes ``folder`` the working directory."""
    os.environ["DPR_CACHE"] = str(folder / "cache")
    os.chdir(write_retrieval_set(folder))
    for name, seed in (("model", 0), ("other", 1)):
        tiny_model(Path("encoder"), seed=seed, dtype=torch.float32).save(name)
    Path("judged/qrels").mkdir(parents=True)
    places = {"corpus.tsv": "corpus.tsv", "questions.jsonl": "queries.jsonl", "qrels.tsv": "qrels/test.tsv"}
    for name, place in places.items():
        Path(name).rename(Path("judged") / place)
    write_passages(Path("corpus.tsv"), repeating_corpus(60))
    write_training_set(Path("train.jsonl"), repeating_samples(12))
    classifier_folder(Path("scorer"))
    command("embed", MODEL, CORPUS, "out=vectors", "num_shards=1", "chunk_size=25", "device=cpu")
    command("retrieve", *SEARCHED, "search_folder=run", "device=cpu")


SEARCHED = (MODEL, CORPUS, "vectors=vectors_0", "questions=judged/queries.jsonl", "n_docs=5")


def command(*arguments: str) -> None:
    assert main(list(arguments)) == 0, arguments


def parts_of(value: Any) -> Found:
    """Numbers and texts of JSON, in order."""
    numbers: list[float] = []
    texts: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            for key in sorted(value):
                walk(value[key])
        elif isinstance(value, list):
            for each in value:
                walk(each)
        elif isinstance(value, float):
            numbers.append(value)
        else:
            texts.append(str(value))

    walk(value)
    return {"numbers": numbers, "texts": texts}


def records(file: Path) -> Found:
    return parts_of([json.loads(line) for line in file.read_text().splitlines()])


def encoding(at: str, out: Path) -> Found:
    model = BiEncoder.load("model", device=at)
    questions = model.encode_questions(QUESTIONS, batch_size=5, convert_to_tensor=True).cpu()
    device.forget()
    passages = model.encode_passages(repeating_corpus(20), batch_size=5)
    return {"numbers": [*questions.flatten().tolist(), *passages.ravel().tolist()]}


def embedding(at: str, out: Path) -> Found:
    command("embed", MODEL, CORPUS, f"out={out}", "chunk_size=25", f"device={at}")
    (shard,) = open_shards([f"{out}_0"])
    return {"numbers": np.concatenate([vectors for _, vectors in shard.chunks()]).ravel().tolist()}


def in_half_precision(at: str, out: Path) -> Found:
    model = BiEncoder.load("model", device=at)
    device.forget()
    return {"numbers": model.encode_questions(QUESTIONS, precision="bf16").ravel().tolist()}


def exact_search(at: str, out: Path) -> Found:
    """Of 3 blocks and 600 questions, with passages that tie."""
    random = np.random.default_rng(0)
    vectors = random.standard_normal((70, 8)).astype(np.float32)
    vectors[30:40] = vectors[20:30]
    source = ArraySource(np.arange(70).astype("S2"), vectors)
    index = ExactIndex([source], device=at, block_rows=25)
    scores, ids = index.search(random.standard_normal((600, 8)), 4)
    return {"texts": [scores.tolist(), ids]}  # the bits


def retrieval(at: str, out: Path) -> Found:
    command("retrieve", *SEARCHED, f"trec_run_file={out}", f"device={at}")
    rows = [line.split() for line in out.read_text().splitlines()]
    return {"numbers": [float(row[4]) for row in rows], "texts": [(row[0], row[2]) for row in rows]}


def evaluation(at: str, out: Path) -> Found:
    command("evaluate", MODEL, "set=judged", f"out={out}", f"device={at}")
    return parts_of(json.loads((out / "results.json").read_text())["figures"])


def mining(at: str, out: Path) -> Found:
    inputs = ("train.jsonl", CORPUS, "vectors=vectors_0", MODEL, "cross_encoder=scorer", "per_question=2")
    command("mine", *inputs, f"out={out}", f"device={at}")
    return records(out)


def mining_without_vectors(at: str, out: Path) -> Found:
    command("mine", "train.jsonl", MODEL, "per_question=2", f"out={out}", f"device={at}")
    return records(out)


def scoring(at: str, out: Path) -> Found:
    command("score", "train.jsonl", "cross_encoder=scorer", f"out={out}", f"device={at}")
    return records(out)


def scoring_by_a_bi_encoder(at: str, out: Path) -> Found:
    command("score", "train.jsonl", MODEL, f"out={out}", f"device={at}")
    return records(out)


def training(at: str, out: Path) -> Found:
    encoder = ("encoder=hf_bert", "encoder.pretrained_model_cfg=encoder", "encoder.pretrained=false")
    sizes = ("encoder.sequence_length=24", "train.batch_size=4", "train.num_train_epochs=1")
    others = ("encoder.dropout=0", "train.num_workers=0", f"out={out}", f"device={at}")
    command("train", "train_datasets=train.jsonl", *encoder, *sizes, *others)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {"numbers": [line["train/loss"] for line in lines if "train/loss" in line]}


def merging(at: str, out: Path) -> Found:
    command(
        "merge",
        "tuned=[model]",
        "base=other",
        "weights=[0.5]",
        "set=judged",
        "split=test",
        f"out={out}",
        f"device={at}",
    )
    weights = BiEncoder.load(out).weights()
    return {"numbers": [float(weight.square().sum()) for weight in weights.values()]}


def fitting_a_layer(at: str, out: Path) -> Found:
    model = BiEncoder.load("model", device=at)
    add_fitted_layer(model, PseudoPairs("corpus.tsv"), most_questions=40)
    return {"numbers": model.encode_questions(QUESTIONS).ravel().tolist()}


def a_growing_corpus(at: str, out: Path) -> Found:
    retriever = Retriever.build("model", repeating_corpus(40), device=at)
    retriever.add([Passage("ba be ka ko", id="added"), Passage("ni no", id="short")])
    hits = [hit for hits in retriever.search(QUESTIONS, 4) for hit in hits]
    return {"numbers": [hit.score for hit in hits], "texts": [hit.id for hit in hits]}


def the_service(at: str, out: Path) -> Found:
    with served({"run": Path("run")}, device=at) as client:
        device.forget()
        answers = client.post("/search", json={"queries": QUESTIONS, "k": 3, "explain": True}).json()
        searched = device.waits()
        vectors = client.post("/v1/embeddings", json={"input": QUESTIONS, "input_type": "query"}).json()
    hits = [hit for hits in answers["results"] for hit in hits]
    numbers = [number for item in vectors["data"] for number in item["embedding"]]
    return {
        "numbers": [*numbers, *(hit["score"] for hit in hits)],
        "texts": [hit["id"] for hit in hits],
        "waits": Counter(searched),
    }


COMMANDS: dict[str, Callable[[str, Path], Found]] = {
    "encoding": encoding,
    "embedding": embedding,
    "encoding in half precision": in_half_precision,
    "exact search": exact_search,
    "retrieval": retrieval,
    "evaluation": evaluation,
    "mining": mining,
    "mining without vectors": mining_without_vectors,
    "scoring": scoring,
    "scoring by a bi-encoder": scoring_by_a_bi_encoder,
    "training": training,
    "merging": merging,
    "fitting a layer": fitting_a_layer,
    "a growing corpus": a_growing_corpus,
    "the service": the_service,
}


def ran(name: str, at: torch.device) -> Found:
    out = Path(f"{at.type}-{name.replace(' ', '-')}")
    device.forget()
    found = COMMANDS[name](at.type, out)
    return {"numbers": [], "texts": [], "waits": Counter(device.waits()), **found}


if __name__ == "__main__":
    prepare(Path(sys.argv[1]).resolve())
    report(sys.argv[2:] or list(COMMANDS), ran)
