"""Mining takes the memory of a block of questions, not of the data set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.memory import MEBI, Watch
from dpr.core.records import Passage, TrainingSample
from dpr.formats.corpora import write_passages
from dpr.formats.training_files.dpr import write_training_set
from dpr.formats.training_sets import open_training_set
from dpr.formats.vector_shards import VectorShard, VectorShardWriter
from dpr.mining.negatives import mine
from dpr.mining.search import DenseSearch, MiningCorpus
from dpr.mining.settings import MiningSettings
from tests.architecture.source_files import REPOSITORY
from tests.helpers.examples import IS_THOROUGH

FEW, MANY, DEPTH, DIMENSION, PASSAGES = 250, 2000, 100, 64, 400


class RandomVectors(DenseSearch):
    """A search by vectors that no model made."""

    mined_by = "dense"
    block_rows = 250

    def metadata(self) -> dict[str, Any]:
        return {"kind": "random"}

    def prepare(self, corpus: MiningCorpus) -> None:
        self.use_vectors(self.shards)

    def encoded_questions(self, questions: Sequence[str]) -> np.ndarray:
        rng = np.random.default_rng(len(questions))
        return rng.standard_normal((len(questions), DIMENSION), dtype=np.float32)


def main(folder: Path) -> None:
    """Prints the growth of anonymous memory over mining for few and then for many questions."""
    passages = [
        Passage(f"word{number} " * 3 + f"and{number}", "", f"p{number}") for number in range(PASSAGES)
    ]
    write_passages(folder / "corpus.tsv", passages)
    writer = VectorShardWriter(folder / "vectors", metadata={}, dimension=DIMENSION)
    writer.write_chunk(
        0,
        [f"p{n}" for n in range(PASSAGES)],
        np.random.default_rng(1).standard_normal((PASSAGES, DIMENSION), dtype=np.float32),
    )
    writer.finish()
    sizes = {"first": 100, "few": FEW, "many": MANY}
    for name, count in sizes.items():
        samples = (
            TrainingSample(f"question {number}", (passages[number % PASSAGES],)) for number in range(count)
        )
        write_training_set(folder / f"{name}.jsonl", samples)
    trains = {name: open_training_set(folder / f"{name}.jsonl", name=name) for name in sizes}
    settings, growth = MiningSettings(per_question=3, to_rank=DEPTH), {}
    model: Any = None
    for name, train in trains.items():  # what is loaded at first use belongs to the first
        with Watch() as watch:
            audit = mine(
                train,
                folder / f"{name}.out.jsonl",
                settings,
                search=RandomVectors(model, [VectorShard(folder / "vectors")]),
                corpus=folder / "corpus.tsv",
            )
        assert audit["counts"]["negatives"] == 3 * sizes[name]
        growth[name] = watch.growth
    print(json.dumps(growth))


@pytest.mark.skipif(not IS_THOROUGH, reason="takes long; make fuzz runs it")
def test_memory_does_not_grow_with_the_number_of_questions(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from tests.unit.mining.test_memory import main;"
        f" main(Path({str(tmp_path)!r}))"
    )
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "DPR_CACHE": str(tmp_path / "cache"),
        "PYTHONPATH": str(REPOSITORY),
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    growth = json.loads(done.stdout.splitlines()[-1])
    # What was found for 1,750 questions more, 100 pairs each, would be 17 MB and more.
    assert growth["many"] < growth["few"] + 8 * MEBI, growth
