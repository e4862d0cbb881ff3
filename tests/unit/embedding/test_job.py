"""A corpus is embedded chunk by chunk, by any number of ranks; what is interrupted resumes to the same bytes."""

import errno
import logging
import os
import shutil
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpr.core.errors import ConfigError, InputError, OutputError
from dpr.core.records import Passage
from dpr.embedding import job
from dpr.embedding.encode import encode_tokens, tokenize_passages
from dpr.embedding.job import EmbedReport, embed_shard, shard_range
from dpr.embedding.settings import EmbedConfig
from dpr.embedding.source import PassageSource
from dpr.formats.corpora import write_passages
from dpr.formats.vector_shards import VectorShard, VectorShardWriter, open_shards
from dpr.jobs.embed import run
from dpr.models.biencoder import BiEncoder
from dpr.retrieval.sources import resolve_passage_source, resolve_passage_sources
from dpr.storage import steps
from tests.helpers.jobs import embed as main
from tests.helpers.processes import RankFailed, run_on_ranks
from tests.helpers.tiny import tiny_model
from tests.helpers.varlen import on_any_device
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
        (10, 3, [range(4), range(4, 8), range(8, 10)]),
        (5, 4, [range(2), range(2, 4), range(4, 5), range(5, 5)]),
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


@pytest.fixture
def folder(tmp_path: Path, embedding_folder: Path) -> Path:
    return shutil.copytree(embedding_folder, tmp_path, dirs_exist_ok=True)


def config(folder: Path, **options: Any) -> EmbedConfig:
    names = {"model_file": "model", "ctx_src": "corpus.tsv", "out_file": "X"}
    paths = {key: str(folder / name) for key, name in names.items()}
    made = EmbedConfig(**{**paths, "no_cuda": True, "chunk_size": 12, **options})
    made.check()
    return made


def test_the_command_line_of_dpr_writes_its_shard(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    line = "model_file=model ctx_src=corpus.tsv out_file=X no_cuda=true shard_id=1 num_shards=3 batch_size=4"
    assert main([*line.split(), "fp16=false", "do_lower_case=true", "local_rank=-1"]) == 0
    assert VectorShard(folder / "X_1").num_vectors == 18
    assert "18 vectors of 16 dimensions" in capsys.readouterr().err


@pytest.mark.parametrize(("precision", "is_said"), [("fp32", True), ("bf16", False)])
def test_fp32_on_a_processor_with_instructions_for_bf16_is_told(
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
    is_said: bool,
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    with caplog.at_level("INFO"):
        run(config(folder, precision=precision, device="cpu"))
    assert ("faster in bf16 than in fp32; precision=bf16" in caplog.text) is is_said


def test_ranks_of_a_launcher_take_chunks_in_turn_and_write_the_same_bytes(folder: Path) -> None:
    torch.set_num_threads(1)  # as on the ranks; sums are cut up differently for other numbers of threads
    run(config(folder))
    assert run_on_ranks(_chunks_written, 3, config(folder, out_file=str(folder / "many")), join=False) == [
        [0, 3],
        [1, 4],
        [2],
    ]
    assert contents(folder / "X_0") == contents(folder / "many_0")


def _chunks_written(settings: EmbedConfig) -> list[int]:
    written: list[int] = []
    real = VectorShardWriter.write_chunk
    VectorShardWriter.write_chunk = lambda self, number, *rest: (
        written.append(number) or real(self, number, *rest)
    )  # type: ignore
    assert run(settings).embedded == NUM_PASSAGES
    return written


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_file": None}, "model_file is not set"),
        ({"encoder_type": "passage"}, "encoder_type=passage is not known; choose one of ctx, question"),
        ({"num_shards": 0}, "num_shards=0 is out of range"),
        ({"shard_id": 4, "num_shards": 4}, "shard_id=4 does not exist with num_shards=4"),
    ],
)
def test_nonsensical_settings_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(tmp_path, **options)


