"""Inverted lists: learned from a sample, filled part after part, merged, in files that a search maps.

A folder is built in steps that are kept, so that a killed build continues with the part it was at; one part
of the corpus is in memory at a time. Of a list of n vectors the file has n codes of C bytes each, then n rows
of 8 bytes each, so that a search reads one stretch a list. Sizes are kept beside it; where lists begin
follows from them. The same format, that of faiss's OnDiskInvertedLists, serves for a part of a corpus and for
the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from dpr.core.errors import InputError
from dpr.core.logs import get_logger
from dpr.core.progress import Progress
from dpr.core.seeding import generator_for
from dpr.formats.arrays import IdChunks, array_writers, map_array, map_bytes, write_ids
from dpr.indexer.faiss_files import read_engine
from dpr.indexer.settings import ListSettings
from dpr.indexer.vectors import AllRows, check_finite, refuse_overflow
from dpr.storage.durable import durable_file
from dpr.storage.steps import Steps

logger = get_logger(__name__)

QUANTISER_FILE, LISTS_FILE, SIZES_FILE, IDS_FILE = "quantiser.faiss", "lists.bin", "sizes.npy", "ids.npy"
_MOST_LISTS = 1 << 16
_SAMPLED_PER_LIST, _LEAST_SAMPLE = 64, 1 << 14
_PART_BYTES = 1 << 29
_ROW_BYTES = 8

MakeEmpty = Callable[[int, int], Any]
"""(dimension, lists) -> an untrained faiss index."""


def trained(
    rows: AllRows, dimension: int, settings: ListSettings, make_empty: MakeEmpty, *, has_close_centres: bool
) -> Any:
    """An empty index whose lists are learned from a sample of the vectors. ``has_close_centres``: see
    ``_move_centres``."""
    if not rows.num_rows:
        raise InputError("no vectors to index")
    lists = min(settings.lists or usual_lists(rows.num_rows), rows.num_rows)
    count = min(rows.num_rows, max(_SAMPLED_PER_LIST * lists, _LEAST_SAMPLE))
    sample = np.sort(generator_for(0, rows.num_rows, count).choice(rows.num_rows, count, replace=False))
    engine = make_empty(dimension, lists)
    engine.cp.spherical, engine.cp.min_points_per_centroid, engine.cp.max_points_per_centroid = (
        True,
        1,
        1 << 30,
    )
    vectors = _checked(rows, sample)
    engine.train(vectors)
    if has_close_centres:
        _move_centres(engine.quantizer, vectors)
    return engine


def _move_centres(quantizer: Any, vectors: np.ndarray) -> None:
    """Centres are learned as directions, of length 1. One length for all, the mean projection, makes what
    single bits have to tell, the differences between vectors and their centre, small whatever the length of
    the vectors, so that estimates of different lists can be compared. Which centre is nearest does not
    change."""
    length = float(quantizer.search(vectors, 1)[0].mean())
    if length > 0:
        centres = quantizer.reconstruct_n(0, quantizer.ntotal) * np.float32(length)
        quantizer.reset()
        quantizer.add(centres)


def usual_lists(num_vectors: int) -> int:
    """The power of two next to twice the root of the number of vectors."""
    return min(_MOST_LISTS, 1 << max(0, round(np.log2(2 * np.sqrt(num_vectors)))))


def fill(engine: Any, rows: AllRows, part: range, at_once: int) -> None:
    """Adds a stretch of the rows."""
    for start in range(part.start, part.stop, at_once):
        places = np.arange(start, min(start + at_once, part.stop))
        engine.add_with_ids(_checked(rows, places), places)


def _checked(rows: AllRows, places: np.ndarray) -> np.ndarray:
    ids, vectors = rows.take(places)
    check_finite(ids, vectors)
    refuse_overflow(float(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64).max()))
    return np.ascontiguousarray(vectors)


def build_in_steps(
    folder: Path,
    rows: AllRows,
    settings: ListSettings,
    *,
    train: Callable[[], Any],
    read: Callable[[Path], Any],
    ids: IdChunks | None,
    work: Path,
    made_of: Mapping[str, Any],
) -> None:
    """Writes an index into an empty folder; its parts go to ``work``, where a killed build left those it had
    finished.

    Args:
        train: makes the empty index; ``read`` reads it from a file.
        ids: those of all rows, where they are to be written as well.
        made_of: what decides the parts; unfinished ones of something else are refused.
    """
    import faiss

    steps = Steps(work, made_of)
    if not steps.is_done(0):
        trained_empty = faiss.serialize_index(train())
        steps.write_step(0, {QUANTISER_FILE: lambda out: out.write(trained_empty.data)})
    quantiser = work / QUANTISER_FILE
    size = max(settings.buffer_size, _PART_BYTES // (read(quantiser).code_size + 8))
    parts = [range(start, min(start + size, rows.num_rows)) for start in range(0, rows.num_rows, size)]
    missing = [number for number in range(len(parts)) if not steps.is_done(number + 1)]
    if len(missing) < len(parts):
        logger.info("%s: %d of %d parts exist already", work, len(parts) - len(missing), len(parts))
    done = rows.num_rows - sum(len(parts[number]) for number in missing)
    progress = Progress("indexing", rows.num_rows, unit="vectors", done=done)
    for number in missing:
        engine = read(quantiser)
        fill(engine, rows, parts[number], settings.buffer_size)
        counted = [engine.invlists.list_size(each) for each in range(engine.nlist)]
        sizes = np.array(counted, dtype=np.int64)
        steps.write_step(
            number + 1,
            {
                f"{number}-{LISTS_FILE}": partial(write_lists, [HeldLists(engine)], engine.nlist),
                **array_writers({f"{number}-{SIZES_FILE}": sizes}),
            },
        )
        progress.advance(len(parts[number]), 0)
    progress.close()
    _merge(folder, work, len(parts), read(quantiser), ids)


def _merge(folder: Path, work: Path, num_parts: int, engine: Any, ids: IdChunks | None) -> None:
    numbers = range(num_parts)
    sizes = [read_sizes(work / f"{number}-{SIZES_FILE}", engine.nlist) for number in numbers]
    files = [
        ListFile(work / f"{number}-{LISTS_FILE}", counted, engine.code_size)
        for number, counted in enumerate(sizes)
    ]
    with durable_file(folder / LISTS_FILE, "wb") as out:
        total = write_lists(files, engine.nlist, out)
    with durable_file(folder / SIZES_FILE, "wb") as out:
        np.lib.format.write_array(out, total, allow_pickle=False)
    with durable_file(folder / QUANTISER_FILE, "wb") as out:
        out.write((work / QUANTISER_FILE).read_bytes())
    if ids is not None:
        with durable_file(folder / IDS_FILE, "wb") as out:
            write_ids(out, ids)


def read_trained(file: Path, make_empty: MakeEmpty) -> Any:
    """A trained index without vectors; whatever a search relies on is checked, as faiss loads most damaged
    files silently.

    Raises:
        InputError: faiss cannot read it, or it is another index.
    """
    engine = read_engine(file, mapped=False)
    problems = (
        [f"it is {type(engine).__name__}"]
        if not hasattr(engine, "nlist")
        else _differences(engine, make_empty)
    )
    for problem in problems:
        raise InputError(f"is not what lists of this kind are searched with: {problem}", file=file)
    return engine


def _differences(engine: Any, make_empty: MakeEmpty) -> Iterator[str]:
    """How an index differs from an empty one of the same kind in what does not depend on the vectors."""
    fresh = make_empty(int(engine.d), int(engine.nlist))
    centres, usual = _flat(engine.quantizer), _flat(fresh.quantizer)
    if type(engine) is not type(fresh) or type(centres) is not type(usual):
        yield f"it is {type(engine).__name__} over {type(centres).__name__}"
        return
    compared = (
        (engine, fresh, "d metric_type metric_arg code_size by_residual ntotal qb"),
        (centres, usual, "d metric_type metric_arg code_size"),
        (getattr(engine, "sq", None), getattr(fresh, "sq", None), "d qtype code_size rangestat bits"),
        (getattr(engine, "rabitq", None), getattr(fresh, "rabitq", None), "d code_size metric_type nb_bits"),
    )
    for ours, theirs, names in compared:
        for name in names.split():
            if getattr(ours, name, None) != getattr(theirs, name, None):
                yield f"{name} is {getattr(ours, name, None)}"
    if (
        not engine.is_trained
        or centres.ntotal != engine.nlist
        or centres.codes.size() != engine.nlist * centres.code_size
    ):
        yield (
            f"it is trained: {engine.is_trained}, and has {centres.ntotal} centres in {centres.codes.size()}"
            " bytes"
        )
    if hasattr(engine, "sq") and engine.sq.trained.size() != 2 * engine.d:
        yield "its quantiser lacks the ranges of the coordinates"


def _flat(quantizer: Any) -> Any:
    import faiss

    return faiss.downcast_index(quantizer)


class Lists(Protocol):
    """The lists of one part of a corpus."""

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Codes (n, C) uint8 and rows (n,) int64 of a list."""
        ...


