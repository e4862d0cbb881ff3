"""Names of columns and keys, in tables and in the records of this and other toolkits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# The first one that is there counts. A passage's own id stands before that of the document it was cut from:
# MS MARCO's have pid and docid.
ROW_IDS = ("_id", "id")
NAMED_PASSAGE_IDS = tuple("passage_id psg_id pid docid doc_id document_id docno corpus_id".split())
PASSAGE_IDS = (*ROW_IDS, *NAMED_PASSAGE_IDS)
PASSAGE_TEXTS = tuple(
    "text contents content passage passage_text document_text doc_text segment body document "
    "paragraph context".split()
)
TITLES = ("title", "passage_title", "document_title", "doc_title")
NAMED_QUESTION_IDS = ("query_id", "qid", "question_id", "topic_id")
QUESTION_IDS = (*ROW_IDS, *NAMED_QUESTION_IDS)
QUESTIONS = ("question", "query", "anchor", "query_text", "question_text")
ANSWERS = ("answers", "answer")
POSITIVES = tuple(
    "positive positives pos positive_passages positive_ctxs pos_doc pos_docs passage context document".split()
)
NEGATIVES = tuple(
    "negative negatives neg negs hard_negative hard_negatives hard_neg hard_negs neg_doc neg_docs "
    "negative_passages hard_negative_passages negative_ctxs hard_negative_ctxs".split()
)
GRADES = tuple("score grade rel relevance relevancy label rating judgement judgment qrel".split())
LABELS = tuple(
    "label labels relevance is_relevant relevant grade rating score scores similarity "
    "similarity_score".split()
)
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
    """Returns the keys of a record, as messages show them."""
    shown = ", ".join(map(str, list(record)[:12]))
    return shown + (" ..." if len(record) > 12 else "") if record else "none"


def name_in(record: Mapping[str, Any], names: Sequence[str]) -> str:
    """Returns the first of ``names`` under which the record has a value other than null; else the first that
    it has at all; else an empty text."""
    filled = next((name for name in names if record.get(name) is not None), "")
    return filled or next((name for name in names if name in record), "")


def require_name(record: Mapping[str, Any], names: Sequence[str], what: str) -> str:
    """Returns a name as ``name_in`` does. If the record has none of ``names``, raises ValueError with the
    keys that it has."""
    if name := name_in(record, names):
        return name
    listed = ", ".join(dict.fromkeys(names))
    raise ValueError(
        f"no {what} among the keys {keys_of(record)}, expected {'one of ' if ',' in listed else ''}{listed}"
    )


def normal_name(field: str) -> str:
    """Returns the name of a column in small letters, words joined by underscores: ``Query-ID`` gives
    ``query_id``."""
    return field.strip().lower().replace("-", "_").replace(" ", "_")
