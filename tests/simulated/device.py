"""A device that does not exist: torch computes its operations on the CPU and treats its tensors as an
accelerator's.

An operation on tensors of both devices raises, as on a GPU. Whatever would make the host wait for a GPU is
recorded: numbers that are read, copies that are not asynchronous, shapes that depend on values. An index on
the host, which a GPU would fetch and wait for, raises too.

torch has one place for such a device and never gives it back, so ``install`` is for processes of their own.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

NAME = "simulated"
PACKAGE = str(Path(__file__).resolve().parents[2] / "dpr") + "/"

# Operations whose results have as many elements as the values say.
SHAPED_BY_VALUES = {
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::unique_consecutive",
    "aten::_coalesce",
    "aten::bincount",
}
INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
# Those that autocast computes in half precision; all others take what they are given, as on a CPU.
IN_HALF_PRECISION = ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "scaled_dot_product_attention")
IS_READ = {"aten::_local_scalar_dense", "aten::equal"}

_waits: list[str] = []


def is_missing() -> str | None:
    """Why this torch cannot serve a device from Python; None if it can."""
    try:
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend  # noqa: F401
    except ImportError:
        return f"torch {torch.__version__} cannot serve a device from Python"
    return None


def waits() -> list[str]:
    """What has waited for the device since ``forget``: each time, the innermost function of ``dpr`` that
    asked."""
    return list(_waits)


def forget() -> None:
    """Starts the record again."""
    _waits.clear()


def _note() -> None:
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            name, _, _ = frame.f_code.co_qualname.partition(".<locals>")
            _waits.append(f"{frame.f_code.co_filename.removeprefix(PACKAGE)}:{name}")
            return
        frame = frame.f_back
    _waits.append("elsewhere")


class SimulatedTensor(Tensor):
    """A tensor of the device, which keeps its numbers in ``on_host``."""

    on_host: Tensor

    @staticmethod
    def __new__(cls, on_host: Tensor) -> "SimulatedTensor":
        is_strided = on_host.layout == torch.strided
        with torch.inference_mode(False):  # else no view of a tensor from outside such a block could be made
            made: Any = torch.Tensor._make_wrapper_subclass(
                cls,
                on_host.size(),
                strides=on_host.stride() if is_strided else None,
                storage_offset=on_host.storage_offset() if is_strided else None,
                dtype=on_host.dtype,
                layout=on_host.layout,
                device=torch.device(NAME, 0),
            )
        made.on_host = on_host
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _computed(func, args, kwargs or {})

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"{NAME}: {self.on_host!r}"

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.on_host.untyped_storage()

    def tolist(self) -> Any:
        return self.detach().cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError(f"can't convert a tensor of {NAME} to numpy; use Tensor.cpu() first")


def _computed(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name, _, _ = str(function.name()).partition(".")
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    own = [tensor for tensor in tensors if isinstance(tensor, SimulatedTensor)]
    is_copy = name in ("aten::copy_", "aten::_to_copy", "aten::_copy_from")
    foreign = [tensor for tensor in tensors if not isinstance(tensor, SimulatedTensor) and tensor.dim()]
    if own and foreign and not is_copy:
        raise RuntimeError(f"{name}: tensors of {NAME} and tensors of the CPU")

    to_host = "device" in kwargs and torch.device(kwargs["device"] or NAME).type == "cpu"
    if is_copy:
        crosses = to_host or len(own) < len(tensors)
        is_asynchronous = kwargs.get("non_blocking") or args[2:] == (True,)
        waits = crosses and not is_asynchronous
    elif name in INDEXING:
        indices = args[1]
        waits = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)
    else:
        waits = name in SHAPED_BY_VALUES or name in IS_READ or _is_unsized_repeat(name, args, kwargs)
    if waits:
        _note()

    own_by_numbers = {id(tensor.on_host): tensor for tensor in own}

    def on_host(leaf: Any) -> Any:
        if isinstance(leaf, SimulatedTensor):
            return leaf.on_host
        if isinstance(leaf, torch.device) and leaf.type == NAME:
            return torch.device("cpu")
        return leaf

    def on_device(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        # an operation in place returns the tensor that it was given
        own_already = own_by_numbers.get(id(leaf))
        return SimulatedTensor(leaf) if own_already is None else own_already

    kwargs = {key: value for key, value in kwargs.items() if key != "pin_memory"}
    host_args, host_kwargs = tree_map(on_host, (args, kwargs))
    result = function(*host_args, **host_kwargs)
    if to_host or (name == "aten::copy_" and not isinstance(args[0], SimulatedTensor)):
        return result
    return tree_map(on_device, result)


def _is_unsized_repeat(name: str, args: Any, kwargs: dict[str, Any]) -> bool:
    return name == "aten::repeat_interleave" and kwargs.get("output_size") is None


def install() -> torch.device:
    """Makes the device known to torch, for the rest of the process."""
    from torch.utils import _device, backend_registration

    class Module(backend_registration._DummyBackendModule):
        def get_amp_supported_dtype(self) -> list[torch.dtype]:
            return [torch.bfloat16, torch.float16]

        def manual_seed(self, seed: int) -> None:
            pass

        def get_rng_state(self, device: Any = None) -> Tensor:
            return torch.get_rng_state()

        def set_rng_state(self, state: Tensor, device: Any = None) -> None:
            torch.set_rng_state(state)

    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=Module())
    library = torch.library.Library("_", "IMPL")
    library.fallback(lambda function, *args, **kwargs: _computed(function, args, kwargs), "PrivateUse1")
    library.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    of_torch = torch.library.Library("aten", "IMPL")
    for operation in IN_HALF_PRECISION:
        packet = getattr(torch.ops.aten, operation)
        of_torch.impl(operation, _in_half_precision(packet.default), "AutocastPrivateUse1")
    globals()["_libraries"] = library, of_torch  # they end with the objects
    _device._device_constructors()  # a block with a default device knows those of torch
    for owner, function in ((torch, "tensor"), (torch, "as_tensor"), (Tensor, "new_tensor")):
        setattr(owner, function, _made_on_host(getattr(owner, function)))
    return torch.device(NAME, 0)


def _in_half_precision(function: Any) -> Callable[..., Any]:
    """An operation as autocast calls it."""

    def called(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype(NAME)

        def cast(leaf: Any) -> Any:
            is_cast = isinstance(leaf, Tensor) and leaf.device.type == NAME and leaf.dtype == torch.float32
            return leaf.to(dtype) if is_cast else leaf

        with torch.autocast(NAME, enabled=False):
            cast_args, cast_kwargs = tree_map(cast, (args, kwargs))
            return function(*cast_args, **cast_kwargs)

    return called


def _made_on_host(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A constructor from numbers, which torch would run in C++ where no Python serves the device: it makes
    the tensor on the host and copies it."""

    def made(*args: Any, device: Any = None, **options: Any) -> Tensor:
        if isinstance(args[0], SimulatedTensor):
            if make.__name__ != "new_tensor":
                return args[0].to(device=device, **options)
            device = device or args[0].device
            options.setdefault("dtype", args[0].dtype)
            args = (torch.empty(0), *args[1:])
        made_on_host = make(*args, **options)
        return made_on_host if device is None else made_on_host.to(device)

    return made
