"""Work on a training set block by block, so that a killed run can be resumed. Mining, scoring and the search
for wrong labels share it.

1. A work folder beside the output belongs to these data and settings. It holds the files that the search
   needs and one file per finished block.
2. Each block of questions is searched and written; several processes may work on blocks in parallel.
3. The blocks are joined into the output, the audit is written beside it, and the work folder is removed.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dpr.core.errors import LostRankError
from dpr.core.logs import ProgressBar, get_logger
from dpr.core.stopping import end_with_parent
from dpr.formats.stored_training_set import TrainingSet
from dpr.formats.text_output import durable_text
from dpr.mining.search import TRAINING_PASSAGES, MiningCorpus, Search, write_training_passages
from dpr.models.cross_encoder import CrossEncoder
from dpr.storage.checksums import content_sha256, verify_file
from dpr.storage.durable import describe_file, remove_folder, write_json
from dpr.storage.leftovers import remove
from dpr.storage.outputs import output, require_writable
from dpr.storage.steps import CLAIM, Steps
from dpr.storage.untrusted import read_json

logger = get_logger(__name__)

Record = dict[str, Any]
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_VERSION = 7


@dataclass
class BlockJob(ABC):
    """A task for every question of a training set, which ``run_job`` does. Each process gets a copy.

    Args:
        corpus_file: passages to search; None = those of the training set.
        scorer: cross-encoder, which uses all cores in one process.
    """

    train: TrainingSet
    out: Path
    searches: Sequence[Search] = ()
    corpus_file: Path | None = None
    scorer: CrossEncoder | None = None

    name: ClassVar[str]
    """Name of the job in the work folder and in progress lines."""

    def __post_init__(self) -> None:
        self.work = self.out.with_name(f"{self.out.name}.{self.name}")
        self._corpus: MiningCorpus | None = None

    @property
    def corpus(self) -> MiningCorpus:
        if self._corpus is None:
            source = self.corpus_file or self.work / TRAINING_PASSAGES
            if not self.corpus_file and not source.is_file():
                number = write_training_passages(self.train, source)
                logger.info("%d distinct passages in the training data", number)
            self._corpus = MiningCorpus(source, self.work)
        return self._corpus

    def made_of(self) -> dict[str, Any]:
        """Returns everything that determines the contents of the work folder."""
        return {
            "version": _VERSION,
            "train": self.train.fingerprint,
            "corpus": self.corpus_file and content_sha256(self.corpus_file),
            "search": [search.metadata() for search in self.searches],
        }

    @abstractmethod
    def chosen(self) -> dict[str, Any]:
        """Returns everything else that determines the output."""

    def prepare(self) -> None:
        """Writes the files that the search needs."""
        for search in self.searches:
            search.prepare(self.corpus)

    @abstractmethod
    def do_block(self, rows: range) -> tuple[list[Record], Record]:
        """Returns the records of a block of questions, and its audit for ``combined``."""

    def warn(self, audit: dict[str, Any]) -> None:  # noqa: B027  by default there is nothing to warn of
        """Warns of a result that is of little use."""

    def joined(self, parts: Iterable[Path]) -> Iterator[str]:
        """Yields the text of the output from files of records, by default all records in order."""
        return (part.read_text(encoding="utf-8") for part in parts)


def run_job(job: BlockJob, *, processes: int = 1, overwrite: bool = False) -> dict[str, Any]:
    """Does the rest of a job and returns its audit, which is also written to ``<out>.audit.json``. The result
    does not depend on ``processes`` or on interruptions. If ``out`` is already the finished result of the
    same data and settings, nothing is done. Warns of a result of little use in any case.

    Raises:
        InputError: ``out`` exists, is something else, and ``overwrite`` is false; or the corpus cannot be
        read.
        LostRankError: one of the ``processes`` was killed.
        CheckpointError: another run is writing ``out``.
    """
    out = job.out
    require_writable(out)
    audit_file = out.with_name(f"{out.name}.audit.json")
    base = job.made_of()
    made_of = base | job.chosen()
    with output(out, made_of, overwrite=overwrite) as is_missing:
        # A run may have been killed between the output and its audit.
        if not is_missing and not verify_file(audit_file):
            remove(job.work)
            finished: dict[str, Any] = read_json(audit_file)
            job.warn(finished)
            return finished
        Steps(job.work, base, restart=(job.work / CLAIM).is_file())  # a folder of somebody else is left alone
        steps = Steps(job.work / "blocks", made_of, restart=True)
        size = job.searches[0].block_rows if job.searches else 500
        blocks = [range(start, min(start + size, len(job.train))) for start in range(0, len(job.train), size)]
        missing = [rows for rows in blocks if not steps.is_done(rows.start)]
        if missing:
            job.prepare()
        done = len(job.train) - sum(map(len, missing))
        progress = ProgressBar(job.name, len(job.train), unit="questions", done=done)
        for rows in _written(job, steps, missing, processes):
            progress.advance(len(rows))
        progress.close()

        names = [_names(rows) for rows in blocks]
        audit = combined(read_json(steps.folder / name) for _, name in names)
        with durable_text(out, note=made_of) as text:
            text.writelines(job.joined(steps.folder / name for name, _ in names))
        audit |= {"made_of": made_of, "file": describe_file(out)}
        write_json(audit_file, audit, note={})
        remove_folder(job.work)
        job.warn(audit)
        return audit


def _names(rows: range) -> tuple[str, str]:
    """Returns the file names of a block's records and audit."""
    place = f"{rows.start:09d}-{rows.stop:09d}"
    return f"part-{place}.jsonl", f"audit-{place}.json"


