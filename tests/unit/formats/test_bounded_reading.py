"""Documents are read in a process of their own: what takes too much, or crashes, is unread, and the others are read."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dpr.core.errors import DprError
from dpr.formats.documents.bounded_reading import read_documents
from dpr.formats.documents.document import Document
from tests.helpers.patience import patient

PARSERS = {
    "crashes": "os.kill(os.getpid(), signal.SIGSEGV)",
    "runs": "signal.setitimer(signal.ITIMER_PROF, 0.1)\n    while True: pass",
    "grows": "bytearray(2**32)",
    "prints": "print('to standard output'); return 'A page of text.'",
    "fails": "raise KeyError('/Root')",
    "ends once": "os.path.exists('b') or (open('b', 'w').close(), os.kill(os.getpid(), signal.SIGKILL)); return 'A page.'",
    "waits": "open('pid', 'w').write(str(os.getpid())); time.sleep(600)",
}


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="bounds of memory, and /proc, are Linux's")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Path]]:
    """Makes a text, a PDF and another text, with a parser of PDFs that does this."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(parser: str) -> dict[str, Path]:
        Path("pdfminer").mkdir()
        Path("pdfminer/__init__.py").touch()
        code = f"import os, signal, time\n\ndef extract_text(data):\n    {PARSERS[parser]}\n"
        Path("pdfminer/high_level.py").write_text(code)
        for name in ("a.md", "b.pdf", "c.txt"):
            Path(name).write_text(f"The text of {name}.")
        return {name: Path(name) for name in ("a.md", "b.pdf", "c.txt")}

    return make


@pytest.mark.parametrize(
    ("parser", "reason"),
    [
        ("crashes", "crashes its parser"),
        ("runs", "takes more than 10 seconds"),
        pytest.param("grows", "1024 MB of memory", marks=on_linux),
        ("fails", "not a readable pdf file: '/Root'"),
        ("prints", ""),
        ("ends once", ""),
    ],
)
def test_a_document_that_ends_its_reader_is_unread_and_the_next_is_read(
    folder: Callable[[str], dict[str, Path]], parser: str, reason: str
) -> None:
    (a, first), (b, found), (c, last) = read_documents(folder(parser))
    assert (a, b, c) == ("a.md", "b.pdf", "c.txt")
    assert isinstance(first, Document) and isinstance(last, Document)
    assert last.sections[0].blocks[0].text == "The text of c.txt."
    assert isinstance(found, Document) if not reason else reason in str(found)


def test_text_is_bounded_by_the_size_of_the_file(tmp_path: Path) -> None:
    """A heading counts for each of its sections."""
    (tmp_path / "a.md").write_text(f"# first\n\n# {'h' * 50_000}\n" + "## part\nx\n\n" * 400)
    assert dict(read_documents({"a": tmp_path / "a.md"})) == {"a": "19 MB of text in a file of 0.1 MB"}


@pytest.mark.parametrize("program", ["/bin/false", "", "no such program"])
def test_a_process_that_does_not_start_is_one_sentence(
    folder: Callable[[str], dict[str, Path]], monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    files = folder("prints")
    monkeypatch.setattr(sys, "executable", program)
    with pytest.raises(DprError, match="the process that reads documents does not start; run this command"):
        list(read_documents(files))


def test_a_process_that_ends_at_each_start_is_not_started_forever(
    folder: Callable[[str], dict[str, Path]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It says that it is ready, and cannot take a request."""
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexec 0<&-\necho ready\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    assert ["crashes its parser" in str(found) for _, found in read_documents(folder("prints"))] == [True] * 3


def test_a_process_that_was_ended_between_documents_is_replaced(
    folder: Callable[[str], dict[str, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path("a path"))  # type: ignore[arg-type]
    readers = []

    class Reader(subprocess.Popen[str]):
        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings)
            readers.append(self)

    monkeypatch.setattr(subprocess, "Popen", Reader)
    found = []
    for _, document in read_documents(folder("prints")):
        found.append(document)
        readers[-1].kill()
        readers[-1].wait()
    assert len(found) == len(readers) == 3 and all(isinstance(one, Document) for one in found)


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@on_linux
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_any_program_leaves_no_process(folder: Callable[[str], dict[str, Path]], end: signal.Signals) -> None:
    """A script without a main module, ended while a document is read."""
    files = folder("waits")
    # a program that was started in the background ignores Ctrl-C
    code = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += f"from pathlib import Path\nfrom dpr.formats.documents.bounded_reading import read_documents\nfiles = {list(files)}\n"
    Path("script.py").write_text(f"{code}print(*read_documents({{name: Path(name) for name in files}}))\n")
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    program = subprocess.Popen(
        [sys.executable, "script.py"], env=variables, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + patient(30)
    reader = ""
    while not reader and time.monotonic() < until:
        with suppress(OSError):
            reader = Path("pid").read_text()
        time.sleep(0.05)
    program.send_signal(end)
    said = program.communicate()[1]
    assert said.count("Traceback") == (end == signal.SIGINT)  # that of the script alone
    while is_running(int(reader)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_running(int(reader))
