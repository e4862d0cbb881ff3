"""The only evaluator of rankings, used by ``dpr retrieve``, ``dpr evaluate`` and the validation during
training. It judges hits by relevance judgements, by answers in the texts, or by both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.core.logs import get_logger
from dpr.core.records import Passage, Question
from dpr.evaluation.answer_match import match_hits, warn_of_empty_answers
from dpr.evaluation.ranking_metrics import (
    Qrels,
    Ranking,
    is_by_answers,
    mean_metrics,
    metric_names,
    values_of,
    with_relevant,
)
from dpr.formats.metrics_files import PerQuestion, write_metrics
from dpr.formats.results import Hit, RetrievedQuestion

logger = get_logger(__name__)


@dataclass(frozen=True)
class Judged:
    """Judged rankings.

    ``values`` has the value of each question by metric and question id, in the order in which the means are
    taken.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    values: dict[str, dict[str, float]] = field(default_factory=dict)
    right: list[list[bool]] | None = None
    """For each hit, True if it is relevant by the source behind ``metrics``: judgements before answers."""
    has_answer: list[list[bool]] | None = None
    """The same as shown in results: answers before judgements."""

    @property
    def judged_ids(self) -> Collection[str]:
        """Returns the ids of the questions that the metrics average over."""
        return next(iter(self.values.values()), {}).keys()