def _written(job: BlockJob, steps: Steps, blocks: Sequence[range], processes: int) -> Iterator[range]:
    """Writes the blocks and yields each when it is written, in any order."""
    if processes <= 1 or job.scorer is not None or any(one.mined_by != "bm25" for one in job.searches):
        for rows in blocks:
            _write(job, steps, rows)
            yield rows
        return
    # Not fork: the threads that libraries have started do not survive it.
    pool = ProcessPoolExecutor(
        processes, mp_context=get_context("spawn"), initializer=_start, initargs=(job, steps)
    )
    try:
        running = {pool.submit(_write_there, rows): rows for rows in blocks}
        for done in as_completed(running):
            done.result()
            yield running[done]
    except BrokenProcessPool:
        raise LostRankError(
            "a mining process was killed, possibly because memory ran out; rerun the same command to resume"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _write(job: BlockJob, steps: Steps, rows: range) -> None:
    records, audit = job.do_block(rows)
    lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
    part, audit_name = _names(rows)
    steps.write_step(
        rows.start,
        {
            part: lambda out: out.write("".join(lines).encode()),
            audit_name: lambda out: out.write(json.dumps(audit).encode()),
        },
    )


_sent: list[tuple[BlockJob, Steps]] = []
"""Job of this process, with its steps."""


def _start(job: BlockJob, steps: Steps) -> None:
    end_with_parent()
    _sent.append((job, steps))


def _write_there(rows: range) -> None:
    _write(*_sent[-1], rows)


def combined(blocks: Iterable[Record]) -> dict[str, Any]:
    """Returns the audit of all blocks: the sums of ``counts``, the quantiles of ``values`` and, if there are
    examples, five from all over the data."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    values: defaultdict[str, list[np.ndarray]] = defaultdict(list)
    examples: list[Any] = []
    for block in blocks:
        for name in ("counts", "left_out"):
            counts[name].update(block.get(name, {}))
        for name, listed in block.get("values", {}).items():
            values[name].append(np.array(listed, dtype=np.float32))
        if block.get("example"):
            examples.append(block["example"])
    audit: dict[str, Any] = {name: dict(counted) for name, counted in counts.items()}
    for name, parts in values.items():
        whole = np.concatenate(parts)
        found = np.quantile(whole, QUANTILES) if len(whole) else []
        audit[f"{name}_quantiles"] = [round(float(value), 4) for value in found]
    chosen = sorted({round(step * (len(examples) - 1) / 4) for step in range(5)}) if examples else []
    return audit | {"examples": [examples[index] for index in chosen]}


def quantile_lines(audit: dict[str, Any], labels: dict[str, str]) -> Iterator[str]:
    """Yields the quantiles as a table; ``labels`` go by the name of the values."""
    yield f"  quantiles of {'':<16} " + " ".join(f"{quantile:>8.0%}" for quantile in QUANTILES)
    for name, label in labels.items():
        if listed := audit[f"{name}_quantiles"]:
            yield f"    {label:<26} " + " ".join(f"{value:>7.3f}" for value in listed)
