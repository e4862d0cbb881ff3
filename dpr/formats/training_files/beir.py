"""BEIR's layout: ``corpus.jsonl``, ``queries.jsonl`` and ``qrels/<split>.tsv``, graded. Also TREC judgements
with both files beside."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby
from pathlib import Path

from dpr.core.errors import InputError
from dpr.core.records import Passage, TrainingSample
from dpr.formats.question_sets import Judgement, judgement_rows
from dpr.formats.text_store import TextStore, open_store
from dpr.formats.training_files.rows import (
    Note,
    ReadOptions,
    SourceRow,
    chosen_split,
    content_id,
    joined,
    parsed_row,
    preparing,
)
from dpr.formats.training_records import text_of
from dpr.storage.durable import durable_folder


def read(path: Path, options: ReadOptions) -> Iterator[SourceRow]:
    """One sample per question, positives by falling grade. ``path`` is the folder or a file of judgements.

    Judgements of one question are expected to follow each other; where they do not, there are as many
    samples.
    """
    qrels = _qrels_file(path, options.split) if path.is_dir() else path
    folder = path if path.is_dir() else path.parent.parent
    corpus = open_store(options.corpus or _beside(folder, "corpus", path), cache_dir=options.cache_dir)
    queries = open_store(options.queries or _beside(folder, "queries", path), cache_dir=options.cache_dir)
    return _rows(qrels, corpus, queries, 1 if options.min_grade is None else options.min_grade)


def write(path: Path, samples: Iterable[TrainingSample], note: Note = None) -> int:
    """Writes the layout as a folder: positives with grade 1, negatives of both kinds with grade 0. Passages
    without id get one made of their content. Holds a hash per distinct passage.

    Raises:
        InputError: two different passages with the same id; an id that holds white space.
    """
    seen: dict[str, int] = {}
    count = 0
    # A caller that gives a note has checked what is there, and may be allowed to replace it.
    with durable_folder(
        path, overwrite=note is not None, metadata={"kind": "BEIR layout", "made_of": note}
    ) as folder:
        (folder / "qrels").mkdir()
        with (
            open(folder / "corpus.jsonl", "w", encoding="utf-8") as corpus,
            open(folder / "queries.jsonl", "w", encoding="utf-8") as queries,
            open(folder / "qrels" / "train.tsv", "w", encoding="utf-8") as qrels,
        ):
            qrels.write("query-id\tcorpus-id\tscore\n")
            for count, sample in enumerate(samples, 1):
                query = {
                    "_id": str(count - 1),
                    "text": sample.question,
                    "metadata": {"answers": list(sample.answers)},
                }
                queries.write(json.dumps(query, ensure_ascii=False) + "\n")
                grades: dict[str, int] = {}
                for passages, grade in (
                    (sample.positives, 1),
                    (sample.hard_negatives + sample.other_negatives, 0),
                ):
                    for passage in passages:
                        key = content_id(passage)
                        if _is_new(passage, key, seen, path):
                            corpus.write(
                                json.dumps(
                                    {"_id": key, "title": passage.title, "text": passage.text},
                                    ensure_ascii=False,
                                )
                                + "\n"
                            )
                        grades.setdefault(key, grade)
                qrels.writelines(f"{count - 1}\t{key}\t{grade}\n" for key, grade in grades.items())
    return count


def _is_new(passage: Passage, key: str, seen: dict[str, int], path: Path) -> bool:
    content = hash((passage.title, passage.text))
    known = seen.get(key)
    if known is None:
        if not key or key.split() != [key]:
            raise InputError(
                f"the passage id {key!a} is empty or holds white space",
                file=path,
                expected="ids that a qrels file can hold",
            )
        seen[key] = content
    elif known != content:
        raise InputError(
            f"two different passages have the id {key!a}",
            file=path,
            hint="give the passages of one corpus at a time",
        )
    return known is None


def _qrels_file(folder: Path, split: str) -> Path:
    by_split = {
        file.name.removesuffix(".gz").removesuffix(".tsv"): file
        for file in sorted((folder / "qrels").glob("*.tsv*"))
    }
    if not by_split:
        raise InputError(
            "no qrels/*.tsv", file=folder, expected="corpus.jsonl, queries.jsonl and qrels/<split>.tsv"
        )
    return by_split[chosen_split(list(by_split), split, folder)]


def companions(path: Path) -> list[Path]:
    """Corpus and questions of a file of judgements that lies in its ``qrels`` folder."""
    if path.is_dir() or path.parent.name != "qrels":
        return []
    return [file for name in ("corpus", "queries") for file in sorted(path.parent.parent.glob(f"{name}.*"))]


def _beside(folder: Path, name: str, path: Path) -> Path:
    for suffix in (".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz"):
        if (folder / f"{name}{suffix}").is_file():
            return folder / f"{name}{suffix}"
    raise InputError(
        f"no {name}.jsonl in {folder}", file=path, hint=f"say where it is: {preparing(f'{name}=FILE')}"
    )


def _rows(qrels: Path, corpus: TextStore, queries: TextStore, min_grade: float) -> Iterator[SourceRow]:
    parse = partial(_sample, corpus, queries, min_grade)
    for _, group in groupby(
        judgement_rows(qrels), key=lambda item: item[2][0] if isinstance(item[2], tuple) else item[1][0]
    ):
        graded: list[tuple[int, SourceRow]] = []
        for line, columns, found in group:
            row = parsed_row(qrels, line, lambda _, found=found: parse(found), columns)  # type: ignore[misc]
            if row.sample is None or isinstance(found, str):
                yield row
            else:
                graded.append((found[2], row))
        graded.sort(key=lambda item: -item[0])
        yield from joined(row for _, row in graded)


def _sample(
    corpus: TextStore, queries: TextStore, min_grade: float, found: Judgement | str
) -> TrainingSample:
    if isinstance(found, str):
        raise ValueError(found)
    question, key, grade = found
    if question not in queries and key in queries and question in corpus:
        raise ValueError(
            "the passage comes first, and the question second; a header corpus-id<TAB>query-id<TAB>score"
            " says so"
        )
    text, answers = queries.question(question)
    passage = corpus.passage(key)
    if not passage.text.strip():
        raise ValueError(f"the passage {passage.id!a} has an empty text, expected some text")
    positives = (passage,) if grade >= min_grade else ()
    return TrainingSample(
        text_of(text, "the question"), positives, (passage,) if grade <= 0 else (), answers=answers
    )
