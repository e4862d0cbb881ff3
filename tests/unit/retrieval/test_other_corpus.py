"""Vectors and indexes are never shown beside the texts of another corpus, whichever command joins them."""

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dpr.cli.main import main as dpr
from dpr.core.errors import InputError
from dpr.core.records import Passage, Question
from dpr.embedding.source import PassageSource, require_corpora
from dpr.formats.corpora import write_passages
from dpr.formats.metrics_files import read_metrics
from dpr.formats.question_sets import write_qrels, write_questions
from dpr.formats.results import read_trec_run
from dpr.formats.training_files.dpr import write_training_set
from dpr.retrieval.settings import IndexerConfig
from dpr.retrieval.sides import index_choice, open_text_index
from dpr.storage.durable import read_manifest, write_manifest
from tests.helpers.tiny import make_samples
from tests.unit.retrieval.conftest import World, searchable


@pytest.fixture(scope="session")
def run_folder(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return searchable(world, tmp_path_factory.mktemp("corpora") / "run", weight=0.5)


@pytest.fixture
def folder(run_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run_folder, tmp_path / "run"))


def shuffle(world: World, corpus: Path) -> None:
    """The same ids and texts, but other pairs of them."""
    texts = [passage.text for passage in world.passages]
    random.Random(0).shuffle(texts)
    write_passages(corpus, [replace(one, text=text) for one, text in zip(world.passages, texts, strict=True)])


def retrieval(folder: Path, *more: str) -> list[str]:
    line = (
        f"model_file={folder}/model qa_dataset={folder}/questions.jsonl qrels={folder}/qrels.tsv"
        f" ctx_datasets=[{folder}/corpus.tsv] encoded_ctx_files=[{folder}/vectors_*]"
    )
    return [*line.split(), *more]


def exporting(folder: Path) -> list[str]:
    places = f"vectors={folder / 'vectors_*'} ctx_datasets={folder / 'corpus.tsv'} out={folder / 'store'}"
    return ["export", "to=lancedb", *places.split()]


def mining(folder: Path) -> list[str]:
    write_training_set(folder / "train.json", make_samples(4))
    places = (
        f"{folder / 'train.json'} out={folder / 'mined.jsonl'} corpus={folder / 'corpus.tsv'}"
        f" vectors={folder / 'vectors_*'}"
    )
    return ["mine", *places.split(), f"model_file={folder / 'model'}"]


COMMANDS: dict[str, Callable[[Path], list[str]]] = {
    "retrieve": lambda folder: ["retrieve", *retrieval(folder, f"metrics_file={folder / 'metrics.json'}")],
    "retrieve, faiss": lambda folder: [
        "retrieve",
        *retrieval(folder, "indexer=hnsw", f"index_path={folder / 'index'}"),
    ],
    "search": lambda folder: ["search", str(folder), "ba be"],
    "search, dense": lambda folder: ["search", str(folder), "ba be", "--mode", "dense"],
    "export": exporting,
    "mine": mining,
}


