"""Every command that writes: killed, full disks, damaged outputs and caches, changed inputs, two at once."""

import os
import random
import re
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.faults.command_jobs import (
    DOWNLOADED,
    JOBS,
    MADE_OF_CACHE,
    STAGED,
    SUITE,
    TRAININGS,
    Commands,
    check_plain,
    left_by,
    unfinished_business,
)
from tests.faults.conftest import Case, Trial, fault
from tests.helpers.jobs import verify

REFUSED, KILLED = 3, -9
BINARY = (".safetensors", ".npy", ".cp")
KILLED_ONCE = (
    "prepare, prepare-folder, prepare-pairs, new-encoder, export to=hf-dpr, embed, retrieve indexer=bm25, "
    "evaluate, mine, score, report, download, merge"
).split(", ")
"""The jobs, one of each command, that ``make test`` kills; trainings: test_kills.py."""
FAST = {
    "test_disk_full": ("prepare", "retrieve indexer=bm25"),
    "test_damaged_outputs_and_caches": ("embed", "mine"),
    "test_inputs_changed_since": ("new-encoder", "embed"),
    "test_verify_names_every_changed_file": ("prepare", "train"),
    "test_two_at_once": ("prepare to=beir", "embed"),
}
"""The jobs that ``make test`` tries with another fault."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "job" not in metafunc.fixturenames:
        return
    takes_all = metafunc.config.getoption("--all-faults")
    if metafunc.function is test_texts_are_made_searchable_whatever_stage_is_killed:
        names = list(STAGED)
    elif takes_all:
        names = list(JOBS)
    else:
        names = list(FAST.get(metafunc.function.__name__, KILLED_ONCE))
    metafunc.parametrize("job", names)


class QuietServer(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    folder = tmp_path_factory.mktemp("commands")
    (folder / "web").mkdir()
    (folder / "web" / "x.bin").write_bytes(DOWNLOADED)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietServer, directory=str(folder / "web"))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        commands = Commands(folder / "workplace", f"http://127.0.0.1:{server.server_address[1]}")
        yield commands
        commands.close()
        server.shutdown()
        thread.join()


def numbers(case: Case, job: str, total: int, fast: int) -> list[int]:
    """Returns all operations, or ``fast`` of them, from 1; of a training never all."""
    if case.takes_all and job not in TRAININGS:
        return list(range(1, total + 1))
    some = min(40 if case.takes_all else fast, total)
    return sorted(random.Random(job).sample(range(1, total + 1), some))


def trials(case: Case, job: str, total: int, fast: int) -> Iterator[Trial]:
    """A trial for each of these numbers; its folder is removed before the next one."""
    for number in numbers(case, job, total, fast):
        trial = case.trial(number)
        yield trial
        shutil.rmtree(trial.output_dir, ignore_errors=True)


def differing(job: str, folder: Path, expected: dict[str, bytes]) -> list[str]:
    """Names of the outputs that are missing or not as expected."""
    left = left_by(job, folder)
    return [name for name in expected if left.get(name) != expected[name]]


def finish(commands: Commands, job: str, folder: Path) -> None:
    """The same command again ends well, with the bytes of an undisturbed one, and leaves nothing about."""
    again = commands.run(job, folder)
    check_plain(again, [0])
    whole, _ = commands.undisturbed(job)
    assert left_by(job, folder).keys() == whole.keys()
    assert differing(job, folder, whole) == []
    assert unfinished_business(folder) == []


@pytest.mark.fault(
    "B1",
    "any command, killed before an operation on a file",
    "same command again: equal bytes, nothing left about",
)
def test_killed_before_an_operation(case: Case, commands: Commands, job: str) -> None:
    _, result = commands.undisturbed(job)
    for trial in trials(case, job, result.counts["operations"], fast=1):
        with trial:
            killed = commands.run(job, trial.output_dir, fault="operations", number=trial.number)
            # There are some more operations where the inputs are old enough for their hashes to be
            # remembered.
            assert killed.code == KILLED or trial.number > killed.counts["operations"], killed.text
            finish(commands, job, trial.output_dir)


@pytest.mark.fault(
    "B2",
    "any command, the disk full from a write on",
    "one line or none needed, nothing half-written; equal bytes later",
)
def test_disk_full(case: Case, commands: Commands, job: str) -> None:
    whole, result = commands.undisturbed(job)
    for trial in trials(case, job, result.counts["writes"], fast=1):
        with trial:
            full = commands.run(job, trial.output_dir, fault="writes", number=trial.number)
            check_plain(full, [0, 2, REFUSED])
            errors = [line for line in full.text.splitlines() if line.startswith("error: ")]
            assert len(errors) == (full.code != 0), full.text
            if job not in TRAININGS and (trial.output_dir / "out").exists():
                left = {name: text for name, text in left_by(job, trial.output_dir).items() if name in whole}
                half = [name for name, text in left.items() if text != whole[name] and ".lock" not in name]
                assert half == [], full.text
            finish(commands, job, trial.output_dir)


def damage(path: Path, how: int) -> None:
    content = path.read_bytes()
    middle = len(content) // 2
    if how == 0 and content:
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    elif how == 1:
        path.write_bytes(content[:middle])
    elif how == 2:
        path.write_bytes(b"")
    else:
        path.unlink()


def is_about_others(name: str) -> bool:
    """A checksum, which ``dpr verify`` compares, or a list of rows that were left out: no data."""
    return name.endswith((".sha256", ".rejected.jsonl"))


@pytest.mark.fault(
    "B3",
    "any command again, over an output or a cache that is damaged",
    "refused with exit 3 and one line, or equal bytes",
)
def test_damaged_outputs_and_caches(case: Case, commands: Commands, job: str) -> None:
    folder = case.folder / "whole"
    assert commands.run(job, folder).code == 0
    whole = left_by(job, folder)
    places = sorted(
        path.relative_to(folder)
        for top in ("out", "cache")
        for path in (folder / top).rglob("*")
        if path.is_file()
    )
    damages = [(place, how) for place in places for how in range(4)]
    for trial in trials(case, job, len(damages), fast=1):
        with trial:
            shutil.copytree(folder, trial.output_dir, symlinks=True)
            place, how = damages[trial.number - 1]
            damage(trial.output_dir / place, how)
            if job in MADE_OF_CACHE and "cache" in place.parent.parts:
                shutil.rmtree(trial.output_dir / MADE_OF_CACHE[job])
            again = commands.run(job, trial.output_dir)
            check_plain(again, [0, REFUSED])
            if again.code == 0:
                found = [
                    name for name in differing(job, trial.output_dir, whole) if not is_about_others(name)
                ]
                assert found == [], (
                    f"{place} {('flipped', 'cut', 'emptied', 'removed')[how]}: {found}\n{again.text}"
                )


def change(file: Path) -> None:
    """Another word, of the same length."""
    content = file.read_bytes()
    words = list(re.finditer(rb"(?<= )[a-z]{2}(?= )", content))
    word = words[len(words) // 2]
    other = b"be" if word[0] == b"ba" else b"ba"
    file.write_bytes(content[: word.start()] + other + content[word.end() :])


def change_in_silence(file: Path) -> None:
    """Writes another content of the same size, inode and time."""
    before, content = file.stat(), bytearray(file.read_bytes())
    places = [
        match.start() for match in re.finditer(rb"(?<=[ \t\"])[a-z0-9](?=[a-z0-9 \t\",\n])", bytes(content))
    ]
    if file.suffix in BINARY or not places:
        content[-5] ^= 0x40
    else:
        at = places[len(places) // 2]
        content[at] = next(
            byte for byte in (b"12" if bytes([content[at]]).isdigit() else b"ba") if byte != content[at]
        )
    with open(file, "r+b") as out:
        out.write(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def files_of(job: str, folder: Path) -> list[Path]:
    """Returns every file that the command line names, or a folder or suite in it."""
    named = [part.rstrip("*.") for part in re.findall(r"in/[\w./*-]+", JOBS[job])]
    named += [f"in/{name}" for name in SUITE if "suite.yaml" in JOBS[job]]
    found = [path for name in named for top in folder.glob(f"{name}*") for path in (top, *top.rglob("*"))]
    return sorted({path.relative_to(folder) for path in found if path.is_file()})


@pytest.mark.fault(
    "B4",
    "any input of any command: other content, same size, inode and time; again, when killed and when done",
    "refused, told or redone",
)
def test_inputs_changed_since(case: Case, commands: Commands, job: str) -> None:
    whole, result = commands.undisturbed(job)
    places = files_of(job, commands.folder_of(job))
    pairs = [(name, number) for name in places for number in (result.counts["operations"] * 2 // 3, 0)]
    starts: dict[Path, tuple[int, dict[str, bytes]]] = {}
    outcomes = Counter[str]()
    for trial in trials(case, job, len(pairs), fast=1) if pairs else ():
        with trial:
            name, number = pairs[trial.number - 1]
            if name not in starts:
                fresh = case.folder / "fresh"
                shutil.copytree(commands.folder / "in", fresh / "in")
                change_in_silence(fresh / name)
                code = commands.run(job, fresh).code
                starts[name] = code, {} if code else left_by(job, fresh)
                shutil.rmtree(fresh)
            commands.run(job, trial.output_dir, fault="operations" if number else "", number=number)
            change_in_silence(trial.output_dir / name)
            again = commands.run(job, trial.output_dir)
            check_plain(again, [0, 2, REFUSED])
            code, expected = starts[name]
            if again.code:
                outcome = "refused"
            elif code == 0 and differing(job, trial.output_dir, expected) == []:
                outcome = "without effect" if expected == whole else "redone"
            else:
                outcome = "told" if "changed from" in again.text else "silent"
            outcomes[outcome] += 1
            assert outcome != "silent", (
                f"{name}, {'killed' if number else 'done'}; from the start {code}\n{again.text}"
            )
    print(
        f"\n| {job} |"
        f" {' | '.join(str(outcomes[each]) for each in ('refused', 'redone', 'told', 'without effect', 'silent'))} |"
    )


@pytest.mark.fault(
    "B7",
    "one bit changed in any file that a command leaves",
    "dpr verify names it: changed (exit 3), or that nothing covers it",
)
def test_verify_names_every_changed_file(
    case: Case, commands: Commands, job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.undisturbed(job)
    out = case.folder / "out"
    shutil.copytree(commands.folder_of(job) / "out", out)
    places = [path for path in sorted(out.rglob("*")) if path.is_file() and path.stat().st_size]
    for trial in trials(case, job, len(places), fast=1):
        with trial:
            place = places[trial.number - 1]
            before, at = (
                place.read_bytes(),
                trial.random.randrange(64 if place.suffix == ".sha256" else place.stat().st_size),
            )
            place.write_bytes(before[:at] + bytes([before[at] ^ 1]) + before[at + 1 :])
            code, lines = verify([str(out)]), capsys.readouterr().out.splitlines()
            place.write_bytes(before)
            name = place.name.removesuffix(".sha256")
            told = [
                line
                for line in lines
                if (name in line or str(place.parent) in line) and not line.endswith(": good")
            ]
            assert any(code == 3 or "files without a checksum" in line for line in told), f"{place}: {lines}"


@fault(
    "B5", "any command, twice at once", "one ends well, the other too or with exit 3; equal bytes", trials=5
)
def test_two_at_once(trial: Trial, commands: Commands, job: str) -> None:
    results = commands.run_together(job, trial.output_dir, count=2)
    for result in results:
        check_plain(result, [0, REFUSED])
    assert 0 in [result.code for result in results], results[0].text + results[1].text
    finish(commands, job, trial.output_dir)


@pytest.mark.fault(
    "B6",
    "dpr quickstart and dpr adapt, killed in any stage; the texts change, or not",
    "same command again: bytes of an undisturbed one",
)
def test_texts_are_made_searchable_whatever_stage_is_killed(case: Case, commands: Commands, job: str) -> None:
    folder, changed = case.folder / "changed", "docs/page1.md" if job == "quickstart" else "corpus.tsv"
    for trial in case.trials(40, fast=0):
        with trial:
            _, undisturbed = commands.undisturbed(job)
            number = trial.random.randint(1, undisturbed.counts["operations"])
            killed = commands.run(job, trial.output_dir, fault="operations", number=number)
            assert killed.code == KILLED or number > killed.counts["operations"], killed.text
            if trial.number < 20:
                finish(commands, job, trial.output_dir)
                continue
            if not folder.exists():
                shutil.copytree(commands.folder / "in", folder / "in")
                change(folder / "in" / changed)
                assert commands.run(job, folder).code == 0
            change(trial.output_dir / "in" / changed)
            check_plain(commands.run(job, trial.output_dir), [0])
            assert left_by(job, trial.output_dir) == left_by(job, folder)
        shutil.rmtree(trial.output_dir, ignore_errors=True)
