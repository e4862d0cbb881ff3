"""A real cluster of three nodes on this machine; nodes, workers and drivers are killed in mid-work."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dpr.cli.main import main
from dpr.core.records import Passage
from dpr.formats.corpora import write_passages
from dpr.formats.durable import durable_folder
from tests.helpers.patience import patient
from tests.helpers.tiny import sentence, tiny_model

SHARDS, PASSAGES, CHUNK = 3, 240, 2
SMALL_STORE = {"object_store_memory": 80_000_000, "num_cpus": 1}
SOON = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes with a CPU each; the second and the third may be killed. Its address is in $RAY_ADDRESS."""
    pytest.importorskip("ray")
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled", OMP_NUM_THREADS="1")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={**SMALL_STORE, "include_dashboard": False, "_system_config": SOON})
    for _ in range(2):
        made.add_node(**SMALL_STORE)
    os.environ["RAY_ADDRESS"] = made.address
    session = made.head_node.get_session_dir_path()
    yield made
    del os.environ["RAY_ADDRESS"]
    made.shutdown()
    shutil.rmtree(session, ignore_errors=True)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``model``, ``corpus.tsv`` and ``vectors_0`` ..., which this process embeds."""
    folder = tmp_path_factory.mktemp("cluster")
    rng = random.Random(0)
    write_passages(folder / "corpus.tsv", [Passage(sentence(rng, 8), sentence(rng, 1), f"p{number}") for number in range(PASSAGES)])
    with durable_folder(folder / "model") as target:
        tiny_model(folder / "encoder", dtype=torch.float32).write_to(target)
    torch.set_num_threads(1)
    for shard in range(SHARDS):
        assert main([*embedding(folder, "vectors"), f"shard_id={shard}"]) == 0
    return folder


def embedding(folder: Path, out: str) -> list[str]:
    inputs = [f"model_file={folder / 'model'}", f"ctx_src={folder / 'corpus.tsv'}", f"out_file={folder / out}", "no_cuda=true"]
    return ["embed", *inputs, f"chunk_size={CHUNK}", f"num_shards={SHARDS}"]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + patient(40)
    while not is_so():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def are_at_work(folder: Path, out: str) -> Callable[[], bool]:
    """Whether each shard has some chunks and none is finished yet."""
    return lambda: all(len(list((folder / f"{out}_{shard}").glob("chunk-*.json"))) >= 3 for shard in range(SHARDS))


def workers_of(node: Any) -> list[Any]:
    import psutil

    (raylet,) = node.all_processes["raylet"]
    return [child for child in psutil.Process(raylet.process.pid).children() if "ray::embedding" in " ".join(child.cmdline())]


def test_a_lost_node_and_a_lost_worker_cost_the_chunks_in_flight(cluster: Any, world: Path) -> None:
    kept: dict[Path, int] = {}

    def lose() -> None:
        wait_for(are_at_work(world, "lost"))
        _, second, third = cluster.list_all_nodes()
        (worker,) = workers_of(second)
        kept.update({path: path.stat().st_mtime_ns for path in world.glob("lost_*/vectors-00000.npy")})
        cluster.remove_node(third, allow_graceful=False)
        worker.kill()

    thread = threading.Thread(target=lose)
    thread.start()
    code = main([*embedding(world, "lost"), "cluster=ray"])
    thread.join()
    assert code == 0
    assert len(kept) == SHARDS
    assert kept == {path: path.stat().st_mtime_ns for path in kept}, "finished chunks are not embedded again"
    for shard in range(SHARDS):
        assert contents(world / f"lost_{shard}") == contents(world / f"vectors_{shard}")


def test_after_a_lost_driver_the_same_command_finishes(cluster: Any, world: Path) -> None:
    command = [*embedding(world, "driven"), "cluster=ray", f"cluster.address={cluster.address}"]
    with subprocess.Popen([sys.executable, "-m", "dpr", *command], stderr=subprocess.PIPE, text=True) as driver:
        wait_for(lambda: driver.poll() is not None or any(world.glob("driven_*/chunk-00003.json")))
        driver.kill()
    assert driver.returncode == -9
    assert main(command) == 0
    for shard in range(SHARDS):
        assert contents(world / f"driven_{shard}") == contents(world / f"vectors_{shard}")


def test_what_a_task_raises_ends_the_command_as_without_a_cluster(cluster: Any, world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (world / "bad.tsv").write_text("id\ttext\ttitle\n1\tone\t\n1\ttwice\t\n")
    command = [word.replace("corpus.tsv", "bad.tsv") for word in embedding(world, "bad")]
    assert main([*command, "cluster=ray", "cluster.workers=1"]) == 3
    shown = capfd.readouterr().err
    assert "bad.tsv" in shown and "Traceback" not in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cluster.workers=2"], "add cluster=ray"),
        (["cluster=ray", "cluster.address=ray://head:10001"], "Ray Client is not used"),
        (["cluster=ray", "shard_id=1"], "embeds all shards"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*embedding(tmp_path, "x"), *arguments]) == 2
    assert message in capsys.readouterr().err
