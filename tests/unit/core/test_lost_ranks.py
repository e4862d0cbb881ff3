"""A lost process is named, with what a rank that failed has left and where it was."""

import os
import socket
from datetime import timedelta

import pytest
import torch.distributed as dist

from dpr.core import lost_ranks
from dpr.core.distributed import barrier, process_group
from dpr.core.errors import InputError, LostRankError
from dpr.core.lost_ranks import close_in_worker, named, opened_sockets
from tests.helpers.patience import patient
from tests.helpers.processes import run_on_ranks

CUT = RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4242")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> dist.Store:
    """That of a group of three ranks, of which this process is the first."""
    monkeypatch.setattr(lost_ranks, "ROLL_CALL_S", 0.3)
    limit = timedelta(seconds=patient(30))
    master = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=limit)
    master.set_timeout(timedelta(seconds=5))
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(master.port)}
    for name, value in {"RANK": "0", "WORLD_SIZE": "3", **place}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    return master


def message_of(error: Exception, position: str = "at step 12") -> str:
    with pytest.raises(LostRankError) as caught, named(lambda: position):
        raise error
    assert caught.value.__cause__ is error
    return str(caught.value)


def test_ranks_that_do_not_answer_are_named(store: dist.Store) -> None:
    store.set("dpr/roll-call/0/1", "lost at step 12")
    message = message_of(CUT)
    assert message.startswith("rank 2 of 3 died or stopped answering, at step 12 ([../gloo/transport")
    assert message.endswith("Rerun the same command to resume from the last checkpoint")
    assert store.get("dpr/roll-call/0/0") == b"lost at step 12"


def test_a_slow_store_is_asked_again(store: dist.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.create_connection
    failures = [TimeoutError("timed out"), dist.DistNetworkError("timed out")]

    def slow(*arguments: object, **options: object) -> socket.socket:
        if failures:
            raise failures.pop()
        return connect(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "create_connection", slow)
    assert message_of(CUT).startswith("ranks 1, 2 of 3 died or stopped answering")
    assert not failures


def test_all_that_miss_this_start_are_listed(store: dist.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.set("dpr/roll-call/0/1", "lost")  # of the group before the launcher started it again
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert message_of(CUT).startswith("ranks 1, 2 of 3 died")


def test_the_error_that_a_rank_has_left_is_told(store: dist.Store) -> None:
    store.set("dpr/roll-call/0/1", "fail ValueError: no such column")
    store.set("dpr/roll-call/0/2", "lost at step 12")
    assert message_of(CUT, "").startswith("rank 1 failed: ValueError: no such column ([../gloo")


def end_of_one_alone(error: Exception) -> str:
    """What a rank ends with when rank 1 alone raises ``error`` while the others wait for it."""
    try:
        with process_group("cpu", timeout_s=30) as ranks, named("at step 3"):
            if ranks.rank == 1:
                raise error
            barrier()
    except Exception as found:
        return f"{type(found).__name__}: {found}"
    return ""


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (InputError("no vector of 'p9'", file="v_0.npy"), "v_0.npy: no vector of 'p9'"),
        (KeyError("p9"), "KeyError: 'p9'"),
    ],
    ids=["InputError", "KeyError"],
)
def test_the_others_name_what_one_rank_alone_has_raised(error: Exception, reason: str) -> None:
    others, own = run_on_ranks(end_of_one_alone, 2, error, join=False)
    assert others.startswith(f"LostRankError: rank 1 failed: {reason}, at step 3 (")
    assert own == f"{type(error).__name__}: {error}"


def test_without_store_the_launcher_is_suspected(store: dist.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MASTER_PORT", str(unused.getsockname()[1]))
        assert message_of(CUT).startswith(
            "the group's store does not answer, so rank 0 or its launcher has ended, at step 12"
        )


def test_a_worker_of_the_loader_is_named_with_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = RuntimeError("DataLoader worker (pid 77) is killed by signal: Killed. ")
    monkeypatch.delenv("RANK", raising=False)
    told = "data-loader worker 77 is killed by signal: Killed; often the machine ran out of memory"
    assert message_of(killed, "").startswith(told)
    monkeypatch.setenv("RANK", "1")
    assert message_of(RuntimeError("DataLoader worker (pid(s) 7, 8) exited unexpectedly")).startswith(
        "data-loader worker 7, 8 of rank 1 exited unexpectedly, at step 12"
    )


def test_what_is_no_loss_passes_as_it_is(store: dist.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (InputError("a bad row"), RuntimeError("size mismatch"), KeyError("x")):
        with pytest.raises(type(error)) as caught, named("at step 1"):
            raise error
        assert caught.value is error
    monkeypatch.delenv("RANK")  # one process has no ranks to lose
    with pytest.raises(RuntimeError, match="Connection closed"), named("at step 1"):
        raise CUT


def test_looking_for_connections_leaves_no_file_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with opened_sockets():
        pass
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_forked_worker_closes_the_connections_of_its_rank() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        with opened_sockets():
            ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
        if (pid := os.fork()) == 0:
            close_in_worker()
            is_null = os.path.samestat(os.fstat(ours.fileno()), os.stat(os.devnull))
            os._exit(0 if is_null else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        lost_ranks._open_sockets.discard(ours.fileno())
        theirs.settimeout(5)
        ours.close()
        assert theirs.recv(1) == b""
        theirs.close()
