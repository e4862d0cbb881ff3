"""Reading of a folder's documents in a separate process that bounds the time and memory of each document. A
document that exceeds them, or crashes its parser, ends the process; another process reads the next one.

This module is the program of that process. It says that it is ready; then a line of JSON names a file, and a
line answers it. Nothing else is shared, so that any program can read documents, whatever its threads and its
main module. The process ends with the program.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import suppress
from itertools import starmap
from pathlib import Path

from dpr.core.errors import DprError, InputError
from dpr.formats.document_files import read_document
from dpr.formats.documents.document import Block, Document, Section

_SECONDS = 10, 60
"""Processor seconds for a document and for each MB. A PDF of 1 MB may have 500 pages of text, and
ten pages take a second."""
_MEMORY = 1024, 30
"""Memory in MB for a document and for each MB of it; the packages take 150."""
_REASON = (
    f"takes more than {_SECONDS[0]} seconds or {_MEMORY[0]} MB of memory, with {_SECONDS[1]} seconds and {_MEMORY[1]} MB"
    " more for each MB of the file, or crashes its parser"
)


def read_documents(files: Mapping[str, Path]) -> Generator[tuple[str, Document | str]]:
    """Yields the documents with their names, in order; for one that cannot be read, the reason instead.

    Raises:
        DprError: the process that reads them does not start.
    """
    waiting = dict(files)
    failed = ""  # the document whose reader ended last
    while waiting:
        is_started = False
        with (
            suppress(OSError),  # it does not start
            subprocess.Popen(
                [sys.executable, "-P", "-m", "dpr.formats.documents.bounded_reading"],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sys.path)), "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                stderr=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C is the program's
            ) as child,
        ):
            assert child.stdin and child.stdout
            is_started = "ready\n" in child.stdout
            try:
                for name in list(waiting):
                    answer = ""
                    with suppress(BrokenPipeError):  # it has ended since, which counts as no answer
                        print(json.dumps([str(waiting[name]), name]), file=child.stdin, flush=True)
                        answer = child.stdout.readline()
                    # Unless its clock has ended the process, another one may have. The document is read again.
                    is_answered = answer.endswith("\n")
                    if is_answered:
                        found = json.loads(answer)
                    elif child.wait() == -signal.SIGPROF or name == failed:
                        found = _REASON
                    else:
                        failed = name
                        break
                    del waiting[name]
                    if not isinstance(found, str):
                        title, sections, *rest = found
                        made = (
                            Section(tuple(names), tuple(starmap(Block, blocks)), *more)
                            for names, blocks, *more in sections
                        )
                        found = Document(title, tuple(made), *rest)
                    yield name, found
                    if not is_answered:
                        break
            finally:
                child.kill()
        if not is_started:
            raise DprError(
                "the process that reads documents does not start; run this command to see why:"
                f" {sys.executable} -m dpr.formats.documents.bounded_reading"
            )


def _serve() -> None:
    """Answers requests until there are no more: with a document, or with the reason why it cannot be read."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # the output of a parser is no answer
    with suppress(AttributeError):  # Linux; elsewhere it ends when its document is read
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    print("ready", file=answers, flush=True)
    for request in sys.stdin:
        file, name = map(Path, json.loads(request))
        size = file.stat().st_size / 2**20 if file.is_file() else 0
        with suppress(ImportError, AttributeError, ValueError):  # some systems have no such bounds
            # The signal of this clock ends the process; of a memory that is full, Python's exception does.
            signal.setitimer(signal.ITIMER_PROF, _SECONDS[0] + _SECONDS[1] * size)
            import resource

            most = int(_MEMORY[0] + _MEMORY[1] * size) << 20
            resource.setrlimit(resource.RLIMIT_DATA, (most, resource.getrlimit(resource.RLIMIT_DATA)[1]))
        try:
            document = read_document(file, name)
            answer = json.dumps(document, default=lambda one: [getattr(one, key) for key in one.__slots__])
            if len(answer) / 2**20 > 8 + 100 * size:  # Excel and Word pack texts to a tenth
                raise InputError(f"{len(answer) / 2**20:.0f} MB of text in a file of {size:.1f} MB")
        except DprError as error:
            answer = json.dumps(str(error))
        print(answer, file=answers, flush=True)


if __name__ == "__main__":
    _serve()
