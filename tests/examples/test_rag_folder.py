"""The prompt of the RAG example holds the passages that the run finds, with their file and heading."""

import json
import random
from pathlib import Path

import pytest

from dpr import Retriever
from dpr.adaptation.choices import write_search
from dpr.cli.main import main
from dpr.models.biencoder import BiEncoder
from dpr.models.settings import EncoderSettings
from dpr.preparation.folder_data import CORPUS, prepare_folder
from dpr.preparation.settings import FolderSettings
from dpr.storage.durable import durable_folder
from examples.rag_folder import main as rag
from examples.rag_folder import prompt, sources
from tests.helpers.tiny import sentence, static_folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``dpr quickstart`` leaves, with an encoder that has learned nothing."""
    folder, rng = tmp_path_factory.mktemp("rag"), random.Random(3)
    (folder / "manual" / "inner").mkdir(parents=True)
    for number in range(4):
        parts = [
            f"## Part {number}.{part}\n\n{sentence(rng, 12).capitalize()}. {sentence(rng, 12).capitalize()}."
            for part in range(10)
        ]
        text = f"# Page {number}\n\n{sentence(rng, 15).capitalize()}.\n\n" + "\n\n".join(parts)
        (folder / "manual" / ("inner" if number == 3 else ".") / f"page{number}.md").write_text(text)
    out = folder / "run"
    prepare_folder(folder / "manual", out / "data" / "texts", FolderSettings())
    corpus = out / "data" / "texts" / CORPUS
    settings = EncoderSettings(shared=True, pooling="idf", normalize=True)
    with durable_folder(out / "model") as target:
        BiEncoder.from_pretrained(
            str(static_folder(folder / "encoder")), settings, pretrained=False
        ).write_to(target)
    vectors = [f"model_file={out / 'model'}", f"ctx_src={corpus}", f"out_file={out / 'vectors' / 'corpus'}"]
    assert main(["embed", *vectors, "device=cpu"]) == 0
    write_search(out, corpus, 0.5)
    return out


def test_sources_name_file_and_heading(run: Path) -> None:
    records = [json.loads(line) for line in (run / "data" / "texts" / CORPUS).read_text().splitlines()]
    retriever = Retriever.open(run)
    for record in (records[0], records[17], records[-1]):  # the first stands before the first heading
        text, place = record["text"], record["metadata"]
        first, *others = sources(retriever, text, k=3)
        assert first == f"[1] {place['file']}: {place['heading'] or record['title']}\n{text}"
        assert [other.split()[0] for other in others] == ["[2]", "[3]"]
    assert records[0]["metadata"]["heading"] == "" and any(
        record["metadata"]["file"] == "inner/page3.md" for record in records
    )
    found = [hit.text for hit in retriever.search("ba be bi {question}", 3)]
    made = prompt(retriever, "ba be bi {question}", k=3)
    assert [made.find(text) for text in found] == sorted(made.find(text) for text in found) and min(
        map(made.find, found)
    ) > 0
    assert made.endswith("Question: ba be bi {question}\nAnswer:")


def test_the_command_prints_the_prompt_and_names_what_is_missing(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rag([str(run), "ba be bi"]) == 0
    assert "\n[5] " in capsys.readouterr().out
    assert rag([str(run)]) == 2
    assert rag([str(run / "model"), "ba"]) == 3
    assert "no search.json" in capsys.readouterr().err
