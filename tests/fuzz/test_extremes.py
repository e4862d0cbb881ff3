"""Files of unusual size, kind and name: read, or refused with one message, within bounded memory."""

import gzip
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dpr.core.errors import InputError
from dpr.formats.text_input import MAX_LINE_BYTES
from dpr.formats.training_sets import open_training_set
from tests.fuzz.subjects import SUBJECTS
from tests.fuzz.test_readers import fault_of, lay_out
from tests.helpers.examples import some
from tests.helpers.users import bound_by_permissions

WITH_LINES = sorted(key for key, subject in SUBJECTS.items() if subject.has_lines and key != "training array")
JSON_LINES = [name for name in WITH_LINES if "lines" in name]
# Not those that make notes of what they cannot read, nor the one whose absence means something else.
OPENED = sorted(set(SUBJECTS) - {"metrics lines", "manifest", "run.json"})


def refused(name: str, path: Path) -> str:
    """The message of a file that must be refused, and clearly."""
    subject = SUBJECTS[name]
    if name in ("training array", "training lines"):  # others set bad rows aside there
        subject = replace(
            subject, read=lambda path: open_training_set(path, name="t", cache_dir=path.parent / "cache")
        )
    assert fault_of(subject, path) is None
    with pytest.raises(InputError) as caught:
        subject.read(path)
    return str(caught.value)


