"""Chunks are read, encoded and written side by side; a failed write is reported."""

import errno
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpr.embedding import job
from dpr.embedding.job import embed_shard
from dpr.embedding.settings import EmbedConfig
from dpr.embedding.source import PassageSource
from dpr.formats.vector_shards import VectorShard, VectorShardWriter
from dpr.models.biencoder import BiEncoder
from dpr.storage import steps
from tests.helpers.jobs import embed as main
from tests.unit.embedding.conftest import NUM_PASSAGES, contents

CHUNKS, SIZE = 7, 8


def embed(embedding_folder: Path, out: Path, **settings: Any) -> job.EmbedReport:
    torch.set_num_threads(1)
    config = EmbedConfig(out_file=str(out), chunk_size=SIZE, batch_tokens=200, **settings)
    return embed_shard(
        BiEncoder.load(embedding_folder / "model"), PassageSource(embedding_folder / "corpus.tsv"), config
    )


def test_a_chunk_is_encoded_while_the_one_before_it_is_written(
    embedding_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write waits until the next chunk has been encoded; written in turn, they would deadlock."""
    encoded = [threading.Event() for _ in range(CHUNKS + 1)]
    encoded[CHUNKS].set()  # nothing follows the last
    writing: list[int] = []
    most, real_encode, real_write = [0], job.encode_within_memory, VectorShardWriter.write_chunk

    def encode(*arguments: Any, **options: Any) -> np.ndarray:
        vectors = real_encode(*arguments, **options)
        next(event for event in encoded if not event.is_set()).set()
        return vectors

    def write(self: VectorShardWriter, number: int, *rest: Any) -> None:
        writing.append(number)
        most[0] = max(most[0], len(writing))
        assert encoded[number + 1].wait(20), "the next chunk is not encoded before this one is written"
        real_write(self, number, *rest)
        writing.remove(number)

    monkeypatch.setattr(job, "encode_within_memory", encode)
    monkeypatch.setattr(VectorShardWriter, "write_chunk", write)
    assert embed(embedding_folder, tmp_path / "X").embedded == NUM_PASSAGES
    assert most == [1], "one chunk is written at a time"


@pytest.mark.parametrize("failing", [0, 2, CHUNKS - 1])
def test_a_write_that_fails_ends_with_three_and_the_next_run_resumes(
    embedding_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failing: int,
) -> None:
    embed(embedding_folder, tmp_path / "whole")
    real = steps.durable_file

    def full(target: Path, mode: str = "w") -> Any:
        if f"-{failing:05d}.npy" in target.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(target, mode)

    torch.set_num_threads(1)
    line = f"model_file={embedding_folder}/model ctx_src={embedding_folder}/corpus.tsv out_file={tmp_path}/X"
    arguments = [*line.split(), "no_cuda=true", f"chunk_size={SIZE}", "batch_tokens=200"]
    with monkeypatch.context() as patched:
        patched.setattr(steps, "durable_file", full)
        assert main(arguments) == 3
    assert (
        "X_0: cannot be written (No space left on device); rerun the same command where it can"
        in capsys.readouterr().err
    )
    assert {path.name for path in (tmp_path / "X_0").glob("step-*.json")} == {
        f"step-{number:05d}.json" for number in range(failing)
    }
    assert not (tmp_path / "X_0" / "manifest.json").exists()
    assert main(arguments) == 0
    assert contents(tmp_path / "X_0") == contents(tmp_path / "whole_0")


def test_codes_are_written_while_embedding(embedding_folder: Path, tmp_path: Path) -> None:
    for name, stored in (("exact", "float32"), ("coded", "int8")):
        embed(embedding_folder, tmp_path / name, out_dtype=stored)
    exact, coded = (
        np.concatenate([rows for _, rows in VectorShard(tmp_path / f"{name}_0").chunks()])
        for name in ("exact", "coded")
    )
    np.testing.assert_allclose(coded, exact, atol=float(np.abs(exact).max()) / 253)
    assert VectorShard(tmp_path / "coded_0").metadata["dtype"] == "int8"
