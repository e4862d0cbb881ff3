"""What is wrong or noteworthy in a corpus, a set of questions and their judgements, and whether they fit
together.

Memory: 24 bytes per passage, the questions and judgements, and samples of fixed size.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from dpr.core.errors import InputError
from dpr.data.text import plain
from dpr.evaluation.answer_match import is_empty
from dpr.formats.corpora import check_unique_ids, passage_rows
from dpr.formats.question_sets import Qrels, read_qrels, read_questions
from dpr.preparation.data_check import SAMPLE_SIZE, Finding, Reservoir, TextsAndIds


class RetrievalCheck:
    """Reads the files that are given, each once, and completes the findings.

    Raises:
        InputError: a file cannot be read.
    """

    def __init__(self, corpus: Path | None, questions: Path | None, qrels: Path | None) -> None:
        self.counts: list[str] = []
        self.texts = {"question": Reservoir(SAMPLE_SIZE), "passage": Reservoir(SAMPLE_SIZE, 1)}
        self.findings: defaultdict[str, Finding] = defaultdict(Finding)
        self._asked = read_questions(questions) if questions else []
        self._judged: Qrels = read_qrels(qrels) if qrels else {}
        if questions:
            self._check_questions(questions, qrels)
        if corpus:
            self._check_corpus(corpus, questions, qrels)

    def _check_questions(self, file: Path, qrels: Path | None) -> None:
        self.counts.append(
            f"{file}: {len(self._asked):,} questions, {sum(bool(each.answers) for each in self._asked):,}"
            " with answers"
        )
        texts: set[str] = set()
        for question in self._asked:
            where = f"{file}:{question.line}"
            self.texts["question"].add(question.text)
            if any(map(is_empty, question.answers)):
                self.findings["questions with an empty answer"].add(where)
            if (text := plain(question.text)) in texts:
                self.findings["questions that repeat an earlier one"].add(where)
            texts.add(text)
            if qrels and question.id not in self._judged:
                self.findings["questions without judgements"].add(f"{where}: {question.id!r}")
        asked = {question.id for question in self._asked}
        for key in self._judged.keys() - asked:
            self.findings["judged questions that are not in the questions"].add(f"{qrels}: {key!r}")

    def _check_corpus(self, file: Path, questions: Path | None, qrels: Path | None) -> None:
        try:
            check_unique_ids(file)
        except InputError as error:
            self.findings["passage ids that occur twice"].add(str(error))
        relevant = {key for grades in self._judged.values() for key, grade in grades.items() if grade > 0}
        by_text = {plain(question.text): question for question in self._asked}
        named, num_passages = TextsAndIds(), 0
        for line, passage, _ in passage_rows(file):
            key = str(passage.id)
            where = f"{file}:{line}"
            num_passages += 1
            self.texts["passage"].add(passage)
            named.add(passage, line)
            if not passage.text.strip():
                self.findings["passages without text"].add(where)
            question = by_text.get(plain(passage.text)) or by_text.get(
                plain(f"{passage.title} {passage.text}")
            )
            if question and self._judged.get(question.id, {}).get(key, 0) <= 0:
                self.findings["questions that are passages of the corpus (skip_same_id)"].add(
                    f"{questions}:{question.line}, {where}"
                )
            relevant.discard(key)
        self.counts.append(f"{file}: {num_passages:,} passages")
        for key in sorted(relevant):
            self.findings["passages judged relevant that are not in the corpus"].add(f"{qrels}: {key!r}")
        self.findings |= named.findings(lambda line: f"{file}:{line}")
