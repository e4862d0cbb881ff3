import logging
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpr.core.errors import InputError, OutputError
from dpr.core.records import Passage
from dpr.embedding import job
from dpr.embedding.encode import encode_tokens, tokenize_passages
from dpr.embedding.job import EmbedReport, embed_shard, shard_range
from dpr.embedding.settings import EmbedConfig
from dpr.embedding.source import PassageSource
from dpr.formats.corpora import write_passages
from dpr.formats.vector_shards import VectorShard, VectorShardWriter, open_shards
from dpr.models.biencoder import BiEncoder
from tests.helpers.processes import RankFailed, run_on_ranks
from tests.helpers.tiny import tiny_model
from tests.unit.embedding.conftest import NUM_PASSAGES, contents

SMALL = EmbedConfig(chunk_size=8, batch_tokens=200)


def embed(folder: Path, out: Path, settings: EmbedConfig = SMALL, **options: Any) -> EmbedReport:
    torch.set_num_threads(1)
    source = PassageSource(options.pop("corpus", folder / "corpus.tsv"), **options.pop("source", {}))
    model = options.pop("model", None) or BiEncoder.load(folder / "model")
    return embed_shard(model, source, replace(settings, out_file=str(out), **options))


def vectors_by_id(shards: list[VectorShard]) -> dict[str, np.ndarray]:
    return {
        key.decode(): row
        for shard in shards
        for ids, rows in shard.chunks()
        for key, row in zip(ids.tolist(), rows, strict=True)
    }


@pytest.mark.parametrize(
    ("passages", "shards", "expected"),
    [
        (10, 1, [range(10)]),
        (10, 3, [range(4), range(4, 8), range(8, 10)]),
        (5, 4, [range(2), range(2, 4), range(4, 5), range(5, 5)]),
        (1, 3, [range(1), range(1, 1), range(1, 1)]),
    ],
)
def test_shards_are_consecutive_ranges_of_equal_size_as_in_dpr(
    passages: int, shards: int, expected: list[range]
) -> None:
    assert [shard_range(passages, number, shards) for number in range(shards)] == expected


def test_shards_together_hold_every_passage_once_with_its_vector(
    embedding_folder: Path, tmp_path: Path
) -> None:
    for number in (2, 0, 1, 3):
        embed(embedding_folder, tmp_path / "X", shard_id=number, num_shards=4)
    found = vectors_by_id(open_shards([str(tmp_path / "X_*")]))
    model = BiEncoder.load(embedding_folder / "model")
    passages = list(PassageSource(embedding_folder / "corpus.tsv").read())
    expected = encode_tokens(model, tokenize_passages(model.tensorizer, passages), batch_tokens=10_000)
    assert list(found) == [str(passage.id) for passage in passages]
    np.testing.assert_allclose(np.stack(list(found.values())), expected, atol=1e-5)


