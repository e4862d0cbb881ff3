"""``dpr check-data``: finds errors and notable facts in training data, in one pass before a model is trained
on them.

Memory: some 60 bytes per row, 16 per passage that a row lists, and samples of fixed size; texts are not kept.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.errors import InputError
from dpr.core.records import Passage, TrainingSample, passage_hash, plain, text_hash
from dpr.data.near_duplicates import NEAR_DUPLICATE, resembles
from dpr.data.tensorizer import SHARE_SAID, Tensorizer
from dpr.data.words import look_swapped, words_of
from dpr.evaluation.answer_match import is_empty
from dpr.formats.training_files.registry import read_rows
from dpr.formats.training_files.rows import ReadOptions, SourceRow
from dpr.models.biencoder import BiEncoder
from dpr.models.folders.layouts import BACKBONE, layout_of

SAMPLE_SIZE = 10_000
_COMPARISONS = 100_000
_LINE_BITS = 40
_UNCUT = 10**6
_SHOWN = 600
_MOSTLY = 0.5
_QUANTILES = {"min": 0, "25%": 0.25, "50%": 0.5, "75%": 0.75, "90%": 0.9, "99%": 0.99, "max": 1}

BAD_ROWS = "bad rows"
UNREAD = "keys that are not read, or are read differently"
NO_POSITIVE = "questions without a positive"
REPEATED = "rows that repeat an earlier one"
CONTRADICTED = "negatives that are positives of the same question"
NEAR = (
    f"hard negatives that nearly repeat a positive ({NEAR_DUPLICATE:.0%} of the words;"
    f" the first {_COMPARISONS:,} are compared)"
)
EMPTY_ANSWER = "rows with an empty answer"
PROBLEMS = (BAD_ROWS, UNREAD, NO_POSITIVE, REPEATED, CONTRADICTED, NEAR, EMPTY_ANSWER)
PASSAGES = ("positive", "hard negative", "other negative")


@dataclass(slots=True)
class Finding:
    """Number of times that something occurred, and its first places."""

    count: int = 0
    places: list[str] = field(default_factory=list)

    def add(self, place: str) -> None:
        self.count += 1
        if len(self.places) < 3:
            self.places.append(place)


class Reservoir:
    """A sample of fixed size from a stream. Every item has the same chance; the same stream gives the same
    sample."""

    def __init__(self, size: int, seed: int = 0) -> None:
        self.size = size
        self.seen = 0
        self.items = list[Any]()
        self._random = random.Random(seed)

    def add(self, item: object) -> None:
        self.seen += 1
        if len(self.items) < self.size:
            self.items.append(item)
        elif (index := self._random.randrange(self.seen)) < self.size:
            self.items[index] = item


class DataCheck:
    """Takes the rows of a data set one after the other (``add``); ``finish`` completes the findings."""

    def __init__(self) -> None:
        self.findings = {name: Finding() for name in PROBLEMS}
        """Problems to fix before training."""
        self.rows = self.records = 0
        self.num_answers = self.without_hard = 0
        self.texts = {role: Reservoir(SAMPLE_SIZE, seed) for seed, role in enumerate(("question", *PASSAGES))}
        self.examples = Reservoir(5, seed=9)
        self.questions = array("Q")
        self._contents = set[int]()
        self._known = array("q")
        self._negatives = array("q")
        self._places = array("Q")
        self._files: list[Path] = []
        self._comparisons = 0

    def add(self, row: SourceRow) -> None:
        """Checks one row."""
        self.rows += row.num_rows
        where = f"{row.file}:{row.line}"
        sample = row.sample
        if sample is None:
            self.findings[BAD_ROWS].add(str(row.error))
            return
        if not sample.positives:
            self.findings[NO_POSITIVE].add(where)
            return
        self.records += 1
        self.num_answers += bool(sample.answers)
        self.without_hard += not sample.hard_negatives
        self.examples.add(sample)
        self.texts["question"].add(sample.question)
        listed = (sample.positives, sample.hard_negatives, sample.other_negatives)
        for role, passages in zip(PASSAGES, listed, strict=True):
            for passage in passages:
                self.texts[role].add(passage)
        if any(map(is_empty, sample.answers)):
            self.findings[EMPTY_ANSWER].add(where)

        question = text_hash(plain(sample.question))
        positives = [passage_hash(passage) for passage in sample.positives]
        self.questions.append(question)
        content = hash((question, *sorted(positives)))
        if content in self._contents:
            self.findings[REPEATED].add(where)
        self._contents.add(content)
        if not self._files or self._files[-1] != row.file:
            self._files.append(row.file)
        place = (len(self._files) - 1 << _LINE_BITS) | row.line
        self._known.extend(hash((question, positive)) for positive in positives)
        for passage in sample.hard_negatives + sample.other_negatives:
            self._negatives.append(hash((question, passage_hash(passage))))
            self._places.append(place)

        # The comparisons are limited, so that a file with a hundred negatives a row takes no longer than its
        # reading.
        if sample.hard_negatives and self._comparisons <= _COMPARISONS:
            self._comparisons += len(sample.hard_negatives)
            words_of_positives = {plain(passage.text): words_of(passage.text) for passage in sample.positives}
            for passage in sample.hard_negatives:
                if plain(passage.text) not in words_of_positives and resembles(
                    words_of(passage.text), words_of_positives.values()
                ):
                    self.findings[NEAR].add(where)

    def finish(self) -> DataCheck:
        """Finds negatives that are positives of another row of the same question, which takes all rows."""
        for negative in np.flatnonzero(np.isin(self._negatives, self._known)).tolist():
            place = self._places[negative]
            file = self._files[place >> _LINE_BITS]
            self.findings[CONTRADICTED].add(f"{file}:{place & (1 << _LINE_BITS) - 1}")
        return self


def check_files(files: Sequence[Path], options: ReadOptions) -> DataCheck:
    """Reads files of any known format and checks every row. Bad rows are findings, not errors.

    Raises:
        InputError: a file that cannot be read at all.
    """
    check = DataCheck()
    for path in files:
        for row in read_rows(path, options):
            check.add(row)
    for note in options.unread.warnings.values():
        check.findings[UNREAD].add(note)
    return check.finish()


def open_tokenizer(name_or_folder: str, *, sequence_length: int | None) -> Tensorizer:
    """Returns the tokenizer of a model, a model folder or file, a checkpoint or a run folder, as training and
    embedding use it. Without a length, it is that of the model, else 256.

    Raises:
        InputError: there is no tokenizer.
    """
    path = Path(name_or_folder)
    if not path.exists() or layout_of(path)[0] is BACKBONE:
        return Tensorizer.load(name_or_folder, sequence_length=sequence_length or 256)
    own = BiEncoder.load(path).tensorizer
    return _with_length(own, sequence_length) if sequence_length else own


def _with_length(own: Tensorizer, sequence_length: int) -> Tensorizer:
    tensorizer = Tensorizer(own.tokenizer, sequence_length=sequence_length)
    tensorizer.set_text_settings(own.text)
    return tensorizer


def report(sets: Mapping[str, DataCheck], tensorizer: Tensorizer | None) -> tuple[list[str], int]:
    """Returns the lines to print, and the number of problems. ``sets`` are train and dev, if given.

    Raises:
        InputError: no record of the training data can be used.
    """
    train = sets["train"]
    if not train.records:
        places = train.findings[BAD_ROWS].places
        first = f"; the first problem: {places[0]}" if places else ""
        raise InputError(f"train: none of {train.rows} rows can be used{first}")
    lines: list[str] = []
    problems: dict[str, Finding] = {}
    for name, check in sets.items():
        counts = {role: check.texts[role].seen for role in PASSAGES}
        means = ", ".join(f"{count / max(check.records, 1):.2f} {role}s" for role, count in counts.items())
        lines += [
            f"{name}: {check.rows:,} rows, {check.records:,} records",
            f"  per record: {means}",
            f"  {check.without_hard:,} without hard negatives, {check.num_answers:,} with answers",
        ]
        table, of_texts = _lengths(check.texts, tensorizer)
        lines += [*table, ""]
        for what, finding in (check.findings | of_texts).items():
            if finding.count:
                problems[f"{name}: {what}"] = finding
    if "dev" in sets and (shared := int(np.isin(sets["dev"].questions, train.questions).sum())):
        problems["dev: questions that are also in train"] = Finding(shared)
    lines.append(f"problems: {len(problems) or 'none'}")
    for what, finding in problems.items():
        lines += [f"  {finding.count:>9,}  {what}", *(f"             {place}" for place in finding.places)]
    lines += ["", "five records as the model will see them" if tensorizer else "five records"]
    return [*lines, *_examples(train.examples.items, tensorizer)], len(problems)


def _lengths(
    texts: Mapping[str, Reservoir], tensorizer: Tensorizer | None
) -> tuple[list[str], dict[str, Finding]]:
    """Returns a table of the lengths of questions and passages, and findings about their tokens."""
    heads = " ".join(f"{head:>6}" for head in _QUANTILES)
    lines = [
        f"  length in {'tokens' if tensorizer else 'words':<12} {heads}{'   cut off' if tensorizer else ''}"
    ]
    findings: dict[str, Finding] = {}
    questions = texts["question"].items
    if said := look_swapped(questions, [passage.text for passage in texts["positive"].items]):
        findings[said] = Finding(len(questions))
    for role, sample in texts.items():
        if not sample.items:
            continue
        cut = ""
        if tensorizer is None:
            shown = (item if isinstance(item, str) else f"{item.title} {item.text}" for item in sample.items)
            lengths = np.array([len(text.split()) for text in shown])
        else:
            uncut = _with_length(tensorizer, _UNCUT)
            sequences = [
                np.array(tokens, dtype=np.int32)
                for start in range(0, len(sample.items), 1000)
                for tokens in _tokens(sample.items[start : start + 1000], uncut)
            ]
            lengths = np.array([len(sequence) for sequence in sequences])
            limit = tensorizer.question_length if role == "question" else tensorizer.sequence_length
            is_cut = lengths > limit
            cut = f"   {is_cut.mean():.1%} at {limit}"
            if is_cut.mean() > _MOSTLY:
                what = f"{role}s that are cut off at {limit} tokens ({is_cut.mean():.0%})"
                findings[what] = Finding(int(is_cut.sum()))
            share, count = tensorizer.unknown_share(np.concatenate(sequences))
            if share > SHARE_SAID:
                what = (
                    f"tokens of {role}s that are {tensorizer.tokenizer.unk_token}, words that the vocabulary"
                    f" lacks ({share:.0%})"
                )
                findings[what] = Finding(round(share * count))
        quantiles = np.quantile(lengths, list(_QUANTILES.values()), method="higher")
        values = " ".join(f"{int(value):>6}" for value in quantiles)
        note = f"   ({len(lengths):,} of {sample.seen:,})" if len(lengths) < sample.seen else ""
        lines.append(f"    {role:<20} {values}{cut}{note}")
    return lines, findings


def _tokens(items: Sequence[Any], tensorizer: Tensorizer) -> list[list[int]]:
    """Returns token ids of questions, or of passages."""
    return (
        tensorizer.question_tokens(items) if isinstance(items[0], str) else tensorizer.passage_tokens(items)
    )


def _examples(samples: Sequence[TrainingSample], tensorizer: Tensorizer | None) -> Iterator[str]:
    for number, sample in enumerate(samples, 1):
        contents: list[str | Passage] = [sample.question, sample.positives[0], *sample.hard_negatives[:1]]
        for role, content in zip(("question", *PASSAGES), contents, strict=False):
            count = ""
            if tensorizer is not None:
                (tokens,) = _tokens([content], tensorizer)
                shown = str(tensorizer.tokenizer.decode(tokens))
                count = f"({len(tokens)}) "
            elif isinstance(content, Passage):
                shown = f"{content.title} | {content.text}".removeprefix(" | ")
            else:
                shown = content
            shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "..."
            yield f"  {number if role == 'question' else ' '} {role:<14} {count}{' '.join(shown.split())}"
