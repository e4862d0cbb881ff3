"""Questions as DPR writes them: CSV with tabs, answers as a Python list, ids as third column."""

import csv
import gzip
from collections.abc import Sequence
from pathlib import Path

from dpr.core.records import Question


def write_csv_questions(path: Path, questions: Sequence[Question], *, with_ids: bool = True) -> None:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, delimiter="\t", lineterminator="\n")
        for question in questions:
            row = [question.text, repr(list(question.answers)), question.id]
            writer.writerow(row if with_ids else row[:2])
