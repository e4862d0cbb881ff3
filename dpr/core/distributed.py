"""The group of processes, the few operations on it, and tensors that are sharded over ranks. With one
process each operation is the identity or free, so callers have no special case.

Only tensors travel between ranks. Collectives have no names: the n-th of one rank meets the n-th of every
other, whatever they are. So all ranks must start the same ones in the same order; a rank that skips one, or
raises before it, leaves the others waiting until the group's timeout. That is why nothing here is called
inside an ``if`` that ranks may answer differently, and why a failure of one rank is passed on to all
(``on_main``).

Sharded tensors are torch's DTensors, told by their methods: importing their class takes a second, which jobs on
whole tensors would spend for nothing. Plain tensors pass unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import record_function

from dpr.core import lost_ranks
from dpr.core.errors import ConfigError, DprError
from dpr.core.machine import launched

_BUCKET_SIZE = 1 << 23

# torch 2.13 renamed both: the old names warn there, the new ones are absent before.
_all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's ``rank`` of ``world_size``, and its ``local_rank`` on its node."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @property
    def is_main(self) -> bool:
        return self.rank == 0


def current_ranks() -> Ranks:
    """Returns the ranks of the initialised process group, or of a single process."""
    if not (dist.is_available() and dist.is_initialized()):
        return Ranks()
    return Ranks(dist.get_rank(), dist.get_world_size(), launched("LOCAL_RANK", dist.get_rank()))


def require_ranks() -> None:
    """Raises ConfigError if a launcher (srun, mpirun) has started the program several times without ranks;
    each process would train alone."""
    # A batch script of Slurm is task 0, too, but no step.
    slurm = "SLURM_NTASKS" if launched("SLURM_PROCID") else "SLURM_STEP_NUM_TASKS"
    for names in (f"SLURM_PROCID {slurm}", "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE", "PMI_RANK PMI_SIZE"):
        number, count = names.split()
        if "RANK" not in os.environ and number in os.environ and (tasks := launched(count)) > 1:
            raise ConfigError(
                f"this is one of {tasks} tasks ({count}={tasks}), but RANK is not set, so each would train alone;"
                f" start one task with torchrun in it, or unset {number} to run as one process"
            )


@contextmanager
def process_group(device_type: str, *, timeout_s: float = 300.0) -> Iterator[Ranks]:
    """Joins the group that a launcher (torchrun) announced in the environment, if there is one; leaves it at
    the end of the block.

    NCCL for CUDA, gloo for CPU. The timeout bounds how long a hung rank goes unnoticed. A scheduler's only
    rank needs no address.

    Raises:
        ConfigError: the launcher's variables are not numbers, contradict each other, or do not state where
        the ranks meet.
        LostRankError: in place of torch's error in the block, when another rank has died or hangs.
    """
    rank = launched("RANK")
    world_size = launched("WORLD_SIZE", 1)
    for name in ("LOCAL_RANK", "MASTER_PORT"):
        launched(name)
    found = f"the environment has RANK={rank} and WORLD_SIZE={os.environ.get('WORLD_SIZE', '(none)')}"
    way_out = "start with torchrun, or unset RANK and WORLD_SIZE to run as one process"
    if rank >= world_size:
        raise ConfigError(f"{found}, but ranks are counted from 0; {way_out}")
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield Ranks()
        return
    if missing := [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]:
        if world_size > 1:
            raise ConfigError(
                f"{found}, but no {' and no '.join(missing)}, which say where the ranks meet; {way_out}"
            )
        yield Ranks()
        return
    backend = "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"
    with lost_ranks.named("while starting"), lost_ranks.opened_sockets():
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    try:
        with lost_ranks.named():
            yield current_ranks()
    finally:
        _left.append(dist.group.WORLD)
        dist.destroy_process_group()


_left: list[Any] = []
"""Groups that were left; none is freed. Freeing a gloo group waits for its threads without releasing the GIL,
which one of them may need to release a tensor of the last collective. A model in DDP would free its group
when it is freed itself."""


def resolve_device(name: str | None, *, local_rank: int = 0) -> torch.device:
    """Returns the device of this rank: ``name`` if given, else this rank's GPU, else the CPU. A GPU becomes
    this process's current one.

    Raises:
        ConfigError: there is no such device.
    """
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise ConfigError(f"device={name} is not a device; use cpu, cuda or cuda:N") from None
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        try:
            torch.zeros(1, device=device).tolist()
        except (RuntimeError, AssertionError):
            own = "cuda or cpu" if torch.cuda.is_available() else "cpu"
            raise ConfigError(
                f"device={name}, but this installation of torch cannot compute on it here; use device={own}"
            ) from None
        return device
    if not torch.cuda.is_available():
        raise ConfigError(
            f"device={name}, but this installation of torch sees no CUDA device; use device=cpu"
        )
    index = local_rank if device.index is None else device.index
    count = torch.cuda.device_count()
    if index >= count:
        raise ConfigError(
            f"GPU {index} was requested, but this machine has {count}; start at most {count} processes here, or use"
            " device=cuda:0"
        )
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)  # otherwise code that names no device would use GPU 0 on every rank
    return device


class _Transfer:
    """The pending collective of a gather, first of forward, then of backward, with the tensor that receives
    its result."""

    pending: tuple[dist.Work, Tensor] | None = None

    def finish(self) -> Tensor:
        assert self.pending is not None
        work, rows = self.pending
        # The handle refers to the tensor, the tensor to its graph, and the graph to this object: kept, they
        # would never be freed.
        self.pending = None
        with record_function("dpr/gather"):
            # with NCCL the current stream waits, not the host; with gloo the host waits for the rows
            work.wait()
        return rows


class _Start(torch.autograd.Function):
    """Starts the all-gather. Its backward runs last and waits for the sum of the gradients."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, transfer: _Transfer) -> Tensor:
        ctx.transfer = transfer
        rows = torch.empty(
            local.shape[0] * dist.get_world_size(), *local.shape[1:], dtype=local.dtype, device=local.device
        )
        transfer.pending = _all_gather_single(rows, local.contiguous(), async_op=True), rows
        return rows

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.transfer.finish(), None


