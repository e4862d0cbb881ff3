"""Original checkpoints: read exactly, and nothing that a file can say is run."""

import io
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dpr.core.errors import CheckpointError
from dpr.formats.original.checkpoints import read_dpr_checkpoint
from dpr.formats.original.inert_pickle import StructureReader
from tests.helpers.original import flat_params, nested_params, original_extras, write_original

Params = Callable[..., dict[str, Any]]


def some_weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    base = torch.randn(6, 4)
    return {
        "question_model.a": base[1:3],
        "ctx_model.a": base.T,
        "ctx_model.b": torch.randn(3).half(),
        "ctx_model.c": torch.tensor(5),
    }


@pytest.mark.parametrize("as_zip", [True, False], ids=["zip", "sequence"])
@pytest.mark.parametrize("params", [flat_params, nested_params])
def test_weights_and_settings_are_read_bit_for_bit(tmp_path: Path, params: Params, as_zip: bool) -> None:
    weights = some_weights()
    file = write_original(
        tmp_path / "x.cp", original_extras(weights, 4), params("bert-tiny", projection_dim=3), as_zip=as_zip
    )
    read = read_dpr_checkpoint(file)
    assert read.weights.keys() == weights.keys()  # poolers and position numbers are gone
    assert all(
        torch.equal(read.weights[name], tensor) and read.weights[name].dtype == tensor.dtype
        for name, tensor in weights.items()
    )
    assert (read.pretrained_model_cfg, read.do_lower_case, read.sequence_length) == ("bert-tiny", True, 24)
    assert read.settings["projection_dim"] == 3


class Calls:
    """Pickles as a call of ``function`` with ``arguments``."""

    def __init__(self, function: Any, *arguments: Any, state: Any = None) -> None:
        self.reduced = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self) -> Any:
        return self.reduced


def evil_objects(witness: Path) -> dict[str, Any]:
    touch = f"touch {witness}"
    return {
        "system": Calls(os.system, touch),
        "nested": {"model_dict": {"a": [({"x": Calls(os.system, touch)},)]}},
        "state": Calls(dict, state={"x": Calls(os.system, touch)}),
        "eval": Calls(eval, f"open({str(witness)!r}, 'w')"),
        "exec": Calls(exec, f"open({str(witness)!r}, 'w')"),
        "getattr": Calls(getattr, Calls(__import__, "os"), "system"),
        "open": Calls(open, str(witness), "w"),
        "torch_load": Calls(torch.load, str(witness)),
        "bytearray": Calls(bytearray, 1 << 40),
        "in_params": {"model_dict": {}, "encoder_params": {"encoder": Calls(os.system, touch)}},
    }


EVIL = sorted(evil_objects(Path("x")))


@pytest.mark.parametrize("name", EVIL)
@pytest.mark.parametrize("as_zip", [True, False], ids=["zip", "sequence"])
def test_nothing_is_run(tmp_path: Path, name: str, as_zip: bool) -> None:
    witness = tmp_path / "witness"
    for protocol in (0, 2, 5):
        stream = pickle.dumps(evil_objects(witness)[name], protocol=protocol)
        with pytest.raises(CheckpointError, match="nothing in it was run"):
            read_dpr_checkpoint(packed(tmp_path, stream, as_zip=as_zip))
        assert not witness.exists()


def packed(
    folder: Path, stream: bytes, *, as_zip: bool = True, data: bytes = b"", packing: int = zipfile.ZIP_STORED
) -> Path:
    file = folder / "evil.cp"
    if as_zip:
        with zipfile.ZipFile(file, "w", packing) as archive:
            archive.writestr("archive/data.pkl", stream)
            archive.writestr("archive/data/0", data)
    else:
        system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}
        head, tail = (0x1950A86A20F9469CFC6C, 1001, system), pickle.dumps(["0"], protocol=2)
        file.write_bytes(b"".join(pickle.dumps(item, protocol=2) for item in head) + stream + tail + data)
    return file


STREAMS = {
    "stack_global": b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.",
    "memoized name": b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94h\x00h\x01\x93.",
    "recalled callable": b"\x80\x02cposix\nsystem\nq\x00h\x00U\x04true\x85R.",
    "text as callable": b"\x80\x02X\x02\x00\x00\x00os)R.",
    "result as callable": b"\x80\x02ccollections\nOrderedDict\n)R)R.",
    "instance": b"(S'true'\nios\nsystem\n.",
    "object": b"(cos\nsystem\nS'true'\no.",
    "extension": b"\x80\x02\x82\x01.",
    "outside buffer": b"\x80\x05\x97.",
    "persistent text": b"Phello\n.",
    "persistent module": b"\x80\x02X\x02\x00\x00\x00osQ.",
    "huge text": b"\x80\x02X\xff\xff\xff\xff.",
    "huge bytes": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "huge integer": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "negative integer size": b"\x80\x02\x8b\xff\xff\xff\xff.",
    "long decimal": b"I" + b"9" * 60000 + b"\n.",
    "far memo": b"\x80\x02r\xff\xff\xff\xff.",
    "missing memo": b"\x80\x02j\xff\xff\xff\xff.",
    "negative memo": b"Np-5\n.",
    "no mark": b"\x80\x02e.",
    "mark as value": b"(.",
    "mark in tuple": b"((\x85.",
    "memoized mark": b"(q\x00h\x00.",
    "empty": b"",
    "no end": b"\x80\x02]",
    "two values": b"NN.",
    "unknown protocol": b"\x80\x09N.",
    "tuple in a tuple as key": b"})\x85Ns.",
    "tuples that share each other as key": b"}K\x00\x85" + b"q\x00h\x00\x86" * 60 + b"Ns.",
    "tuples that share each other in a set": b"\x8f(K\x00\x85" + b"q\x00h\x00\x86" * 60 + b"\x90.",
    "long tuple as key": b"}(" + b"K\x00" * 17 + b"tNs.",
    "list as key": b"}]Ns.",
    "state of a class": b"comegaconf\nx\nN}X\x02\x00\x00\x00ofK\x01s\x86b.",
    "state of a number": b"K\x01}b.",
    "dotted way out": b"ctyping\nsys.modules\n.",
    "private way out": b"comegaconf.os\nsystem\n)R.",
}


