"""The original's embedding files: read exactly by their own structure, and by no other."""

import os
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpr.core.errors import InputError
from dpr.formats.original.vectors import PickledVectors

VECTORS = np.random.default_rng(0).standard_normal((1500, 6)).astype(np.float32)


def dumped(path: Path, value: Any, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_ids_and_vectors_are_read_bit_for_bit(tmp_path: Path, protocol: int) -> None:
    items = [(f"wiki:{row}", vector) for row, vector in enumerate(VECTORS)]
    read = PickledVectors(dumped(tmp_path / "x_0", items, protocol))
    assert (read.num_vectors, read.dimension) == (1500, 6)
    ((ids, vectors),) = read.chunks()
    assert ids.tolist() == [f"wiki:{row}".encode() for row in range(1500)]
    assert vectors.tobytes() == VECTORS.tobytes()


def test_names_of_older_numpy_are_known(tmp_path: Path) -> None:
    stream = pickle.dumps([("a", VECTORS[0])], protocol=3)
    assert b"numpy._core.multiarray" in stream
    (tmp_path / "x_0").write_bytes(stream.replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    assert PickledVectors(tmp_path / "x_0").vectors[0].tolist() == VECTORS[0].tolist()


class Evil:
    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.witness}",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_nothing_is_run(tmp_path: Path, protocol: int) -> None:
    witness = tmp_path / "witness"
    for value in (
        Evil(witness),
        [("a", Evil(witness))],
        [(Evil(witness), VECTORS[0])],
        np.array([Evil(witness)], dtype=object),
    ):
        with pytest.raises(InputError, match="nothing in it was run"):
            PickledVectors(dumped(tmp_path / "x_0", value, protocol))
    assert not witness.exists()


@pytest.mark.parametrize(
    "value",
    [
        [],
        [("a",)],
        [(None, VECTORS[0])],
        [("", VECTORS[0])],
        {},
        [("a", VECTORS[0].astype(np.float64))],
        [("a", VECTORS[:2])],
        [("a", VECTORS[0]), ("b", VECTORS[0][:5])],
        [("a", [1.0, 2.0])],
        [("a" * 1025, VECTORS[0])],
        [("a", VECTORS[0], {"b": 1})],
    ],
    ids=range(11),
)
def test_other_contents_are_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(InputError):
        PickledVectors(dumped(tmp_path / "x_0", value))


def test_a_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    whole = dumped(tmp_path / "x_0", [("a", VECTORS[0]), ("b", VECTORS[1])]).read_bytes()
    for length in range(0, len(whole), 3):
        (tmp_path / "x_0").write_bytes(whole[:length])
        with pytest.raises(InputError):
            PickledVectors(tmp_path / "x_0")


def test_a_vector_that_is_repeated_takes_no_more_memory_than_the_file_is_large(tmp_path: Path) -> None:
    file = dumped(tmp_path / "x_0", [("a", np.zeros(50_000, dtype=np.float32))] * 100_000)
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="more than the file"):
            PickledVectors(file)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


STREAMS = {
    "far memo": b"\x80\x02Nr\xff\xff\xff\x7f.",
    "huge bytes": b"\x80\x04\x8e\xff\xff\xff\xff\xff\x00\x00\x00.",
    "huge frame": b"\x80\x04\x95\xff\xff\xff\xff\xff\x00\x00\x00N.",
    "name without an end": b"\x80\x02\n" * 3 + b"cnumpy.dtype",
    "name of one line": b"\x80\x02cnumpy\n",
    "tuples within tuples as key": b"\x80\x02})q\x00" + b"2\x86" * 40 + b"Ns.",
    "state of a name": b"\x80\x02]cnumpy\ndtype\nN}X\x02\x00\x00\x00ofK\x01s\x86ba.",
    "state of a name, as a text": b"\x80\x02]cnumpy\ndtype\nX\x01\x00\x00\x00abK\x01\x86a.",
}


@pytest.mark.parametrize("name", STREAMS)
def test_hand_made_streams_are_refused_before_anything_grows(tmp_path: Path, name: str) -> None:
    (tmp_path / "x_0").write_bytes(STREAMS[name])
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="nothing in it was run"):
            PickledVectors(tmp_path / "x_0")
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()