class _Finish(torch.autograd.Function):
    """Waits for the rows. Its backward runs first and starts summing the gradients over ranks."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, transfer: _Transfer) -> Tensor:
        ctx.transfer = transfer
        transfer.finish()
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        grad = grads[0].contiguous()
        mine = torch.empty(
            grad.shape[0] // dist.get_world_size(), *grad.shape[1:], dtype=grad.dtype, device=grad.device
        )
        ctx.transfer.pending = _reduce_scatter_single(mine, grad, async_op=True), mine
        return grad, None  # nothing reads it: returned so that it lives until the sums have arrived


def start_gather(local: Tensor) -> Callable[[], Tensor]:
    """Starts ``gather_rows`` and returns a function that waits for the rows; call it once. Whatever is
    computed before that call overlaps with the transfer.

    Backward overlaps too. Autograd runs the ready node that was created last, so it starts the reduce-scatter
    (``_Finish``), goes through what was computed in between, and only then asks for the result (``_Start``).
    """
    if current_ranks().world_size == 1:
        return lambda: local
    transfer = _Transfer()
    return partial(_Finish.apply, _Start.apply(local, transfer), transfer)


def gather_rows(local: Tensor) -> Tensor:
    """Joins the rows of all ranks in rank order: (n, ...) -> (W*n, ...); ``n`` must be equal on all ranks.

    Differentiable: backward sums the gradient over ranks and returns this rank's rows.
    """
    return start_gather(local)()


def gather_uneven_rows(local: Tensor) -> Tensor:
    """Joins rows as ``gather_rows`` does, for different numbers of rows on each rank (validation). Not
    differentiable."""
    if current_ranks().world_size == 1:
        return local
    # Two collectives, in this order on every rank; ``tolist`` makes the host wait for the device, which
    # validation can afford.
    counts = gather_rows(torch.tensor([local.shape[0]], device=local.device)).tolist()
    longest = max(counts)
    padding = torch.zeros(longest - local.shape[0], *local.shape[1:], dtype=local.dtype, device=local.device)
    gathered = gather_rows(torch.cat([local.detach(), padding]))
    return torch.cat([gathered[rank * longest : rank * longest + count] for rank, count in enumerate(counts)])


def sum_over_ranks(values: Tensor) -> Tensor:
    """Returns the elementwise sum over ranks, in a new tensor."""
    total = values.detach().clone()
    if current_ranks().world_size > 1:
        dist.all_reduce(total)
    return total


def average_gradients(parameters: Iterable[Tensor], *, by_rows: Sequence[Tensor] = ()) -> None:
    """Replaces each gradient by its mean over ranks; a missing gradient becomes zeros first.

    Gradients travel ``_BUCKET_SIZE`` elements at a time. Those of the parameters ``by_rows`` are sparse; only
    rows that any rank has are sent. All ranks must call it with the same parameters.
    """
    for table in by_rows:
        table.grad = _average_rows(table)
    sparse = set(map(id, by_rows))
    trained = [
        parameter for parameter in parameters if parameter.requires_grad and id(parameter) not in sparse
    ]
    for parameter in trained:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    gradients = [parameter.grad for parameter in trained if parameter.grad is not None]
    world_size = current_ranks().world_size
    if world_size == 1:
        return
    # Buckets follow from the shapes alone, so that every rank makes the same ones; that is why missing
    # gradients were filled in above.
    bucket: list[Tensor] = []
    for index, gradient in enumerate(gradients):
        bucket.append(gradient)
        is_full = sum(part.numel() for part in bucket) >= _BUCKET_SIZE
        follows = gradients[index + 1] if index + 1 < len(gradients) else None
        if is_full or follows is None or follows.dtype != gradient.dtype:
            flat = torch.cat([part.reshape(-1) for part in bucket])
            dist.all_reduce(flat)
            flat /= world_size
            for part, mean in zip(bucket, flat.split([part.numel() for part in bucket]), strict=True):
                part.copy_(mean.view_as(part))
            bucket = []


@torch.no_grad()
def _average_rows(table: Tensor) -> Tensor:
    """Returns the mean over ranks of a gradient by rows, coalesced: rows in order, each once."""
    none = torch.zeros(1, 0, dtype=torch.int64, device=table.device), table.new_zeros(0, *table.shape[1:])
    own = _coalesced(
        torch.sparse_coo_tensor(*none, table.shape, check_invariants=False)
        if table.grad is None
        else table.grad
    )
    world_size = current_ranks().world_size
    if world_size == 1:
        return own
    rows = torch.unique(gather_uneven_rows(own.indices()[0]))
    sums = table.new_zeros(len(rows), *table.shape[1:])
    sums[torch.searchsorted(rows, own.indices()[0])] = own.values()
    dist.all_reduce(sums)
    return torch.sparse_coo_tensor(
        rows[None], sums / world_size, table.shape, check_invariants=False, is_coalesced=True
    )


def _coalesced(gradient: Tensor) -> Tensor:
    """Returns the gradient coalesced, without a copy if its rows are already in order and each occurs once.
    Autograd loses the flag for that when it accumulates."""
    rows = gradient._indices()
    values = gradient._values()
    if gradient.is_coalesced() or not bool((rows[0].diff() > 0).all()):
        return gradient.coalesce()
    return torch.sparse_coo_tensor(rows, values, gradient.shape, check_invariants=False, is_coalesced=True)


@torch.no_grad()
def copy_from_main(tensors: Iterable[Tensor]) -> None:
    """Gives every rank the values of rank 0, in place."""
    if current_ranks().world_size > 1:
        for tensor in tensors:
            dist.broadcast(tensor.data, 0)


def largest_of_each(values: Sequence[int]) -> list[int]:
    """Returns the largest value over ranks of each of these 64-bit integers, on every rank. The integers
    travel between CPUs, so that no rank waits for a GPU."""
    if current_ranks().world_size == 1:
        return list(values)
    tensor = torch.tensor(values, dtype=torch.int64)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tensor.tolist()


def largest_over_ranks(value: int) -> int:
    """Returns the largest of all ranks' 64-bit integers, on every rank (see ``largest_of_each``)."""
    return largest_of_each([value])[0]


