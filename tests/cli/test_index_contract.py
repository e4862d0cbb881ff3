"""An index of a user's own, from the command lines of retrieval and search."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from dpr.cli.main import main
from dpr.core.settings import IDENTITY, Settings, setting
from dpr.formats.results import read_trec_run
from dpr.indexer.ranking import SearchResult
from dpr.indexer.registry import Index, IndexTexts
from dpr.indexer.vectors import VectorSource, blocks
from dpr.retrieval.retriever import Retriever
from tests.unit.retrieval.conftest import World, world

__all__ = ["world"]


@dataclass
class ToySettings(Settings):
    scale: float = setting(1.0, above=0, on_resume=IDENTITY)
    """What scores are multiplied by."""


class ToyIndex(Index):
    """Scores of all passages, sorted; what is common to both below."""

    Settings = ToySettings

    def __init__(self, ids: list[str], rows: list[object], settings: ToySettings) -> None:
        self.ids, self.rows, self.scale = ids, rows, settings.scale

    @property
    def num_passages(self) -> int:
        return len(self.ids)

    def save(self, folder: Path) -> None:
        (folder / "toy.json").write_text(json.dumps([self.ids, self.rows]))

    @classmethod
    def open(cls, folder: Path, settings: ToySettings) -> ToyIndex:
        return cls(*json.loads((folder / "toy.json").read_text()), settings)

    def ranked(self, scores: np.ndarray, k: int) -> SearchResult:
        order = [
            sorted(range(len(self.ids)), key=lambda row: (-line[row], self.ids[row]))[:k]
            for line in scores.tolist()
        ]
        return np.take_along_axis(scores, np.array(order), axis=1).astype(np.float32), [
            [self.ids[row] for row in rows] for rows in order
        ]


class ToyVectors(ToyIndex):
    @classmethod
    def build(
        cls, corpus: Sequence[VectorSource], settings: ToySettings, *, device: torch.device | str = "cpu"
    ) -> ToyVectors:
        read = [
            (key.decode(), vector.tolist())
            for ids, vectors in blocks(corpus, 100)
            for key, vector in zip(ids.tolist(), vectors)
        ]
        return cls([key for key, _ in read], [vector for _, vector in read], settings)

    def search(self, questions: np.ndarray, k: int) -> SearchResult:
        return self.ranked(self.scale * questions.astype(np.float64) @ np.array(self.rows).T, k)


class ToyWords(ToyIndex):
    reads = "texts"

    @classmethod
    def build(
        cls, corpus: IndexTexts, settings: ToySettings, *, device: torch.device | str = "cpu"
    ) -> ToyWords:
        return cls(list(corpus.ids), [text.split() for text in corpus.texts], settings)

    def search(self, questions: Sequence[str], k: int) -> SearchResult:
        shared = [
            [len(set(question.rstrip("?").split()) & set(words)) for words in self.rows]
            for question in questions
        ]  # type: ignore[call-overload]
        return self.ranked(self.scale * np.array(shared, dtype=np.float64), k)


VECTORS, WORDS = f"{__name__}:ToyVectors", f"{__name__}:ToyWords"


def retrieve(world: World, out: Path, *more: str, vectors: bool = True) -> int:
    line = ["retrieve", "match=none", "no_cuda=true", "n_docs=7", f"trec_run_file={out}"]
    line += [f"qa_dataset={world.path('questions.jsonl')}", f"ctx_datasets=[{world.path('corpus.tsv')}]"]
    if vectors:
        line += [f"model_file={world.path('model')}", f"encoded_ctx_files=[{world.path('vectors_*')}]"]
    return main([*line, *more])


def test_retrieval_builds_saves_and_opens_it_and_refuses_other_settings(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    own = [f"indexer.kind={VECTORS}", f"index_path={tmp_path / 'index'}", f"search_folder={tmp_path}"]
    assert retrieve(world, tmp_path / "exact.run") == 0
    assert retrieve(world, tmp_path / "built.run", *own) == 0
    monkeypatch.setattr(ToyVectors, "build", lambda *_, **__: pytest.fail("the saved index was built again"))
    assert retrieve(world, tmp_path / "opened.run", *own) == 0
    runs = [read_trec_run(tmp_path / f"{name}.run") for name in ("exact", "built", "opened")]
    assert runs[1] == runs[2]
    assert [[key for key, _ in hits] for hits in runs[1].values()] == [
        [key for key, _ in hits] for hits in runs[0].values()
    ]
    capfd.readouterr()
    assert retrieve(world, tmp_path / "other.run", *own, "indexer.options.scale=2.0") == 3
    assert "was built with scale 1.0, expected 2.0" in capfd.readouterr().err
    files = [
        f"model_file={world.folder / 'model'}",
        f"ctx_src={world.folder / 'corpus.tsv'}",
        f"out_file={tmp_path}/vectors",
    ]
    assert main(["embed", *files, "out_dtype=float16", "no_cuda=true"]) == 0
    others = f"encoded_ctx_files=[{tmp_path / 'vectors_0'}]"
    assert retrieve(world, tmp_path / "other.run", *own, others) == 3, "the index is of other vectors"
    assert main(["verify", str(tmp_path / "index")]) == 0
    assert main(["search", str(tmp_path), "anything", "--device", "cpu"]) == 2, "a file runs no class"
    assert Retriever.open(tmp_path, indexer=VECTORS, device="cpu").search("anything", 1)


def test_retrieval_searches_texts_with_it(world: World, tmp_path: Path) -> None:
    own = [f"indexer.kind={WORDS}", f"index_path={tmp_path / 'index'}"]
    for name in ("built", "opened"):
        assert retrieve(world, tmp_path / f"{name}.run", *own, vectors=False) == 0
    found = read_trec_run(tmp_path / "built.run")
    assert found == read_trec_run(tmp_path / "opened.run")
    assert sum(f"p{int(key[1:]):03d}" in dict(hits) for key, hits in found.items()) >= 8


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("json:JSONDecoder", "is not a subclass of dpr.indexer.registry.Index"),
        ("ivfx", "indexer=ivfx is not known"),
    ],
)
def test_what_is_no_index_is_refused_in_one_line(
    world: World, tmp_path: Path, kind: str, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert retrieve(world, tmp_path / "x.run", f"indexer.kind={kind}") == 2
    error = capfd.readouterr().err
    assert message in error
    assert "Traceback" not in error
