import io
import json
import os
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

from dpr.core.errors import InputError
from dpr.formats import packed_ids, vector_shards
from dpr.formats.packed_ids import PackedIds, pack_ids
from dpr.formats.vector_shards import DTYPES, VectorShard, VectorShardWriter, decode, encode, open_shards
from dpr.indexer.exact import ExactIndex
from dpr.storage import checksums
from dpr.storage.durable import MANIFEST, read_manifest, verify_folder, write_manifest

METADATA: dict[str, Any] = {
    "model_fingerprint": "m",
    "settings_fingerprint": "s",
    "encoder_type": "ctx",
    "corpus": "c.tsv",
}
IDS = ["1", "wiki:22", "\u00e9"]


def vectors(rows: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, 4)).astype(np.float32)


def writer(target: Path, *, dtype: str = "float32", **metadata: Any) -> VectorShardWriter:
    return VectorShardWriter(target, metadata={**METADATA, **metadata}, dimension=4, dtype=dtype)


def shard(target: Path, *, ids: list[list[str]] | None = None, **metadata: Any) -> Path:
    made = writer(target, **metadata)
    for number, chunk in enumerate(ids if ids is not None else [IDS, ["4"]]):
        made.write_chunk(number, chunk, vectors(len(chunk), number))
    made.finish(None if ids is None else len(ids))
    return target


def flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_vectors_written_are_read_back_memory_mapped(tmp_path: Path, dtype: str) -> None:
    made = writer(tmp_path / "X_0", dtype=dtype)
    made.write_chunk(1, ["4"], vectors(1, 1))  # in any order
    made.write_chunk(0, IDS, vectors())
    assert not made.is_complete()
    made.finish(2)
    opened = VectorShard(tmp_path / "X_0")
    assert (opened.num_vectors, opened.dimension, opened.metadata["corpus"]) == (4, 4, "c.tsv")
    chunks = list(opened.chunks())
    assert [[key.decode() for key in ids.tolist()] for ids, _ in chunks] == [IDS, ["4"]]
    assert [ids.dtype.kind for ids, _ in chunks] == ["S", "S"]
    assert all(isinstance(part, np.memmap) and part.dtype == dtype for _, part in chunks)
    np.testing.assert_array_equal(chunks[0][1], vectors().astype(dtype))
    assert verify_folder(tmp_path / "X_0") == []
    assert sorted(path.name for path in (tmp_path / "X_0").iterdir()) == [
        *("ids-00000.npy", "ids-00001.npy", "manifest.json", "vectors-00000.npy", "vectors-00001.npy")
    ]


def test_every_damage_is_refused(tmp_path: Path) -> None:
    original = shard(tmp_path / "good")
    for number, name in enumerate(sorted(path.name for path in original.iterdir())):
        for kind in ("flip", "cut", "remove"):
            target = tmp_path / f"{kind}{number}"
            shutil.copytree(original, target)
            if kind == "flip" and name != "manifest.json":
                flip_last_byte(target / name)
            elif kind == "remove":
                (target / name).unlink()
            else:
                os.truncate(target / name, (target / name).stat().st_size - 3)
            with pytest.raises(InputError, match=str(target)):
                VectorShard(target)


@pytest.mark.parametrize(("name", "value"), [("num_vectors", "4"), ("dimension", True), ("others", [1])])
def test_wrong_metadata_under_a_right_hash_is_one_sentence(tmp_path: Path, name: str, value: object) -> None:
    shard(tmp_path / "X_0")
    manifest = read_manifest(tmp_path / "X_0")
    write_manifest(tmp_path / "X_0", manifest["metadata"] | {name: value}, files=manifest["files"])
    with pytest.raises(InputError, match=r"manifest.json: the manifest is not that of a vector shard"):
        open_shards([tmp_path / "X_*"])


