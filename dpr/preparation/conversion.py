"""``dpr prepare SOURCE``: converts training data of any known format to DPR's, or to another format that can
be written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import get_logger
from dpr.core.records import Passage, TrainingSample
from dpr.data.text import plain
from dpr.formats.json_records import iter_json_objects
from dpr.formats.training_files.registry import READERS, WRITERS, format_of
from dpr.formats.training_files.rows import Counts, ReadOptions, UsableRows
from dpr.formats.training_records import passage_from_json
from dpr.preparation.settings import ReadSettings
from dpr.storage.checksums import content_sha256
from dpr.storage.outputs import output, require_writable

logger = get_logger(__name__)


@dataclass(slots=True)
class ConversionCounts(Counts):
    """Rows of the source, and the records that were ``written``."""

    written: int = 0

    def __str__(self) -> str:
        return (
            f"read {self.read:,}, kept {self.kept:,} as {self.written:,} questions, "
            f"dropped {self.dropped:,} without positives, rejected {self.rejected:,}"
        )


class Corrections:
    """A list of suspect labels (``dpr check-data suspects=``), as it was written or shortened since: they are
    dropped, or relabelled.

    Args:
        relabel: a positive gives way to the passage that was found ``instead``, and a negative becomes a
        positive; else both are dropped.

    Raises:
        InputError: a line is none of such a list.
    """

    def __init__(self, file: Path, *, relabel: bool = False) -> None:
        self._file = file
        self._relabel = relabel
        self._used = 0
        self.identity = [content_sha256(file), relabel]
        self._suspects: dict[tuple[str, str, str], Passage | None] = {}
        for line, record in iter_json_objects(file):
            try:
                label = record["label"]
                instead = record.get("instead")
                key = (
                    label,
                    plain(record["question"]),
                    plain(passage_from_json(record["passage"], "passage").text),
                )
                if label not in ("positive", "negative"):
                    raise ValueError(f"the label {label!r}")
                self._suspects[key] = passage_from_json(instead, "instead") if instead is not None else None
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                hint = "dpr check-data ... suspects=FILE writes one"
                raise InputError(f"not a suspect: {error}", file=file, line=line, hint=hint) from None

    def apply(self, samples: Iterable[TrainingSample]) -> Iterator[TrainingSample]:
        """The samples as corrected; those without a positive are left out.

        Raises:
            InputError: no label is one of the list's.
        """
        for sample in samples:
            positives = list[Passage]()
            negatives = list[Passage]()
            for label, listed in (("positive", sample.positives), ("negative", sample.hard_negatives)):
                for passage in listed:
                    key = label, plain(sample.question), plain(passage.text)
                    if key not in self._suspects:
                        (positives if label == "positive" else negatives).append(passage)
                        continue
                    self._used += 1
                    if self._relabel:
                        positives.append(self._suspects[key] or passage)
            if positives:
                right = {plain(passage.text) for passage in positives}
                negatives = [passage for passage in negatives if plain(passage.text) not in right]
                yield replace(sample, positives=tuple(positives), hard_negatives=tuple(negatives))
        if self._suspects and not self._used:
            raise InputError(
                "no suspect is a label of these data",
                file=self._file,
                hint="name the data that it was made of",
            )


def read_options(config: ReadSettings) -> ReadOptions:
    """The settings as readers take them."""
    corpus = None if config.corpus is None else Path(config.corpus)
    queries = None if config.queries is None else Path(config.queries)
    return ReadOptions(corpus, queries, config.split, config.min_grade, config.columns())


def convert(
    sources: Sequence[Path],
    out: Path,
    options: ReadOptions,
    *,
    format_name: str = "",
    to: str = "dpr",
    skip_bad_rows: bool = False,
    max_bad_rows: int = 100,
    corrections: Corrections | None = None,
    overwrite: bool = False,
) -> ConversionCounts | None:
    """Reads ``sources`` one after the other and writes them as ``out``, holding one record at a time; None if
    that was done before.

    Bad rows end the conversion, or with ``skip_bad_rows`` are listed in ``<out>.rejected.jsonl``: up to
    ``max_bad_rows``.

    Raises:
        InputError: a bad row, too many of them, no usable row, or ``out`` exists, made of something else, and
        ``overwrite`` is false.
        OutputError: ``out`` cannot be written.
        ConfigError: an unknown format, or one that cannot be written.
    """
    if to not in WRITERS:
        raise ConfigError(f"format {to} is not written; choose one of {', '.join(WRITERS)}")
    require_writable(out.parent, folder=True)
    made_of: dict[str, object] = {
        "sources": [[source.name, content_sha256(source, without=out)] for source in sources],
        "corpus": options.corpus and content_sha256(options.corpus),
        "queries": options.queries and content_sha256(options.queries),
        "reading": [options.split, options.min_grade, options.columns],
        "format": [format_name, to],
        "bad rows": [skip_bad_rows, max_bad_rows],
    }
    made_of |= {"suspects": corrections.identity} if corrections else {}
    limit = max_bad_rows if skip_bad_rows else None
    usable = UsableRows(limit, file=out.with_name(f"{out.name}.rejected.jsonl"))
    with output(out, made_of, overwrite=overwrite) as is_missing:
        if not is_missing:
            return None
        samples = _samples(sources, options, format_name, usable)
        written = WRITERS[to](out, corrections.apply(samples) if corrections else samples, made_of)
    return ConversionCounts(**asdict(usable.counts), written=written)


def _samples(
    sources: Sequence[Path], options: ReadOptions, format_name: str, usable: UsableRows
) -> Iterator[TrainingSample]:
    for path in sources:
        name = format_of(path, options, name=format_name)
        logger.info("%s: reading format %s", path, name)
        yield from usable.samples(READERS[name](path, options))
    usable.require_some(sources)
    for note in options.unread.warnings.values():
        logger.warning("%s", note)
    usable.list_rejected()  # before the output appears, which is the last thing that happens
