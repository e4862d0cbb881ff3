"""Small public QA sets in their published forms -> SQuAD's JSON and one table, split into train and test by
article or subject; and of the training questions one in eight held out, whose articles and subjects training
knows.

The files are SQuAD v1.1 (a slice of train without titles; articles of dev), SQuADShifts' new Wikipedia part,
MedQuAD and QED's dev set.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

SETS = ("squad", "new_wiki", "medquad", "qed")
TEST_PARTS = 6  # one article in six is for testing
HELD_PARTS = 8

_TRAIN_SLICE = "squad/squad-v1.1-train.800-paragraphs.jsonl.gz"
_DEV_ARTICLES = "squad/squad-v1.1-dev.shared-half.json.gz"
_NEW_WIKI = "squadshifts/new_wiki_v1.0.json.gz"
_MEDQUAD = "medquad/medquad.jsonl.gz"
_QED = "qed/qed-dev.jsonl.gz"


def write_sets(data: Path, out: Path) -> None:
    """Writes ``<out>/{train,test}/{squad,new_wiki,qed}.json`` and ``medquad.jsonl``; no article or subject is
    in both parts."""
    for part in ("train", "test"):
        (out / part).mkdir(parents=True, exist_ok=True)
    articles = {
        "squad": [*_untitled(data / _TRAIN_SLICE), *_articles(data / _DEV_ARTICLES)],
        "new_wiki": _articles(data / _NEW_WIKI),
        "qed": _qed_articles(data / _QED),
    }
    for name, all_of_them in articles.items():
        for part, is_test in (("train", False), ("test", True)):
            chosen = [
                article
                for article in all_of_them
                if bool(article["title"]) and _is_test(article["title"]) == is_test
            ]
            if not is_test:
                chosen += [article for article in all_of_them if not article["title"]]
            (out / part / f"{name}.json").write_text(
                json.dumps({"data": chosen}, ensure_ascii=False), encoding="utf-8"
            )
    rows = list(gzipped_rows(data / _MEDQUAD))
    for part, is_test in (("train", False), ("test", True)):
        with (out / part / "medquad.jsonl").open("w", encoding="utf-8") as file:
            for row in rows:
                if _is_test(row["focus"]) == is_test:
                    file.write(
                        json.dumps(
                            {key: row[key] for key in ("question", "answer", "focus")}, ensure_ascii=False
                        )
                        + "\n"
                    )


def hold_out(file: Path, train: Path, held: Path) -> None:
    """Splits prepared training data by question: what to train on, and what to judge by. The same question is
    on one side only."""
    if train.exists() and held.exists():
        return
    for path in (train, held):
        path.parent.mkdir(parents=True, exist_ok=True)
    with (
        file.open(encoding="utf-8") as lines,
        train.open("w", encoding="utf-8") as used,
        held.open("w", encoding="utf-8") as kept,
    ):
        for line in lines:
            question = "held" + json.loads(line)["question"].lower().strip()
            (used if zlib.crc32(question.encode()) % HELD_PARTS else kept).write(line)


def _is_test(name: str) -> bool:
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % TEST_PARTS == 0


def gzipped_rows(file: Path) -> Iterator[dict[str, Any]]:
    """The rows of a packed file of JSON lines."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _articles(file: Path) -> list[dict[str, Any]]:
    with gzip.open(file, "rt", encoding="utf-8") as text:
        data: list[dict[str, Any]] = json.load(text)["data"]
    return data


def _untitled(file: Path) -> Iterable[dict[str, Any]]:
    for row in gzipped_rows(file):
        questions = [{"question": qa["question"], "answers": [{"text": qa["answer"]}]} for qa in row["qas"]]
        yield {"title": "", "paragraphs": [{"context": row["context"], "qas": questions}]}


def _qed_articles(file: Path) -> list[dict[str, Any]]:
    paragraphs: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in gzipped_rows(file):
        answers = [{"text": span["string"]} for answer in row["original_nq_answers"] for span in answer]
        paragraphs[row["title_text"]][row["paragraph_text"]].append(
            {"question": row["question_text"], "answers": answers}
        )
    return [
        {
            "title": title,
            "paragraphs": [{"context": text, "qas": questions} for text, questions in texts.items()],
        }
        for title, texts in paragraphs.items()
    ]
