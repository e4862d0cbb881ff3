"""examples/rounds.sh: rounds of mining and training, and a kill in the middle of them."""

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpr.core.records import Passage, TrainingSample
from dpr.formats.corpora import write_passages
from dpr.formats.training_files.dpr import write_training_set
from dpr.formats.training_sets import open_training_set
from tests.architecture.source_files import REPOSITORY
from tests.helpers.patience import patient
from tests.helpers.tiny import encoder_folder, sentence
from tests.helpers.warm_dpr import warm_dpr

SETTINGS = (
    "encoder.pretrained_model_cfg=encoder encoder.pretrained=false encoder.sequence_length=24"
    " encoder.dropout=0.1 train.batch_size=8 train.num_train_epochs=4 train.hard_negatives=1"
    " train.save_every_steps=1 train.keep_last=0"
)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A corpus of 60 passages; questions are four words of a passage."""
    folder = tmp_path_factory.mktemp("rounds")
    encoder_folder(folder / "encoder", num_hidden_layers=1)
    rng = random.Random(3)
    corpus = [Passage(sentence(rng, 12), sentence(rng, 2), f"d{number}") for number in range(60)]
    write_passages(folder / "corpus.tsv", corpus)
    chosen = [rng.choice(corpus) for _ in range(40)]
    samples = [
        TrainingSample(" ".join(rng.sample(passage.text.split(), 4)), (Passage(passage.text, passage.title),))
        for passage in chosen
    ]
    write_training_set(folder / "train.jsonl", samples[:32])
    write_training_set(folder / "dev.jsonl", samples[32:])
    with warm_dpr(folder / "bin"):
        yield folder


def start(workplace: Path, out: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PATH": f"{workplace / 'bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    environment["DPR_CACHE"] = str(workplace / "cache")
    given = "TRAIN=train.jsonl DEV=dev.jsonl CORPUS=corpus.tsv MINE=per_question=2 DEVICE=device=cpu"
    environment |= dict(item.split("=", 1) for item in [*given.split(), f"OUT={out}"])
    command = ["bash", str(REPOSITORY / "examples" / "rounds.sh"), *SETTINGS.split()]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(
        command, cwd=workplace, env=environment, text=True, start_new_session=True, **pipes
    )  # type: ignore[call-overload, no-any-return]


def finished(process: subprocess.Popen[str]) -> str:
    text = process.communicate(timeout=patient(240))[0]
    assert process.returncode == 0, text
    return text


def test_killed_in_a_training_it_goes_on_there(workplace: Path) -> None:
    process = start(workplace, "out")
    out = workplace / "out"
    deadline = time.monotonic() + patient(240)
    while not (out / "model-1" / "run.json").is_file():  # written after the first checkpoint
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (out / "model-1" / "metrics.json").exists()
    before = (out / "bm25.jsonl").stat().st_mtime_ns

    text = finished(start(workplace, "out"))
    assert text.endswith("the last model: out/model-2\n")
    assert re.search(r"resuming from .*model-1", text)
    assert (out / "bm25.jsonl").stat().st_mtime_ns == before
    mined = open_training_set(out / "mined-1.jsonl", name="mined")
    assert any(mined[row].hard_negatives for row in range(len(mined)))
    assert (out / "model-2" / "metrics.json").is_file()  # of a run that ended
