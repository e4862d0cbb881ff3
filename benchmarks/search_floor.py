"""Whether a floor tells questions that a corpus answers from questions of other corpora.

    python benchmarks/search_floor.py DATA RUNS [MODEL]

DATA has ``cranfield``, ``npl``, ``squad``, ``scifact``, ``medquad``, ``squadshifts`` and ``webquestions``, as they are
published. RUNS has folders that can be searched: ``docs``, by ``dpr quickstart docs``, and ``cranfield``, ``npl`` and
``squad``, by ``dpr adapt``. MODEL is one more encoder, which embeds the first 2,000 passages of each.

For each corpus and way of searching, some figures of the first hit are taken of three kinds of questions: its own,
those of the other corpora, and nonsense, which is words drawn from the corpus. Floors are the 95th percentiles of
nonsense and of WebQuestions, the best that there could be (the 5th percentile of the own questions), and fixed ones.
The four other corpora are searched by words alone: the fixed floor was chosen without them.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from dpr import Passage, Retriever
from dpr.indexer.bm25 import lexical_tokens

_MOST_QUESTIONS = 200
_MOST_PASSAGES = 2000
_NONSENSE = 200
DOCS = """\
how do I resume a training that was killed
train on several GPUs
which file formats can I use for training data
how to mine hard negatives with BM25
what does the effective rank of a global batch mean
serve a model over http with a token
how to export to sentence-transformers
compare two runs for significance
what is the weight of a hybrid
use my own loss function
load a checkpoint of the original DPR
how much memory does an index need
does it work on a CPU
set the learning rate warmup
early stopping
train without labels on documents only
search a folder of PDF files
what is a pseudo-question
difference between epochs and steps
how to use LoRA
gradient caching for large batches
why does my loss not fall
is code from a model folder executed
can I use Elasticsearch or a vector database
temperature of the softmax loss
filter search results by metadata
kubernetes or slurm jobs
where are the metrics of a run written
add passages to an existing index
which pooling should I use for BERT
distil a cross-encoder into a bi-encoder
run it offline without the hugging face hub
read questions from a CSV file
what is nDCG
label errors in training data
how do I write my own callback
""".splitlines()
"""Asked of the documentation by hand, without a look at its words."""


def collections(data: Path) -> dict[str, tuple[list[str], list[str]]]:
    """Passages and questions that people asked, by name; without passages where a run has them."""
    found: dict[str, tuple[list[str], list[str]]] = {"docs": ([], DOCS)}
    for name in ("cranfield", "npl", "scifact"):
        asked = (data / name / "queries.jsonl").read_text().splitlines()
        found[name] = [], [json.loads(row)["text"] for row in asked]
    rows = [json.loads(row) for row in lines(data / "scifact" / "corpus.jsonl.gz")]
    found["scifact"][0].extend(f"{row['title']} {row['text']}" for row in rows)
    for name, file in {
        "squad": "squad/squad-v1.1-dev.shared-half",
        "new_wiki": "squadshifts/new_wiki_v1.0",
        "amazon": "squadshifts/amazon_reviews_v1.0",
    }.items():
        articles = json.loads("".join(lines(data / f"{file}.json.gz")))["data"]
        paragraphs = [row for article in articles for row in article["paragraphs"]]
        texts = list(dict.fromkeys(row["context"] for row in paragraphs))
        found[name] = texts, [qa["question"].strip() for row in paragraphs for qa in row["qas"]]
    rows = [json.loads(row) for row in lines(data / "medquad" / "medquad.jsonl.gz")]
    found["medquad"] = list(dict.fromkeys(row["answer"] for row in rows)), [row["question"] for row in rows]
    web = json.loads((data / "webquestions" / "test.json").read_text())
    found["webquestions"] = [], [row["qText"] for row in web]
    generator = np.random.default_rng(0)
    for questions in (questions for _, questions in found.values()):
        chosen = [questions[row] for row in generator.permutation(len(questions))[:_MOST_QUESTIONS]]
        questions[:] = chosen
    return found


def lines(file: Path) -> list[str]:
    return [line for line in gzip.decompress(file.read_bytes()).decode().split("\n") if line]


def figures(retriever: Retriever, questions: list[str]) -> dict[str, np.ndarray]:
    """By name, a figure of the first hit of each question: higher where it is more likely an answer."""
    names = ("bm25 score", "bm25 share", "bm25 words", "dense score", "dense z")
    found: dict[str, list[float]] = {name: [] for name in names}
    lexical: Any = retriever.sides("bm25")["bm25"]
    rankings = lexical.retrieve(questions, 1)
    best = retriever.get({ranking[0][0] for ranking in rankings if ranking})
    for question, ranking in zip(questions, rankings, strict=True):
        words = set(lexical_tokens(question))
        score = 0.0
        common = 0
        if ranking:
            passage = best[ranking[0][0]]
            score = ranking[0][1]
            common = len(words & set(lexical_tokens(f"{passage.title} {passage.text}", is_passage=True)))
        found["bm25 score"].append(score)
        found["bm25 share"].append(lexical.index.share(question, score))
        found["bm25 words"].append(common / max(len(words), 1))
    if "dense" not in retriever.modes:
        return {name: np.array(values) for name, values in found.items() if values}
    dense: Any = retriever.sides("dense")["dense"]
    for start in range(0, len(questions), 50):
        scores, _ = dense.index.search(dense.encode(questions[start : start + 50]), dense.index.num_passages)
        found["dense score"] += scores[:, 0].tolist()
        found["dense z"] += ((scores[:, 0] - scores.mean(1)) / scores.std(1)).tolist()
    return {name: np.array(values) for name, values in found.items()}


def nonsense(passages: list[Passage], generator: np.random.Generator) -> list[str]:
    """Questions of 3 to 15 words that are drawn from all passages, common words as often as they are there."""
    words = [word for passage in passages for word in f"{passage.title} {passage.text}".split()]
    return [
        " ".join(words[place] for place in generator.integers(len(words), size=generator.integers(3, 16)))
        for _ in range(_NONSENSE)
    ]


def main() -> None:
    data = Path(sys.argv[1])
    runs = Path(sys.argv[2])
    known = collections(data)
    asked = {name: questions for name, (_, questions) in known.items()}
    for corpus in ("scifact", "medquad", "new_wiki", "amazon"):
        retriever = Retriever.build(None, known[corpus][0])
        values = {name: figures(retriever, questions)["bm25 share"] for name, questions in asked.items()}
        row(corpus, "", "bm25 share", values)
    for corpus in ("docs", "cranfield", "npl", "squad"):
        opened = Retriever.open(runs / corpus)
        passages = list(opened)
        encoders = {"static": opened}
        if len(sys.argv) > 3:
            some = passages[:_MOST_PASSAGES]
            encoders["given"] = Retriever.build(
                sys.argv[3], some, folder=runs / f"{corpus}_given", mode="hybrid"
            )
        drawn = nonsense(passages, np.random.default_rng(1))
        for encoder, retriever in encoders.items():
            of = {"nonsense": figures(retriever, drawn)}
            of |= {name: figures(retriever, questions) for name, questions in asked.items()}
            for values in of.values():
                # Both sides count the same, in standard deviations of nonsense.
                total = np.zeros(len(values["bm25 share"]))
                for side in ("bm25 share", "dense score"):
                    null = of["nonsense"][side]
                    total += (values[side] - null.mean()) / null.std()
                values["hybrid"] = total
            for figure in of["nonsense"]:
                if encoder == "static" or not figure.startswith("bm25"):
                    row(corpus, encoder, figure, {name: values[figure] for name, values in of.items()})


def row(corpus: str, encoder: str, figure: str, values: dict[str, np.ndarray]) -> None:
    """Prints what share of the own and of the other questions is below some floors, in percent."""
    own = values[corpus]
    others = {name: found for name, found in values.items() if name not in (corpus, "nonsense")}
    floors: dict[str, Any] = {}
    for name in ("nonsense", "webquestions"):
        if name in values:
            floors[name] = np.quantile(values[name], 0.95)
    floors["best"] = np.quantile(own, 0.05)
    cells = [corpus, encoder, figure]
    for name, floor in floors.items():
        counted = [found for other, found in others.items() if other != name]
        below = np.mean(np.concatenate(counted) < floor)
        cells.append(f"{name} {floor:.3f}: {np.mean(own < floor):.0%}, {below:.0%}")
    if figure == "bm25 share":
        for floor in (0.15, 0.2, 0.25, 0.3):
            below = np.mean(np.concatenate(list(others.values())) < floor)
            cells.append(f"{floor}: {np.mean(own < floor):.0%}, {below:.0%}")
    cells += [f"{name} {np.mean(found < floors['best']):.0%}" for name, found in others.items()]
    print(" | ".join(cells), flush=True)


if __name__ == "__main__":
    main()
