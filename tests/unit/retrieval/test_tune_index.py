"""``dpr tune-index``: the curve of an index, from the command line to its picture."""

from __future__ import annotations

import json
import random
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from dpr.cli.main import main
from dpr.core.records import Passage
from dpr.embedding.job import embed_shard
from dpr.embedding.settings import EmbedConfig
from dpr.embedding.source import PassageSource
from dpr.formats.corpora import write_passages
from dpr.formats.question_sets import write_questions
from dpr.storage.durable import read_manifest
from tests.helpers.tiny import sentence
from tests.unit.retrieval.conftest import World


@pytest.fixture(scope="module")
def vectors(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of more passages than are looked for, so that lists have to be chosen."""
    folder, rng = tmp_path_factory.mktemp("vectors"), random.Random(1)
    write_passages(
        folder / "corpus.tsv", [Passage(sentence(rng, 10), "", f"p{number}") for number in range(500)]
    )
    embed_shard(
        world.model,
        PassageSource(folder / "corpus.tsv"),
        EmbedConfig(out_file=str(folder / "all"), batch_size=256),
    )
    return folder / "all_0"


def settings(world: World, tmp_path: Path, *more: str) -> list[str]:
    model = [
        f"model_file={world.path('model')}",
        f"encoded_ctx_files=[{world.path('vectors_*')}]",
        "no_cuda=true",
    ]
    return [
        *model,
        f"qa_dataset={world.path('questions.jsonl')}",
        "indexer=small",
        f"index_path={tmp_path / 'index'}",
        *more,
    ]


def test_a_curve_is_printed_and_drawn_and_says_which_breadth_is_enough(
    world: World, vectors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = [
        f"encoded_ctx_files=[{vectors}]",
        "indexer.lists=8",
        "indexer.candidates=499",
        "indexer.target_recall=0.9",
    ]
    lines = settings(world, tmp_path, *index)
    assert main(["tune-index", *lines, f"curve_file={tmp_path / 'curve.svg'}"]) == 0
    printed = capsys.readouterr().out
    curve = json.loads((tmp_path / "curve.json").read_text())
    breadths = [point["breadth"] for point in curve["points"]]
    assert breadths == sorted(set(breadths))
    assert breadths[0] == 1
    assert breadths[-1] == 8, "all lists are searched before everything is found"
    assert curve["points"][-1]["recall"]["recall@100"] == 1
    assert curve["points"][0]["recall"]["recall@100"] < 1
    chosen = next(point for point in curve["points"] if point["chosen_on"]["recall@100"] >= 0.9)
    assert (
        f"indexer.probes={chosen['breadth']}: recall@100 {chosen['recall']['recall@100']:.3f} on the 6"
        " questions" in printed
    )
    drawing = ElementTree.fromstring((tmp_path / "curve.svg").read_text())
    words = {text.text for text in drawing.findall(".//{http://www.w3.org/2000/svg}text")}
    assert {"recall@10", "recall@100"} <= words
    assert main(["verify", str(tmp_path / "curve.svg"), str(tmp_path / "curve.json")]) == 0
    recall = read_manifest(tmp_path / "index")["metadata"]["recall"]
    metrics = tmp_path / "metrics.json"
    assert main(["retrieve", *lines, f"metrics_file={metrics}"]) == 0
    assert json.loads(metrics.read_text())["index"] == {"recall": recall, "breadth": recall["breadth"]}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["indexer=exact", "index_path=null"], "there is nothing to tune; choose one of hnsw"),
        (["metrics_file=x.json"], "metrics_file=x.json is not for tune-index"),
        (["curve_file=x.png"], "end it with .svg"),
        (["num_questions=1"], "num_questions=1 is out of range"),
        (["qa_dataset=ONE"], "has 1 questions; at least 2"),
    ],
)
def test_what_cannot_be_tuned_is_refused_in_one_sentence(
    world: World, tmp_path: Path, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_questions(tmp_path / "one.jsonl", world.questions[:1])
    given = [item.replace("ONE", str(tmp_path / "one.jsonl")) for item in more]
    assert main(["tune-index", *settings(world, tmp_path), *given]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