@pytest.mark.parametrize(("dtype", "large", "small"), [("float16", 1e6, 1e-9), ("int8", np.inf, 1e-41)])
def test_bad_vectors_are_refused_with_ids(tmp_path: Path, dtype: str, large: float, small: float) -> None:
    made = writer(tmp_path / "X_0", dtype=dtype)
    cases = (np.nan, "not finite"), (large, f"not finite as {dtype}"), (0.0, "all zero"), (small, "all zero")
    for value, message in cases:
        bad = vectors(9)
        bad[[2, 5]] = value
        with pytest.raises(InputError, match=f"2 of 9 vectors are {message}.*first ids: k2, k5"):
            made.write_chunk(0, [f"k{row}" for row in range(9)], bad)
    assert made.finished_steps() == set()


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a", "b", "a"], "'a' occurs twice"),
        (["a", "", "b"], "empty"),
        (["a", "b\0", "c"], "NUL"),
        (["a", "b" * 1025, "c"], "1024"),
    ],
)
def test_bad_ids_are_refused(tmp_path: Path, ids: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        writer(tmp_path / "X_0").write_chunk(0, ids, vectors())


def test_empty_shard_is_a_shard(tmp_path: Path) -> None:
    shard(tmp_path / "X_0", ids=[["a"]], shard_id=0, num_shards=2)
    shard(tmp_path / "X_1", ids=[], shard_id=1, num_shards=2)
    assert [opened.num_vectors for opened in open_shards([tmp_path / "X_*"])] == [1, 0]
    with pytest.raises(InputError, match="1 chunks are missing"):
        writer(tmp_path / "Y_0").finish()


def test_shards_come_in_natural_order(tmp_path: Path) -> None:
    for number in (10, 2, 1):
        shard(tmp_path / f"X_{number}", ids=[[str(number)]])
    assert [opened.path.name for opened in open_shards([str(tmp_path / "X_*")])] == ["X_1", "X_2", "X_10"]
    found = open_shards([tmp_path / "X_2", str(tmp_path / "X_[12]")])
    assert [opened.path.name for opened in found] == ["X_2", "X_1"]


def test_missing_shards_are_listed(tmp_path: Path) -> None:
    for number in (0, 2):
        shard(tmp_path / f"X_{number}", ids=[[str(number)]], shard_id=number, num_shards=5)
    with pytest.raises(InputError, match="of 5 shards, these are missing: 1, 3, 4"):
        open_shards([str(tmp_path / "X_*")])
    shard(tmp_path / "other", ids=[["o"]], shard_id=0, num_shards=1, corpus="other.tsv")
    for number in (1, 3, 4):
        shard(tmp_path / f"X_{number}", ids=[[str(number)]], shard_id=number, num_shards=5)
    assert len(open_shards([str(tmp_path / "X_*"), tmp_path / "other"])) == 6  # each corpus has its own count


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("model_fingerprint", "another model"),
        ("settings_fingerprint", "other tokenizer or encoder settings"),
        ("encoder_type", "the other tower"),
    ],
)
def test_vectors_of_different_origin_are_not_mixed(tmp_path: Path, key: str, message: str) -> None:
    shard(tmp_path / "X_0", ids=[["a"]])
    shard(tmp_path / "X_1", ids=[["b"]], **{key: "different"})
    with pytest.raises(InputError, match=f"X_1: these vectors are made with {message} than .*X_0"):
        open_shards([str(tmp_path / "X_*")])


def test_an_id_in_two_shards_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard(tmp_path / "X_0", ids=[["a", "bb"], ["c"]])
    shard(tmp_path / "X_1", ids=[["d", "a-longer-one", "bb"]])
    with pytest.raises(InputError, match="'bb' occurs twice"):
        open_shards([str(tmp_path / "X_*")])
    monkeypatch.setattr("dpr.formats.id_hashes.hash_ids", lambda ids: np.zeros(len(ids), dtype=np.uint64))
    assert len(open_shards([tmp_path / "X_0"])) == 1  # equal hashes alone are no duplicates


def test_paths_that_hold_no_vectors_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"X_\*: no vectors found"):
        open_shards([str(tmp_path / "X_*")])
    (tmp_path / "pickle_0").write_bytes(b"\x80\x04")
    with pytest.raises(InputError, match="is a file, expected a folder"):
        open_shards([tmp_path / "pickle_0"])
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=r"no manifest\.json"):
        open_shards([tmp_path / "folder"])
    writer(tmp_path / "X_0").write_chunk(0, IDS, vectors())
    with pytest.raises(InputError, match="unfinished; run the embedding command again"):
        open_shards([str(tmp_path / "X_*")])


