"""The original DPR's checkpoint files (``torch.save`` of one dictionary), read without running anything in
them, and written back.

    model_dict        weights: `question_model.` and `ctx_model.` + names of a Hugging Face BertModel,
                      `encode_proj.` with a projection
    encoder_params    2021: do_lower_case, encoder (an OmegaConf object that drags the run's whole
                      configuration along); 2020: one flat dict
    optimizer_dict, scheduler_dict, offset, epoch

Both containers of ``torch.save`` are read: the zip archive, and the plain sequence of pickles that came
before it. Tensors are looked up only when asked for, so the optimizer's state, twice the size of the weights,
is never loaded.
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from dpr.core.errors import CheckpointError
from dpr.formats.original.inert_pickle import MAX_STRUCTURE_BYTES, MalformedPickle, Record, StructureReader
from dpr.storage.durable import durable_file

if TYPE_CHECKING:
    from torch import Tensor

EXPECTED = "a checkpoint of the original DPR"
# Errors of zipfile and torch for damaged containers.
_DAMAGED = (
    zipfile.BadZipFile,
    ValueError,
    NotImplementedError,
    RuntimeError,
    EOFError,
    OverflowError,
    struct.error,
)
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_KINDS = "Double Float Half BFloat16 Long Int Short Char Byte Bool".split()
_TYPES = dict(
    zip(_KINDS, "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool".split(), strict=True)
)
_NAMES = re.compile(
    r"collections\.(OrderedDict|defaultdict)"
    r"|(builtins|__builtin__)\.(dict|list|tuple|set|frozenset|str|unicode|int|long|float|bool|bytes|object|type)"
    r"|(_operator|operator)\.getitem"
    rf"|torch\.(({'|'.join(_KINDS)})Storage|Size)|torch\._utils\.(_rebuild_tensor_v2|_rebuild_parameter)"
    r"|pathlib\.(PosixPath|PurePosixPath)|argparse\.Namespace"
    r"|(omegaconf|typing)(\.\w+)+"
)
"""Names that such a file may use. The settings of a run under Hydra are OmegaConf's objects."""


@dataclass(frozen=True)
class DprCheckpoint:
    """The contents of a file that are used: ``weights`` by the file's own names (without poolers and position
    numbers), and the configuration of the towers."""

    weights: dict[str, Tensor]
    pretrained_model_cfg: str | None
    do_lower_case: bool
    sequence_length: int = 256
    settings: dict[str, Any] = field(default_factory=dict)
    """Numbers and texts of ``encoder_params``, flat."""


@dataclass(frozen=True, slots=True)
class _Storage:
    key: str
    dtype: str
    count: int


def read_dpr_checkpoint(path: Path) -> DprCheckpoint:
    """Reads the weights and the encoder's settings.

    Raises:
        CheckpointError: the file is not such a checkpoint, is damaged, or names something that does not
        belong in one.
    """
    try:
        weights: dict[str, Tensor] = {}
        with path.open("rb") as file, _open_container(file, path.stat().st_size) as (root, storages):
            for name, value in _section(root, "model_dict").items():
                if not str(name).endswith("embeddings.position_ids") and ".pooler." not in str(name):
                    weights[name] = storages.tensor(value, name)
            params = _section(root, "encoder_params")
            params |= _dictionary(params.get("encoder")) or {}
        settings: dict[str, Any] = {}
        for key, value in params.items():
            plain = value.state.get("_val") if _is_node(value) else value
            if plain is None or isinstance(plain, str | int | float):
                settings[str(key)] = plain
        model = settings.get("pretrained_model_cfg")
        length = settings.get("sequence_length", 256)
        lower = settings.get("do_lower_case", True)
        if (
            not (model is None or isinstance(model, str))
            or type(length) is not int
            or not 3 <= length <= 1 << 20
        ):
            raise MalformedPickle(
                "pretrained_model_cfg in encoder_params is not a text, or sequence_length not a number from 3 to"
                " 1048576"
            )
        return DprCheckpoint(weights, model, lower if isinstance(lower, bool) else True, length, settings)
    except OSError as error:
        found = f"cannot be read ({error.strerror or error})"
        raise CheckpointError(found, file=path, expected=EXPECTED) from None
    except _DAMAGED as error:
        found = str(error) if isinstance(error, MalformedPickle) else f"damaged ({type(error).__name__})"
        raise CheckpointError(f"{found}; nothing in it was run", file=path, expected=EXPECTED) from None


