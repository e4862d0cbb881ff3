"""Labelled questions of a corpus, split by passage into train, dev and test: the first stage of ``dpr adapt
train=``.

Questions that share a passage stay together, so that no dev or test question is answered by a passage that
training has as a positive. If most questions are linked in this way, they are held out one by one, and
training loses the pairs of their passages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dpr.adaptation.settings import AdaptSettings
from dpr.core.errors import InputError
from dpr.core.records import Passage, Question, TrainingSample, plain
from dpr.formats.corpora import read_passages
from dpr.formats.question_sets import write_qrels, write_questions
from dpr.formats.text_store import open_store
from dpr.formats.training_files.dpr import write_training_set
from dpr.formats.training_files.registry import READERS, format_of
from dpr.formats.training_files.rows import ReadOptions, UsableRows
from dpr.preparation.document_questions import DEV, TEST, TRAIN, split_by_group
from dpr.storage.durable import durable_folder

LEAST_LABELS = 50
"""Fewest labelled questions of which some are held out to choose by; with fewer, chance would choose."""
LEAST_DEV = 12
"""Fewest dev questions to choose by."""
LEAST_FOR_TEST = 200
"""Fewest labelled questions of which some are held out for a test."""
_HELD_OUT = {TEST: (0.2, 250, LEAST_FOR_TEST), DEV: (0.25, 250, LEAST_LABELS)}
"""Share of the questions, the largest number of them, and the fewest to take it from, by split."""


@dataclass
class Label:
    """A labelled question.

    Attributes:
        found: passages of the corpus that answer it, by id.
        elsewhere: positives that the corpus does not hold. They are trained on, but cannot be searched for.
    """

    question: str
    found: dict[str, Passage] = field(default_factory=dict)
    elsewhere: list[Passage] = field(default_factory=list)
    negatives: list[Passage] = field(default_factory=list)


def split_labels(config: AdaptSettings) -> None:
    """Writes the folder ``data/texts``: pairs to train on, dev and test questions with judgements, and counts.

    Raises:
        InputError: a bad row (file and line), no passage of a file is in the corpus, or no question is left to
            train on.
    """
    corpus = Path(str(config.corpus))
    given = config.label_files()
    by_split: dict[str, dict[str, Label]] = {TRAIN: {}, DEV: {}, TEST: {}}
    for split, file in given.items():
        by_split[split] = read_labels(Path(file), split)
    num_passages = find_in_corpus(
        [label for labels in by_split.values() for label in labels.values()], corpus
    )
    train = by_split[TRAIN]
    for split, labels in by_split.items():
        if labels and not any(label.found for label in labels.values()):
            expected = f"the texts of passages of {corpus}"
            raise InputError("none of its passages is in the corpus", file=given[split], expected=expected)
    for split in (DEV, TEST):  # files that are given are used as they are, so training gives way
        for key in by_split[split]:
            train.pop(key, None)
    if not train:
        raise InputError("all of its questions are dev or test questions, too", file=config.train)
    num_labelled = len(train)

    usable = [key for key, label in train.items() if label.found]
    sizes = {
        split: min(most, round(share * len(usable)))
        for split, (share, most, least) in _HELD_OUT.items()
        if split not in given and len(usable) >= least
    }
    splits = split_by_group(groups_of({key: train[key] for key in usable}), sizes, seed=config.seed)
    if any(splits.count(split) < size / 2 for split, size in sizes.items()):
        splits = split_by_group(usable, sizes, seed=config.seed)
    held_out: set[str] = set()
    for key, split in zip(usable, splits, strict=True):
        if split != TRAIN:
            by_split[split][key] = label = train.pop(key)
            held_out |= label.found.keys()

    samples = []
    for label in train.values():
        kept = [passage for name, passage in label.found.items() if name not in held_out] + label.elsewhere
        if kept:
            samples.append(TrainingSample(label.question, tuple(kept), tuple(label.negatives)))
    if not samples:
        found = (
            "no question is left to train on: the passages of all questions are those of held-out ones, too"
        )
        hint = "give held-out questions about other passages with dev=FILE and test=FILE"
        raise InputError(found, file=config.train, hint=hint)
    counts = {"passages": num_passages, "labelled questions": num_labelled, "train questions": len(samples)}
    metadata = {"kind": "labelled questions", "counts": counts}
    target = Path(str(config.out)) / "data" / "texts"
    with durable_folder(target, overwrite=True, metadata=metadata) as folder:
        write_training_set(folder / f"{TRAIN}.jsonl", samples)
        for split in (DEV, TEST):
            asked = {
                f"{split}-{row}": label for row, label in enumerate(by_split[split].values()) if label.found
            }
            counts[f"{split} questions"] = len(asked)
            if not asked:
                continue
            questions = [Question(label.question, key) for key, label in asked.items()]
            write_questions(folder / f"{split}_questions.jsonl", questions)
            qrels = {key: dict.fromkeys(label.found, 1) for key, label in asked.items()}
            write_qrels(folder / f"{split}_qrels.tsv", qrels)


def read_labels(file: Path, split: str) -> dict[str, Label]:
    """Reads labelled questions in any format that ``dpr prepare`` reads, from a folder in BEIR's layout the
    split of this name. Returns each question once, by its text."""
    options = ReadOptions(open_store, split=split if (file / "qrels").is_dir() else "")
    usable = UsableRows(None, file=file)
    labels: dict[str, Label] = {}
    for sample in usable.samples(READERS[format_of(file, options)](file, options)):
        label = labels.setdefault(plain(sample.question), Label(sample.question))
        label.elsewhere += sample.positives
        label.negatives += sample.hard_negatives
    usable.require_some([file])
    return labels


def find_in_corpus(labels: list[Label], corpus: Path) -> int:
    """Moves the passages that the corpus holds from ``elsewhere`` to ``found``, compared by their texts, since
    ids may be those of another corpus. Returns the number of passages of the corpus."""
    found: dict[str, list[Passage]] = {
        key: [] for label in labels for passage in label.elsewhere for key in texts_of(passage)
    }
    num_passages = 0
    for passage in read_passages(corpus):
        num_passages += 1
        for key in texts_of(passage):
            if key in found:
                found[key].append(passage)
    for label in labels:
        positives = label.elsewhere
        label.elsewhere = []
        for positive in positives:
            matches = {
                str(passage.id): passage
                for key in texts_of(positive)
                for passage in found[key]
                if not (positive.title and passage.title) or plain(positive.title) == plain(passage.title)
            }
            label.found |= matches
            if not matches:
                label.elsewhere.append(positive)
    return num_passages


def texts_of(passage: Passage) -> set[str]:
    """Returns the texts under which a passage may be written elsewhere: with and without its title."""
    return {plain(passage.text), plain(f"{passage.title} {passage.text}")}


def groups_of(labels: Mapping[str, Label]) -> list[str]:
    """Returns for each question the name of its group: questions that share a passage have the same."""
    linked: dict[str, str] = {}

    def first(name: str) -> str:
        while linked.setdefault(name, name) != name:
            linked[name] = linked[linked[name]]  # shortens the way for the next question
            name = linked[name]
        return name

    for key, label in labels.items():
        for name in label.found:
            linked[first(f"passage {name}")] = first(f"question {key}")
    return [first(f"question {key}") for key in labels]
