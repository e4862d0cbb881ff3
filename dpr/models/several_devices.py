"""Encoding on several devices, by a process for each of them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch

from dpr.core.batch import TokenBatch, plan_token_batches
from dpr.core.compute_settings import autocast
from dpr.core.errors import LostRankError, first_line
from dpr.core.stopping import end_with_parent
from dpr.models.fast.packed import CPU_FORWARD_TOKENS
from dpr.models.towers import Towers

_PARTS_PER_PROCESS = 8  # a slow device gets fewer of them
_LONGEST_PART = 16  # forward passes


class EncodingOptions(NamedTuple):
    """Options of ``encode_batch``, and the precision; an empty one leaves autocast as it is."""

    encoder_type: str
    batch_tokens: int
    max_sequences: int
    precision: str

    def vectors(
        self, model: Towers, tokens: TokenBatch, on_batch: Callable[[int, int], None] | None
    ) -> torch.Tensor:
        """Returns the vectors (N, D) float32 of ``tokens`` on the model's device."""
        with autocast(model.device, self.precision) if self.precision else nullcontext():
            vectors = model.encode_batch(
                tokens,
                encoder_type=self.encoder_type,
                batch_tokens=self.batch_tokens,
                max_sequences=self.max_sequences,
                on_batch=on_batch,
            )
        return vectors.float()


def encode_on_devices(
    model: Towers,
    load: Callable[..., Towers],
    tokens: TokenBatch,
    devices: Sequence[str | torch.device],
    options: EncodingOptions,
    on_batch: Callable[[int, int], None],
) -> torch.Tensor:
    """Returns vectors as ``options.vectors`` does, computed by a process for each of ``devices``, which may
    name a device several times. The processes ``load`` the model from a temporary folder. They have ended when this
    function returns or raises.

    Raises:
        LostRankError: a process failed or was killed, for example because its device has too little memory.
    """
    names = [str(torch.device(each)) for each in devices]
    # Parts consist of whole forward passes, so every text is encoded together with the same others as on a
    # single device.
    options = options._replace(max_sequences=options.max_sequences or max(len(tokens), 1))
    is_small = model.tower(options.encoder_type).runs_in_streams
    budget = min(options.batch_tokens, CPU_FORWARD_TOKENS) if is_small else options.batch_tokens
    batches = plan_token_batches(tokens.lengths.numpy(), budget, options.max_sequences)
    size = min(max(len(batches) // (_PARTS_PER_PROCESS * len(names)), 1), _LONGEST_PART)
    parts = [np.concatenate(batches[start : start + size]) for start in range(0, len(batches), size)]
    names = names[: len(parts)]

    result = np.empty((len(tokens), model.dimension), np.float32)
    threads = max(torch.get_num_threads() // max(names.count("cpu"), 1), 1)
    dtype = next(model.parameters()).dtype
    context = get_context("spawn")  # threads of libraries do not survive a fork
    processes: list[BaseProcess] = []
    running: dict[Any, np.ndarray] = {}
    with TemporaryDirectory() as folder:
        file = Path(folder, "model")
        model.save(file)
        opened = partial(load, file, options=model.options)
        try:
            for name in names:
                here, there = context.Pipe()
                given = (there, opened, name, dtype, threads, options)
                process = context.Process(target=_serve, args=given, daemon=True)
                with _started_apart():
                    process.start()
                there.close()
                running[here] = parts.pop(0)
                processes.append(process)
            for connection, rows in running.items():
                _send(connection, tokens, rows)
            while running:
                ready: list[Any] = wait([*running])
                for connection in ready:
                    rows = running.pop(connection)
                    try:
                        answer = connection.recv()
                    except (EOFError, ConnectionError):
                        answer = "a process was killed, possibly because memory ran out"
                    if isinstance(answer, str):
                        raise LostRankError(f"encoding failed: {answer}")
                    result[rows] = answer
                    on_batch(len(rows), int(tokens.lengths[rows].sum()))
                    if parts:
                        running[connection] = parts.pop(0)
                        _send(connection, tokens, running[connection])
        finally:
            for each in processes:
                each.kill()
            for each in processes:
                each.join()
    return torch.from_numpy(result)


def _send(connection: Connection, tokens: TokenBatch, rows: np.ndarray) -> None:
    """Sends sequences as arrays; tensors would need room in shared memory. A process that has ended is
    noticed when its answer is read."""
    batch = tokens.select(torch.from_numpy(rows))
    with suppress(ConnectionError):
        connection.send((batch.tokens.numpy(), batch.lengths.numpy(), batch.position.numpy()))


def _serve(
    connection: Connection,
    opened: Callable[..., Towers],
    device: str,
    dtype: torch.dtype,
    threads: int,
    options: EncodingOptions,
) -> None:
    """Answers every batch of tokens by its vectors, until the process that started this one has ended."""
    end_with_parent()
    torch.set_num_threads(threads)
    try:
        model = opened(device).to(dtype)
        while True:
            tokens = TokenBatch(*map(torch.from_numpy, connection.recv()))
            connection.send(options.vectors(model, tokens, None).cpu().numpy())
    except Exception as error:
        with suppress(ConnectionError):  # the other process has ended
            connection.send(f"{device}: {type(error).__name__}: {first_line(error)}")


@contextmanager
def _started_apart() -> Iterator[None]:
    """Makes processes that are started in the block leave Ctrl-C to this one, which ends them, and keeps them
    from running the user's script again."""
    resource_tracker.ensure_running()  # otherwise the first process starts it, which ends the block of signals
    script = sys.modules["__main__"]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
