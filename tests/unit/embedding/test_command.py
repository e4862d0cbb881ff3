import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpr.core.errors import ConfigError
from dpr.embedding.settings import EmbedConfig
from dpr.embedding.source import PassageSource
from dpr.formats.vector_shards import VectorShard, VectorShardWriter, open_shards
from dpr.jobs.embed import run
from dpr.retrieval.sources import resolve_passage_source, resolve_passage_sources
from tests.helpers.jobs import embed as main
from tests.helpers.processes import run_on_ranks
from tests.helpers.varlen import on_any_device
from tests.unit.embedding.conftest import NUM_PASSAGES


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
    single, many = (
        {path.name: path.read_bytes() for path in (folder / name).iterdir()} for name in ("X_0", "many_0")
    )
    assert single == many


def _chunks_written(settings: EmbedConfig) -> list[int]:
    written: list[int] = []
    real = VectorShardWriter.write_chunk
    VectorShardWriter.write_chunk = lambda self, number, *rest: (
        written.append(number) or real(self, number, *rest)
    )  # type: ignore
    assert run(settings).embedded == NUM_PASSAGES
    return written


def test_catalogue_source_with_prefix_is_embedded(folder: Path) -> None:
    catalogue = {"mine": {"file": str(folder / "corpus.tsv"), "id_prefix": "m:"}}
    run(config(folder, ctx_src="mine", ctx_sources=catalogue))
    (shard,) = open_shards([str(folder / "X_*")])
    assert next(shard.id_chunks())[0] == b"m:p0"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_file": None}, "model_file is not set"),
        ({"ctx_src": None}, "ctx_src is not set"),
        ({"out_file": None}, "out_file is not set"),
        ({"encoder_type": "passage"}, "encoder_type=passage is not known; choose one of ctx, question"),
        ({"out_dtype": "bf16"}, "out_dtype=bf16"),
        ({"precision": "half"}, "precision=half"),
        ({"num_shards": 0}, "num_shards=0 is out of range"),
        ({"shard_id": 4, "num_shards": 4}, "shard_id=4 does not exist with num_shards=4"),
        ({"chunk_size": 0}, "chunk_size=0"),
        ({"batch_tokens": -1}, "batch_tokens=-1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
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
