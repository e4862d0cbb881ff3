"""``dpr.evaluate``: metrics of a model, BM25 or a retriever from data in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import configure_by_default
from dpr.core.other_names import hint, refuse
from dpr.core.paths import user_path
from dpr.core.settings import listed
from dpr.data.text import normalize_question
from dpr.evaluation.evaluator import Evaluator
from dpr.evaluation.ranking_metrics import checked_names, cutoff_of, headline_names
from dpr.evaluation.result import Evaluation
from dpr.formats.corpora import given_passages
from dpr.formats.question_sets import given_qrels, given_questions
from dpr.formats.training_sets import open_training_set
from dpr.indexer.ranking import ids_in
from dpr.models.biencoder import BiEncoder
from dpr.retrieval.rankings import facts_of, rankings_of
from dpr.retrieval.retriever import Retriever
from dpr.retrieval.suites import judged_samples, read_suite

_EXPECTED = "evaluate(model, queries, corpus, qrels), in this order and with the same ids"


def evaluate(
    model: BiEncoder | Retriever | str | Path,
    queries: Any,
    corpus: Any = None,
    qrels: Any = None,
    *,
    metrics: str | Sequence[str] = (),
    mode: str | None = None,
    weight: float | None = None,
    k: int = 100,
    skip_same_id: bool = False,
    split: str = "test",
    name: str = "test",
    device: str | None = None,
    **others: Any,
) -> Evaluation:
    """Measures how well a model ranks the passages of a corpus for questions. The figures are those of
    ``dpr evaluate``, by exact search; a retriever searches by its own index.

        print(dpr.evaluate(model, {"q1": "who wrote hamlet"}, {"d1": "...", "d2": "..."}, {"q1": {"d2"}}))

    Data are files, dictionaries, lists or tables of pandas, polars, pyarrow or ``datasets``. Passages and questions
    without an id get their number.

    Args:
        model: a model, its folder or name, ``"bm25"``, or a retriever, which searches the passages that it holds.
        queries: texts or records by id, or a list or table of them. Without ``corpus`` and ``qrels``: a folder
            in BEIR's layout, or training data, whose passages are the corpus.
        corpus: passages in the same forms; a record has ``text`` and maybe ``title``.
        qrels: ids of relevant passages, or grades by passage id, by question id; or a table of judgements.
            Without them, a passage that contains an answer of the question is relevant. They may directly
            follow the questions of a retriever.
        metrics: names such as ``ndcg@10``, at any cut-off; empty = those of ``dpr evaluate``.
        mode: ``dense``, ``bm25`` or ``hybrid``, as in ``Retriever.search``; ``weight`` is that of the hybrid.
        k: length of the rankings; the largest cut-off if that is larger.
        skip_same_id: leaves out hits with the question's own id.
        split: judgements of a folder.
        name: name of the test set in the result.

    Raises:
        ConfigError: there is no such metric or mode, or the folder holds several test sets.
        InputError: a record cannot be used (says which), or the ids do not belong together.
    """
    refuse(others, "evaluate()")
    given: Any = model
    if not isinstance(given, BiEncoder | Retriever | str | Path):
        kind = type(given).__name__
        raise ConfigError(f"model is of type {kind}{hint(kind) or hint('evaluate')}")
    configure_by_default()
    wanted = checked_names(listed(metrics))
    k = max([k, *map(cutoff_of, wanted)])

    # the test set
    if isinstance(queries, str | Path) and user_path(queries).is_dir():
        sets = read_suite(queries, split=split)
        if len(sets) > 1:
            raise ConfigError(
                f"{queries} holds {len(sets)} test sets; evaluate one folder at a time, or run dpr evaluate"
            )
        only = sets[0]
        corpus, queries, qrels, name = only.corpus, only.queries, only.qrels, only.name
    elif isinstance(model, Retriever):
        if qrels is None:
            qrels = corpus
        elif corpus is not None:
            raise ConfigError("a retriever searches the passages that it holds; leave corpus out")
    elif corpus is None and qrels is None:
        corpus, queries, qrels = judged_samples(open_training_set(queries, name=name))
    judged = None if qrels is None else given_qrels(qrels)
    asked = given_questions(queries)
    questions = [each for each in asked if (each.answers if judged is None else each.id in judged)]
    if not questions:
        first = asked[0].id if asked else None
        raise InputError(
            f"no question has judgements or answers: the first question is {first!r}, the first judgements"
            f" are those of {[*(judged or ())][:3]}",
            expected=_EXPECTED,
        )
    evaluator = Evaluator(questions, judged, "string" if judged is None else None, k, metrics=wanted)

    if isinstance(model, Retriever):
        retriever = model
    else:
        passages = list(given_passages(corpus))
        ids = {str(passage.id) for passage in passages}
        relevant = evaluator.relevant()
        if len(relevant & ids) < len(relevant & {question.id for question in asked}):
            raise InputError(
                "more of the passages judged relevant are questions than passages", expected=_EXPECTED
            )
        evaluator.require_relevant(ids, f"one of the corpus is {min(ids, default=None)!r}")
        retriever = Retriever.build(model, passages, device=device)
    mode = mode or retriever.mode
    fusion = retriever.fusion(mode, weight)
    texts = [retriever.searched.query_text(question.text) for question in questions]
    sides = retriever.sides(mode)
    found = rankings_of([mode], sides, questions, texts, fusion=fusion, k=k, skip_same_id=skip_same_id)
    rankings = found[mode]

    evaluator.check(rankings, own="skip_same_id=True leaves out hits with a question's own id")
    result = evaluator.evaluate(rankings, None if judged else retriever.get(ids_in(rankings)))
    if not result.metrics:
        raise ConfigError(f"metrics={wanted}: by answers, only accuracy is measured; give qrels")
    asked_texts = [normalize_question(question.text) for question in questions]
    report, each = evaluator.report(
        facts_of(mode, name, fusion, retriever.searched.kind), asked_texts, result
    )
    return Evaluation(
        name,
        len(questions),
        result.metrics,
        report,
        each=each,
        run=evaluator.by_id(rankings),
        shown=wanted or headline_names(result.metrics),
    )
