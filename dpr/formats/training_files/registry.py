"""All formats of training data, and recognition of a file's format by its content. This module reads and
writes DPR's files and BEIR's layout (``corpus.jsonl``, ``queries.jsonl`` and graded ``qrels/<split>.tsv``),
reads SQuAD's and TREC judgements with both files beside them, and writes Tevatron's and FlagEmbedding's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import IO, Any

from dpr.core.errors import ConfigError, InputError
from dpr.core.paths import user_path
from dpr.core.records import Passage, TrainingSample
from dpr.formats.arrow_files import chosen_split, column_names, is_arrow
from dpr.formats.corpora import durable_text, write_passages
from dpr.formats.delimited import named_columns, table_form
from dpr.formats.json_records import indented_record, iter_json_records, read_json_object
from dpr.formats.question_sets import (
    JUDGED,
    Judgement,
    Qrels,
    grade_of,
    judgement_rows,
    write_qrels,
)
from dpr.formats.text_input import located
from dpr.formats.text_store import open_store
from dpr.formats.training_files import columns
from dpr.formats.training_files.rows import (
    Note,
    ReadOptions,
    SourceRow,
    content_id,
    joined,
    parsed_row,
    preparing,
    record_rows,
)
from dpr.formats.training_records import (
    checked_answers,
    is_printed_list,
    number_of,
    sample_from_json,
    sample_to_json,
    text_of,
    title_of,
)
from dpr.storage.durable import durable_folder
from dpr.storage.untrusted import describe

_DPR_KEYS = ("question", "answers", "positive_ctxs", "hard_negative_ctxs", "negative_ctxs")


def read_dpr(path: Path, options: ReadOptions) -> Iterator[SourceRow]:
    """Yields the rows of DPR's training files."""
    return record_rows(path, sample_from_json, options, _DPR_KEYS)


def write_training_set(path: str | Path, samples: Iterable[TrainingSample], note: Note = None) -> int:
    """Writes a DPR training file: JSON lines for names in .jsonl, else a JSON array; compressed for names in
    ``.gz``. Returns the number of samples."""
    file = user_path(path)
    if file.name.removesuffix(".gz").endswith(".jsonl"):
        return _write_lines(lambda _, sample: sample_to_json(sample), file, samples, note)
    count = 0
    with durable_text(file, note=note) as out:
        for count, sample in enumerate(samples, 1):
            out.write(("[" if count == 1 else ",") + indented_record(sample_to_json(sample)))
        out.write("\n]\n" if count else "[]\n")
    return count


def _tevatron_record(number: int, sample: TrainingSample) -> dict[str, Any]:
    record: dict[str, Any] = {"query_id": str(number), "query": sample.question}
    if sample.answers:
        record["answers"] = list(sample.answers)
    negatives = sample.hard_negatives + sample.other_negatives
    for key, listed in (("positive_passages", sample.positives), ("negative_passages", negatives)):
        record[key] = [{"docid": content_id(one), "title": one.title, "text": one.text} for one in listed]
        for passage, written in zip(listed, record[key], strict=True):
            if passage.teacher_score is not None:
                written["score"] = passage.teacher_score
    return record


def _flag_embedding_record(_: int, sample: TrainingSample) -> dict[str, Any]:
    """Returns a record whose texts join title and text by a space; ids and answers have no place in this
    format."""
    record: dict[str, Any] = {"query": sample.question}
    negatives = sample.hard_negatives + sample.other_negatives
    has_scores = any(passage.teacher_score is not None for passage in sample.positives + negatives)
    for key, listed in (("pos", sample.positives), ("neg", negatives)):
        record[key] = [f"{one.title} {one.text}" if one.title else one.text for one in listed]
        if has_scores:
            record[f"{key}_scores"] = [passage.teacher_score for passage in listed]
    return record


def _write_lines(
    record: Callable[[int, TrainingSample], dict[str, Any]],
    path: Path,
    samples: Iterable[TrainingSample],
    note: Note = None,
) -> int:
    count = 0
    with durable_text(path, note=note) as out:
        for count, sample in enumerate(samples, 1):
            out.write(json.dumps(record(count - 1, sample), ensure_ascii=False) + "\n")
    return count


