"""``dpr check-data``: finds what is wrong or noteworthy in training data, in one pass before a model is
trained on them.

Memory: 8 bytes per row, 16 per passage that a row lists and 24 per one with an id, and samples of fixed size;
texts are not kept.
"""

from __future__ import annotations

import random
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.errors import InputError
from dpr.core.records import Passage, TrainingSample, text_hash
from dpr.data.tensorizer import SHARE_SAID, Tensorizer
from dpr.data.text import decorate_passage, plain
from dpr.data.words import NEAR_DUPLICATE, jaccard, words_of
from dpr.evaluation.answer_match import is_empty
from dpr.formats.training_files.registry import read_rows
from dpr.formats.training_files.rows import ReadOptions, SourceRow
from dpr.models.biencoder import BiEncoder

SAMPLE_SIZE = 10_000
_COMPARISONS = 100_000
_LINE_BITS = 40
# Thai to Chinese
_WITHOUT_SPACES = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
)


@dataclass(slots=True)
class Finding:
    """How often something occurred, and where first."""

    count: int = 0
    places: list[str] = field(default_factory=list)

    def add(self, place: str) -> None:
        self.count += 1
        if len(self.places) < 3:
            self.places.append(place)


class Reservoir:
    """A sample of fixed size of a stream, every item with the same chance; the same for the same stream."""

    def __init__(self, size: int, seed: int = 0) -> None:
        self.size, self.seen, self.items = size, 0, list[Any]()
        self._random = random.Random(seed)

    def add(self, item: object) -> None:
        self.seen += 1
        if len(self.items) < self.size:
            self.items.append(item)
        elif (index := self._random.randrange(self.seen)) < self.size:
            self.items[index] = item


class TextsAndIds:
    """Finds, of passages with ids, equal texts under different ids, and different texts under one. A place is
    a number, which the caller names."""

    def __init__(self) -> None:
        self._texts, self._ids, self._places = array("Q"), array("Q"), array("Q")

    def add(self, passage: Passage, place: int) -> None:
        if passage.id is not None:
            self._texts.append(passage_hash(passage))
            self._ids.append(text_hash(passage.id))
            self._places.append(place)

    def findings(self, name_of: Callable[[int], str]) -> dict[str, Finding]:
        """Both, by what they are called."""
        texts, ids = (np.frombuffer(hashes, dtype=np.uint64) for hashes in (self._texts, self._ids))
        found = {"equal texts under different ids": Finding(), "ids with different texts": Finding()}
        for finding, same, other in zip(found.values(), (texts, ids), (ids, texts), strict=True):
            order = np.lexsort((other, same))
            same = same[order]
            other = other[order]
            last = np.flatnonzero((same[1:] == same[:-1]) & (other[1:] != other[:-1]))
            pairs = [
                sorted(self._places[int(order[index])] for index in (place, place + 1)) for place in last
            ]
            for first, second in sorted(pairs):
                finding.add(f"{name_of(first)} and {name_of(second)}")
        return found


BAD_ROWS = "bad rows"
UNREAD = "keys that are not read, or not as they stand"
NO_POSITIVE = "questions without a positive"
SINGLE_WORD = "rows with a passage of a single word (is it a label, a score or an id?)"
REPEATED = "rows that repeat an earlier one"
CONTRADICTED = "negatives that are positives of the same question"
NEAR = f"hard negatives that nearly repeat a positive ({NEAR_DUPLICATE:.0%} of the words)"
EMPTY_ANSWER = "rows with an empty answer"
PROBLEMS = (BAD_ROWS, UNREAD, NO_POSITIVE, SINGLE_WORD, REPEATED, CONTRADICTED, NEAR, EMPTY_ANSWER)


