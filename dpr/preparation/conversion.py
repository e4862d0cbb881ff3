"""``dpr prepare SOURCE``: converts training data from any known format to DPR's, or to another format that
can be written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import get_logger
from dpr.core.records import Passage, TrainingSample, plain
from dpr.formats.passage_records import passage_from_json
from dpr.formats.record_files import iter_json_objects
from dpr.formats.text_input import expand_files
from dpr.formats.text_store import open_store
from dpr.formats.training_files.registry import READERS, WRITERS, format_of
from dpr.formats.training_files.rows import ReadOptions, UsableRows
from dpr.preparation.settings import PrepareSettings, ReadSettings
from dpr.storage.checksums import content_sha256
from dpr.storage.outputs import output, require_writable

logger = get_logger(__name__)


def read_options(config: ReadSettings) -> ReadOptions:
    """Returns the settings as readers take them."""
    corpus = None if config.corpus is None else Path(config.corpus)
    queries = None if config.queries is None else Path(config.queries)
    return ReadOptions(open_store, corpus, queries, config.split, config.min_grade, config.columns())


def convert(config: PrepareSettings) -> str:
    """Reads the sources one after the other and writes them as ``out``, with one record at a time in memory.
    Returns a report.

    Bad rows end the conversion, or with ``on_bad_row=skip`` are listed in ``<out>.rejected.jsonl``, up to
    ``max_bad_rows``.

    Raises:
        InputError: a bad row, too many of them, no usable row, or ``out`` exists, made from other inputs or
        settings, and ``overwrite`` is false.
        OutputError: ``out`` cannot be written.
        ConfigError: an unknown format, or one that cannot be written.
    """
    out = Path(str(config.out))
    sources = expand_files(config.sources)
    options = read_options(config)
    if config.to not in WRITERS:
        raise ConfigError(
            f"to={config.to} is not a format that can be written; choose one of {', '.join(WRITERS)}"
        )
    require_writable(out.parent, folder=True)
    made_of: dict[str, object] = {
        "sources": [[source.name, content_sha256(source, without=out)] for source in sources],
        "corpus": options.corpus and content_sha256(options.corpus),
        "queries": options.queries and content_sha256(options.queries),
        "reading": [options.split, options.min_grade, options.columns],
        "format": [config.format, config.to],
        "bad rows": [config.on_bad_row, config.max_bad_rows],
        "suspects": config.suspects and content_sha256(Path(config.suspects)),
    }
    limit = config.max_bad_rows if config.on_bad_row == "skip" else None
    usable = UsableRows(limit, file=out.with_name(f"{out.name}.rejected.jsonl"))

    def read() -> Iterator[TrainingSample]:
        for path in sources:
            name = format_of(path, options, name=config.format)
            logger.info("%s: reading as format %s", path, name)
            yield from usable.samples(READERS[name](path, options))
        usable.require_some(sources)
        for note in options.unread.warnings.values():
            logger.warning("%s", note)
        usable.list_rejected()  # before the output appears, which is the last thing that happens

    with output(out, made_of, overwrite=config.overwrite) as is_missing:
        if not is_missing:
            return "already exists, made from the same inputs and settings"
        samples = _without_suspects(read(), Path(config.suspects)) if config.suspects else read()
        written = WRITERS[config.to](out, samples, made_of)
    counts = usable.counts
    return (
        f"read {counts.read:,}, kept {counts.kept:,} as {written:,} questions, "
        f"dropped {counts.dropped:,} without positives, rejected {counts.rejected:,}"
    )


def _without_suspects(samples: Iterable[TrainingSample], file: Path) -> Iterator[TrainingSample]:
    """Yields the samples without the labels in a list from ``dpr check-data suspects=``, which may have been
    shortened. Samples left without a positive are dropped.

    Raises:
        InputError: a line does not belong to such a list, or no label is in the list.
    """
    suspects = set[tuple[str, str, str]]()
    for line, record in iter_json_objects(file):
        try:
            if record["label"] not in ("positive", "negative"):
                raise ValueError(f"the label {record['label']!r}")
            passage = passage_from_json(record["passage"], "passage")
            suspects.add((record["label"], plain(record["question"]), plain(passage.text)))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            hint = "dpr check-data ... suspects=FILE writes such a list"
            raise InputError(f"not a suspect: {error}", file=file, line=line, hint=hint) from None
    count = 0

    def right(label: str, question: str, listed: tuple[Passage, ...]) -> tuple[Passage, ...]:
        nonlocal count
        kept = [
            passage for passage in listed if (label, plain(question), plain(passage.text)) not in suspects
        ]
        count += len(listed) - len(kept)
        return tuple(kept)

    for sample in samples:
        positives = right("positive", sample.question, sample.positives)
        negatives = right("negative", sample.question, sample.hard_negatives)
        if positives:
            yield replace(sample, positives=positives, hard_negatives=negatives)
    if suspects and not count:
        hint = "name the training data that this list was made from"
        raise InputError("none of these labels occurs in the training data", file=file, hint=hint)
