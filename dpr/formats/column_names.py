"""Names of columns and keys in the tables and records of this and of other toolkits, and the columns that a
header names, in any order."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError

_COLUMN_NAME = re.compile(r"\w[\w-]*( \w[\w-]*)?")

# The first one that is there counts. A passage's own id stands before that of the document it was cut from:
# MS MARCO's have pid and docid.
PASSAGE_IDS = (
    "_id",
    "id",
    "passage_id",
    "psg_id",
    "pid",
    "docid",
    "doc_id",
    "document_id",
    "docno",
    "corpus_id",
)
# fmt: off
PASSAGE_TEXTS = (
    "text", "contents", "content", "passage", "passage_text",
    "document_text", "doc_text", "segment", "body", "document", "paragraph", "context",
)
# fmt: on
TITLES = ("title", "passage_title", "document_title", "doc_title")
QUESTION_IDS = ("_id", "id", "query_id", "qid", "question_id", "topic_id")
QUESTIONS = ("question", "query", "anchor", "query_text", "question_text")
ANSWERS = ("answers", "answer")
POSITIVES = (
    "positive",
    "positives",
    "pos",
    "positive_passages",
    "positive_ctxs",
    "pos_doc",
    "pos_docs",
    "passage",
    "context",
    "document",
)
# fmt: off
NEGATIVES = (
    "negative", "negatives", "neg", "negs", "hard_negative", "hard_negatives", "hard_neg", "hard_negs", "neg_doc",
    "neg_docs", "negative_passages", "hard_negative_passages", "negative_ctxs", "hard_negative_ctxs",
)
# fmt: on
GRADES = (
    "score",
    "grade",
    "rel",
    "relevance",
    "relevancy",
    "label",
    "rating",
    "judgement",
    "judgment",
    "qrel",
)
# fmt: off
LABELS = (
    "label", "labels", "relevance", "is_relevant", "relevant", "grade", "rating", "score", "scores", "similarity", "similarity_score",
)
# fmt: on
ALL_NAMES = {
    *PASSAGE_IDS,
    *PASSAGE_TEXTS,
    *TITLES,
    *QUESTION_IDS,
    *QUESTIONS,
    *ANSWERS,
    *POSITIVES,
    *NEGATIVES,
    *GRADES,
}


def keys_of(record: Mapping[str, Any]) -> str:
    """The keys of a record, as messages show them."""
    shown = ", ".join(map(str, list(record)[:12]))
    return shown + (" ..." if len(record) > 12 else "") if record else "none"


def name_in(record: Mapping[str, Any], names: Sequence[str]) -> str:
    """The first of ``names`` that the record has with more than null, else with null, else empty."""
    filled = next((name for name in names if record.get(name) is not None), "")
    return filled or next((name for name in names if name in record), "")


def require_name(record: Mapping[str, Any], names: Sequence[str], what: str) -> str:
    """As ``name_in``; ValueError says which keys the record has where it has none of ``names``."""
    if name := name_in(record, names):
        return name
    listed = ", ".join(dict.fromkeys(names))
    raise ValueError(
        f"no {what} among the keys {keys_of(record)}, expected {'one of ' if ',' in listed else ''}{listed}"
    )


def normal_name(field: str) -> str:
    """The name of a column in small letters, words joined by underscores: ``Query-ID`` is ``query_id``."""
    return field.strip().lower().replace("-", "_").replace(" ", "_")


def are_names(row: Sequence[str]) -> bool:
    """Whether a row may be a header: each field is one word or two, or empty as above a column of row
    numbers."""
    return any(row) and all(not field or _COLUMN_NAME.fullmatch(field.strip()) for field in row)


def named_columns(
    row: Sequence[str],
    needed: Mapping[str, tuple[str, ...]],
    optional: Mapping[str, tuple[str, ...]],
    *,
    file: Path,
    line: int,
) -> dict[str, int] | None:
    """The columns that a header names, by role, in any order; None if the row is no header, or lacks a name
    that is known and needed.

    Raises:
        InputError: a known name is there twice.
    """
    if not are_names(row):
        return None
    names = [normal_name(field) for field in row]
    roles = {**needed, **optional}
    columns: dict[str, int] = {}
    for role, known in roles.items():
        name = next(
            (name for name in known if name in names and names.index(name) not in columns.values()), None
        )
        if name is not None:
            columns[role] = names.index(name)
        elif role in needed:
            return None
    require_distinct({name for known in roles.values() for name in known}, names, file=file, line=line)
    return columns


def require_distinct(known: Collection[str], names: Sequence[str], *, file: Path, line: int) -> None:
    """Refuses a header in which a known name is there twice."""
    for name, count in Counter(names).items():
        if count > 1 and name in known:
            places = " and ".join(str(number) for number, other in enumerate(names, 1) if other == name)
            raise InputError(
                f"columns {places} are both called {name!r}", file=file, line=line, expected="each name once"
            )


def require_known_names(
    rows: Sequence[tuple[int, list[str]]], needed: Mapping[str, tuple[str, ...]], *, file: Path
) -> None:
    """Refuses a first row that has a known name and seems to be a header, and lacks a name that is needed.

    ``rows`` are the first two, of which a header is the only one that consists of single words.
    """
    if len(rows) < 2 or not _are_words(rows[0][1]) or _are_words(rows[1][1]):
        return
    line, row = rows[0]
    if {normal_name(field) for field in row} & {name for known in needed.values() for name in known}:
        raise InputError(
            f"the header {', '.join(map(repr, row))[:200]} has names that are not known",
            file=file,
            line=line,
            expected=" and ".join(
                f"a column of {role} ({', '.join(known)})" for role, known in needed.items()
            ),
            hint="rename the columns; if this row is data, write a header above it",
        )


def _are_words(row: Sequence[str]) -> bool:
    return all(row) and are_names(row) and len({*row}) == len(row) and not any(map(str.isdigit, "".join(row)))
