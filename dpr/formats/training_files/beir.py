"""BEIR's layout: ``corpus.jsonl``, ``queries.jsonl`` and graded ``qrels/<split>.tsv``; TREC judgements with both
files beside them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import IO

from dpr.core.errors import InputError
from dpr.core.records import TrainingSample
from dpr.formats.arrow_files import chosen_split
from dpr.formats.question_sets import Judgement, Qrels, judgement_rows, write_qrels
from dpr.formats.record_fields import text_of
from dpr.formats.text_output import Note, write_json_lines
from dpr.formats.training_files.rows import ReadOptions, SourceRow, content_id, joined, parsed_row, preparing
from dpr.storage.durable import durable_folder


def read_beir(path: Path, options: ReadOptions) -> Iterator[SourceRow]:
    """Yields one sample per question, positives by falling grade. ``path`` is BEIR's folder or a file of
    judgements.

    Judgements of one question are expected to follow each other; a question whose judgements do not gives
    several samples.
    """
    qrels = path
    folder = path.parent.parent
    if path.is_dir():
        folder = path
        files = sorted((folder / "qrels").glob("*.tsv*"))
        by_split = {file.name.removesuffix(".gz").removesuffix(".tsv"): file for file in files}
        if not by_split:
            expected = "corpus.jsonl, queries.jsonl and qrels/<split>.tsv"
            raise InputError("no qrels/*.tsv", file=folder, expected=expected)
        qrels = by_split[chosen_split(list(by_split), options.split, folder)]
    stores = []
    for name, given in (("corpus", options.corpus), ("queries", options.queries)):
        beside = (folder / f"{name}{suffix}" for suffix in (".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz"))
        file = given or next((file for file in beside if file.is_file()), None)
        if file is None:
            hint = f"say where it is: {preparing(f'{name}=FILE')}"
            raise InputError(f"no {name}.jsonl in {folder}", file=path, hint=hint)
        stores.append(options.open_store(file))
    corpus, queries = stores
    least = 1 if options.min_grade is None else options.min_grade

    def parse(found: Judgement | str) -> TrainingSample:
        if isinstance(found, str):
            raise ValueError(found)
        question, key, grade = found
        text, answers = queries.question(question)
        passage = corpus.passage(key)
        text_of(passage.text, f"the text of passage {key!a}")
        positives = (passage,) if grade >= least else ()
        negatives = (passage,) if grade <= 0 else ()
        return TrainingSample(text_of(text, "the question"), positives, negatives, answers=answers)

    rows = judgement_rows(qrels)
    for _, group in groupby(rows, key=lambda row: "" if isinstance(row[1], str) else row[1][0]):
        graded = sorted(group, key=lambda row: 0 if isinstance(row[1], str) else -row[1][2])
        yield from joined(parsed_row(qrels, line, parse, found) for line, found in graded)


def files_read(path: Path) -> list[Path]:
    """Returns the file and those it needs: judgements in a ``qrels`` folder are read with their corpus and
    questions."""
    if path.is_dir() or path.parent.name != "qrels":
        return [path]
    beside = path.parent.parent
    return [path, *(file for name in ("corpus", "queries") for file in sorted(beside.glob(f"{name}.*")))]


def write_beir(path: Path, samples: Iterable[TrainingSample], note: Note = None) -> int:
    """Writes BEIR's layout as a folder: positives with grade 1, negatives of both kinds with grade 0.
    Passages without id get one made from their content. Holds the ids and grades in memory.

    Raises:
        InputError: two different passages with the same id; an id that holds white space.
    """
    seen: dict[str, int] = {}
    qrels: Qrels = {}

    def passages(queries: IO[str]) -> Iterator[dict[str, str]]:
        for number, sample in enumerate(samples):
            key = str(number)
            query = {"_id": key, "text": sample.question, "metadata": {"answers": list(sample.answers)}}
            queries.write(json.dumps(query, ensure_ascii=False) + "\n")
            qrels[key] = {}
            for passage in sample.passages:
                name = content_id(passage)
                content = hash((passage.title, passage.text))
                if name not in seen:
                    yield {"_id": name, "title": passage.title, "text": passage.text}
                if seen.setdefault(name, content) != content:
                    raise InputError(f"two different passages have the id {name!a}", file=path)
                qrels[key].setdefault(name, int(passage in sample.positives))

    # A caller that gives a note has checked what is there, and may be allowed to replace it.
    metadata = {"kind": "BEIR layout", "made_of": note}
    with durable_folder(path, overwrite=note is not None, metadata=metadata) as folder:
        with open(folder / "queries.jsonl", "w", encoding="utf-8") as queries:
            write_json_lines(folder / "corpus.jsonl", passages(queries))
        write_qrels(folder / "qrels" / "train.tsv", qrels)
    return len(qrels)