@dataclass
class Evaluator:
    """Questions with their judgements or answers.

    Attributes:
        qrels: judgements; those of questions that were not asked do not count.
        answer_match: ``string`` or ``regex``: a passage with an answer in its text is right. If there are
            judgements too, the names of these metrics begin with ``answer_``.
        only_answered: True if metrics by answers leave out questions without answers; otherwise these count
            as 0.
        metrics: names of the metrics to measure, by answers too; empty = all.
    """

    questions: Sequence[Question]
    qrels: Qrels | None = None
    answer_match: str | None = None
    num_docs: int = 100
    only_answered: bool = False
    metrics: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.qrels is not None:
            asked = {question.id for question in self.questions}
            self.qrels = {key: grades for key, grades in self.qrels.items() if key in asked}

    @property
    def prefix(self) -> str:
        """Returns the prefix of the metrics by answers."""
        return "" if self.qrels is None else "answer_"

    def names(self, wanted: Collection[str] | None = None) -> list[str]:
        """Returns the names of the metrics that are measured. ``wanted``, without the prefix, restricts
        them."""
        measured = metric_names(self.num_docs)
        if wanted is not None:
            measured = [name for name in wanted if name in measured]
        by_qrels = measured if self.qrels is not None else []
        by_answers = filter(is_by_answers, measured) if self.answer_match is not None else []
        return [*by_qrels, *(self.prefix + name for name in by_answers)]

    def evaluate(self, rankings: Sequence[Ranking], passages: Mapping[str, Passage] | None = None) -> Judged:
        """Returns the metrics of the rankings.

        Args:
            passages: the hits with their texts, if answers are matched.

        Raises:
            InputError: no question has a relevant passage.
        """
        run = self.by_id(rankings)
        names = self.metrics or metric_names(self.num_docs)
        metrics: dict[str, float] = {}
        values: dict[str, dict[str, float]] = {}
        right = has_answer = None

        def measure(grades: Qrels, names: Sequence[str], prefix: str) -> None:
            each = values_of(run, grades, names)
            for name, mean in mean_metrics(each).items():
                metrics[prefix + name] = mean
                values[prefix + name] = {key: of_question[name] for key, of_question in each.items()}

        if self.qrels is not None:
            measure(with_relevant(self.qrels), names, "")
            right = has_answer = [
                [self.qrels.get(key, {}).get(passage, 0) > 0 for passage, _ in ranking]
                for key, ranking in run.items()
            ]

        if self.answer_match is not None:
            hits = [[key for key, _ in ranking] for ranking in rankings]
            texts = {key: (passages or {})[key].text for listed in hits for key in listed}
            answers = [question.answers for question in self.questions]
            has_answer = match_hits(answers, hits, texts, kind=self.answer_match)
            right = has_answer if right is None else right
            grades = {
                question.id: dict(zip(listed, flags, strict=True))
                for question, listed, flags in zip(self.questions, hits, has_answer, strict=True)
                if question.answers or not self.only_answered
            }
            measure(grades, list(filter(is_by_answers, names)), self.prefix)

        return Judged(metrics, values, right, has_answer)

    def by_id(self, rankings: Sequence[Ranking]) -> dict[str, Ranking]:
        """Returns rankings by question id."""
        return {question.id: ranking for question, ranking in zip(self.questions, rankings, strict=True)}

    def relevant(self) -> set[str]:
        """Returns the ids of all passages judged relevant."""
        listed = (self.qrels or {}).values()
        return {passage for grades in listed for passage, grade in grades.items() if grade > 0}

    def check(self, rankings: Sequence[Ranking], *, own: str = "") -> None:
        """Logs how questions, judgements and rankings fit together, and warns of likely mistakes.

        Args:
            own: how to leave out hits with the question's own id, for the warning about them; empty = no such
                warning.
        """
        if self.answer_match is not None:
            warn_of_empty_answers(self.questions)
        if self.qrels is None:
            return
        first = next((ranking[0][0] for ranking in rankings if ranking), None)
        if gaps := self.gaps(rankings):
            logger.info("judgements: %s", gaps)
        found_themselves: list[str] = []
        is_any_right = False
        for question, ranking in self.by_id(rankings).items():
            grades = self.qrels.get(question, {})
            is_any_right |= any(grades.get(key, 0) > 0 for key, _ in ranking)
            if ranking and ranking[0][0] == question and grades.get(question, 0) <= 0:
                found_themselves.append(question)
        if own and found_themselves:
            logger.warning(
                "the first hit of %d of %d questions has the question's own id, e.g. %r; if"
                " questions are passages of the corpus, %s",
                len(found_themselves),
                len(self.questions),
                found_themselves[0],
                own,
            )
        if not is_any_right:
            logger.warning(
                "no passage judged relevant was retrieved for any question: a passage judged relevant is %r, a"
                " retrieved one %r; every metric is 0",
                min(self.relevant(), default=None),
                first,
            )

    def require_relevant(self, found: Collection[str], other: str, *, file: Path | None = None) -> None:
        """Checks that passages judged relevant are in the corpus, and warns of those that are not. If none
        is, every metric would be 0 without measuring anything.

        Args:
            found: ids in the corpus; at least those of passages judged relevant.
            other: what the corpus holds instead, for the message.

        Raises:
            InputError: none is in the corpus.
        """
        relevant = self.relevant()
        missing = [key for key in relevant if key not in found]
        if relevant and len(missing) == len(relevant):
            raise InputError(
                f"none of the {len(relevant)} passages judged relevant is in the corpus: a passage judged relevant"
                f" is {min(relevant)!r}, {other}",
                file=file,
                hint="judgements, corpus and vectors must use the same ids, an id_prefix included",
            )
        if missing:
            logger.warning(
                "%d of %d passages judged relevant are not in the corpus and cannot be found",
                len(missing),
                len(relevant),
            )

    def gaps(self, rankings: Sequence[Ranking]) -> str:
        """Returns one line on what rankings and judgements lack of each other; empty if that is nothing."""
        qrels = self.qrels or {}
        judged = with_relevant(qrels)
        found = {question for question, ranking in self.by_id(rankings).items() if ranking}
        counts = {
            "without judgements left out": sum(question.id not in qrels for question in self.questions),
            "without a relevant passage left out": len(qrels) - len(judged),
            "judged but without any hit (count as 0)": sum(key not in found for key in judged),
        }
        parts = [f"{count} {what}" for what, count in counts.items() if count]
        return "; ".join([f"{len(judged)} questions evaluated", *parts]) if parts else ""

    def results(
        self,
        texts: Sequence[str],
        rankings: Sequence[Ranking],
        passages: Mapping[str, Passage],
        judged: Judged,
    ) -> list[RetrievedQuestion]:
        """Returns DPR's result records. ``texts`` are the questions as they were asked."""
        results = []
        for row, (question, ranking) in enumerate(zip(self.questions, rankings, strict=True)):
            flags = None if judged.has_answer is None else judged.has_answer[row]
            hits = []
            for rank, (key, score) in enumerate(ranking):
                passage = passages[key]
                is_right = None if flags is None else flags[rank]
                hits.append(Hit(key, passage.title, passage.text, score, is_right))
            results.append(RetrievedQuestion(texts[row], question.id, question.answers, hits))
        return results

    def write_report(
        self,
        file: Path,
        metadata: Mapping[str, Any],
        texts: Sequence[str],
        judged: Judged,
        *,
        note: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes a metrics file. The arguments are those of ``report``."""
        write_metrics(file, *self.report(metadata, texts, judged), note=note)

    def report(
        self, metadata: Mapping[str, Any], texts: Sequence[str], judged: Judged
    ) -> tuple[dict[str, Any], PerQuestion]:
        """Returns the content of a metrics file.

        Args:
            metadata: the questions, the search and its settings, stored unchanged in the file.
            texts: the questions as they were asked.
        """
        # number of questions by the rank of their first right hit, counted from 1; None = no hit is right
        ranks: Counter[int | None] = Counter()
        if judged.right is not None:
            for question, flags in zip(self.questions, judged.right, strict=True):
                if question.id in judged.judged_ids:
                    ranks[flags.index(True) + 1 if True in flags else None] += 1
        counts = [ranks[rank] for rank in range(1, self.num_docs + 1)]
        report = {
            **metadata,
            "num_questions": len(self.questions),
            "n_docs": self.num_docs,
            "metrics": judged.metrics,
            "first_right_rank": {"counts": counts, "not_found": ranks[None]} if ranks else None,
        }
        ids = [question.id for question in self.questions]
        values = {name: [of.get(key) for key in ids] for name, of in judged.values.items()}
        return report, PerQuestion(ids, list(texts), values)


def without_own_ids(questions: Sequence[Question], rankings: Sequence[Ranking], k: int) -> list[Any]:
    """Returns the rankings without hits that have the question's own id, cut to ``k``."""
    pairs = zip(questions, rankings, strict=True)
    return [[hit for hit in ranking if hit[0] != question.id][:k] for question, ranking in pairs]
