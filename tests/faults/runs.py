"""Starting, watching and ending runs of the real command, and comparing what they leave."""

import contextlib
import hashlib
import itertools
import json
import os
import re
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpr.formats import checkpoints, run_folders
from tests.helpers.patience import patient
from tests.helpers.processes import Served
from tests.helpers.tiny import training_folder

REPOSITORY = Path(__file__).resolve().parents[2]
NAME = "dpr_biencoder"
LAST_STEP = 12
SAVE_EVERY = 2
CASE_LIMIT_S = 60.0
RANK_TIMEOUT_S = round(patient(20 / 3))
"""Twenty seconds on an idle machine, so that a slow disk is not a lost rank."""

SETTINGS = (
    "encoder.pretrained=false encoder.sequence_length=24 encoder.dropout=0.1 train.global_batch_size=8"
    " train.num_train_epochs=2 train.learning_rate=1e-3 train.warmup_steps=3 train.eval_every_steps=6"
    f" train.save_every_steps={SAVE_EVERY} train.log_batch_step=1 rank_timeout_s={RANK_TIMEOUT_S}"
)
Injection = tuple[str, dict[str, Any]]


def arguments(workplace: Path, output_dir: Path, *overrides: str) -> list[str]:
    """Command line of a run: of 48 questions, 12 updates in two epochs, a checkpoint every second."""
    files = [f"{name}_datasets=[{workplace / name}.json]" for name in ("train", "dev")]
    files += [f"output_dir={output_dir}", f"encoder.pretrained_model_cfg={workplace / 'encoder'}"]
    return [*files, *SETTINGS.split(), *overrides]


def environment(workplace: Path) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": "1",
        "DPR_CACHE": str(workplace / "cache"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(REPOSITORY),
    }


@dataclass
class Run:
    """The processes of one start of the command."""

    server: Served
    pids: list[int]
    log: Path
    codes: dict[int, int] = field(default_factory=dict)

    def poll(self) -> list[int] | None:
        """Returns exit codes by rank (minus the signal's number after a signal), None while any rank runs."""
        if len(self.codes) < len(self.pids):
            answer = self.server.ask({"do": "poll", "pids": self.pids})
            self.codes = {pid: code for pid, code in answer.items() if code is not None}
        return [self.codes[pid] for pid in self.pids] if len(self.codes) == len(self.pids) else None

    def wait(self, timeout_s: float = CASE_LIMIT_S) -> list[int]:
        """Exit codes; a run that does not end is killed and fails the test."""
        deadline = time.monotonic() + patient(timeout_s)
        while (codes := self.poll()) is None:
            if time.monotonic() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pids[0], signal.SIGUSR2)
                time.sleep(1.0)
                self.kill()
                raise AssertionError(f"still running after {timeout_s:.0f} s:\n{self.text}")
            time.sleep(0.01)
        return codes

    def signal(self, number: int, *, ranks: Sequence[int] | None = None) -> None:
        """Sends a signal to some or all ranks (not to their data-loader workers)."""
        for rank, pid in enumerate(self.pids):
            if ranks is None or rank in ranks:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def kill(self) -> None:
        """SIGKILL for everything the run has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pids[0], signal.SIGKILL)
        while self.poll() is None:
            time.sleep(0.005)

    def wait_for(self, pattern: str, timeout_s: float = CASE_LIMIT_S) -> None:
        """Waits until the log has a line that matches."""
        deadline = time.monotonic() + patient(timeout_s)
        while not re.search(pattern, self.text):
            assert self.poll() is None, f"ended before {pattern!r} was seen:\n{self.text}"
            assert time.monotonic() < deadline, f"no {pattern!r} in:\n{self.text}"
            time.sleep(0.01)

    @property
    def text(self) -> str:
        """What all ranks have printed."""
        return "".join(self.rank_text(rank) for rank in range(len(self.pids)))

    def rank_text(self, rank: int) -> str:
        file = Path(f"{self.log}.{rank}")
        return file.read_text(errors="replace") if file.exists() else ""


class Workshop:
    """One folder of data and the runs made with it."""

    def __init__(self, folder: Path, server: Served, *, train: int = 48, dev: int = 6) -> None:
        self.folder, self.server = training_folder(folder, train=train, dev=dev), server
        self._runs = 0

    def start(
        self, output_dir: Path, *overrides: str, ranks: int = 2, injections: Sequence[Injection] = ()
    ) -> Run:
        """Starts the command on ``ranks`` processes that form a group (alone without one for 1)."""
        self._runs += 1
        log = self.folder / f"log-{self._runs}"
        request = {
            "do": "start",
            "ranks": ranks,
            "arguments": arguments(self.folder, output_dir, *overrides),
            "environment": environment(self.folder),
            "injections": list(injections),
            "log": str(log),
            "port": free_port() if ranks > 1 else 0,
        }
        pids = self.server.ask(request)
        return Run(self.server, pids, log)

    def run(self, output_dir: Path, *overrides: str, **options: Any) -> Run:
        """Starts the command and waits for its end."""
        run = self.start(output_dir, *overrides, **options)
        run.wait()
        return run

    def finish(self, output_dir: Path, *overrides: str, **options: Any) -> Run:
        """Runs the command, which must end well."""
        run = self.run(output_dir, *overrides, **options)
        assert set(run.wait()) == {0}, run.text
        return run

    def finished_hash(self, output_dir: Path, *overrides: str, **options: Any) -> str:
        """Runs the command, which must end well, and returns what it ends with."""
        self.finish(output_dir, *overrides, **options)
        return final_hash(output_dir)


_ports = itertools.cycle(range(20000 + os.getpid() % 100 * 100, 20100 + os.getpid() % 100 * 100))


def free_port() -> int:
    """Returns a port below those that the system gives to connections; another one at every call."""
    for port in itertools.islice(_ports, 100):
        with socket.socket() as candidate:
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                candidate.bind(("127.0.0.1", port))
                return port
    raise AssertionError("no free port")


def saved_steps(output_dir: Path) -> list[int]:
    """Steps of the checkpoints in a run's folder, newest first."""
    return [int(folder.name.rpartition("step")[2]) for folder in run_folders.checkpoint_folders(output_dir)]


def logged_values(output_dir: Path, name: str) -> dict[int, float]:
    """Returns a metric of a run by step."""
    lines = [json.loads(line) for line in (output_dir / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line[name] for line in lines if name in line}


def state_hash(folder: Path, *, best: bool = True) -> str:
    """Returns a hash of a checkpoint's weights, optimizer and progress (without which one is the ``best`` for False)."""
    digest = hashlib.sha256()
    for file in (checkpoints.MODEL_FILE, checkpoints.OPTIMIZER_FILE):
        for name, tensor in sorted(checkpoints.read_tensors(folder, file).items()):
            digest.update(f"{file} {name} {tensor.dtype}".encode() + tensor.numpy().tobytes())
    progress = json.loads((folder / checkpoints.STATE_FILE).read_text())["progress"]
    kept = {key: value for key, value in progress.items() if best or not key.startswith("best_")}
    digest.update(json.dumps(kept, sort_keys=True).encode())
    return digest.hexdigest()


def final_hash(output_dir: Path) -> str:
    """``state_hash`` of the last checkpoint of a finished run, with the metrics it reports."""
    newest = run_folders.checkpoint_folders(output_dir)[0]
    return (
        f"{newest.name} {state_hash(newest)}"
        f" {hashlib.sha256((output_dir / 'metrics.json').read_bytes()).hexdigest()}"
    )


def all_files(folder: Path) -> dict[str, bytes]:
    """Every file with its content, and every folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in sorted(folder.rglob("*"))
    }
