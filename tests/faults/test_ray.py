"""A real cluster of two nodes on this machine; nodes, workers and drivers are killed in mid-work."""

import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dpr.cli.main import main
from dpr.core.records import Passage
from dpr.formats.corpora import write_passages
from dpr.models.pooling import MeanPooling
from dpr.storage.durable import durable_folder
from tests.architecture.source_files import REPOSITORY
from tests.faults.conftest import Case
from tests.faults.runs import all_files
from tests.helpers.patience import patient
from tests.helpers.tiny import sentence, tiny_model

SHARDS, PASSAGES, CHUNK = 2, 100, 2
SMALL = {"object_store_memory": 80_000_000, "num_cpus": 1}
SOON = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": int(patient(700)),
    "health_check_failure_threshold": 3,
}
POOLING = f"{__name__}:GatedPooling"
GATE = "DPR_TESTS_GATE"
_passed = [0]


def pass_gate(*, free: int) -> None:
    """Does nothing ``free`` times; then signs in, and waits until the file ``open`` exists in the named folder."""
    _passed[0] += 1
    folder = Path(os.environ.get(GATE, os.devnull))
    if not folder.is_dir() or _passed[0] <= free or (folder / "open").exists():
        return
    (folder / f"{os.getpid()}.waits").touch()
    while not (folder / "open").exists():
        time.sleep(0.02)


class GatedPooling(MeanPooling):
    def padded(self, hidden: Tensor, tokens: Tensor, mask: Tensor, position: Tensor) -> Tensor:
        pass_gate(free=12)
        return super().padded(hidden, tokens, mask, position)

    def packed(self, hidden: Tensor, tokens: Tensor, lengths: Tensor, position: Tensor) -> Tensor:
        pass_gate(free=12)
        return super().packed(hidden, tokens, lengths, position)


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of an open gate; remove the file ``open`` to close it."""
    folder = tmp_path_factory.mktemp("gate")
    (folder / "open").touch()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(GATE, str(folder))
        yield folder


@pytest.fixture(scope="module")
def cluster(gate: Path) -> Iterator[Any]:
    """Two nodes with a CPU each; the second may be killed. Its address is in $RAY_ADDRESS."""
    pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patched:
        for name, value in (("USAGE_STATS_ENABLED", "0"), ("AUTH_MODE", "disabled")):
            patched.setenv(f"RAY_{name}", value)
        patched.setenv("OMP_NUM_THREADS", "1")
        patched.setenv("PYTHONPATH", os.pathsep.join([str(REPOSITORY), os.environ["PYTHONPATH"]]))
        from ray.cluster_utils import Cluster

        handler = signal.getsignal(signal.SIGTERM)
        made = Cluster(
            initialize_head=True, head_node_args={**SMALL, "include_dashboard": False, "_system_config": SOON}
        )
        made.add_node(**SMALL)
        signal.signal(signal.SIGTERM, handler)  # a node sets its own, for the process that starts it
        patched.setenv("RAY_ADDRESS", made.address)
        session = made.head_node.get_session_dir_path()
        yield made
        (gate / "open").touch()
        made.shutdown()
        shutil.rmtree(session, ignore_errors=True)


@pytest.fixture(scope="module")
def world(gate: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``model``, ``corpus.tsv`` and ``vectors_0`` ..., which this process embeds."""
    folder = tmp_path_factory.mktemp("cluster")
    rng = random.Random(0)
    write_passages(
        folder / "corpus.tsv",
        [Passage(sentence(rng, 8), sentence(rng, 1), f"p{number}") for number in range(PASSAGES)],
    )
    with durable_folder(folder / "model") as target:
        tiny_model(folder / "encoder", dtype=torch.float32, pooling=POOLING).write_to(target)
    torch.set_num_threads(1)
    for shard in range(SHARDS):
        assert main([*embedding(folder, "vectors"), f"shard_id={shard}"]) == 0
    return folder


def embedding(folder: Path, out: str) -> list[str]:
    inputs = [f"model_file={folder}/model", f"ctx_src={folder}/corpus.tsv", f"out_file={folder / out}"]
    how = [f"encoder.pooling={POOLING}", f"chunk_size={CHUNK}", f"num_shards={SHARDS}", "no_cuda=true"]
    return ["embed", *inputs, *how]


def close(gate: Path) -> None:
    for path in gate.iterdir():
        path.unlink()


def wait_for_workers(gate: Path, count: int, *, driver: Callable[[], bool]) -> None:
    """Waits until so many workers stand at the gate, while the driver is alive."""
    deadline = time.monotonic() + patient(40)
    while len(list(gate.glob("*.waits"))) < count:
        assert driver() and time.monotonic() < deadline, (
            f"not all workers came as far as the gate: {list(gate.iterdir())}"
        )
        time.sleep(0.02)


def workers_of(node: Any) -> list[Any]:
    import psutil

    (raylet,) = node.all_processes["raylet"]
    return [
        child
        for child in psutil.Process(raylet.process.pid).children()
        if "ray::embedding" in " ".join(child.cmdline())
    ]


def at_the_gate(gate: Path, command: list[str], then: Callable[[], None]) -> int:
    """Returns the exit code of a command to whose workers ``then`` happens when both wait at the gate."""
    ended = threading.Event()

    def act() -> None:
        try:
            wait_for_workers(gate, SHARDS, driver=lambda: not ended.is_set())
            then()
        finally:
            (gate / "open").touch()

    close(gate)
    thread = threading.Thread(target=act)
    thread.start()
    try:
        return main(command)
    finally:
        ended.set()
        thread.join()


@pytest.mark.fault(
    "B8",
    "a node of a Ray cluster and a worker of another die while they embed",
    "exit 0; finished chunks are kept; bytes of an undisturbed run",
)
def test_a_lost_node_and_a_lost_worker_cost_the_chunks_in_flight(
    case: Case,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Files are named from the folder where the command starts."""
    (trial,) = case.trials(1, fast=0)  # before a cluster is started, which takes half a minute
    cluster: Any = request.getfixturevalue("cluster")
    world: Path = request.getfixturevalue("world")
    gate: Path = request.getfixturevalue("gate")
    kept: dict[Path, int] = {}

    def lose() -> None:
        kept.update({path: path.stat().st_mtime_ns for path in world.glob("lost_*/vectors-00000.npy")})
        first, second = cluster.list_all_nodes()
        (worker,) = workers_of(first)
        cluster.remove_node(second, allow_graceful=False)
        worker.kill()

    monkeypatch.chdir(world)
    with trial:
        assert at_the_gate(gate, [*embedding(Path(), "lost"), "cluster=ray"], lose) == 0
        assert f"lost_*: {PASSAGES} vectors in {SHARDS} shards" in capfd.readouterr().err
        assert len(kept) == SHARDS
        assert kept == {path: path.stat().st_mtime_ns for path in kept}, "chunks are not embedded again"
        for shard in range(SHARDS):
            assert all_files(world / f"lost_{shard}") == all_files(world / f"vectors_{shard}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cluster=ray", "cluster.address=ray://head:10001"], "Ray Client is not used"),
        (["cluster=ray", "shard_id=1"], "embeds all shards"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*embedding(tmp_path, "x"), *arguments]) == 2
    assert message in capsys.readouterr().err