def replaced(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    metadata = json.loads((folder / MANIFEST).read_text())["metadata"]
    (folder / MANIFEST).unlink()
    write_manifest(folder, metadata)
    return folder


def npy(descr: str, shape: tuple[int, ...], data: bytes = b"", *, fortran_order: bool = False) -> bytes:
    """A file whose header claims whatever is asked."""
    file = io.BytesIO()
    header = {"descr": descr, "fortran_order": fortran_order, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + data


IDS_FILES = {
    "many rows": npy("|S8", (10**11,), bytes(64)),
    "many rows of nothing": npy("|S0", (10**11,)),
    "numbers": npy("<i8", (3,), bytes(24)),
    "wide rows": npy(f"|S{1 << 33}", (4,), bytes(64)),
    "long ids": npy("|S1025", (3,), b"x" * 3 * 1025),
    "objects": npy("|O", (3,), b"\x80\x04]."),
    "two axes": npy("|S8", (3, 1), bytes(24)),
    "a broken header": npy("|S8", (3,), bytes(24)).replace(b"'", b"(", 1),
    "nothing": b"",
}


@pytest.mark.parametrize("case", IDS_FILES)
def test_ids_that_claim_too_much_are_refused_before_memory_is_taken(tmp_path: Path, case: str) -> None:
    folder = replaced(shard(tmp_path / "X_0"), "ids-00000.npy", IDS_FILES[case])
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=r"ids-00000\.npy"):
            open_shards([folder])
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("sizes", [(3, 3, 2), (8,), (1, 4, 1, 2)])
def test_rows_are_found_in_chunks_of_any_size(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    ids = [[f"{number}-{row}" for row in range(size)] for number, size in enumerate(sizes)]
    opened = VectorShard(shard(tmp_path / "X_0", ids=ids))
    expected = [key for chunk in ids for key in chunk]
    every = np.concatenate([part for _, part in opened.chunks()])
    for wanted in (np.arange(8), np.array([0, 7]), np.array([2, 3, 5])):
        found, values = opened.take(wanted)
        assert [key.decode() for key in found.tolist()] == [expected[row] for row in wanted]
        np.testing.assert_array_equal(values, every[wanted])


RAGGED = [["a", "b" * 900, "c"], ["\u00e9" * 3, "d"]]


def test_ids_of_different_lengths_take_the_room_they_need(tmp_path: Path) -> None:
    folder = shard(tmp_path / "X_0", ids=RAGGED)
    opened = VectorShard(folder)
    assert [key.decode() for ids, _ in opened.chunks() for key in ids.tolist()] == RAGGED[0] + RAGGED[1]
    assert [key.decode() for ids in opened.id_chunks() for key in ids.tolist()] == RAGGED[0] + RAGGED[1]
    assert (
        np.load(folder / "ids-00000.npy").tobytes()
        == np.array([16, 17, 917, 918], "<u4").tobytes() + "".join(RAGGED[0]).encode()
    )
    assert np.load(folder / "ids-00001.npy").dtype == "S6"  # smaller than offsets
    for start, stop in ((0, 1), (1, 3), (2, 3), (3, 3)):
        assert PackedIds.mapped(folder / "ids-00000.npy")[start:stop].tolist() == [
            key.encode() for key in RAGGED[0][start:stop]
        ]
    found = opened.take(np.array([1, 2, 4]))[0].tolist()
    assert [key.decode() for key in found] == [*RAGGED[0][1:], RAGGED[1][1]]


@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize("value", [0, 15, 2**32 - 4])
def test_packed_ids_that_point_anywhere_else_are_refused(tmp_path: Path, place: int, value: int) -> None:
    folder = shard(tmp_path / "X_0", ids=[RAGGED[0]])
    content = bytearray((folder / "ids-00000.npy").read_bytes())
    content[128 + 4 * place : 132 + 4 * place] = value.to_bytes(4, "little")
    with pytest.raises(InputError, match=r"ids-00000\.npy|ids and"):
        list(VectorShard(replaced(folder, "ids-00000.npy", bytes(content))).chunks())


def test_ids_beyond_32_bits_are_of_fixed_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [key.encode() for key in [*RAGGED[0], *RAGGED[1], *IDS]]
    monkeypatch.setattr(packed_ids, "_NARROW", 64)
    parts = [np.array(part, dtype=bytes) for part in (ids[:2], [], ids[2:])]
    np.save(tmp_path / "ids.npy", pack_ids(lambda: parts))
    assert np.load(tmp_path / "ids.npy").tolist() == ids
    found = PackedIds.mapped(tmp_path / "ids.npy")
    assert found[np.array([7, 1, 1])].tolist() == [ids[7], ids[1], ids[1]]


def test_ids_are_proved_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    proofs: list[int] = []
    real = vector_shards.first_duplicate
    monkeypatch.setattr(
        vector_shards, "first_duplicate", lambda sources: proofs.append(len(sources)) or real(sources)
    )
    shard(tmp_path / "X_0", ids=[["a", "b"]])
    shard(tmp_path / "Y_0", ids=[["e"]])
    for _ in range(2):
        open_shards([tmp_path / "X_0", tmp_path / "Y_0"])
    assert proofs == [2]
    shard(tmp_path / "Z_0", ids=[["b", "z"]])
    for _ in range(2):
        with pytest.raises(InputError, match="'b' occurs twice"):
            open_shards([tmp_path / "X_0", tmp_path / "Z_0"])


def test_a_verified_shard_is_read_again_if_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    folder, read = shard(tmp_path / "X_0"), []
    real = checksums.verify_folder
    monkeypatch.setattr(checksums, "verify_folder", lambda path: read.append(path) or real(path))
    VectorShard(folder)
    VectorShard(folder)
    assert len(read) == 2  # files so young may change and keep their times
    monkeypatch.setattr(checksums, "_SETTLED_NS", -(10**9))
    for _ in range(3):
        VectorShard(folder)
    assert len(read) == 3
    damaged = folder / "vectors-00001.npy"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    with open(damaged, "r+b") as file:
        file.write(content)
    for _ in range(2):
        with pytest.raises(InputError, match=r"vectors-00001\.npy: content has changed"):
            VectorShard(folder)
    (tmp_path / "cache").rename(tmp_path / "old")
    (tmp_path / "cache").write_text("not a folder")
    content[-1] ^= 1
    damaged.write_bytes(content)
    VectorShard(folder)


_NUMBERS = st.floats(-(2.0**60), 2.0**60, width=32, allow_nan=False)


@st.composite
def _pairs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    dimension = draw(st.integers(1, 70))
    vectors = draw(stn.arrays(np.float32, (draw(st.integers(1, 4)), dimension), elements=_NUMBERS))
    return vectors, draw(stn.arrays(np.float32, dimension, elements=_NUMBERS))


def _read(vectors: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    arrays, bad, zero = encode(vectors, dtype)
    kept = ~(bad | zero)
    return vectors[kept].astype(np.float64), decode(arrays)[kept].astype(np.float64)


@given(_pairs())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_an_int8_dot_product_is_within_the_documented_bound(pair: tuple[np.ndarray, np.ndarray]) -> None:
    vectors, read = _read(pair[0], "int8")
    query = pair[1].astype(np.float64)
    bound = np.abs(query).sum() * np.abs(vectors).max(axis=1, initial=0) / 253.9
    assert (np.abs(vectors @ query - read @ query) <= bound).all()


def test_codes_take_a_quarter_of_float32(tmp_path: Path) -> None:
    size = sum(
        path.stat().st_size
        for path in _shard(tmp_path / "v_0", "int8", rows=500, dimension=256).glob("[vs]*-*.npy")
    )
    assert 1 <= size / (500 * 256) < 1.1  # scales and file headers


def _shard(
    target: Path, dtype: str, *, rows: int = 500, dimension: int = 48, start: int = 0, **metadata: Any
) -> Path:
    rng = np.random.default_rng(start)
    writer = VectorShardWriter(
        target, metadata={"model_fingerprint": "m", **metadata}, dimension=dimension, dtype=dtype
    )
    for number, first in enumerate(range(start, start + rows, 100)):
        writer.write_chunk(
            number,
            [f"p{row}" for row in range(first, first + 100)],
            rng.standard_normal((100, dimension)).astype("f4"),
        )
    writer.finish()
    return target


@pytest.mark.parametrize("dtype", DTYPES)
def test_indexes_search_what_was_stored(tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpr.formats.vector_shards._DECODED_ROWS", 30)
    (shard,) = open_shards([_shard(tmp_path / "v_0", dtype)])
    ids, vectors = (np.concatenate(parts) for parts in zip(*shard.chunks(), strict=True))
    assert len(ids) == shard.num_vectors == 500
    queries = np.random.default_rng(9).standard_normal((7, 48)).astype("f4")
    expected = [
        [f"p{row}" for row in np.argsort(-line)[:5]] for line in queries.astype("f8") @ vectors.T.astype("f8")
    ]
    assert ExactIndex([shard], block_rows=64).search(queries, 5)[1] == expected


def test_vectors_of_all_number_types_are_searched_together(tmp_path: Path) -> None:
    for place, dtype in enumerate(DTYPES):
        _shard(tmp_path / f"v_{dtype}", dtype, start=1000 * place, rows=100)
    assert len(open_shards([tmp_path / "v_*"])) == 3


@pytest.mark.parametrize(
    ("name", "array"),
    [("scales", np.ones((3, 1), "f4")), ("scales", np.ones(3)), ("vectors", np.ones((3, 48), "f4"))],
)
def test_arrays_of_another_shape_or_type_are_refused(tmp_path: Path, name: str, array: np.ndarray) -> None:
    target = _shard(tmp_path / "v_0", "int8", rows=100)
    np.save(target / f"{name}-00000.npy", array)
    with pytest.raises(InputError, match=rf"{name}-00000\.npy: holds float"):
        list(VectorShard(target, verify=False).chunks())