def from_main(value: int) -> int:
    """Returns rank 0's value of a 64-bit integer, on every rank."""
    if current_ranks().world_size == 1:
        return value
    tensor = torch.tensor(value, dtype=torch.int64)
    dist.broadcast(tensor, 0)
    return int(tensor)


def on_main(action: Callable[[], None]) -> None:
    """Runs ``action`` on rank 0 while the others wait. If it fails, every rank raises, so that none waits
    forever.

    Raises:
        DprError: with the message and exit code of the error; rank 0 raises the error itself.
    """
    ranks = current_ranks()
    if ranks.world_size == 1:
        action()
        return
    failure: Exception | None = None
    if ranks.is_main:
        try:
            action()
        except Exception as error:
            failure = error  # raised below, once the others know: raised here it would leave them waiting
    message = f"rank 0 stopped: {failure}".encode() if failure else b""
    length = from_main(len(message))
    if not length:
        return
    # From here on all ranks raise, after the same two collectives.
    code = from_main(getattr(failure, "exit_code", 1))
    text = torch.tensor(list(message) if ranks.is_main else [0] * length, dtype=torch.uint8)
    dist.broadcast(text, 0)
    if failure is not None:
        raise failure
    raise DprError(bytes(text.tolist()).decode("utf-8", "replace"), exit_code=code)


def barrier() -> None:
    """Waits for all ranks. It is an all-reduce on the CPU, so that it means the same for gloo and NCCL."""
    largest_over_ranks(0)


def is_sharded(tensor: Tensor) -> bool:
    """True for a DTensor: each rank holds a part or, for a single number, a copy."""
    return hasattr(tensor, "full_tensor")


def local_shard(tensor: Any) -> Tensor:
    """Returns this rank's part of a tensor, in the same memory; gradients pass through."""
    part: Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return part


def full_tensor(tensor: Any) -> Tensor:
    """Returns the values of all ranks. All ranks must call it together if the tensor is sharded."""
    values: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor
    return values


@torch.no_grad()
def placed_like(values: Tensor, tensor: Any) -> Tensor:
    """Returns ``values``, which every rank holds whole, on the device of ``tensor`` and split as it is.
    Nothing is sent between ranks."""
    if not is_sharded(tensor) or is_sharded(values):
        return values.to(tensor.device)
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(values, tensor.device_mesh, tensor.placements, src_data_rank=None)


@torch.no_grad()
def full_on_main(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the whole tensors in rank 0's host memory, gathered one after the other, and an empty
    dictionary on other ranks. All ranks must call it together."""
    gathered = {}
    for name, tensor in tensors.items():
        values = full_tensor(tensor)
        if current_ranks().is_main:
            gathered[name] = values.detach().cpu()
    return gathered