class DataCheck:
    """Takes the rows of a data set one after the other (``add``); ``finish`` completes the findings."""

    def __init__(self) -> None:
        self.findings = {name: Finding() for name in PROBLEMS}
        """What should be fixed before training."""
        self.repeated_questions = 0
        self.rows = self.records = 0
        self.num_answers = self.without_hard = self.compared_rows = self.num_scored = 0
        roles = ("question", "positive", "hard negative", "other negative")
        self.texts = {role: Reservoir(SAMPLE_SIZE, seed) for seed, role in enumerate(roles)}
        self.examples = Reservoir(5, seed=9)
        self.questions, self.positives = array("Q"), array("Q")
        self._named = TextsAndIds()
        self._contents, self._places = array("Q"), array("Q")
        self._known, self._negatives, self._negative_places = array("Q"), array("Q"), array("Q")
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
        place = self._place(row)
        passages = {
            "positive": sample.positives,
            "hard negative": sample.hard_negatives,
            "other negative": sample.other_negatives,
        }
        for role, listed in passages.items():
            for passage in listed:
                self.texts[role].add(passage)
                self.num_scored += passage.teacher_score is not None
                self._named.add(passage, place)
        negatives = sample.hard_negatives + sample.other_negatives
        if any(_is_single_word(passage.text) for passage in sample.positives + negatives):
            self.findings[SINGLE_WORD].add(where)
        if any(map(is_empty, sample.answers)):
            self.findings[EMPTY_ANSWER].add(where)

        question = text_hash(plain(sample.question))
        positives = [passage_hash(passage) for passage in sample.positives]
        self.questions.append(question)
        self.positives.extend(positives)
        self._places.append(place)
        self._contents.append(text_hash(repr((question, sorted(positives)))))
        self._known.extend(_pair(question, identity) for identity in positives)
        self._negatives.extend(_pair(question, passage_hash(passage)) for passage in negatives)
        self._negative_places.extend([place] * len(negatives))
        self._compare(sample, where)

    def finish(self) -> DataCheck:
        """Finds repeats, and negatives that are positives of another row of the same question: this takes all
        rows."""
        for index in _repeats(self._contents):
            self.findings[REPEATED].add(self._name(self._places[index]))
        self.repeated_questions = len(_repeats(self.questions))
        known = np.unique(np.frombuffer(self._known, dtype=np.uint64))
        is_known = np.isin(np.frombuffer(self._negatives, dtype=np.uint64), known)
        for negative in np.flatnonzero(is_known).tolist():
            self.findings[CONTRADICTED].add(self._name(self._negative_places[negative]))
        self.findings |= self._named.findings(self._name)
        return self

    def _compare(self, sample: TrainingSample, where: str) -> None:
        # Only so many are compared, so that a file with a hundred negatives a row takes no longer than its
        # reading.
        if not sample.hard_negatives or self._comparisons > _COMPARISONS:
            return
        self.compared_rows += 1
        self._comparisons += len(sample.hard_negatives)
        positives = {plain(passage.text): words_of(passage.text) for passage in sample.positives}
        for passage in sample.hard_negatives:
            words = words_of(passage.text)
            if plain(passage.text) not in positives and any(
                jaccard(words, other) >= NEAR_DUPLICATE for other in positives.values()
            ):
                self.findings[NEAR].add(where)

    def _place(self, row: SourceRow) -> int:
        if not self._files or self._files[-1] != row.file:
            self._files.append(row.file)
        return (len(self._files) - 1 << _LINE_BITS) | row.line

    def _name(self, place: int) -> str:
        return f"{self._files[place >> _LINE_BITS]}:{place & (1 << _LINE_BITS) - 1}"


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


def _repeats(hashes: array[int]) -> list[int]:
    """The places of all that stand in ``hashes`` before."""
    _, first = np.unique(np.frombuffer(hashes, dtype=np.uint64), return_index=True)
    return np.setdiff1d(np.arange(len(hashes)), first).tolist()


def num_shared(first: array[int], second: array[int]) -> int:
    """How many of ``second`` (``questions`` or ``positives`` of a check) are also in ``first``, ignoring case
    and spacing."""
    return int(np.isin(np.frombuffer(second, dtype=np.uint64), np.frombuffer(first, dtype=np.uint64)).sum())


def _is_single_word(text: str) -> bool:
    """A short text without spaces, in a script that puts them between words: perhaps a label, a score or an
    id."""
    text = text.strip()
    return len(text) <= 40 and len(text.split()) == 1 and not _WITHOUT_SPACES.search(text)


