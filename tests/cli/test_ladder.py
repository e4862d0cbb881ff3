"""``dpr ladder`` from end to end, on a tiny model: what it makes, and that a ladder that was killed ends as if it never had been.

pytest tests/cli/test_ladder.py
"""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dpr.cli.main import main
from dpr.core.records import Passage, TrainingSample
from dpr.core.stopping import OWNED_PROCESS
from dpr.formats.training_sets import write_training_set
from tests.architecture.source_files import REPOSITORY
from tests.faults.runs import state_hash
from tests.helpers.patience import patient
from tests.helpers.processes import fork_server
from tests.helpers.tiny import encoder_folder, sentence

LIMIT_S = 150.0
EPOCHS = 4


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of 60 passages; questions are four words of a passage; the test questions have judgements."""
    folder = tmp_path_factory.mktemp("ladder")
    encoder_folder(folder / "encoder", num_hidden_layers=1)
    rng = random.Random(3)
    corpus = [Passage(sentence(rng, 12), sentence(rng, 2), f"d{number}") for number in range(60)]
    lines = [f"{passage.id}\t{passage.text}\t{passage.title}" for passage in corpus]
    (folder / "corpus.tsv").write_text("\n".join(["id\ttext\ttitle", *lines]) + "\n")
    chosen = [rng.choice(corpus) for _ in range(48)]
    samples = [TrainingSample(" ".join(rng.sample(passage.text.split(), 4)), (Passage(passage.text, passage.title),)) for passage in chosen]
    write_training_set(folder / "train.jsonl", samples[:32])
    write_training_set(folder / "dev.jsonl", samples[32:40])
    questions = [json.dumps({"_id": f"q{number}", "text": sample.question}) for number, sample in enumerate(samples[40:])]
    (folder / "questions.jsonl").write_text("\n".join(questions) + "\n")
    judgements = [f"q{number}\t{passage.id}\t1" for number, passage in enumerate(chosen[40:])]
    (folder / "qrels.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judgements]) + "\n")
    return folder


def command(output_dir: str, *overrides: str) -> list[str]:
    """16 updates a training, four an epoch, with dropout and a checkpoint after each."""
    return [
        *("ladder", "train_datasets=[train.jsonl]", "dev_datasets=[dev.jsonl]", "corpus=corpus.tsv", f"output_dir={output_dir}"),
        *("encoder.pretrained_model_cfg=encoder", "encoder.pretrained=false", "encoder.sequence_length=24", "encoder.dropout=0.1"),
        *("train.batch_size=8", f"train.num_train_epochs={EPOCHS}", "train.learning_rate=1e-3", "train.warmup_steps=2"),
        *("train.save_every_steps=1", "train.log_batch_step=1", "train.keep_last=0", "mine.per_question=2", "no_cuda=true"),
        *overrides,
    ]


class Ladder:
    """One start of the command, in its own process group.

    It is forked, and forks its stages, from a process that has imported torch; ``as_typed``, all are started as a user does. Under torchrun
    stages are started as ever.
    """

    def __init__(self, workplace: Path, output_dir: str, *overrides: str, as_typed: bool = False) -> None:
        self.folder = workplace / output_dir
        self.log = workplace / f"console-{time.monotonic_ns()}.txt"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "DPR_CACHE": str(workplace / "cache")}
        environment["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
        arguments = command(output_dir, *overrides)
        self.process = fork_server().Process(target=_ladder, args=(arguments, workplace, environment, self.log, as_typed))
        self.process.start()

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self) -> int:
        self.process.join(patient(LIMIT_S))
        if self.process.exitcode is None:
            self.kill()
            raise AssertionError(f"still running after {LIMIT_S:.0f} s:\n{self.text}")
        return self.process.exitcode

    def wait_for(self, moment: Callable[[], bool]) -> None:
        deadline = time.monotonic() + patient(LIMIT_S)
        while not moment():
            assert self.process.is_alive(), f"ended before its moment:\n{self.text}"
            assert time.monotonic() < deadline, self.text
            time.sleep(0.01)

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """SIGKILL for the ladder and the stage under way."""
        assert self.process.pid is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()


def _ladder(arguments: list[str], workplace: Path, environment: dict[str, str], log: Path, as_typed: bool) -> None:
    os.setsid()
    os.chdir(workplace)
    _begin(environment, os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY))
    if as_typed:
        os.execv(sys.executable, [sys.executable, "-m", "dpr", *arguments])
    os.environ[OWNED_PROCESS] = str(os.getpid())
    sys.exit(main(arguments))


def _begin(environment: dict[str, str], output: int) -> None:
    os.environ.clear()
    os.environ.update(environment)
    for number in (1, 2):
        os.dup2(output, number)
    sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115


def finish(workplace: Path, output_dir: str, *overrides: str, as_typed: bool = False) -> Ladder:
    ladder = Ladder(workplace, output_dir, *overrides, as_typed=as_typed)
    assert ladder.wait() == 0, ladder.text
    return ladder


def hashes(folder: Path, rounds: int = 2) -> list[str]:
    """Weights, optimizer and progress that every training ended with, and the mined files."""
    lasts = [folder / f"train-{number}" for number in range(1, rounds + 1)]
    lasts = [last / json.loads((last / "run.json").read_text())["last_checkpoint"] for last in lasts]
    mined = [(folder / name / "train.jsonl").read_text() for name in ("bm25", *(f"mine-{number}" for number in range(1, rounds)))]
    return [f"{last.name} {state_hash(last)}" for last in lasts] + mined


def files(folder: Path) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def records(file: Path) -> list[dict]:  # type: ignore[type-arg]
    return [json.loads(line) for line in file.read_text().splitlines()]


def lines_of(file: Path, text: str) -> int:
    return file.read_text().count(text) if file.is_file() else 0


QUERY_PREFIX, PASSAGE_PREFIX = "asked, in {words}: ", "told: "
PREFIXED = (f"datasets.web.query_prefix={QUERY_PREFIX}", f"datasets.web.passage_prefix={PASSAGE_PREFIX}")
EVALUATED = ("ladder.questions=questions.jsonl", "ladder.qrels=qrels.tsv")


@pytest.fixture(scope="module")
def fresh(workplace: Path) -> Ladder:
    return finish(workplace, "fresh", *EVALUATED, as_typed=True)


@pytest.fixture(scope="module")
def continued(workplace: Path) -> Ladder:
    return finish(workplace, "continued", "ladder.mode=continue")


def test_two_rounds_end_to_end(workplace: Path, fresh: Ladder) -> None:
    stages = ["bm25", "train-1", "embed-1", "evaluate-1", "mine-1", "train-2", "embed-2", "evaluate-2"]
    assert sorted(path.name for path in fresh.folder.iterdir() if path.is_dir()) == sorted(stages)
    # As in DPR: the second training is on the negatives of BM25 and on those of the first model.
    config = json.loads((fresh.folder / "train-2" / "dpr_biencoder.step1" / "config.json").read_text())
    assert config["train_datasets"] == ["train_bm25", "train_mine-1"]
    assert json.loads((fresh.folder / "train-2" / "metrics.json").read_text())["step"] == 2 * 4 * EPOCHS
    questions = [record["question"] for record in records(workplace / "train.jsonl")]
    for name, by in (("bm25", "bm25"), ("mine-1", "dense:")):
        mined = records(fresh.folder / name / "train.jsonl")
        assert [record["question"] for record in mined] == questions
        assert all(entry["mined_by"].startswith(by) for record in mined for entry in record["hard_negative_ctxs"])
        assert sum(len(record["hard_negative_ctxs"]) for record in mined) > 40


def test_the_table_has_a_line_for_each_round(fresh: Ladder) -> None:
    summary = json.loads((fresh.folder / "ladder.json").read_text())
    assert [entry["round"] for entry in summary["rounds"]] == [1, 2]
    for number, entry in enumerate(summary["rounds"], 1):
        report = json.loads((fresh.folder / f"evaluate-{number}" / "metrics.json").read_text())
        assert entry["retrieval"]["accuracy@20"] == report["metrics"]["accuracy@20"]
        assert entry["dev"] == json.loads((fresh.folder / f"train-{number}" / "metrics.json").read_text())
    table = fresh.text.splitlines()[-4:]
    assert "top-20" in table[0] and "NLL" in table[0]
    assert table[2].startswith("1: training on train_bm25 ") and table[3].startswith("2: training on train_bm25, train_mine-1 ")
    assert f"{summary['rounds'][1]['retrieval']['accuracy@20']:.3f}" in table[3]


def test_a_rerun_does_nothing_and_changes_no_file(workplace: Path, fresh: Ladder) -> None:
    before = files(fresh.folder)
    again = finish(workplace, "fresh", *EVALUATED)
    assert again.text.count("already done") == 8
    assert again.text.splitlines()[-4:] == fresh.text.splitlines()[-4:]
    assert files(fresh.folder) == before


def test_a_changed_setting_is_refused_by_name_and_nothing_is_thrown_away(workplace: Path, fresh: Ladder) -> None:
    before = files(fresh.folder)
    refused = Ladder(workplace, "fresh", *EVALUATED, "train.learning_rate=2e-3")
    assert refused.wait() == 3
    assert "train-1: was made with other settings or data: train.learning_rate was 0.001, is now 0.002" in refused.text
    assert "ladder.overwrite=true" in refused.text
    # What does not decide the outcome may change.
    assert finish(workplace, "fresh", *EVALUATED, "train.log_batch_step=2", "train.num_workers=0").text.count("already done") == 8
    assert files(fresh.folder) == before


Moment = Callable[[Path], bool]
KILLS: Sequence[tuple[str, Moment]] = [
    ("mining by BM25", lambda folder: (folder / "bm25" / "stage.json").exists()),
    ("first training", lambda folder: lines_of(folder / "train-1" / "metrics.jsonl", "train/loss") >= 3),
    ("embedding", lambda folder: (folder / "embed-1" / "stage.json").exists()),
    ("mining by the model", lambda folder: (folder / "mine-1" / "train.jsonl.mining").exists()),
    ("second training", lambda folder: lines_of(folder / "train-2" / "metrics.jsonl", "train/loss") >= 5),
]


def test_killed_in_every_stage_it_ends_with_equal_weights(workplace: Path, fresh: Ladder) -> None:
    for what, moment in KILLS:
        ladder = Ladder(workplace, "killed")
        ladder.wait_for(lambda moment=moment, folder=ladder.folder: moment(folder))  # type: ignore[misc]
        ladder.kill()
        assert not (ladder.folder / "ladder.json").exists(), what
    finish(workplace, "killed")
    assert hashes(workplace / "killed") == hashes(fresh.folder)


@pytest.mark.parametrize("processes", [1, 2])
def test_asked_to_stop_it_ends_with_75_and_resumes(workplace: Path, processes: int) -> None:
    overrides = ("ladder.rounds=2", "ladder.bm25=false", f"ladder.processes={processes}", "train.global_batch_size=8")
    ladder = Ladder(workplace, f"stopped-{processes}", *overrides)
    ladder.wait_for(lambda: lines_of(ladder.folder / "train-1" / "metrics.jsonl", "train/loss") >= 2)
    ladder.signal(signal.SIGTERM)
    assert ladder.wait() == 75, ladder.text
    assert "stopped: SIGTERM; saved at step" in ladder.text  # printed by the training
    assert "stopped: SIGTERM; train-1 has stopped. Rerun the same command to resume" in ladder.text
    again = finish(workplace, f"stopped-{processes}", *overrides)
    assert "resuming from" in again.text
    summary = json.loads((ladder.folder / "ladder.json").read_text())
    assert summary["rounds"][0]["dev"]["step"] == 4 * EPOCHS
    assert summary["rounds"][0]["trained"] == "training on train"  # with the negatives that it has


def test_a_stage_ends_with_the_ladder(workplace: Path) -> None:
    ladder = Ladder(workplace, "orphaned", "ladder.rounds=2", "ladder.bm25=false", "train.num_train_epochs=2000")
    ladder.wait_for(lambda: lines_of(ladder.folder / "train-1" / "metrics.jsonl", "train/loss") >= 2)
    ladder.signal(signal.SIGKILL)
    ladder.process.join()
    log, deadline = ladder.folder / "train-1" / "log.txt", time.monotonic() + 30
    while "the launcher has ended; saved at step" not in (text := (ladder.folder / "train-1" / "run.json").read_text() + log.read_text()):
        if "stopped_at_step" in text:  # its output has no reader any more
            break
        assert time.monotonic() < deadline, text
        time.sleep(0.05)


def test_continued_rounds_are_one_run_on_renewed_negatives(workplace: Path, continued: Ladder) -> None:
    assert sorted(path.name for path in continued.folder.iterdir() if path.is_dir()) == ["bm25", "embed-1", "mine-1", "train-1", "train-2"]
    steps = [[record["step"] for record in records(continued.folder / name / "metrics.jsonl") if "train/loss" in record] for name in ROUNDS]
    assert steps == [list(range(1, 9)), list(range(9, 17))]
    rates = [record["optim/lr"] for name in ROUNDS for record in records(continued.folder / name / "metrics.jsonl") if "optim/lr" in record]
    assert rates[2:] == pytest.approx([1e-3 * (16 - step) / 14 for step in range(2, 16)])
    state = json.loads((continued.folder / "train-2" / "dpr_biencoder.step16" / "trainer_state.json").read_text())
    assert [entry["from_step"] for entry in state["identity"]["lineage"]["rounds"]] == [0, 8]
    # Mined with the last checkpoint of the first round, whichever was best.
    assert f"model_file={Path('continued') / 'train-1' / 'dpr_biencoder.step8'}" in (continued.folder / "mine-1" / "log.txt").read_text()


ROUNDS = ("train-1", "train-2")


def test_a_continued_ladder_killed_in_its_rounds_ends_with_equal_weights(workplace: Path, continued: Ladder) -> None:
    for name, count in (("train-1", 3), ("train-2", 5)):
        ladder = Ladder(workplace, "continued-killed", "ladder.mode=continue")
        ladder.wait_for(lambda file=ladder.folder / name / "metrics.jsonl", count=count: lines_of(file, "train/loss") >= count)  # type: ignore[misc]
        ladder.kill()
    finish(workplace, "continued-killed", "ladder.mode=continue")
    assert hashes(workplace / "continued-killed") == hashes(continued.folder)


def test_the_negatives_of_a_continued_round_cannot_be_exchanged(
    workplace: Path, continued: Ladder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By hand, past the ladder: the run itself knows its questions, and in a round its files."""
    monkeypatch.chdir(workplace)
    monkeypatch.setenv("DPR_CACHE", str(workplace / "cache"))
    settings = json.loads((continued.folder / "train-2" / "settings.yaml").read_text())
    other = workplace / "other"
    other.mkdir()
    settings["datasets"]["train"]["file"] = "dev.jsonl"
    reported = {str(continued.folder / "train-2"): "train_datasets[0] was", str(other / "run"): "was trained on other questions"}
    for name, (output_dir, message) in zip(("begun", "new"), reported.items(), strict=True):
        (other / f"{name}.yaml").write_text(json.dumps({**settings, "output_dir": output_dir}))
        assert main(["train", "--config-path", str(other), "--config-name", name]) == 3
        assert message in capsys.readouterr().err