@pytest.mark.parametrize("name", COMMANDS)
def test_vectors_of_the_corpus_before_it_was_shuffled_are_refused(
    world: World, folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shuffle(world, folder / "corpus.tsv")
    assert dpr(COMMANDS[name](folder)) == 3
    message = capsys.readouterr().err
    assert "vectors of another corpus ('corpus.tsv' as it was)" in message
    assert "embed the corpus again" in message


def test_an_index_without_its_vectors_knows_its_passages(
    world: World, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = ["indexer=hnsw", f"index_path={folder / 'index'}"]
    assert dpr(["retrieve", *retrieval(folder, *index)]) == 0
    alone = [item for item in retrieval(folder, *index) if not item.startswith("encoded_ctx_files")]
    assert dpr(["retrieve", *alone]) == 0
    shuffle(world, folder / "corpus.tsv")
    capsys.readouterr()
    assert dpr(["retrieve", *alone]) == 3
    assert "vectors of another corpus" in capsys.readouterr().err
    manifest = read_manifest(folder / "index")
    earlier = {key: value for key, value in manifest["metadata"].items() if key != "corpora"}
    write_manifest(folder / "index", earlier, files=manifest["files"])
    assert dpr(["retrieve", *alone]) == 0


def test_other_columns_are_other_texts_and_more_passages_are_no_harm(tmp_path: Path, world: World) -> None:
    corpus = PassageSource(world.folder / "corpus.tsv")
    other = tmp_path / "other.tsv"
    write_passages(other, world.passages[:3])
    stated = [corpus.identity() | {"corpus": "corpus.tsv"}] * 2 + [
        {"corpus_fingerprint": "sampled by an earlier version"},
        {},
    ]
    corpora = require_corpora(stated, [PassageSource(other), corpus], file=None)
    assert len(corpora) == 1
    require_corpora(
        corpora, [replace(corpus, id_prefix="wiki:", normalize=True, passage_prefix="passage: ")], file=None
    )
    require_corpora(corpora, [], file=None)
    with pytest.raises(
        ValueError, match=r"read with id_col=0, text_col=1, .*ctx_sources.<name>.id_col, text_col"
    ):
        require_corpora(corpora, [replace(corpus, text_col=2, title_col=1)], file=None)
    with pytest.raises(ValueError, match="vectors of another corpus"):
        require_corpora(corpora, [PassageSource(other)], file=None)


NAMES = "rivers mountains planets cheese bridges".split()
TEXTS = [f"The {name} of the {side} are old" for side in ("north", "south") for name in NAMES]


def beir_set(folder: Path, *, key: str, text: str) -> Path:
    """Every question asks for the other passage about its subject; number 3 is ``key`` and reads ``text``."""
    write_passages(folder / "corpus.jsonl", [Passage(each, "", f"d{row}") for row, each in enumerate(TEXTS)])
    questions = [Question(f"which {name} are old", f"q{row}") for row, name in enumerate(NAMES)]
    questions[3] = Question(text, key)
    write_questions(folder / "queries.jsonl", questions)
    judged = {question.id: {f"d{row + 5}": 1} for row, question in enumerate(questions)}
    write_qrels(folder / "qrels" / "test.tsv", judged)
    return folder


def retrieved(folder: Path, *more: str) -> float:
    """accuracy@1 of the question that may be a passage."""
    line = [f"qa_dataset={folder / 'queries.jsonl'}", f"qrels={folder / 'qrels' / 'test.tsv'}"]
    line += [f"ctx_datasets=[{folder / 'corpus.jsonl'}]", f"metrics_file={folder / 'm.json'}", "n_docs=4"]
    assert dpr(["retrieve", "indexer=bm25", *line, *more]) == 0
    each = read_metrics(folder / "m.json").each
    assert each is not None
    return float(each.values["accuracy@1"][3] or 0)


@pytest.mark.parametrize(
    ("key", "text", "is_said"),
    [
        ("d3", TEXTS[3], True),
        ("d0", "which cheese are old", False),  # a question and a passage may both be number 1
        ("d8", TEXTS[8], False),  # judged right
    ],
    ids=["own id", "equal ids alone", "right"],
)
def test_a_question_that_is_a_passage_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, text: str, is_said: bool
) -> None:
    folder = beir_set(tmp_path / "set", key=key, text=text)
    retrieved(folder)
    assert (
        "the first hit of 1 of 5 questions has the question's own id" in capsys.readouterr().err
    ) == is_said
    (tmp_path / "suite.yaml").write_text("sets: {kept: set, left: {folder: set, skip_same_id: true}}")
    out = tmp_path / "out"
    assert dpr(["evaluate", f"suite={tmp_path / 'suite.yaml'}", f"output_dir={out}", "n_docs=4"]) == 0
    assert capsys.readouterr().err.count("skip_same_id") == is_said
    kept, left = (read_trec_run(out / name / "bm25.run")[key] for name in ("kept", "left"))
    rest = [score for passage, score in kept if passage != key]
    assert [score for _, score in left][: len(rest)] == rest and len(left) == 4 and key not in dict(left)


def test_retrieve_leaves_out_the_questions_own_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = beir_set(tmp_path / "set", key="d3", text=TEXTS[3])
    assert retrieved(folder) == 0
    capsys.readouterr()
    assert retrieved(folder, "skip_same_id=true") == 1
    assert "passages of the corpus" not in capsys.readouterr().err


def write_long_corpus(path: Path, middle: str) -> None:
    path.write_text(
        "".join(
            f"p{row}\t{'filler ' * 2000}{middle if row == 100 else 'word'}\ttitle{row}\n"
            for row in range(200)
        )
    )


def open_words(sources: list[PassageSource], index: str) -> None:
    open_text_index(index_choice(IndexerConfig(kind="bm25")), sources, index)


@pytest.mark.parametrize(
    "options",
    [{"text_col": 2, "title_col": 1}, {"title_col": 5}, {"normalize": True}, {"id_prefix": "w:"}, {}],
)
def test_a_saved_bm25_index_of_other_texts_is_refused(tmp_path: Path, options: dict[str, object]) -> None:
    """Other settings of the passages, or a word in the middle of a file of the same size and time."""
    corpus, index = tmp_path / "c.tsv", str(tmp_path / "index")
    write_long_corpus(corpus, "lamp")
    times = corpus.stat()
    open_words([PassageSource(corpus)], index)
    # changes no word of it
    open_words([PassageSource(corpus, name="another", passage_prefix="passage: ")], index)
    if not options:
        write_long_corpus(corpus, "sofa")
        os.utime(corpus, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(InputError, match="remove it to build it again"):
        open_words([PassageSource(corpus, **options)], index)  # type: ignore[arg-type]