def test_data_errors_end_with_three_and_usage_errors_with_two(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"model_file={folder / 'model'}", f"out_file={folder / 'X'}", "no_cuda=true"]
    assert main([*arguments, f"ctx_src={folder / 'corpus.csv'}"]) == 2
    assert "corpus.csv: there is no such file" in capsys.readouterr().err
    assert main([*arguments, "ctx_src=dpr_wiki"]) == 2
    assert "it is published at https://" in capsys.readouterr().err
    (folder / "bad.tsv").write_text("1\ttext\ttitle\n2\n")
    assert main([*arguments, f"ctx_src={folder / 'bad.tsv'}"]) == 3
    assert f"{folder / 'bad.tsv'}:2: 1 columns, expected 3" in capsys.readouterr().err
    assert main([f"model_file={folder / 'nothing'}", *arguments[1:], f"ctx_src={folder / 'corpus.tsv'}"]) == 3
    assert "nothing" in capsys.readouterr().err


def test_sources_are_found_by_path_and_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.v1.tsv").write_text("1\ta\n")
    (tmp_path / "wiki.tsv.gz").write_text("")
    options = {"id_prefix": "w:", "title_col": 1, "text_col": 2, "normalize": True}
    options |= {"file": str(tmp_path / "wiki.tsv"), "_target_": "dpr.data.retriever_data.CsvCtxSrc"}
    catalogue = {"wiki": options, "short": str(tmp_path / "c.v1.tsv")}
    assert resolve_passage_source(str(tmp_path / "c.v1.tsv"), catalogue) == PassageSource(
        tmp_path / "c.v1.tsv", name="c"
    )
    assert resolve_passage_source("short", catalogue) == PassageSource(tmp_path / "c.v1.tsv", name="short")
    assert resolve_passage_source("wiki", catalogue) == PassageSource(
        tmp_path / "wiki.tsv.gz", "wiki", 0, 2, 1, "w:", True
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short").write_text("")
    assert resolve_passage_source("short", catalogue).file == Path("short"), "a path wins over a name"


def test_patterns_stand_for_the_files_they_match(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"c-{name}.tsv").write_text(f"{name}\tx\n")
    assert [source.name for source in resolve_passage_sources([f"{tmp_path}/c-*.tsv"], {})] == ["c-a", "c-b"]
    assert resolve_passage_source(f"{tmp_path}/c-[a].tsv", {}).file == tmp_path / "c-a.tsv"
    with pytest.raises(ConfigError, match="matches 2 files; a corpus to embed is one file"):
        resolve_passage_source(f"{tmp_path}/c-*.tsv", {})
    with pytest.raises(ConfigError, match="there is no such file"):
        resolve_passage_sources([f"{tmp_path}/d-*.tsv"], {})


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"file": "none.tsv"}, "passage collection wiki: none.tsv does not exist"),
        ({"file": "none.tsv", "source": "https://host/x.tsv.gz"}, "published at https://host/x.tsv.gz"),
        ({"file": "f", "id_col": -1}, "id_col=-1 is out of range"),
        ({"file": "f", "_target_": "os.system"}, "_target_=os.system is not supported"),
    ],
)
def test_bad_catalogue_entries_are_refused(entry: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_passage_source("wiki", {"wiki": entry})
    with pytest.raises(ConfigError, match="did you mean wiki"):
        resolve_passage_source("wikki", {"wiki": entry})


def test_normalised_texts_and_an_identity_that_follows_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.tsv"
    path.write_text('1\t"two\nlines \u2019x\u2019"\tT\n', encoding="utf-8")
    assert [passage.text for passage in PassageSource(path, normalize=True).read()] == ["two lines 'x'"]
    before = PassageSource(path).identity()
    path.write_text(path.read_text() + "2\ty\tT\n")
    assert PassageSource(path).identity() != before


def test_the_attention_asked_for_reaches_the_towers_and_needs_half_precision(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run(config(folder, attention="varlen", precision="bf16"))
    assert "encoder.attention=varlen has no effect here (the kernel is for CUDA, not for cpu)" in caplog.text
    run(config(folder, out_file=str(folder / "Y"), precision="bf16"))
    first, second = (VectorShard(folder / name) for name in ("X_0", "Y_0"))
    for (_, mine), (_, theirs) in zip(first.chunks(), second.chunks(), strict=True):
        assert np.array_equal(mine, theirs)
    with on_any_device(monkeypatch) as calls:
        run(config(folder, out_file=str(folder / "Z"), attention="varlen", precision="bf16"))
    assert calls
    with pytest.raises(ConfigError, match="attention=varlen needs precision=bf16 or fp16"):
        config(folder, attention="varlen")


CHUNKS = 7


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
    arguments = [*line.split(), "no_cuda=true", "chunk_size=8", "batch_tokens=200"]
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