def write_dpr_checkpoint(
    path: Path,
    weights: Mapping[str, Tensor],
    encoder_params: Mapping[str, Any],
    note: Mapping[str, Any] | None = None,
) -> None:
    """Writes a checkpoint that the original reads: plain dictionaries, numbers, texts and tensors only. Step
    and optimizer are fresh."""
    import torch

    state = {
        "model_dict": {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()},
        "optimizer_dict": {},
        "scheduler_dict": {},
        "offset": 0,
        "epoch": 0,
        "encoder_params": dict(encoder_params),
    }
    with durable_file(path, "wb", note=note) as file:
        torch.save(state, file)


def _section(root: Any, name: str) -> dict[Any, Any]:
    section = _dictionary((_dictionary(root) or {}).get(name))
    if section is None:
        raise MalformedPickle(f"has no {name}, or not as a dictionary")
    return section


def _dictionary(value: Any) -> dict[Any, Any] | None:
    """Returns a dictionary, or the content of an OmegaConf container or an argparse.Namespace; None for other
    values."""
    if _is_node(value):
        value = value.state.get("_content")
    elif isinstance(value, Record) and value.of == "argparse.Namespace":
        value = value.state
    return value if isinstance(value, dict) else None


def _is_node(value: Any) -> bool:
    return isinstance(value, Record) and value.of.startswith("omegaconf.") and isinstance(value.state, dict)


class _Storages:
    """Reads each storage once, with ``read`` (storage, bytes). Tensors of one storage share its memory, so
    that no file can ask for more than its own size."""

    def __init__(self, read: Callable[[_Storage, int], bytes]) -> None:
        self._read = read
        self._loaded: dict[str, Tensor] = {}

    def tensor(self, value: Any, name: Any) -> Tensor:
        import torch

        storage, offset, shape, stride = _tensor_parts(value, name)
        highest = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
        if (
            min(offset, *shape, *stride, storage.count) < 0
            or prod(shape) > storage.count
            or highest >= max(storage.count, 1)
        ):
            raise MalformedPickle(f"model_dict: {name} reaches beyond its data")
        if storage.key not in self._loaded:
            dtype = getattr(torch, storage.dtype)
            data = bytearray(self._read(storage, storage.count * dtype.itemsize))
            self._loaded[storage.key] = (
                torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
            )
        return self._loaded[storage.key].as_strided(shape, stride, offset)


def _tensor_parts(value: Any, name: Any) -> tuple[_Storage, int, tuple[int, ...], tuple[int, ...]]:
    """Returns data, offset, shape and stride."""
    if isinstance(value, Record) and value.of == "torch._utils._rebuild_parameter" and value.arguments:
        value = value.arguments[0]
    if (
        isinstance(name, str)
        and isinstance(value, Record)
        and value.of == "torch._utils._rebuild_tensor_v2"
        and len(value.arguments) >= 4
    ):
        storage, offset, shape, stride = value.arguments[:4]
        if isinstance(shape, Record) and shape.of == "torch.Size":
            shape = shape.arguments[0] if shape.arguments else ()
        if (
            isinstance(storage, _Storage)
            and isinstance(shape, tuple)
            and isinstance(stride, tuple)
            and len(shape) == len(stride) <= 8
            and all(type(number) is int for number in (offset, *shape, *stride))
        ):
            return storage, offset, shape, stride
    raise MalformedPickle(f"model_dict: {ascii(name)[:80]} is not a tensor")


