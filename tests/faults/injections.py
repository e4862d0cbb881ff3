"""Faults inside a run: each function patches the process that calls it, before the command starts in it."""

import contextlib
import errno
import hashlib
import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from dpr.core import distributed
from dpr.formats import checkpoints
from dpr.models.biencoder import BiEncoder
from dpr.storage import durable
from dpr.training import checkpointing, trainer
from dpr.training.bi_encoder_trainer import BiEncoderTrainer
from dpr.training.step import DirectStep
from tests.helpers.users import bound_by_permissions


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def kill_all(*_: Any) -> None:
    """SIGKILL for every process of the run, at this very moment: they share a process group."""
    os.killpg(0, signal.SIGKILL)


def _at_call(number: int, action: Callable[..., None]) -> Callable[..., None]:
    """A function that calls ``action`` the ``number``-th time (from 1) it is called."""
    calls = [0]

    def count(*arguments: Any) -> None:
        calls[0] += 1
        if calls[0] == number:
            action(*arguments)

    return count


def _nothing(*_: Any) -> None:
    pass


def _around(
    owner: Any,
    name: str,
    *,
    before: Callable[..., None] = _nothing,
    after: Callable[..., None] = _nothing,
    when: Callable[..., bool] = lambda *_: True,
) -> None:
    """Lets something happen at every call of ``owner``.``name`` whose arguments ``when`` accepts."""
    real = getattr(owner, name)

    def replaced(*arguments: Any, **options: Any) -> Any:
        is_due = when(*arguments)
        if is_due:
            before(*arguments)
        result = real(*arguments, **options)
        if is_due:
            after(*arguments)
        return result

    setattr(owner, name, replaced)


def _is_checkpoint(*paths: Any) -> bool:
    return ".step" in Path(paths[-1]).name and not Path(paths[-1]).name.startswith(".")


