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
from dpr.formats.arrow_files import chosen_split
from dpr.formats.corpora import require_word
from dpr.formats.question_sets import Judgement, judgement_rows
from dpr.formats.text_store import TextStore, open_store
from dpr.formats.training_files.rows import (
    Note,
    ReadOptions,
    SourceRow,
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
    with (
        durable_folder(
            path, overwrite=note is not None, metadata={"kind": "BEIR layout", "made_of": note}
        ) as folder,
        open(folder / "corpus.jsonl", "w", encoding="utf-8") as corpus,
        open(folder / "queries.jsonl", "w", encoding="utf-8") as queries,
    ):
        (folder / "qrels").mkdir()
        with open(folder / "qrels" / "train.tsv", "w", encoding="utf-8") as qrels:
            qrels.write("query-id\tcorpus-id\tscore\n")
            for count, sample in enumerate(samples, 1):
                key = str(count - 1)
                metadata = {"answers": list(sample.answers)}
                query = {"_id": key, "text": sample.question, "metadata": metadata}
                queries.write(json.dumps(query, ensure_ascii=False) + "\n")
                grades: dict[str, int] = {}
                negatives = sample.hard_negatives + sample.other_negatives
                for passage in sample.positives + negatives:
                    name = content_id(passage)
                    if _is_new(passage, name, seen, path):
                        record = {"_id": name, "title": passage.title, "text": passage.text}
                        corpus.write(json.dumps(record, ensure_ascii=False) + "\n")
                    grades.setdefault(name, int(passage in sample.positives))
                qrels.writelines(f"{key}\t{name}\t{grade}\n" for name, grade in grades.items())
    return count


def _is_new(passage: Passage, key: str, seen: dict[str, int], path: Path) -> bool:
    require_word(key, path)
    content = hash((passage.title, passage.text))
    if key not in seen:
        seen[key] = content
        return True
    if seen[key] != content:
        raise InputError(
            f"two different passages have the id {key!a}",
            file=path,
            hint="give the passages of one corpus at a time",
        )
    return False


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
    for _, group in groupby(judgement_rows(qrels), key=_question_of):
        graded: list[tuple[int, SourceRow]] = []
        for line, found in group:
            row = parsed_row(qrels, line, parse, found)
            if row.sample is None or isinstance(found, str):
                yield row
            else:
                graded.append((found[2], row))
        graded.sort(key=lambda item: -item[0])
        yield from joined(row for _, row in graded)


def _question_of(row: tuple[int, Judgement | str]) -> str:
    return "" if isinstance(row[1], str) else row[1][0]


def _sample(
    corpus: TextStore, queries: TextStore, min_grade: float, found: Judgement | str
) -> TrainingSample:
    if isinstance(found, str):
        raise ValueError(found)
    question, key, grade = found
    text, answers = queries.question(question)
    passage = corpus.passage(key)
    text_of(passage.text, f"the text of passage {key!a}")
    positives = (passage,) if grade >= min_grade else ()
    return TrainingSample(
        text_of(text, "the question"), positives, (passage,) if grade <= 0 else (), answers=answers
    )