def test_mistakes_are_reported_at_once_and_without_torch(workplace: Path) -> None:
    program = (
        "import sys; from dpr.cli.main import main; code = main(sys.argv[1:])\n"
        "print('torch' in sys.modules, file=sys.stderr); sys.exit(code)\n"
    )
    for override, expected in [
        ("ladder.rounds=0", "ladder.rounds=0 is out of range"),
        ("ladder.mode=often", "choose one of fresh, continue"),
        ("corpus=nothing.tsv", "corpus=nothing.tsv does not exist"),
        ("mine.per_questions=3", "did you mean mine.per_question"),
    ]:
        start = time.monotonic()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])}
        arguments = [sys.executable, "-c", program, *command("never", override)]
        done = subprocess.run(arguments, cwd=workplace, env=environment, capture_output=True, text=True, timeout=patient(60))
        assert done.returncode == 2
        assert expected in done.stderr and done.stderr.strip().endswith("False")
        assert time.monotonic() - start < patient(4)  # under two seconds where nothing else is at work
    assert not (workplace / "never").exists()


def test_the_plan_shows_every_command_and_does_nothing(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(workplace)
    assert main(command("planned", "ladder.plan=true", "ladder.rounds=3", "ladder.processes=2", "bm25.per_question=7")) == 0
    lines = capsys.readouterr().out.splitlines()
    names = ["bm25", "train-1", "embed-1", "mine-1", "train-2", "embed-2", "mine-2", "train-3"]
    assert [line.partition(":")[0] for line in lines[::2]] == names
    assert all("[to do]" in line for line in lines[::2])
    assert "training on train_bm25, train_mine-1, train_mine-2" in lines[14]
    assert "dpr mine train.jsonl corpus=corpus.tsv out=planned/bm25/train.jsonl" in lines[1] and "per_question=7" in lines[1]
    assert "model_file=planned/train-1 vectors=planned/embed-1/vectors_0" in lines[7] and "per_question=2" in lines[7]
    assert "--nproc-per-node=2" in lines[3] and "nproc" not in lines[7]
    assert not (workplace / "planned").exists()


def plan(workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *overrides: str) -> dict[str, list[str]]:
    """The arguments of each stage's command, by its name."""
    monkeypatch.chdir(workplace)
    assert main(command("planned", "ladder.plan=true", *overrides)) == 0
    lines = capsys.readouterr().out.splitlines()
    return {name.partition(":")[0]: shlex.split(line) for name, line in zip(lines[::2], lines[1::2], strict=True)}


def test_prefixes_are_put_wherever_a_model_encodes(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    both = ("train_datasets=[web,train.jsonl]", "datasets.web.file=train.jsonl", *PREFIXED, "datasets.web.special_token=[ASK]")
    stages = plan(workplace, monkeypatch, capsys, *both)
    prefixes = {f"query_prefix=[ASK] {QUERY_PREFIX}", f"passage_prefix={PASSAGE_PREFIX}"}
    assert prefixes <= set(stages["mine-1-web"]) and not prefixes & set(stages["bm25-web"])
    assert "vectors=planned/embed-1-web/vectors_0" in stages["mine-1-web"]
    assert f"ctx_sources.of_the_ladder.passage_prefix={PASSAGE_PREFIX}" in stages["embed-1-web"]
    assert "vectors=planned/embed-1-train/vectors_0" in stages["mine-1-train"]
    assert not any("prefix=" in argument for argument in stages["mine-1-train"] + stages["embed-1-train"])

    assert main(command("planned", "ladder.plan=true", *both, *EVALUATED)) == 2
    assert "ladder.questions: with which query_prefix? web has" in capsys.readouterr().err

    named = ("train_datasets=[web]", "datasets.web.file=train.jsonl", "datasets.web.prompt=code", *EVALUATED)
    stages = plan(workplace, monkeypatch, capsys, *named)
    assert "prompt=code" in stages["mine-1"]
    assert "datasets.of_the_ladder.prompt=code" in stages["evaluate-1"]


def test_what_is_embedded_mined_and_asked_with_prefixes_fits_together(workplace: Path) -> None:
    """Mining refuses vectors with another prefix; the record holds what the questions were asked with."""
    short = ("train_datasets=[web]", "datasets.web.file=train.jsonl", *PREFIXED, "train.num_train_epochs=1", "ladder.bm25=false")
    ladder = finish(workplace, "prefixed", *short, *EVALUATED)
    manifest = json.loads((ladder.folder / "embed-1" / "vectors_0" / "manifest.json").read_text())
    assert PASSAGE_PREFIX in json.dumps(manifest)
    audit = json.loads((ladder.folder / "mine-1" / "web.jsonl.audit.json").read_text())
    assert audit["counts"]["negatives"] > 0
    assert json.loads((ladder.folder / "evaluate-1" / "stage.json").read_text())["settings"] == {"query_prefix": QUERY_PREFIX}


def test_under_torchrun_it_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(command("never")) == 2
    assert "ladder.processes=N" in capsys.readouterr().err