write_tevatron = partial(_write_lines, _tevatron_record)
"""Function that writes version 1. Both kinds of negatives become ``negative_passages``; passages without id
get one made from their content."""
write_flag_embedding = partial(_write_lines, _flag_embedding_record)
"""Function that writes plain texts. Both kinds of negatives become ``neg``."""


def read_squad(path: Path, options: ReadOptions) -> Iterator[SourceRow]:
    """Yields the rows of SQuAD's JSON (also SQuADShifts and others of its form): one per question, article by
    article. Passages get the title of their article.

    A question without answer in its paragraph (SQuAD 2.0) has no positive. A bad row ends its article. The
    error names its place in the object, since most such files are a single line. The whole file is held in
    memory.
    """
    articles = read_json_object(path).get("data")
    if not isinstance(articles, list):
        raise InputError("no list 'data' in the object", file=path)
    for index, article in enumerate(articles):
        try:
            with located(path, 1):
                for sample in _squad_samples(article, f"data[{index}]"):
                    yield SourceRow(path, 1, sample)
        except InputError as problem:
            yield SourceRow(path, 1, None, problem)


def _squad_samples(article: Any, where: str) -> Iterator[TrainingSample]:
    if not isinstance(article, dict):
        raise ValueError(f"{where} is {describe(article)}, expected an object")
    # File names of Wikipedia pages have underscores for spaces.
    title = title_of(article.get("title"), f"{where}.title").replace("_", " ")
    for inside, paragraph in _objects(article.get("paragraphs"), f"{where}.paragraphs"):
        passage = Passage(text_of(paragraph.get("context"), f"{inside}.context"), title)
        for place, entry in _objects(paragraph.get("qas"), f"{inside}.qas"):
            question = text_of(entry.get("question"), f"{place}.question")
            listed = _objects(entry.get("answers") or [], f"{place}.answers")
            texts = dict.fromkeys(str(answer.get("text", "")) for _, answer in listed)
            answers = checked_answers([text for text in texts if text])
            if entry.get("is_impossible") is True:
                yield TrainingSample(question, ())
            else:
                yield TrainingSample(question, (passage,), answers=answers)


def _objects(value: Any, where: str) -> list[tuple[str, dict[str, Any]]]:
    """Returns the objects of a list, each with its place."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError(f"{where} is {describe(value)}, expected a list of objects")
    return [(f"{where}[{number}]", item) for number, item in enumerate(value)]


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
        stores.append(open_store(file, cache_dir=options.cache_dir))
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

    def passages(queries: IO[str]) -> Iterator[Passage]:
        for number, sample in enumerate(samples):
            key = str(number)
            query = {"_id": key, "text": sample.question, "metadata": {"answers": list(sample.answers)}}
            queries.write(json.dumps(query, ensure_ascii=False) + "\n")
            qrels[key] = {}
            for passage in sample.passages:
                name = content_id(passage)
                content = hash((passage.title, passage.text))
                if name not in seen:
                    yield Passage(passage.text, passage.title, name)
                if seen.setdefault(name, content) != content:
                    raise InputError(f"two different passages have the id {name!a}", file=path)
                qrels[key].setdefault(name, int(passage in sample.positives))

    # A caller that gives a note has checked what is there, and may be allowed to replace it.
    metadata = {"kind": "BEIR layout", "made_of": note}
    with durable_folder(path, overwrite=note is not None, metadata=metadata) as folder:
        with open(folder / "queries.jsonl", "w", encoding="utf-8") as queries:
            write_passages(folder / "corpus.jsonl", passages(queries))
        write_qrels(folder / "qrels" / "train.tsv", qrels)
    return len(qrels)


READERS: dict[str, Callable[[Path, ReadOptions], Iterator[SourceRow]]] = {
    "dpr": read_dpr,
    "beir": read_beir,
    "tevatron": columns.read_lists,
    "flagembedding": columns.read_lists,
    "squad": read_squad,
    "triples": partial(columns.read_in_order, roles=("question", "positive", "negative")),
    "pairs": partial(columns.read_in_order, roles=("question", "positive")),
    "columns": columns.read,
}
"""Readers by the names of formats."""
WRITERS: dict[str, Callable[[Path, Iterable[TrainingSample], Note], int]] = {
    "dpr": write_training_set,
    "beir": write_beir,
    "tevatron": write_tevatron,
    "flagembedding": write_flag_embedding,
}


def look_at(path: Path) -> tuple[tuple[str, ...], str]:
    """Returns the names of the formats that fit the beginning of a file, or a folder's names; and a
    description of the content, for messages. A file without content fits DPR's."""
    if path.is_dir() and ((path / "qrels").is_dir() or not is_arrow(path)):
        return (("beir",) if (path / "qrels").is_dir() else ()), "folder"
    if is_arrow(path):
        keys = set(column_names(path))
        return _fitting_records(keys) or ("columns",), _shown_keys(keys)
    head = columns.head_of(path).lstrip()
    if not head:
        return ("dpr",), ""
    if head[0] not in "{[":
        fields = tuple(table_form(path).first)
        return _fitting_table(fields, path), f"{len(fields)} columns"
    try:
        record = next(iter_json_records(path), None)
    except InputError:
        record = None
    if record is not None and record.error is None:
        keys = set(record.value)
    else:  # one object over many lines, or longer than a line may be: its keys as far as they are in sight
        keys = set(re.findall(r'"(\w+)"\s*:', head))
    if not keys:
        return ("dpr",), ""
    fit = _fitting_records(keys)
    if "data" in keys and "positive_ctxs" not in keys:
        fit = (*(name for name in fit if name != "columns"), "squad")
    return fit, _shown_keys(keys)


