"""Parts of SQuAD, MedQuAD, Cranfield and NPL, by ``dpr prepare``: ``{train,dev}.jsonl``, and ``dev`` and
``test`` as BEIR has them.

SQuAD: paragraphs and sentences of two slices of train; one paragraph in eight is for dev, the articles of the
dev set at hand are the test. MedQuAD: one ``focus`` in six is for testing, one in eight of the others for
dev. Cranfield: a title is the question that its abstract answers; one document in eight is for dev, and the
collection's queries, which nothing is chosen by, are the test. NPL is split likewise; its texts of some 20
words have no titles, and 3 to 8 words in a row are the question that the text answers.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.negatives_data import gzipped_rows

SETS = ("squad", "medquad", "cranfield", "npl")
DEV_PARTS, TEST_PARTS = 8, 6

_SQUAD = "squad/squad-v1.1-"
Row = dict[str, str]
Command = Callable[..., None]


def write_set(name: str, data: Path, out: Path, dpr: Command) -> None:
    """Writes the parts of one set below ``out`` unless they are there. ``dpr`` runs a command that makes its
    first argument."""
    raw = out / "raw"
    if not (raw / "done").exists():
        raw.mkdir(parents=True, exist_ok=True)
        for part, rows in _PARTS[name](data).items():
            _write(raw / f"{part}.jsonl", rows)
        (raw / "done").touch()
    columns = ("format=columns", "question=question", "positive=passage", "title=title", "on_bad_row=skip")
    for part in ("train", "dev", "test"):
        source, made = raw / f"{part}.jsonl", out / f"{part}.jsonl"
        if source.exists():
            dpr(made, "prepare", source, *columns, f"out={made}")
    dpr(out / "dev", "prepare", out / "dev.jsonl", "to=beir", f"out={out / 'dev'}")
    if name == "squad":
        dpr(
            out / "test",
            "prepare",
            data / f"{_SQUAD}dev.shared-half.json.gz",
            "format=squad",
            "to=beir",
            f"out={out / 'test'}",
        )
    elif name == "medquad":
        dpr(out / "test", "prepare", out / "test.jsonl", "to=beir", f"out={out / 'test'}")
    elif not (out / "test" / "qrels").exists():
        _collection_test(data / name, _documents(data, name), out / "test")
    dpr(out / "known", "prepare", out / "train.jsonl", "to=beir", f"out={out / 'known'}")
    if not (out / "texts.jsonl").exists():
        _join([out / "known", out / "test"], out / "texts.jsonl")
    if not (out / "dev" / "searched.jsonl").exists():
        _join([out / "dev", out / "known"], out / "dev" / "searched.jsonl")


def searched(part: Path) -> Path:
    """The passages that a part's questions are asked of: those of the test part alone; for dev, those of the
    training part too."""
    file = part / "searched.jsonl"
    return file if file.exists() else part / "corpus.jsonl"


def qrels_of(part: Path) -> Path:
    """The only file of judgements of a folder in BEIR's layout."""
    (file,) = sorted((part / "qrels").glob("*.tsv"))
    return file


def _squad(data: Path) -> dict[str, list[Row]]:
    parts: dict[str, list[Row]] = {"train": [], "dev": []}
    for row in gzipped_rows(data / f"{_SQUAD}train.800-paragraphs.jsonl.gz"):
        part = "dev" if _is_in(row["context"], DEV_PARTS) else "train"
        parts[part] += [
            {"question": asked["question"], "passage": row["context"], "title": ""} for asked in row["qas"]
        ]
    held = " ".join(row["passage"] for row in parts["dev"])
    for row in gzipped_rows(data / f"{_SQUAD}train.10k-question-sentence.jsonl.gz"):
        if row["answer_sentence"] not in held:
            parts["train"].append(
                {"question": row["question"], "passage": row["answer_sentence"], "title": ""}
            )
    return parts


def _medquad(data: Path) -> dict[str, list[Row]]:
    parts: dict[str, list[Row]] = {"train": [], "dev": [], "test": []}
    for row in gzipped_rows(data / "medquad/medquad.jsonl.gz"):
        part = (
            "test"
            if _is_in(row["focus"], TEST_PARTS)
            else "dev"
            if _is_in("dev " + row["focus"], DEV_PARTS)
            else "train"
        )
        parts[part].append({"question": row["question"], "passage": row["answer"], "title": row["focus"]})
    return parts


def _cranfield(data: Path) -> dict[str, list[Row]]:
    parts: dict[str, list[Row]] = {"train": [], "dev": []}
    for row in _documents(data, "cranfield"):
        abstract = row["text"].removeprefix(row["title"]).strip()
        if row["title"] and abstract:
            part = "dev" if _is_in(row["_id"], DEV_PARTS) else "train"
            parts[part].append({"question": row["title"], "passage": abstract, "title": ""})
    return parts


def _npl(data: Path) -> dict[str, list[Row]]:
    parts: dict[str, list[Row]] = {"train": [], "dev": []}
    for row in _documents(data, "npl"):
        words, chance = row["text"].split(), random.Random(row["_id"])
        length = chance.randint(3, 8)
        first = chance.randint(0, max(0, len(words) - length))
        question = " ".join(words[first : first + length])
        parts["dev" if _is_in(row["_id"], DEV_PARTS) else "train"].append(
            {"question": question, "passage": row["text"], "title": ""}
        )
    return parts


_PARTS: dict[str, Callable[[Path], dict[str, list[Row]]]] = {
    "squad": _squad,
    "medquad": _medquad,
    "cranfield": _cranfield,
    "npl": _npl,
}


def _documents(data: Path, name: str) -> Iterable[dict[str, Any]]:
    """The documents of a collection; two of Cranfield's are empty and left out."""
    rows = (
        gzipped_rows(data / "npl/corpus.jsonl.gz")
        if name == "npl"
        else _json_lines(data / name / "corpus.jsonl")
    )
    return (row for row in rows if row["text"])


def _collection_test(source: Path, documents: Iterable[dict[str, Any]], out: Path) -> None:
    """A collection's own queries and judgements, with each title once, as the first words of its text."""
    (out / "qrels").mkdir(parents=True, exist_ok=True)
    _write(out / "corpus.jsonl", ({"_id": row["_id"], "title": "", "text": row["text"]} for row in documents))
    shutil.copy(source / "queries.jsonl", out / "queries.jsonl")
    shutil.copy(source / "qrels" / "test.tsv", out / "qrels" / "test.tsv")


def _join(corpora: list[Path], out: Path) -> None:
    """The first corpus as it is, then the others under ids of their own."""
    others = (
        {**row, "_id": f"{corpus.name}-{row['_id']}"}
        for corpus in corpora[1:]
        for row in _json_lines(corpus / "corpus.jsonl")
    )
    _write(out, itertools.chain(_json_lines(corpora[0] / "corpus.jsonl"), others))


def _write(file: Path, rows: Iterable[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def _json_lines(file: Path) -> Iterable[dict[str, Any]]:
    with file.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _is_in(name: str, parts: int) -> bool:
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % parts == 0
