"""Pseudo-questions cut from the passages of a corpus and held back for choosing settings; and pairs as a
file, for mining negatives and scoring.

The text of a question is cut out of its passage in the corpus that is searched. Half of the words that the
rest of the passage also has are dropped from the question, so that matching words alone do not find it.
Measurements on such questions are optimistic: use them to choose between two settings, not as the quality of
a model.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.core.logs import counted
from dpr.core.records import Passage, Question
from dpr.core.seeding import generator_for
from dpr.data.cuts import KINDS, choose
from dpr.data.order import PAIRS
from dpr.data.pairs import PseudoPairs
from dpr.data.words import joined, written_spans
from dpr.formats.corpora import write_passages
from dpr.formats.question_sets import write_qrels, write_questions
from dpr.formats.training_files.dpr import write_training_set
from dpr.preparation.settings import PairFileSettings
from dpr.storage.durable import durable_folder, read_manifest
from dpr.storage.outputs import output, require_writable

EVALUATION_CORPUS = "evaluation_corpus.jsonl"
QUESTIONS = "dev_questions.jsonl"
QRELS = "dev_qrels.tsv"
TRAIN = "train.jsonl"
HELD_BACK = 0.1
"""Share of the documents that pseudo-questions are cut from, and that training does not see."""
_MOST_QUESTIONS = 500
_LEAST_WORDS = 3
_DROP_SHARED = 0.5  # people who ask know few of a passage's words


def prepare_pairs(
    corpus: Path, out: Path, settings: PairFileSettings, *, overwrite: bool = False
) -> dict[str, Any]:
    """Writes the folder ``out`` and returns counts; if the same was made before, the counts of that time.

    Raises:
        InputError: the corpus cannot be read, has too few passages to hold any back, or ``out`` exists, made
        from other inputs or settings.
    """
    settings.check()
    require_writable(out, folder=True)
    held = PseudoPairs(corpus, held_only=True, kinds=settings.pairs, held_back=HELD_BACK)
    metadata: dict[str, Any] = {
        "kind": "pseudo-questions",
        "made_of": {"corpus": held.corpus_fingerprint, **asdict(settings)},
    }
    with output(out, metadata["made_of"], overwrite=overwrite) as is_missing:
        if is_missing:
            with durable_folder(out, overwrite=overwrite, metadata=metadata) as target:
                metadata["counts"] = _write(target, held)
                if settings.rounds:
                    train = PseudoPairs(corpus, kinds=settings.pairs, held_back=HELD_BACK)
                    places = (
                        (pass_number, row)
                        for pass_number in range(settings.rounds)
                        for row in range(len(train))
                    )
                    total = settings.rounds * len(train)
                    pairs = (
                        train.drawn(row, generator_for(PAIRS, 0, pass_number, 0, row))
                        for pass_number, row in counted(places, "cutting pairs", total, unit="pairs")
                    )
                    metadata["counts"]["training pairs"] = write_training_set(target / TRAIN, pairs)
        return dict(read_manifest(out)["metadata"]["counts"])


def _write(target: Path, held: PseudoPairs) -> dict[str, int]:
    cuts: dict[int, tuple[str, Passage]] = {}
    for row in counted(range(len(held)), "cutting questions"):
        if len(cuts) < _MOST_QUESTIONS and (pair := ask(held, row)) is not None:
            cuts[held.corpus_row(row)] = pair
    if not cuts:
        raise InputError("the held-back passages are too short for pseudo-questions", file=held.file)
    rows = counted(held.passages(0, held.num_passages), "writing the corpus", held.num_passages)
    passages = (cuts[index][1] if index in cuts else row.passage for index, row in enumerate(rows))
    write_passages(target / EVALUATION_CORPUS, passages)
    keys = {number: f"pseudo-{number}" for number in sorted(cuts)}
    write_questions(target / QUESTIONS, [Question(cuts[number][0], key) for number, key in keys.items()])
    write_qrels(target / QRELS, {key: {str(cuts[number][1].id): 1} for number, key in keys.items()})
    return {"passages": held.num_passages, "pseudo-questions": len(cuts)}


def ask(pairs: PseudoPairs, row: int) -> tuple[str, Passage] | None:
    """Returns a question cut from a row's passage, and the passage without it; None if too little is left of
    either."""
    row_of_corpus = pairs.row(pairs.corpus_row(row))
    generator = generator_for(PAIRS, 0, 0, 0, row)
    kinds = {kind: weight for kind, weight in pairs.kinds.items() if kind in KINDS}
    cut = KINDS[choose(kinds, row_of_corpus.words, generator)][0](row_of_corpus.words, generator)
    around = [(0, row_of_corpus.words.text)]
    if cut.question:
        around = [(0, cut.question[0]), (cut.question[-1] + 1, row_of_corpus.words.text)]
    if sum(end - start for start, end in around) < _LEAST_WORDS:
        return None
    sample = row_of_corpus.sample(cut._replace(passage=around), (0, 0))
    (rest,) = sample.positives
    left = f"{rest.title} {rest.text}"
    asked = written_spans(sample.question)
    shared = {_bare(left[start:end]) for start, end in written_spans(left)}
    draws = generator.random(len(asked))
    kept = [
        (start, end)
        for (start, end), draw in zip(asked, draws, strict=True)
        if draw >= _DROP_SHARED or _bare(sample.question[start:end]) not in shared
    ]
    if len(kept) < _LEAST_WORDS:
        return None
    return joined(sample.question, kept), replace(row_of_corpus.passage, text=rest.text, title=rest.title)


def _bare(word: str) -> str:
    return "".join(filter(str.isalnum, word)).casefold()