def passage_hash(passage: Passage) -> int:
    """64 bits of title and text without differences of case and spacing, even where there is an id."""
    return text_hash(plain(f"{passage.title}\n{passage.text}"))


def _pair(question: int, identity: int) -> int:
    # Both are hashes already; the odd factor keeps (a, b) and (b, a) apart.
    return (question * 0x9E3779B97F4A7C15 + identity) & (1 << 64) - 1


Prefixes = Mapping[str, str]
"""Texts put before every ``question`` and every ``passage``."""

_UNCUT = 10**6
_SHOWN = 600
_MOSTLY = 0.5
_QUANTILES = (0, 0.25, 0.5, 0.75, 0.9, 0.99, 1)


def open_tokenizer(name_or_folder: str, *, sequence_length: int | None) -> Tensorizer:
    """The tokenizer of a model, a model folder or file, a checkpoint or a run folder, as training and
    embedding have it; without a length, that of the model, else 256.

    Raises:
        InputError: there is no tokenizer.
    """
    path = Path(name_or_folder)
    is_encoder = (path / "config.json").is_file() and not (path / "modules.json").is_file()
    if not path.exists() or is_encoder:
        return Tensorizer.load(name_or_folder, sequence_length=sequence_length or 256)
    own = BiEncoder.load(path).tensorizer
    if not sequence_length:
        return own
    tensorizer = Tensorizer(own.tokenizer, sequence_length=sequence_length)
    tensorizer.present(own.text)
    return tensorizer


def report(
    sets: Mapping[str, DataCheck], tensorizer: Tensorizer | None, prefixes: Prefixes
) -> tuple[list[str], int]:
    """The lines to print, and the number of problems. ``sets`` are train and dev, as far as they are given.
    Lengths and examples are with ``prefixes``."""
    lines: list[str] = []
    problems: dict[str, Finding] = {}
    train = sets.get("train")
    dev = sets.get("dev")
    for name, check in sets.items():
        table, of_texts = _lengths(check.texts, tensorizer, prefixes)
        lines += [*_counts(name, check), *table, ""]
        problems |= {
            f"{name}: {what}": finding
            for what, finding in (check.findings | of_texts).items()
            if finding.count
        }
    if train and dev:
        if shared := num_shared(train.questions, dev.questions):
            problems["dev: questions that are in train too"] = Finding(shared)
        shared = num_shared(train.positives, dev.positives)
        total = len(dev.positives)
        lines.insert(
            -1,
            f"  {shared:,} of {total:,} positives of dev are positives in train too"
            f" ({shared / max(total, 1):.0%})",
        )
    lines.append(f"problems: {', '.join(problems) or 'none'}")
    for what, finding in problems.items():
        lines += [f"  {finding.count:>9,}  {what}", *(f"             {place}" for place in finding.places)]
    if train:
        if train.compared_rows < train.records - train.without_hard:
            lines.append(
                f"  (near repeats were looked for in the first {train.compared_rows:,} of {train.records:,} records)"
            )
        lines += [
            "",
            "five records as the model will see them" if tensorizer else "five records",
            *_examples(train, tensorizer, prefixes),
        ]
    return lines, len(problems)


def require_rows(check: DataCheck, name: str) -> None:
    """Raises InputError where a data set has no record that training could use."""
    if not check.records:
        places = check.findings[BAD_ROWS].places
        first = f"; the first problem: {places[0]}" if places else ""
        raise InputError(f"{name}: none of {check.rows} rows can be used{first}")


def _counts(name: str, check: DataCheck) -> list[str]:
    roles = ("positive", "hard negative", "other negative")
    means = (f"{check.texts[role].seen / max(check.records, 1):.2f} {role}s" for role in roles)
    return [
        f"{name}: {check.rows:,} rows, {check.records:,} records",
        f"  per record: {', '.join(means)}",
        f"  {check.without_hard:,} without hard negatives, {check.num_answers:,} with answers",
        (
            f"  {check.num_scored:,} of {sum(check.texts[role].seen for role in roles):,} passages have a"
            " teacher's score"
        ),
        f"  {check.repeated_questions:,} questions occur before in the file",
    ]