def kill_while_saving(point: str, save: int) -> None:
    """Kills the run in its ``save``-th save, at a named point of it."""
    kill = _at_call(save, kill_all)
    if point == "before the temporary folder":
        _around(checkpointing, "durable_folder", before=kill, when=_is_checkpoint)
    elif point == "in the middle of a file":

        def cut(folder: Path, *_: Any) -> None:
            weights = folder / checkpoints.MODEL_FILE
            os.truncate(weights, weights.stat().st_size // 2)
            kill_all()

        is_last = lambda folder, name, *_: name == checkpoints.OPTIMIZER_FILE
        _around(checkpoints, "write_tensors", after=_at_call(save, cut), when=is_last)
    elif point == "before the manifest":
        _around(durable, "write_manifest", before=kill, when=lambda folder, *_: ".step" in folder.name)
    elif point == "before the rename":
        _around(os, "rename", before=kill, when=_is_checkpoint)
    elif point == "after the rename":
        _around(os, "rename", after=kill, when=_is_checkpoint)
    elif point == "while pruning":
        kill_while_pruning(save)
    else:
        raise ValueError(point)


def kill_while_pruning(removal: int) -> None:
    """Kills the run when half the files of the ``removal``-th checkpoint it prunes are deleted."""

    def is_checkpoint(folder: Any, *_: Any) -> bool:
        return ".step" in Path(folder).name and any(Path(folder).rglob("*.safetensors"))

    def half_of_it(folder: Any, *_: Any) -> None:
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        for file in files[: len(files) // 2]:
            file.unlink()
        kill_all()

    _around(shutil, "rmtree", before=_at_call(removal, half_of_it), when=is_checkpoint)


def at_step(step: int, on_rank: int, what: str) -> None:
    """One rank dies, hangs or raises in the forward pass of update ``step`` (from 1)."""
    if rank() == on_rank:
        _count_updates()
        is_due = lambda *_: len(_updates) + 1 == step
        _around(DirectStep, "__call__", before=_failure(on_rank, what), when=is_due)


def at_call(of: str, number: int, on_rank: int, what: str) -> None:
    """One rank dies or hangs when it gathers vectors, validates or saves for the ``number``-th time (from 1)."""
    owner, name = {
        "gather": (distributed, "_all_gather_single"),
        "validation": (trainer, "run_validations"),
        "save": (checkpointing.CheckpointFolder, "save"),
    }[of]
    if rank() == on_rank:
        _around(owner, name, before=_at_call(number, _failure(on_rank, what)))


def _failure(on_rank: int, what: str) -> Callable[..., None]:
    def act(*_: Any) -> None:
        print(f"rank {on_rank} {what}", flush=True)
        if what == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "hangs":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif what == "raises":
            raise ValueError("broken on purpose")

    return act


_updates: list[BiEncoderTrainer] = []
"""The trainer, once for every update that it has made."""


def _count_updates() -> None:
    _around(BiEncoderTrainer, "update", after=lambda trainer, *_: _updates.append(trainer))


def not_a_number(first: int, steps: int, on_rank: int, value: str = "nan") -> None:
    """Makes the vectors of one rank NaN or infinite in ``steps`` updates from number ``first`` (from 1) on."""
    if rank() != on_rank:
        return
    _count_updates()
    forward = BiEncoder.forward

    def spoilt(self: BiEncoder, *arguments: Any, **options: Any) -> Any:
        vectors = forward(self, *arguments, **options)
        if torch.is_grad_enabled() and first <= len(_updates) + 1 < first + steps:
            return vectors._replace(questions=vectors.questions * float(value))
        return vectors

    BiEncoder.forward = spoilt  # type: ignore[assignment]


def tell_weights() -> None:
    """Prints a hash of this rank's weights when training ends, however it ends."""
    real = BiEncoderTrainer.train

    def train(self: BiEncoderTrainer) -> Any:
        try:
            return real(self)
        finally:
            digest = hashlib.sha256()
            for name, tensor in sorted(self.model.state_dict().items()):
                digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
            print("weights", digest.hexdigest(), flush=True)

    BiEncoderTrainer.train = train  # type: ignore[assignment]


def tell_times() -> None:
    """Prints when training ends how long it took, and its saves."""
    begun, taken = list[float](), list[float]()

    def begin(*_: Any) -> None:
        begun.append(time.perf_counter())

    def end(*_: Any) -> None:
        taken.append(time.perf_counter() - begun.pop())

    def tell(*_: Any) -> None:
        end()
        *saves, whole = taken
        print(f"times: {whole:.2f} s, of which {len(saves)} saves {sum(saves):.2f} s")

    _around(checkpointing.CheckpointFolder, "save", before=begin, after=end)
    _around(BiEncoderTrainer, "train", before=begin, after=tell)


def tell_rows() -> None:
    """Prints the rows of each batch as they are collated; wants ``train.num_workers=0``."""
    from dpr.data.loader import GlobalBatchDataset

    def tell(dataset: GlobalBatchDataset, key: tuple[int, int]) -> None:
        global_batch = dataset.iterator.global_batch(*key)
        print("rows", key[0], *[int(row) for row in global_batch.rows], flush=True)

    _around(GlobalBatchDataset, "__getitem__", before=tell)


def _in_saves(first: int, count: int, begin: Callable[[], None], end: Callable[[], None]) -> None:
    """Calls ``begin`` before each of ``count`` saves from number ``first`` on, and ``end`` after it."""
    real, calls = checkpointing.durable_folder, [0]

    @contextlib.contextmanager
    def faulty(*arguments: Any, **options: Any) -> Iterator[Any]:
        calls[0] += 1
        if first <= calls[0] < first + count:
            begin()
        try:
            with real(*arguments, **options) as folder:
                yield folder
        finally:
            end()

    checkpointing.durable_folder = faulty


def full_disk(from_save: int, saves: int) -> None:
    """Lets no file grow beyond 4 KB in ``saves`` saves, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size: int) -> Callable[[], None]:
        return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

    _in_saves(from_save, saves, limit(4096), limit(soft))


def failing_flush(from_save: int, saves: int) -> None:
    """Lets the disk report an error when the files of ``saves`` saves are flushed."""
    real = os.fsync

    def fsync(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    _in_saves(from_save, saves, lambda: setattr(os, "fsync", fsync), lambda: setattr(os, "fsync", real))


def late_start(seed: int) -> None:
    """This rank starts up to a second late, and its clock is up to an hour off."""
    generator = random.Random(f"{seed} {rank()}")
    time.sleep(generator.uniform(0, 1.0))
    shift, real = generator.uniform(-3600, 3600), time.time
    time.time = lambda: real() + shift


def slow_steps(seconds: float) -> None:
    """Makes every update take longer, and prints when it begins."""

    def linger(*_: Any) -> None:
        print("a slow update begins", flush=True)
        time.sleep(seconds)

    _around(BiEncoderTrainer, "update", before=linger)


def worker_dies(on_rank: int, batch: int, how: str) -> None:
    """The data-loader worker of a rank ends while it makes its ``batch``-th batch."""
    from dpr.data.loader import GlobalBatchDataset

    def die(*_: Any) -> None:
        if torch.utils.data.get_worker_info() is not None:
            if how == "exit":
                os._exit(7)
            os.kill(os.getpid(), signal.SIGKILL)

    if rank() == on_rank:
        _around(GlobalBatchDataset, "__getitem__", before=_at_call(batch, die))


def without_privileges() -> None:
    """The superuser may write anywhere; here the folder is prepared as another user."""
    real = checkpointing.CheckpointFolder.prepare

    def prepare(self: checkpointing.CheckpointFolder) -> None:
        with bound_by_permissions():
            real(self)

    checkpointing.CheckpointFolder.prepare = prepare  # type: ignore[method-assign]