@pytest.mark.parametrize("name", STREAMS)
def test_hand_made_streams_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError):
        read_dpr_checkpoint(packed(tmp_path, STREAMS[name]))


def test_allowed_names_are_never_looked_up() -> None:
    """Even a name that passes is not imported: it becomes a class that keeps what it is given."""
    record = StructureReader(
        io.BytesIO(b"\x80\x02cos\nabort\nK\x01\x85R."), lambda name: True, lambda value: None
    ).load()
    assert (record.of, record.arguments) == ("os.abort", (1,))


def test_deep_nesting_and_cycles_do_no_harm(tmp_path: Path) -> None:
    for stream in (
        b"(" + b"]" * 100000 + b"a" * 99999 + b".",
        b")" * 1 + b"\x85" * 200000 + b".",
        b"]q\x00h\x00a.",
    ):
        with pytest.raises(CheckpointError):
            read_dpr_checkpoint(packed(tmp_path, stream))


def tensor_stream(
    *, offset: int = 0, shape: tuple[int, ...] = (2,), stride: tuple[int, ...] = (1,), count: int = 2
) -> bytes:

    def number(value: int) -> bytes:
        return b"\x8a\x08" + struct.pack("<q", value)

    def numbers(values: tuple[int, ...]) -> bytes:
        return b"(" + b"".join(number(value) for value in values) + b"t"

    storage = (
        b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu"
        + number(count)
        + b"tQ"
    )
    tensor = (
        b"ctorch._utils\n_rebuild_tensor_v2\n("
        + storage
        + number(offset)
        + numbers(shape)
        + numbers(stride)
        + b"\x89}tR"
    )
    return (
        b"\x80\x02}(X\x0a\x00\x00\x00model_dict}X\x01\x00\x00\x00a"
        + tensor
        + b"sX\x0e\x00\x00\x00encoder_params}u."
    )


def test_the_hand_made_tensor_reads(tmp_path: Path) -> None:
    read = read_dpr_checkpoint(packed(tmp_path, tensor_stream(), data=struct.pack("<2f", 1, 2)))
    assert read.weights["a"].tolist() == [1, 2]


@pytest.mark.parametrize(
    "claims",
    [
        {"offset": 1},
        {"offset": -1},
        {"shape": (3,)},
        {"shape": (1 << 40,), "stride": (0,)},
        {"shape": (-2,)},
        {"stride": (-1,)},
        {"stride": (5,)},
        {"count": 1 << 40},
        {"count": -2},
        {"shape": (2, 1)},
        {"shape": (1 << 62, 4), "stride": (0, 0)},
    ],
    ids=str,
)
def test_tensors_cannot_claim_more_than_their_data(tmp_path: Path, claims: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError):
        read_dpr_checkpoint(packed(tmp_path, tensor_stream(**claims), data=bytes(8)))


def test_compressed_archives_are_refused_before_they_grow(tmp_path: Path) -> None:
    file = packed(tmp_path, tensor_stream(count=1 << 22), data=bytes(1 << 24), packing=zipfile.ZIP_DEFLATED)
    with pytest.raises(CheckpointError, match="compressed"):
        read_dpr_checkpoint(file)


@pytest.mark.parametrize("as_zip", [True, False], ids=["zip", "sequence"])
def test_a_file_that_was_cut_is_refused_at_every_length(tmp_path: Path, as_zip: bool) -> None:
    whole = write_original(
        tmp_path / "x.cp", some_weights(), nested_params("bert-tiny"), as_zip=as_zip
    ).read_bytes()
    for length in range(0, len(whole) - 1, max(1, len(whole) // 30)):
        (tmp_path / "cut.cp").write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            read_dpr_checkpoint(tmp_path / "cut.cp")


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    torch.save({"model_dict": {}}, tmp_path / "x.cp")
    with pytest.raises(CheckpointError, match=r"x\.cp: has no encoder_params"):
        read_dpr_checkpoint(tmp_path / "x.cp")
    torch.save({"state_dict": {}}, tmp_path / "x.cp")
    with pytest.raises(CheckpointError, match="has no model_dict"):
        read_dpr_checkpoint(tmp_path / "x.cp")


@pytest.mark.parametrize("as_zip", [True, False], ids=["zip", "sequence"])
def test_dictionaries_that_share_each_other_are_walked_once(tmp_path: Path, as_zip: bool) -> None:
    shared: Any = 1
    for _ in range(60):
        shared = {"a": shared, "b": shared}
    stream = pickle.dumps(
        {"model_dict": {}, "encoder_params": {"encoder": shared, "projection_dim": shared, "x": shared}},
        protocol=2,
    )
    if as_zip:
        assert read_dpr_checkpoint(packed(tmp_path, stream)).settings == {}
    else:
        with pytest.raises(CheckpointError):
            read_dpr_checkpoint(packed(tmp_path, stream, as_zip=False))