def _shown_keys(keys: set[str]) -> str:
    return f"keys {', '.join(sorted(keys)[:12])}"


def _fitting_records(keys: set[str]) -> tuple[str, ...]:
    """Returns the names of the formats that fit; "columns", whose keys have many names, only if no other
    does."""
    names = {
        "dpr": "positive_ctxs" in keys,
        "tevatron": bool(keys & {"positive_passages", "positive_document_ids"}),
        "flagembedding": {"query", "pos"} <= keys,
    }
    fit = tuple(name for name, fits in names.items() if fits)
    return fit or (("columns",) if columns.has_columns(keys) else ())


def _fitting_table(fields: tuple[str, ...], path: Path) -> tuple[str, ...]:
    if columns.has_columns(name.strip().lower() for name in fields):
        return ("columns",)
    if named_columns(fields, JUDGED, {}, path) is not None:
        return ("beir",)
    grade = grade_of(fields[-1])
    # With spaces in a text, or no whole number, these are not the ids and the grade of a judgement.
    is_text = any(" " in field.strip() for field in fields[:2])
    if len(fields) == 3 and number_of(fields[2]) is not None and (is_text or grade is None):
        return ("pairs",)
    names = {
        "beir": len(fields) in (3, 4) and grade is not None,
        "triples": len(fields) == 3 and fields[0].strip().lower() != "id",
        # DPR's questions have their answers in the second column
        "pairs": len(fields) == 2 and not is_printed_list(fields[1]),
    }
    return tuple(name for name, fits in names.items() if fits)


def format_of(path: Path, options: ReadOptions, *, name: str = "") -> str:
    """Returns the name of the format that is given, else of the one that the content shows; DPR's for a file
    without content.

    Raises:
        ConfigError: no format has this name.
        InputError: the content fits none, or more than one.
    """
    if name or options.columns:
        name = name or "columns"
        if name not in READERS:
            raise ConfigError(f"format {name} is not known; choose one of {', '.join(READERS)}")
        return name
    fit, found = look_at(path)
    if len(fit) == 1:
        return fit[0]
    if fit:
        hint = f"say which, e.g. {preparing(f'format={fit[0]}')}"
        raise InputError(f"fits the formats {' and '.join(fit)} ({found})", file=path, hint=hint)
    hint = (
        "of a table, separate columns by tabs, or by commas under a header such as question,passage; else"
        f" name columns: columns={{'positive': 'NAME'}} (Python), {preparing('question=... positive=...')}"
    )
    expected = f"one of the formats {', '.join(READERS)} (dpr prepare --help shows them)"
    raise InputError(
        f"not training data of a known format ({found})", file=path, expected=expected, hint=hint
    )


def read_rows(path: Path, options: ReadOptions, *, name: str = "") -> Iterator[SourceRow]:
    """Yields the rows of a file in the format of this name, or in the one that ``format_of`` finds."""
    return READERS[format_of(path, options, name=name)](path, options)
