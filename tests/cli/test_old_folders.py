"""What an earlier version wrote still opens, and means the same: runs, models, vectors, indexes, search folders.

``tests/fixtures/written_by_0_1_0.tar.xz`` was written by that version's own commands, with what they answered in ``expected/``. ``cut``
is a run that SIGTERM ended at step 4 of 12, ``unfinished/vectors_0`` an embedding that SIGKILL ended in its second chunk of five.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpr.cli.main import main as dpr
from dpr.models.biencoder import BiEncoder

ARCHIVE = Path(__file__).resolve().parents[1] / "fixtures" / "written_by_0_1_0.tar.xz"
TRAIN = (
    "train_datasets=train.json dev_datasets=dev.json encoder.pretrained_model_cfg=encoder encoder.pretrained=false "
    "encoder.sequence_length=24 train.batch_size=8 train.num_train_epochs=2 train.num_workers=0 no_cuda=true "
    "train.log_batch_step=1 train.learning_rate=0.01 train.warmup_steps=2 train.token_store=off loss.temperature=0.5"
).split()
QUESTIONS = "qa_dataset=questions.jsonl qrels=qrels.tsv ctx_datasets=[corpus.tsv] no_cuda=true".split()
DENSE = "model_file=run encoded_ctx_files=[run/vectors_0]".split()


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, as the earlier version left it."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # Python 3.11.4 has it
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(path: str) -> Any:
    return json.loads(Path(path).read_text(encoding="utf-8"))


def train_losses(path: str) -> dict[int, float]:
    lines = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    return {line["step"]: line["train/loss"] for line in lines if "train/loss" in line}


@pytest.mark.parametrize("name", ["run", "cut", "learned", "static", "run.cp"])
def test_models_give_the_same_vectors(old: Path, name: str) -> None:
    expected = read("expected/models.json")
    model, vectors = BiEncoder.load(name), expected["models"][name]
    np.testing.assert_allclose(model.encode_questions(expected["question_texts"]), vectors["questions"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.encode_passages(expected["passage_texts"]), vectors["passages"], rtol=1e-5, atol=1e-6)


def test_a_stopped_run_resumes_to_the_same_end(old: Path) -> None:
    assert dpr(["train", *TRAIN, "output_dir=cut"]) == 0
    ended, wanted = read("cut/metrics.json"), read("expected/cut/metrics.json")
    assert ended.pop("best_checkpoint") == wanted.pop("best_checkpoint") and ended.pop("best_metric") == wanted.pop("best_metric")
    assert ended == pytest.approx(wanted, rel=1e-5)
    losses = train_losses("cut/metrics.jsonl")
    assert list(losses) == list(range(1, 13))
    assert losses == pytest.approx(train_losses("expected/cut/metrics.jsonl"), rel=1e-4)


def test_a_finished_run_is_found_finished(old: Path) -> None:
    before = sorted(path.stat().st_mtime_ns for path in old.glob("run/dpr_biencoder.*/*"))
    assert dpr(["train", *TRAIN, "output_dir=run"]) == 0
    assert sorted(path.stat().st_mtime_ns for path in old.glob("run/dpr_biencoder.*/*")) == before


def test_another_seed_is_refused(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dpr(["train", *TRAIN, "output_dir=cut", "seed=7"]) != 0
    assert "seed" in capsys.readouterr().err


def test_vectors_are_found_done(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in old.glob("run/vectors_0/*")}
    assert dpr("embed model_file=run ctx_src=corpus.tsv out_file=run/vectors no_cuda=true token_store=off".split()) == 0
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in old.glob("run/vectors_0/*")} == before


def test_killed_embedding_continues(old: Path) -> None:
    first = Path("unfinished/vectors_0/vectors-00000.npy")
    before = first.stat().st_mtime_ns
    arguments = "embed model_file=run ctx_src=corpus.tsv out_file=unfinished/vectors no_cuda=true token_store=off chunk_size=8".split()
    assert dpr(arguments) == 0
    assert first.stat().st_mtime_ns == before, "its finished chunk is not embedded again"
    parts = [np.load(f"unfinished/vectors_0/vectors-{number:05d}.npy") for number in range(5)]
    np.testing.assert_allclose(np.concatenate(parts), np.load("run/vectors_0/vectors-00000.npy"), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("bm25", ["indexer=bm25", "bm25_index_path=run/bm25"]),
        ("exact", DENSE),
        ("hnsw", [*DENSE, "indexer=hnsw", "index_path=run/hnsw"]),
        ("small", [*DENSE, "indexer=small", "index_path=run/small"]),
        ("hybrid", [*DENSE, "hybrid=linear", "hybrid_weight=0.4", "bm25_index_path=run/bm25"]),
    ],
)
def test_vectors_and_indexes_are_searched_as_before(old: Path, name: str, arguments: list[str]) -> None:
    saved = {path: path.stat().st_mtime_ns for kind in ("bm25", "hnsw", "small") for path in old.glob(f"run/{kind}/*")}
    assert dpr(["retrieve", *QUESTIONS, *arguments, "metrics_file=new.json", "trec_run_file=new.trec"]) == 0
    assert read("new.json")["metrics"] == pytest.approx(read(f"expected/{name}.json")["metrics"])
    assert {path: path.stat().st_mtime_ns for path in saved} == saved, "nothing is built again"
    if name == "exact":
        rows = [line.split() for line in Path("new.trec").read_text().splitlines()]
        wanted = [line.split() for line in Path("expected/exact.trec").read_text().splitlines()]
        assert [row[:4] for row in rows] == [row[:4] for row in wanted]


def test_a_search_folder_answers(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dpr(["search", "run", "so me so so ha tu", "-k", "3"]) == 0
    output = capsys.readouterr().out
    assert output.index("[p008]") < output.index("p020") < output.index("p004")


def test_what_it_wrote_is_verified(old: Path) -> None:
    assert dpr(["verify", "run", "cut", "static"]) == 0
