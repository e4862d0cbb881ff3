"""A small corpus with vectors of a tiny random model, made once."""

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from dpr.core.records import Passage, Question
from dpr.embedding.job import embed_shard
from dpr.embedding.settings import EmbedConfig
from dpr.embedding.source import PassageSource
from dpr.formats.corpora import write_passages
from dpr.formats.question_sets import write_qrels, write_questions
from dpr.models.biencoder import BiEncoder
from dpr.storage.durable import durable_folder
from tests.helpers.jobs import retrieve
from tests.helpers.tiny import sentence, tiny_model


@dataclass(frozen=True)
class World:
    """model/, corpus.tsv, vectors_0, vectors_1, questions.jsonl, qrels.tsv; question qN is words of passage pN."""

    folder: Path
    passages: list[Passage]
    questions: list[Question]

    def path(self, name: str) -> str:
        return str(self.folder / name)

    @property
    def model(self) -> BiEncoder:
        return BiEncoder.load(self.folder / "model")


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("world")
    rng = random.Random(0)
    passages = [Passage(sentence(rng, 10), sentence(rng, 2), f"p{number:03d}") for number in range(60)]
    write_passages(folder / "corpus.tsv", passages)
    questions = [
        Question(
            " ".join(rng.sample(passage.text.split(), 4)) + "?",
            f"q{number}",
            (" ".join(passage.text.split()[2:5]),),
        )
        for number, passage in enumerate(passages[:12])
    ]
    write_questions(folder / "questions.jsonl", questions)
    write_qrels(
        folder / "qrels.tsv",
        {question.id: {str(passages[number].id): 1} for number, question in enumerate(questions)},
    )
    model = tiny_model(folder / "encoder", dtype=torch.float32)
    with durable_folder(folder / "model") as target:
        model.write_to(target)
    source = PassageSource(folder / "corpus.tsv")
    for shard in range(2):
        embed_shard(
            BiEncoder.load(folder / "model"),
            source,
            EmbedConfig(out_file=str(folder / "vectors"), shard_id=shard, num_shards=2, chunk_size=16),
        )
    return World(folder, passages, questions)


def searchable(world: World, folder: Path, *, weight: float) -> Path:
    """Writes a copy of the world with a search.json: hybrid, with this share of the dense side."""
    shutil.copytree(world.folder, folder)
    arguments = [
        f"model_file={folder / 'model'}",
        f"encoded_ctx_files=[{folder / 'vectors_*'}]",
        f"qa_dataset={folder / 'questions.jsonl'}",
        f"ctx_datasets=[{folder / 'corpus.tsv'}]",
    ]
    assert (
        retrieve(
            [*arguments, "hybrid=linear", f"hybrid_weight={weight}", "n_docs=5", f"search_folder={folder}"]
        )
        == 0
    )
    return folder