def test_a_corpus_that_changes_while_it_is_embedded_ends_the_run(
    embedding_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = tmp_path / "c.tsv"
    corpus.write_bytes((embedding_folder / "corpus.tsv").read_bytes())
    real = job.encode_within_memory

    def encode_and_change(*arguments: Any, **options: Any) -> np.ndarray:
        vectors = real(*arguments, **options)
        corpus.write_bytes((embedding_folder / "corpus.tsv").read_bytes().replace(b"p50", b"q50"))
        return vectors

    monkeypatch.setattr(job, "encode_within_memory", encode_and_change)
    with pytest.raises(InputError, match="has changed while it was read"):
        embed(embedding_folder, tmp_path / "X", corpus=corpus)


def test_finished_chunks_are_kept_and_damaged_ones_made_again(embedding_folder: Path, tmp_path: Path) -> None:
    embed(embedding_folder, tmp_path / "X")
    good = contents(tmp_path / "X_0")
    assert embed(embedding_folder, tmp_path / "X") == EmbedReport(tmp_path / "X_0", NUM_PASSAGES, 0, 0)
    damaged = tmp_path / "X_0" / "vectors-00002.npy"
    damaged.write_bytes(good[damaged.name][:-1] + b"\0")
    assert embed(embedding_folder, tmp_path / "X").embedded == 8
    assert contents(tmp_path / "X_0") == good


def test_a_killed_run_of_two_ranks_is_continued_by_one(embedding_folder: Path, tmp_path: Path) -> None:
    embed(embedding_folder, tmp_path / "whole")
    with pytest.raises(RankFailed, match="died"):
        run_on_ranks(_die_at_third_chunk, 2, embedding_folder, tmp_path / "X")
    assert not (tmp_path / "X_0" / "manifest.json").exists()
    assert 0 < embed(embedding_folder, tmp_path / "X").embedded < NUM_PASSAGES
    assert contents(tmp_path / "X_0") == contents(tmp_path / "whole_0")


def _die_at_third_chunk(embedding_folder: Path, out: Path) -> None:
    real, encoded = job.encode_within_memory, []

    def encode_or_die(*arguments: Any, **options: Any) -> np.ndarray:
        if len(encoded) == 2:  # each rank's third chunk: its first is written then
            os.kill(os.getpid(), signal.SIGKILL)
        encoded.append(1)
        return real(*arguments, **options)

    job.encode_within_memory = encode_or_die
    embed(embedding_folder, out)


def test_a_rank_that_fails_stops_all_with_its_message(embedding_folder: Path, tmp_path: Path) -> None:
    outcomes = run_on_ranks(_outcome_with_failing_rank, 2, embedding_folder, tmp_path / "X")
    assert "2 of 8 vectors are not finite" in outcomes[1]
    assert "another rank stopped while embedding" in outcomes[0]


def _outcome_with_failing_rank(embedding_folder: Path, out: Path) -> str:
    real = job.encode_within_memory

    def broken(*arguments: Any, **options: Any) -> np.ndarray:
        vectors = real(*arguments, **options)
        if os.environ["RANK"] == "1":
            vectors[[1, 4]] = np.nan
        return vectors

    job.encode_within_memory = broken
    try:
        embed(embedding_folder, out)
    except Exception as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"settings": EmbedConfig(chunk_size=8, encoder_type="question")}, "encoder_type"),
        ({"settings": EmbedConfig(chunk_size=8, out_dtype="float16")}, "dtype"),
        ({"source": {"normalize": True}}, "normalize"),
        ({"source": {"passage_prefix": "ba "}}, "passage_prefix"),
        ({"num_shards": 2}, "end_row"),
        ({}, "corpus_fingerprint"),
        ({}, "model_fingerprint"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_vectors_made_otherwise_are_not_continued(
    embedding_folder: Path, tmp_path: Path, change: dict[str, Any], key: str
) -> None:
    embed(embedding_folder, tmp_path / "X")
    if key == "corpus_fingerprint":
        text = (embedding_folder / "corpus.tsv").read_text().replace("\n", "\nq", 1)
        (tmp_path / "corpus.tsv").write_text(text)
        change = {"corpus": tmp_path / "corpus.tsv"}
    if key == "model_fingerprint":
        change = {"model": tiny_model(embedding_folder / "encoder", seed=1, dtype=torch.float32)}
    with pytest.raises(
        InputError, match=rf"X_0: holds finished vectors with {key}=.* this run has .*choose another out_file"
    ):
        embed(embedding_folder, tmp_path / "X", **change)


def test_ids_are_prefixed_and_float16_halves_the_size(embedding_folder: Path, tmp_path: Path) -> None:
    embed(
        embedding_folder,
        tmp_path / "X",
        EmbedConfig(chunk_size=8, out_dtype="float16"),
        source={"id_prefix": "wiki:"},
    )
    shard = VectorShard(tmp_path / "X_0")
    assert next(iter(vectors_by_id([shard]))) == "wiki:p0"
    assert shard.dtype == "float16"


def test_metadata_say_where_vectors_come_from(embedding_folder: Path, tmp_path: Path) -> None:
    embed(embedding_folder, tmp_path / "X", shard_id=1, num_shards=2)
    metadata = VectorShard(tmp_path / "X_1").metadata
    expected = {"model_fingerprint": BiEncoder.load(embedding_folder / "model").fingerprint}
    expected |= {"encoder_type": "ctx", "similarity": "dot", "corpus": "corpus.tsv"}
    expected |= {"shard_id": 1, "num_shards": 2, "first_row": 27, "end_row": 53}
    expected |= {"num_vectors": 26, "num_chunks": 4}
    expected |= {"dimension": 16, "dtype": "float32", "precision": "fp32"}
    assert {key: metadata[key] for key in expected} == expected
    assert str(tmp_path) not in str(metadata)


def test_passages_without_text_are_counted_and_embedded(
    embedding_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_passages(
        tmp_path / "c.tsv", [Passage("ba", "", "a"), Passage("", "be", "b"), Passage(" ", "", "c")]
    )
    with caplog.at_level(logging.WARNING, "dpr"):
        assert embed(embedding_folder, tmp_path / "X", corpus=tmp_path / "c.tsv").empty == 2
    assert "2 passages have no text, such as b, c" in caplog.text
    assert list(vectors_by_id([VectorShard(tmp_path / "X_0")])) == ["a", "b", "c"]


def test_a_corpus_with_an_id_twice_or_without_rows_is_refused_before_anything_is_written(
    embedding_folder: Path, tmp_path: Path
) -> None:
    write_passages(tmp_path / "twice.tsv", [Passage("ba", "", key) for key in "aba"])
    with pytest.raises(InputError, match=r"twice\.tsv:4: passage id 'a' is already used at line 2"):
        embed(embedding_folder, tmp_path / "X", corpus=tmp_path / "twice.tsv")
    (tmp_path / "empty.tsv").write_text("id\ttext\ttitle\n")
    with pytest.raises(InputError, match=r"empty\.tsv: no passages"):
        embed(embedding_folder, tmp_path / "X", corpus=tmp_path / "empty.tsv")
    assert not (tmp_path / "X_0").exists()


def test_only_three_chunks_are_held_at_a_time(
    embedding_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, written, ahead = [0], [0], []
    real_read, real_write = PassageSource.read, VectorShardWriter.write_chunk

    def counted_read(self: PassageSource, *arguments: Any) -> Any:
        for passage in real_read(self, *arguments):
            read[0] += 1
            yield passage

    def counted_write(self: Any, number: int, ids: list[str], vectors: np.ndarray) -> None:
        ahead.append(read[0] - written[0])
        written[0] += len(ids)
        real_write(self, number, ids, vectors)

    monkeypatch.setattr(PassageSource, "read", counted_read)
    monkeypatch.setattr(VectorShardWriter, "write_chunk", counted_write)
    embed(embedding_folder, tmp_path / "X")
    assert written[0] == NUM_PASSAGES
    assert max(ahead) <= 3 * SMALL.chunk_size


def test_where_nothing_can_be_written_the_corpus_is_not_read(
    embedding_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(PassageSource, "identity", None)
    with pytest.raises(OutputError, match=r"file is not a folder"):
        embed(embedding_folder, tmp_path / "file" / "X")