@pytest.mark.parametrize("name", some(WITH_LINES, "training lines", "passages tsv"))
def test_a_line_of_30_mb_is_refused_within_bounded_memory(name: str, tmp_path: Path) -> None:
    whole = SUBJECTS[name].files()[SUBJECTS[name].target]
    is_json = whole[:1] in b"[{"
    data = (
        whole
        + (b'{"_id": "9", "question": "' if is_json else b"9\t")
        + b"x" * 30_000_000
        + (b'"}\n' if is_json else b"\n")
    )
    path = lay_out(SUBJECTS[name], tmp_path, data)
    del data
    tracemalloc.start()
    try:
        message = refused(name, path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert f"{MAX_LINE_BYTES // 2**20} MB" in message
    assert peak < 16 * MAX_LINE_BYTES


@pytest.mark.parametrize("depth", some([1_000, 10_000, 1_000_000], 10_000))
@pytest.mark.parametrize(
    "name", [*JSON_LINES, "metrics file", "search settings", "run.json", "encoder settings", "shard manifest"]
)
def test_nesting_without_end_is_refused(name: str, depth: int, tmp_path: Path) -> None:
    for opened, closed in ((b"[", b"]"), (b'{"a":', b"}")):
        path = lay_out(
            SUBJECTS[name],
            tmp_path,
            b'{"x": ' + opened * depth + b"1" * (opened != b"[") + closed * depth + b"}\n",
        )
        refused(name, path)


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _two_links(path: Path) -> None:
    (path.parent / "other").symlink_to(path)
    path.symlink_to(path.parent / "other")


PLACES: dict[str, Callable[[Path], None]] = {
    "a folder": Path.mkdir,
    "a link to itself": _loop,
    "a circle of links": _two_links,
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "an unreadable file": lambda path: path.chmod(0),
    "nothing": lambda path: None,
}


# Folders of sentence-transformers may lack them.
_ABSENT = ("_config.json", "config_sentence_transformers.json")
_OPTIONAL = tuple(key for key in OPENED if key.startswith("sentence-transformers ") and key.endswith(_ABSENT))


@pytest.mark.parametrize("name", OPENED)
def test_what_is_no_file_is_refused(name: str, tmp_path: Path) -> None:
    # imports what it needs while this user may
    SUBJECTS[name].read(lay_out(SUBJECTS[name], tmp_path / "whole"))
    tmp_path.chmod(0o755)
    for kind, place in PLACES.items():
        if name in _OPTIONAL and kind == "nothing":
            continue
        folder = tmp_path / kind
        path = lay_out(SUBJECTS[name], folder)
        if kind != "an unreadable file":
            path.unlink()
        place(path)
        with bound_by_permissions(folder):
            message = refused(name, path)
        assert kind != "an unreadable file" or "Permission denied" in message


@pytest.mark.parametrize("name", WITH_LINES)
def test_damaged_gzip_is_called_that(name: str, tmp_path: Path) -> None:
    whole = gzip.compress(SUBJECTS[name].files()[SUBJECTS[name].target] * 50, mtime=0)
    flipped = bytes([*whole[:-6], whole[-6] ^ 1, *whole[-5:]])  # the check sum
    for number, data in enumerate(
        (whole[: len(whole) // 2], whole[:-4], flipped, b"\x1f\x8b not gzip", b"\x1f\x8b")
    ):
        message = refused(name, lay_out(SUBJECTS[name], tmp_path / str(number), data))
        assert "gzip data" in message, data[:20]


NAMES = [
    "with a space",
    "ünï ✓ 漢字",
    "x" * 100,
    "[1] (2) {3}",
    "-dash",
    "semi;colon & co",
    "per%cent",
    "a=b",
    "quo'te\"s",
    "new\nline",
    "*?",
]


STRANGE = "/".join(NAMES)


@pytest.mark.parametrize(
    "folder", some([STRANGE, "/".join(["deep" * 25] * 25)], STRANGE), ids=lambda name: name[:6]
)
@pytest.mark.parametrize("name", sorted(set(SUBJECTS) - {"run.json"}))
def test_a_file_is_read_whatever_its_folder_is_called(name: str, folder: str, tmp_path: Path) -> None:
    SUBJECTS[name].read(lay_out(SUBJECTS[name], tmp_path / folder))


@pytest.mark.parametrize("stem", some(NAMES, "ünï ✓ 漢字", "new\nline"), ids=NAMES.index)
@pytest.mark.parametrize("name", [*WITH_LINES, "training gzip", "original flat zip", "original vectors"])
def test_a_file_is_read_whatever_it_is_called(name: str, stem: str, tmp_path: Path) -> None:
    path = lay_out(SUBJECTS[name], tmp_path)
    SUBJECTS[name].read(path.rename(path.with_name(stem + "".join(path.suffixes))))


_NPY = b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': %s}%s\n"
_SETTINGS = (
    b'{"format_version": 1, "pooling": "cls", "projection_dim": 0, "question_length": 0, "shared": true,'
    b' "sequence_length": %s}'
)

FOUND: dict[str, tuple[str, bytes]] = {
    "a grade of 3000 characters": ("qrels tsv", b"1\td1\t2\n1\td2\t" + b"[" * 3000),
    "a list as metric": (
        "metrics file",
        b'{"question_set": "t", "num_questions": 3, "metrics": {"accuracy@1": [[]]}}',
    ),
    "a metric without end": (
        "metrics file",
        b'{"question_set": "t", "num_questions": 3, "metrics": {"accuracy@1": 1' + b"0" * 400 + b"}}",
    ),
    "no question set": ("metrics file", b'{"num_questions": 3, "metrics": {"accuracy@1": 1}}'),
    "a list as number of vectors": (
        "shard manifest",
        b'{"schema": 1, "metadata": {"num_vectors": [], "dimension": 4}, "files": {}}',
    ),
    "infinitely many vectors": (
        "shard manifest",
        b'{"schema": 1, "metadata": {"num_vectors": 1e999, "dimension": 4}, "files": {}}',
    ),
    "an open bracket in a header": ("shard vectors", _NPY % (b"(3, 4", b" " * 58)),
    "an open text in a header": ("shard ids", _NPY % (b"('3, 4), ", b" " * 55)),
    "a run that is a text": ("run.json", b'"x"'),
    "a name that is too long": ("run.json", b'{"best_checkpoint": "%s"}' % (b"x" * 3000)),
    "settings that are a list": ("encoder settings", b"[null]"),
    "a list as length": ("checkpoint settings", _SETTINGS % b"[[]]"),
    "a length of 0": ("checkpoint settings", _SETTINGS % b"0"),
    "minus one head": (
        "checkpoint config",
        b'{"model_type": "bert", "vocab_size": 91, "hidden_size": 16, "num_attention_heads": -1}',
    ),
    "a tokenizer of another version": ("checkpoint tokenizer", b'{"version": "x"}'),
}


@pytest.mark.parametrize("case", FOUND)
def test_a_case_found_before_is_refused(case: str, tmp_path: Path) -> None:
    name, data = FOUND[case]
    subject = SUBJECTS[name]
    path = lay_out(subject, tmp_path, data)
    assert fault_of(subject, path) is None
    with pytest.raises(InputError):
        subject.read(path)


def test_a_step_without_end_is_a_damaged_line(tmp_path: Path) -> None:
    subject = SUBJECTS["metrics lines"]
    run = subject.read(
        lay_out(
            subject,
            tmp_path,
            b'{"step": 1, "train/loss": 2.0}\n{"step": 1' + b"0" * 400 + b', "train/loss": 2.0}\n',
        )
    )
    assert len(run.logs) == 1
    assert "1 lines" in run.notes[0]
