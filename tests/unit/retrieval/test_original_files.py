"""An original checkpoint and original embedding files in embed, retrieve and search."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from dpr.formats.vector_shards import open_shards
from dpr.models.biencoder import BiEncoder
from dpr.retrieval.retriever import Retriever
from tests.helpers.jobs import embed, export, retrieve
from tests.helpers.original import nested_params, original_extras, original_names, write_original
from tests.helpers.results import read_results
from tests.helpers.tiny import tiny_model
from tests.unit.retrieval.conftest import World


@pytest.fixture(scope="module")
def originals(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """x.cp, and two embedding files wiki_0 and wiki_1 of the corpus, made by it."""
    folder = tmp_path_factory.mktemp("originals")
    weights = tiny_model(folder / "bert", dtype=torch.float32).weights()
    write_original(folder / "x.cp", original_extras(original_names(weights), 16), nested_params("not/here"))
    vectors = BiEncoder.load(folder / "x.cp", pretrained_model_cfg=str(folder / "bert")).encode_passages(
        world.passages
    )
    items = [(passage.id, vector) for passage, vector in zip(world.passages, vectors, strict=True)]
    for number in range(2):
        (folder / f"wiki_{number}").write_bytes(pickle.dumps(items[number * 30 : number * 30 + 30]))
    return folder


def test_files_give_the_hits_that_embedding_again_gives(
    world: World, originals: Path, tmp_path: Path
) -> None:
    model = [f"model_file={originals / 'x.cp'}", f"encoder.pretrained_model_cfg={originals / 'bert'}"]
    corpus = world.path("corpus.tsv")
    assert embed([*model, f"ctx_src={corpus}", f"out_file={tmp_path / 'again'}"]) == 0
    assert sum(shard.num_vectors for shard in open_shards([str(tmp_path / "again_0")])) == 60
    files = f"encoded_ctx_files=[{originals / 'wiki_*'}]"
    assert export(["to=vectors", *model, files, f"out_file={tmp_path / 'made'}"]) == 0
    assert [shard.num_vectors for shard in open_shards([str(tmp_path / "made_*")])] == [30, 30]
    ask = [*model, f"qa_dataset={world.path('questions.jsonl')}", f"ctx_datatsets=[{corpus}]", "n_docs=5"]
    results = []
    for number, more in enumerate(
        [
            [f"encoded_ctx_files=[{tmp_path / 'again_*'}]"],
            [f"encoded_ctx_files=[{tmp_path / 'made_*'}]"],
            [files, f"search_folder={tmp_path}"],
            [files, "indexer=hnsw", f"index_path={tmp_path / 'index'}"],
        ]
    ):
        assert retrieve([*ask, *more, f"out_file={tmp_path / str(number)}"]) == 0
        results.append(read_results(tmp_path / str(number)))
    first = [[hit.id for hit in result.hits] for result in results[0]]
    for result in results[1:]:
        assert [[hit.id for hit in question.hits] for question in result] == first
        scores, expected = (
            [[hit.score for hit in question.hits] for question in found] for found in (result, results[0])
        )
        np.testing.assert_allclose(scores, expected, atol=1e-4)
    found = Retriever.open(tmp_path).search(world.questions[0].text, 5)
    assert [hit.passage.id for hit in found] == first[0]
