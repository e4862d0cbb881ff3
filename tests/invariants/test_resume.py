"""Promise 3: a run that is killed and started again ends with the weights it would have had."""

import random
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.faults.runs import Workshop, saved_steps
from tests.faults.server import serve
from tests.helpers.processes import Served
from tests.helpers.training import assert_same_bits, newest, stored

RANKS = 3  # with 2, sums do not depend on the order of their terms
SETTINGS = (
    "train.global_batch_size=12 train.other_negatives=1 train.gradient_accumulation_steps=2"
    " train.num_train_epochs=3 train.eval_every_steps=5 val_av_rank_start_epoch=1"
    " train.early_stopping.patience=100"
).split()


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    with closing(Served(serve)) as server:
        yield Workshop(tmp_path_factory.mktemp("resume"), server, train=120, dev=11)


def test_a_killed_run_ends_with_bitwise_the_same_weights(workshop: Workshop) -> None:
    whole, killed = workshop.folder / "whole", workshop.folder / "killed"
    workshop.finish(whole, *SETTINGS, ranks=RANKS)
    expected = stored(whole)
    # the checkpoint of step 2 is there before step 3 is in the log
    step = random.SystemRandom().randint(3, 10)
    run = workshop.start(killed, *SETTINGS, ranks=RANKS)
    run.wait_for(rf" step {step}/")
    run.kill()
    assert saved_steps(killed)[0] < saved_steps(whole)[0]
    assert "resuming from" in workshop.finish(killed, *SETTINGS, ranks=RANKS).text
    print(f"killed after step {step}")
    assert newest(killed).name == newest(whole).name
    assert_same_bits(stored(killed), expected)
    assert (killed / "metrics.json").read_text() == (whole / "metrics.json").read_text()
    # What callbacks remember (best value and patience, the highest rank) is that of the undisturbed run too.
    memories = [(newest(folder) / "callbacks.json").read_text() for folder in (killed, whole)]
    assert memories[0] == memories[1]
    assert '"bad"' in memories[0] and '"highest_rank"' in memories[0]
    steps = [
        line.split('"step": ')[1].split(",")[0]
        for line in (killed / "metrics.jsonl").read_text().splitlines()
        if "train/loss" in line
    ]
    assert [int(number) for number in steps] == list(range(1, 16))
