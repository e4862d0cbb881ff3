"""Every way of starting a job: plainly, as a module, from a wheel, and by torch's launchers."""

import os
import shutil
import subprocess
import sys
import sysconfig
import time
import zipfile
from pathlib import Path

import pytest

from tests.helpers.patience import patient

REPOSITORY = Path(__file__).resolve().parents[2]
DRY_JOB = str(REPOSITORY / "tests" / "cli" / "dry_job.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=0"]
OLD_LAUNCHER = [sys.executable, "-W", "ignore", "-m", "torch.distributed.launch", "--master-port=0"]


def environment(*paths: Path) -> dict[str, str]:
    """The environment without what a launcher left in it; ``paths`` come first on the import path."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    }
    return {**kept, "PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"}


def run(argv: list[str], folder: Path, *paths: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        cwd=folder,
        env=environment(*paths),
        capture_output=True,
        text=True,
        timeout=patient(120),
        stdin=subprocess.DEVNULL,
    )


class TestPlain:
    """No launcher, no torch: these are quick."""

    def test_script_of_a_clone_and_installed_command_run_from_another_folder(self, tmp_path: Path) -> None:
        command = shutil.which("dpr", path=sysconfig.get_path("scripts"))
        assert command or not os.environ.get("CI"), "the package is not installed"
        script = [sys.executable, str(REPOSITORY / "train_dense_encoder.py")]
        for program in (script, [command, "train"] if command else script):
            done = run([*program, "train=biencoder_nq", "--cfg", "job"], tmp_path)
            assert done.returncode == 0, done.stderr
            assert "batch_size: 16" in done.stdout
            assert not list(tmp_path.iterdir())

    def test_any_terminal_is_printed_on(self, tmp_path: Path) -> None:
        (tmp_path / "corpus.tsv").write_text(
            "id\ttext\ttitle\n1\tK\u00f6ln am Rhein\t\u65e5\u672c\n", encoding="utf-8"
        )
        argv = [sys.executable, "-X", "utf8=0", "-m", "dpr", "search", "--corpus", "corpus.tsv", "rhein"]
        env = environment(REPOSITORY) | {"PYTHONIOENCODING": "latin-1"}
        done = subprocess.run(
            argv, cwd=tmp_path, env=env, capture_output=True, timeout=patient(120), stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, done.stderr
        assert b"??" in done.stdout and "K\u00f6ln".encode("latin-1") in done.stdout

    @pytest.mark.parametrize(
        ("argv", "code", "said"),
        [(["train", "--help"], 0, "train_datasets"), (["train", "train.batchsize=3"], 2, "train.batch_size")],
    )
    def test_help_and_mistakes_answer_within_two_seconds(
        self, argv: list[str], code: int, said: str, tmp_path: Path
    ) -> None:
        taken = []
        for _ in range(2):  # the better of two, since other work may share the machine
            start = time.perf_counter()
            done = run([sys.executable, "-m", "dpr", *argv], tmp_path, REPOSITORY)
            taken.append(time.perf_counter() - start)
        assert done.returncode == code and said in (done.stderr if code else done.stdout)
        assert min(taken) < patient(2 / 3)  # two seconds, more where the machine is busy
        assert not list(tmp_path.iterdir())


class TestLeaving:
    """A thread of gloo that releases a tensor at the interpreter's end aborts the process (faults.md, A25)."""

    JOB = """
import atexit, logging, sys, threading, time
from dpr.cli.launch import run_and_leave

class Dismantled:
    def __del__(self):
        print("dismantled", flush=True)

kept = Dismantled()
kept.itself = kept  # it is released only when the interpreter is dismantled

def main():
    threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
    atexit.register(print, "exit handler")
    sys.stderr.write("reported")
    return int(sys.argv[1])

run_and_leave(main)
"""

    def leave(self, how: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        argv, env = [sys.executable, "-c", self.JOB, how], {**environment(REPOSITORY), **variables}
        return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=patient(60))

    def test_a_process_of_a_group_is_not_dismantled_and_loses_nothing(self, tmp_path: Path) -> None:
        done = self.leave("75", tmp_path, RANK="0")
        assert (done.returncode, done.stderr) == (75, "reported")
        assert done.stdout.split("\n") == ["thread", "exit handler", ""]

    def test_a_process_of_its_own_leaves_as_every_program_does(self, tmp_path: Path) -> None:
        done = self.leave("3", tmp_path)
        assert (done.returncode, done.stdout.split("\n")) == (3, ["thread", "exit handler", "dismantled", ""])


@pytest.fixture(scope="module")
def wheel_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package as the wheel installs it, built from a copy so that the clone stays clean."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("dpr", "conf", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder)
    built = run([sys.executable, "setup.py", "-q", "bdist_wheel"], folder)
    assert built.returncode == 0, built.stderr
    (wheel,) = (folder / "dist").glob("dpr_toolkit-*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


class TestWheel:
    def test_it_has_all_that_is_read_and_nothing_else(self, wheel_site: Path) -> None:
        def names(folder: Path, *suffixes: str) -> set[Path]:
            found = (path for path in folder.rglob("*") if path.suffix in suffixes)
            return {path.relative_to(folder) for path in found}

        files = {path.relative_to(wheel_site) for path in wheel_site.rglob("*") if path.is_file()}
        code = names(REPOSITORY / "dpr", ".py", ".html", ".css", ".js", ".svg", ".typed")
        conf = names(REPOSITORY / "conf", ".yaml")
        assert {file for file in files if ".dist-info" not in file.parts[0]} == (
            {Path("dpr") / file for file in code} | {Path("dpr", "conf") / file for file in conf}
        )

    def test_torchrun_module_in_an_empty_folder(self, wheel_site: Path, tmp_path: Path) -> None:
        done = run(
            [*TORCHRUN, "-m", "dpr", "train", "train=biencoder_nq", "--cfg", "job"], tmp_path, wheel_site
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("batch_size: 16") == 1, "rank 0 alone speaks"
        assert not list(tmp_path.iterdir())


def test_every_rank_of_the_older_launcher_gets_the_configuration(tmp_path: Path) -> None:
    job = [DRY_JOB, "train.batch_size=3", "global_loss_buf_sz=5"]
    done = run([*OLD_LAUNCHER, "--nproc-per-node=2", *job], tmp_path, REPOSITORY)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} of 2: batch_size 3" for rank in range(2)]
    assert done.stderr.count("warning: global_loss_buf_sz") == 1