def _lengths(
    texts: Mapping[str, Reservoir], tensorizer: Tensorizer | None, prefixes: Prefixes
) -> tuple[list[str], dict[str, Finding]]:
    """A table of the lengths of questions and passages, and what of their tokens should be looked at."""
    unit = "tokens" if tensorizer else "words"
    lines = [
        f"  length in {unit:<12} {'min':>6} {'25%':>6} {'50%':>6} {'75%':>6} {'90%':>6} {'99%':>6} {'max':>6}"
        "   cut off"
    ]
    findings: dict[str, Finding] = {}
    for role, sample in texts.items():
        if not sample.items:
            continue
        items = [_with_prefix(item, prefixes) for item in sample.items]
        cut = ""
        if tensorizer is None:
            lengths = np.array(
                [
                    len((item if isinstance(item, str) else f"{item.title} {item.text}").split())
                    for item in items
                ]
            )
        else:
            sequences = _uncut_tokens(items, role, tensorizer)
            lengths = np.array([len(sequence) for sequence in sequences])
            limit = tensorizer.question_length if role == "question" else tensorizer.sequence_length
            is_cut = lengths > limit
            cut = f"   {np.mean(is_cut):.1%} at {limit}"
            if is_cut.mean() > _MOSTLY:
                findings[f"{role}s that are cut off at {limit} tokens ({is_cut.mean():.0%})"] = Finding(
                    int(is_cut.sum())
                )
            share, count = tensorizer.unknown_share(np.concatenate(sequences))
            if share > SHARE_SAID:
                unknown = (
                    f"tokens of {role}s that are {tensorizer.tokenizer.unk_token}, words that the vocabulary"
                    f" lacks ({share:.0%})"
                )
                findings[unknown] = Finding(round(share * count))
        values = " ".join(f"{int(value):>6}" for value in np.quantile(lengths, _QUANTILES, method="higher"))
        note = f"   ({len(lengths):,} of {sample.seen:,})" if len(lengths) < sample.seen else ""
        lines.append(f"    {role:<20} {values}{cut}{note}")
    return lines, findings


def _uncut_tokens(items: list[Any], role: str, tensorizer: Tensorizer) -> list[np.ndarray]:
    uncut = Tensorizer(tensorizer.tokenizer, sequence_length=_UNCUT)
    uncut.present(tensorizer.text)
    sequences: list[np.ndarray] = []
    for start in range(0, len(items), 1000):
        part = items[start : start + 1000]
        encoded = uncut.question_tokens(part) if role == "question" else uncut.passage_tokens(part)
        sequences += [np.array(tokens, dtype=np.int32) for tokens in encoded]
    return sequences


def _with_prefix(content: Any, prefixes: Prefixes) -> Any:
    """A question or passage with the prefix of its kind."""
    if isinstance(content, str):
        return f"{prefixes.get('question', '')}{content}"
    title, text = decorate_passage(content.title, content.text, prefix=prefixes.get("passage", ""))
    return Passage(text, title)


def _examples(check: DataCheck, tensorizer: Tensorizer | None, prefixes: Prefixes) -> Iterator[str]:
    for number, sample in enumerate(check.examples.items, 1):
        parts: list[tuple[str, str | Passage]] = [
            ("question", sample.question),
            ("positive", sample.positives[0]),
        ]
        parts += [("hard negative", passage) for passage in sample.hard_negatives[:1]]
        for role, content in parts:
            shown, count = _as_seen(_with_prefix(content, prefixes), tensorizer)
            shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "..."
            yield f"  {number if role == 'question' else ' '} {role:<14} {count}{' '.join(shown.split())}"


def _as_seen(content: str | Passage, tensorizer: Tensorizer | None) -> tuple[str, str]:
    if tensorizer is None:
        return (
            content if isinstance(content, str) else f"{content.title} | {content.text}".removeprefix(" | ")
        ), ""
    (tokens,) = (
        tensorizer.question_tokens([content])
        if isinstance(content, str)
        else tensorizer.passage_tokens([content])
    )
    return str(tensorizer.tokenizer.decode(tokens)), f"({len(tokens)}) "
