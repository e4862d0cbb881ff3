"""``dpr prepare SOURCE``: training data of any known format made into DPR's, or into another format that is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpr.core.errors import InputError
from dpr.core.logs import get_logger
from dpr.core.records import TrainingSample
from dpr.formats.checksums import content_sha256
from dpr.formats.outputs import output
from dpr.formats.training_files.bad_rows import BadRows
from dpr.formats.training_files.registry import detect, format_named
from dpr.formats.training_files.rows import ReadOptions

logger = get_logger(__name__)

SKIPPED_SHARE = 0.001


@dataclass(slots=True)
class ConversionCounts:
    """Rows of the source: ``kept``, ``dropped`` for having no positive, ``rejected`` as bad; together ``read``. ``written`` are records."""

    read: int = 0
    kept: int = 0
    dropped: int = 0
    rejected: int = 0
    written: int = 0

    def __str__(self) -> str:
        return (
            f"read {self.read:,}, kept {self.kept:,} as {self.written:,} questions, "
            f"dropped {self.dropped:,} without positives, rejected {self.rejected:,}"
        )


def convert(
    sources: Sequence[Path],
    out: Path,
    options: ReadOptions,
    *,
    format_name: str = "",
    to: str = "dpr",
    skip_bad_rows: bool = False,
    max_bad_rows: int | None = None,
    overwrite: bool = False,
) -> ConversionCounts | None:
    """Reads ``sources`` one after the other and writes them as ``out``, holding one record at a time; None where that was done before.

    Bad rows end the conversion, or with ``skip_bad_rows`` are listed in ``<out>.rejected.jsonl``: up to ``max_bad_rows``, by default 100
    or a thousandth of the rows read so far, whichever is more.

    Raises:
        InputError: a bad row, too many of them, no usable row, or ``out`` exists, made of something else, and ``overwrite`` is false.
        OutputError: ``out`` cannot be written.
        ConfigError: an unknown format, or one that is not written.
    """
    writer = format_named(to, to_write=True).write
    made_of = {
        "sources": [[source.name, content_sha256(source, without=out)] for source in sources],
        "corpus": options.corpus and content_sha256(options.corpus),
        "queries": options.queries and content_sha256(options.queries),
        "reading": [options.split, options.min_grade, options.columns],
        "format": [format_name, to],
        "bad rows": [skip_bad_rows, max_bad_rows],
    }
    limit = (100 if max_bad_rows is None else max_bad_rows) if skip_bad_rows else None
    share = SKIPPED_SHARE if max_bad_rows is None and skip_bad_rows else 0.0
    bad_rows = BadRows(limit, share=share, file=out.with_name(f"{out.name}.rejected.jsonl"))
    counts = ConversionCounts()
    assert writer is not None
    with output(out, made_of, overwrite=overwrite) as is_missing:
        if not is_missing:
            return None
        counts.written = writer(out, _kept(sources, options, format_name, counts, bad_rows), made_of)
    return counts


def _kept(
    sources: Sequence[Path], options: ReadOptions, format_name: str, counts: ConversionCounts, bad_rows: BadRows
) -> Iterator[TrainingSample]:
    for path in sources:
        name = format_name or detect(path, options)
        logger.info("%s: reading format %s", path, name)
        for row in format_named(name).read(path, options):
            counts.read += row.num_rows
            if row.sample is None:
                counts.rejected += 1
                bad_rows.add(row, counts.read)
            elif row.sample.positives:
                counts.kept += row.num_rows
                yield row.sample
            else:
                counts.dropped += row.num_rows
    if not counts.kept:
        found = f"none of the {counts.read} rows can be used: {counts.dropped} have no positive passage, {counts.rejected} are bad"
        raise InputError(found if counts.read else "no rows", file=", ".join(map(str, sources[:3])), expected="at least one good row")
    for note in options.unread.told.values():
        logger.warning("%s", note)
    if bad_rows:  # listed before the output appears, which is the last thing that happens
        logger.warning("%d bad rows were left out; reasons are in %s", len(bad_rows), bad_rows.write())