class HeldLists:
    """Those of a faiss index in memory."""

    def __init__(self, engine: Any) -> None:
        self._lists, self._code_size = engine.invlists, int(engine.code_size)

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        import faiss

        size = self._lists.list_size(number)
        if not size:
            return np.zeros((0, self._code_size), dtype=np.uint8), np.zeros(0, dtype=np.int64)
        codes = faiss.rev_swig_ptr(self._lists.get_codes(number), size * self._code_size)
        return codes.reshape(size, -1), faiss.rev_swig_ptr(self._lists.get_ids(number), size)


class ListFile:
    """Those of a file, memory-mapped.

    Raises:
        InputError: the file is not as long as its sizes say.
    """

    def __init__(self, file: Path, sizes: np.ndarray, code_size: int) -> None:
        self.file, self.sizes, self.code_size = file, sizes, code_size
        ends = np.cumsum(sizes * (code_size + _ROW_BYTES))
        self._starts, self.num_bytes = ends - sizes * (code_size + _ROW_BYTES), int(ends[-1])
        if (size := file.stat().st_size) != self.num_bytes:
            raise InputError(
                f"has {size} bytes", file=file, expected=f"{self.num_bytes} for {int(sizes.sum())} vectors"
            )
        self._bytes = map_bytes(file)

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        size, start = int(self.sizes[number]), int(self._starts[number])
        middle = start + size * self.code_size
        codes = self._bytes[start:middle].reshape(size, self.code_size)
        return codes, self._bytes[middle : middle + size * _ROW_BYTES].view(np.int64)


