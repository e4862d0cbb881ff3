"""A small retrieval task of real text, made from installed packages, without a network.

1. Read pairs (first sentence, rest) from docstrings (``docstrings``).
2. Drop pairs whose question occurs before, and pairs whose passage nearly repeats an earlier one
   (``near_duplicates``).
3. Hold out dev and test questions by module, so that no training question is about a module of the test
   (``splits``).
4. Every passage goes into the corpus; train and dev questions get BM25 hard negatives (``hard_negatives``),
   train questions from train passages only.

The same environment, seed and sizes give the same bytes.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.core.logs import get_logger
from dpr.core.records import Passage, Question, TrainingSample
from dpr.data.near_duplicates import find_near_duplicates
from dpr.formats.corpora import write_passages
from dpr.formats.documents.document import name_as_words
from dpr.formats.question_sets import write_qrels, write_questions
from dpr.formats.training_files.dpr import write_training_set
from dpr.indexer.bm25 import Bm25Index
from dpr.indexer.registry import IndexTexts
from dpr.preparation.document_questions import TRAIN, split_by_group
from dpr.storage.durable import describe_file, durable_folder, read_manifest
from dpr.storage.outputs import output
from examples.docstring_corpus.docstrings import Docstring, SourceFile, find_sources, read_docstrings

DEV, TEST = "dev", "test"
CORPUS_FILE = "corpus.tsv"
GROUP_DEPTH = 2

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DocstringPair:
    """One question with the passage that answers it, in one split."""

    question: str
    passage: Passage
    split: str


def prepare_docstrings(
    out: Path,
    *,
    packages: Sequence[str] | None = None,
    seed: int = 0,
    num_dev: int = 1000,
    num_test: int = 2000,
    num_negatives: int = 3,
    processes: int = 1,
    overwrite: bool = False,
) -> dict[str, int]:
    """Makes the folder ``out`` (corpus.tsv, train.json, dev.json, {dev,test}_questions.jsonl,
    {dev,test}_qrels.tsv) and returns counts.

    If the same folder exists already, returns its counts.

    Raises:
        ConfigError: an unknown package.
        InputError: ``out`` exists, made of something else, and ``overwrite`` is false; or there are too few
        docstrings.
        OutputError: ``out`` cannot be written.
    """
    sources = find_sources(packages)
    sizes = {"seed": seed, "num_dev": num_dev, "num_test": num_test, "num_negatives": num_negatives}
    texts = "".join(f"{source.module} {describe_file(source.path)['sha256']}\n" for source in sources)
    made_of = {"packages": packages, "sources": hashlib.sha256(texts.encode()).hexdigest(), **sizes}
    metadata: dict[str, Any] = {"kind": "docstrings", "made_of": made_of}
    with output(out, made_of, overwrite=overwrite) as is_missing:
        if not is_missing:
            return dict(read_manifest(out)["metadata"]["counts"])
        with durable_folder(out, overwrite=overwrite, metadata=metadata) as folder:
            metadata["counts"] = counts = _make(folder, sources, **sizes, processes=processes)
    return counts


def _make(
    folder: Path,
    sources: Sequence[SourceFile],
    *,
    seed: int,
    num_dev: int,
    num_test: int,
    num_negatives: int,
    processes: int,
) -> dict[str, int]:
    logger.info("reading the docstrings of %d files", len(sources))
    docstrings = read_docstrings(sources, processes=processes)
    distinct = drop_repeats(docstrings)
    logger.info("%d docstrings of use, %d after near-duplicate removal", len(docstrings), len(distinct))
    pairs = split_pairs(distinct, seed=seed, num_dev=num_dev, num_test=num_test)
    splits = Counter(pair.split for pair in pairs)
    if not (splits[TRAIN] and splits[DEV] and splits[TEST]):
        raise InputError(
            f"{len(pairs)} usable docstrings do not suffice for train, dev and test questions from different"
            " modules",
            hint="give --packages more names, or all",
        )
    _write_pairs(folder, pairs, num_negatives)
    return {
        "files": len(sources),
        "docstrings": len(docstrings),
        "passages": len(pairs),
        "train questions": splits[TRAIN],
        "dev questions": splits[DEV],
        "test questions": splits[TEST],
    }


def drop_repeats(docstrings: Sequence[Docstring]) -> list[Docstring]:
    """Returns the docstrings whose name and question are new, and whose passage does not nearly repeat an
    earlier one."""
    by_name = list({docstring.name: docstring for docstring in reversed(docstrings)}.values())[::-1]
    repeats = find_near_duplicates([docstring.summary for docstring in by_name], threshold=1.0)
    asked_once = [docstring for docstring, original in zip(by_name, repeats, strict=True) if original is None]
    repeats = find_near_duplicates([docstring.body for docstring in asked_once])
    return [docstring for docstring, original in zip(asked_once, repeats, strict=True) if original is None]


def split_pairs(
    docstrings: Sequence[Docstring], *, seed: int, num_dev: int, num_test: int
) -> list[DocstringPair]:
    """Returns pairs with their split. The passage's id is the qualified name, its title the same name as
    words."""
    groups = [".".join(docstring.module.split(".")[:GROUP_DEPTH]) for docstring in docstrings]
    splits = split_by_group(groups, {TEST: num_test, DEV: num_dev}, seed=seed)
    return [
        DocstringPair(
            docstring.summary, Passage(docstring.body, name_as_words(docstring.name), docstring.name), split
        )
        for docstring, split in zip(docstrings, splits, strict=True)
    ]


def _write_pairs(folder: Path, pairs: Sequence[DocstringPair], num_negatives: int) -> None:
    write_passages(folder / CORPUS_FILE, (pair.passage for pair in pairs))
    train = [pair for pair in pairs if pair.split == TRAIN]
    dev = [pair for pair in pairs if pair.split == DEV]
    for name, chosen, pool in (("train.json", train, train), ("dev.json", dev, pairs)):
        negatives = lexical_negatives(
            [pair.question for pair in chosen],
            [pair.passage for pair in chosen],
            [pair.passage for pair in pool],
            num_negatives=num_negatives,
        )
        write_training_set(
            folder / name,
            (
                TrainingSample(pair.question, (pair.passage,), tuple(hard))
                for pair, hard in zip(chosen, negatives, strict=True)
            ),
        )
    for split in (DEV, TEST):
        chosen = [pair for pair in pairs if pair.split == split]
        ids = [f"{split}-{number}" for number in range(len(chosen))]
        write_questions(
            folder / f"{split}_questions.jsonl",
            [Question(pair.question, key) for key, pair in zip(ids, chosen, strict=True)],
        )
        write_qrels(
            folder / f"{split}_qrels.tsv",
            {key: {str(pair.passage.id): 1} for key, pair in zip(ids, chosen, strict=True)},
        )


def lexical_negatives(
    questions: Sequence[str], positives: Sequence[Passage], pool: Sequence[Passage], *, num_negatives: int
) -> list[list[Passage]]:
    """Returns for each question the ``num_negatives`` best passages of ``pool`` by BM25 that are not its
    positive, best first.

    A passage with the positive's id, or with its very text, is never a negative. Lists are shorter where
    fewer passages share a word with the question. Passages need ids.
    """
    if not num_negatives:
        return [[] for _ in questions]
    by_id = {str(passage.id): passage for passage in pool}
    index = Bm25Index.build(
        IndexTexts(list(by_id), [f"{passage.title} {passage.text}" for passage in by_id.values()])
    )
    # One more than asked, for the positive; texts that repeat it are rare enough to cost a negative.
    _, ranked = index.search(questions, num_negatives + 1)
    negatives = []
    for positive, hits in zip(positives, ranked, strict=True):
        candidates = (by_id[hit] for hit in hits if hit != positive.id)
        negatives.append([passage for passage in candidates if passage.text != positive.text][:num_negatives])
    return negatives