@contextmanager
def _open_container(file: IO[bytes], size: int) -> Iterator[tuple[Any, _Storages]]:
    """Opens the dictionary in the file, and the storages of its tensors."""
    start = file.read(4)
    file.seek(0)
    if start != b"PK\x03\x04":
        yield _read_sequence(file, size)
        return
    with zipfile.ZipFile(file) as archive:
        members = [name for name in archive.namelist() if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(members) != 1:
            raise MalformedPickle("an archive without one data.pkl")
        prefix = members[0].removesuffix("data.pkl")
        order = f"{prefix}byteorder"
        if order in archive.namelist() and _member(archive, order, range(17)) != b"little":
            raise MalformedPickle("written on a big-endian machine")
        structure = _member(archive, members[0], range(MAX_STRUCTURE_BYTES + 1))
        yield (
            _reader(io.BytesIO(structure), {}).load(),
            _Storages(
                lambda storage, size: _member(archive, f"{prefix}data/{storage.key}", range(size, size + 1))
            ),
        )


def _member(archive: zipfile.ZipFile, name: str, sizes: range) -> bytes:
    if name not in archive.namelist():
        raise MalformedPickle(f"{name[-60:]} is missing")
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        raise MalformedPickle(f"{name[-60:]} is compressed")
    if info.file_size not in sizes:
        raise MalformedPickle(f"{name[-60:]} has {info.file_size} bytes, not {sizes[0]} to {sizes[-1]}")
    return archive.read(info)


def _read_sequence(file: IO[bytes], size: int) -> tuple[Any, _Storages]:
    """Reads the container before the zip archive: magic, version, machine, the dictionary, the keys of the
    data, then count and data of each."""
    head = io.BytesIO(file.read(MAX_STRUCTURE_BYTES))
    seen: dict[str, _Storage] = {}
    reader = _reader(head, seen)
    if reader.load() != _LEGACY_MAGIC or reader.load() != 1001:
        raise MalformedPickle("not made by torch.save")
    machine = reader.load()
    if not isinstance(machine, dict) or machine.get("little_endian") is not True:
        raise MalformedPickle("written on a big-endian machine")
    root = reader.load()
    keys = reader.load()
    if not isinstance(keys, list) or not all(isinstance(key, str) and key in seen for key in keys):
        raise MalformedPickle("the list of data is damaged")
    import torch

    places: dict[str, tuple[int, int]] = {}
    position = head.tell()
    for key in keys:
        file.seek(position)
        (count,) = struct.unpack("<q", file.read(8))
        end = position + 8 + count * getattr(torch, seen[key].dtype).itemsize
        if count < 0 or end > size:
            raise MalformedPickle("the file ends too early")
        places[key], position = (position + 8, count), end

    def read(storage: _Storage, size: int) -> bytes:
        start, available = places.get(storage.key, (0, -1))
        if available != storage.count:
            raise MalformedPickle(f"data {storage.key[:40]} is missing or of another size")
        file.seek(start)
        return file.read(size)

    return root, _Storages(read)


def _reader(stream: io.BytesIO, seen: dict[str, _Storage]) -> StructureReader:
    def reference(value: Any) -> _Storage:
        """Returns the storage of ('storage', type, key, device, count). Old files have a sixth member for
        views, which is None."""
        if (
            not isinstance(value, tuple)
            or len(value) not in (5, 6)
            or value[0] != "storage"
            or (len(value) == 6 and value[5] is not None)
        ):
            raise MalformedPickle("refers to something that is not the data of a tensor")
        _, kind, key, _, count = value[:5]
        name = kind.of if isinstance(kind, type) and issubclass(kind, Record) else ""
        dtype = _TYPES.get(name.removeprefix("torch.").removesuffix("Storage"))
        if dtype is None or not isinstance(key, str) or type(count) is not int:
            raise MalformedPickle("refers to data of an unknown kind")
        storage = _Storage(key, dtype, count)
        if seen.setdefault(key, storage) != storage:
            raise MalformedPickle("two tensors disagree about their data")
        return storage

    return StructureReader(stream, lambda name: _NAMES.fullmatch(name) is not None, reference)