def write_lists(parts: Sequence[Lists], num_lists: int, out: IO[bytes]) -> np.ndarray:
    """Writes the lists of all parts, one list at a time; returns their sizes (num_lists,)."""
    sizes = np.zeros(num_lists, dtype=np.int64)
    for number in range(num_lists):
        codes, rows = zip(*(part.read(number) for part in parts), strict=True)
        sizes[number] = sum(map(len, rows))
        for piece in (*codes, *rows):
            out.write(np.ascontiguousarray(piece).data)
    return sizes


def read_sizes(file: Path, num_lists: int) -> np.ndarray:
    """The sizes of the lists; raises InputError where the file holds anything else."""
    sizes = map_array(file)
    if sizes.shape != (num_lists,) or sizes.dtype != np.int64 or (num_lists and int(sizes.min()) < 0):
        raise InputError(
            f"holds {sizes.dtype} {sizes.shape}", file=file, expected=f"the sizes of {num_lists} lists"
        )
    return np.array(sizes)


def attach(engine: Any, lists: ListFile) -> None:
    """Lets a trained, empty faiss index search the lists of a file, memory-mapped where faiss can (not on
    Windows)."""
    import faiss

    if not hasattr(faiss, "OnDiskInvertedLists"):
        held: Any = faiss.ArrayInvertedLists(engine.nlist, engine.code_size)
        for number in np.flatnonzero(lists.sizes).tolist():
            codes, rows = (np.ascontiguousarray(part) for part in lists.read(number))
            held.add_entries(number, len(rows), faiss.swig_ptr(rows), faiss.swig_ptr(codes))
        _replace(engine, held)
    elif lists.num_bytes:
        mapped: Any = faiss.OnDiskInvertedLists()
        mapped.nlist, mapped.code_size, mapped.read_only = engine.nlist, engine.code_size, True
        mapped.filename, mapped.totsize = str(lists.file), lists.num_bytes
        mapped.lists.resize(engine.nlist)  # entries of its own type, not Python's
        sizes = lists.sizes.astype(np.uint64)  # a name, as the pointer does not keep it alive
        mapped.set_all_lists_sizes(faiss.swig_ptr(sizes))
        mapped.do_mmap()
        _replace(engine, mapped)
    engine.ntotal = int(lists.sizes.sum())


def _replace(engine: Any, lists: Any) -> None:
    engine.replace_invlists(lists, True)
    lists.this.disown()
