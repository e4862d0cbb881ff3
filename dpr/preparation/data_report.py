"""What ``dpr check-data`` prints: findings, lengths in tokens, and rows as the model will see them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.errors import InputError
from dpr.core.records import Passage
from dpr.data.tensorizer import SHARE_SAID, Tensorizer
from dpr.data.text import decorate_passage
from dpr.models.biencoder import BiEncoder
from dpr.preparation.data_check import BAD_ROWS, DataCheck, Finding, Reservoir, num_shared

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
    train, dev = sets.get("train"), sets.get("dev")
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
        shared, total = num_shared(train.positives, dev.positives), len(dev.positives)
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
                f"  (near repeats were looked for in {train.compared_rows:,} of {train.records:,} records)"
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
