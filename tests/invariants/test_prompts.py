"""A model trained with prompts is a model trained with the same prefixes, in every job."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpr.cli.main import main
from dpr.core.records import Passage
from dpr.formats.corpora import write_passages
from dpr.formats.training_files.dpr import write_training_set
from dpr.formats.vector_shards import open_shards
from dpr.models.biencoder import BiEncoder
from dpr.retrieval.retriever import Retriever
from tests.helpers.tiny import encoder_folder, make_samples
from tests.helpers.training import assert_same_bits, stored

QUERY, PASSAGE, WEB = "ca ce ", "ci co ", "cu da "
PROMPTS = [f"encoder.query_prompt={QUERY}", f"encoder.passage_prompt={PASSAGE}", f"encoder.prompts.web={WEB}"]
TRAINING = ["train.num_train_epochs=2", "train.batch_size=8", "train.learning_rate=0.01", "device=cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs ``prompted`` (prompts of the model), ``prefixed`` (prefixes of the data sets), and texts."""
    folder = tmp_path_factory.mktemp("prompts")
    encoder_folder(folder / "bert")
    samples = make_samples(32, seed=1)
    write_training_set(folder / "train.json", samples)
    write_training_set(folder / "dev.json", make_samples(12, seed=2))
    passages = list(
        dict.fromkeys(Passage(each.text, each.title) for one in samples for each in one.positives)
    )
    write_passages(
        folder / "corpus.tsv",
        [Passage(each.text, each.title, f"p{row}") for row, each in enumerate(passages)],
    )
    (folder / "questions.jsonl").write_text(
        "".join(json.dumps({"question": sample.question}) + "\n" for sample in samples[:6])
    )
    assert train(folder, "prompted", *PROMPTS, entry="") == 0
    assert train(folder, "prefixed", entry=f"query_prefix: '{QUERY}', passage_prefix: '{PASSAGE}'") == 0
    return folder


def train(folder: Path, run: str, *more: str, entry: str, store: str = "auto") -> int:
    sets = [
        f"datasets.{name}={{file: {folder}/{name}.json{entry and ', ' + entry}}}" for name in ("train", "dev")
    ]
    names = [
        "train_datasets=[train]",
        "dev_datasets=[dev]",
        f"output_dir={folder / run}",
        f"train.token_store={store}",
    ]
    model = [f"encoder.pretrained_model_cfg={folder / 'bert'}", "encoder.sequence_length=20"]
    model += [] if any(item.startswith("model_file=") for item in more) else ["encoder.pretrained=false"]
    return main(["train", *names, *model, *sets, *TRAINING, *more])


def metrics(run: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in line.items() if key.startswith("eval/") or key == "train/loss"}
        for line in lines
    ]


def embed(folder: Path, run: str, out: str, *more: str) -> np.ndarray:
    names = [f"model_file={folder / run}", f"out_file={folder / out}", "device=cpu"]
    assert main(["embed", *names, *(more or [f"ctx_src={folder / 'corpus.tsv'}"])]) == 0
    return np.concatenate([vectors for _, vectors in open_shards([f"{folder / out}_0"])[0].chunks()])


def retrieve(folder: Path, run: str, shards: str, *more: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code, and the questions with their hits."""
    given = {
        "model_file": folder / run,
        "encoded_ctx_files": f"[{folder / shards}_0]",
        "ctx_datasets": f"[{folder / 'corpus.tsv'}]",
        "out_file": folder / f"{run}.json",
        "search_folder": folder / run,
        "qa_dataset": "q",
    }
    words = [f"{key}={value}" for key, value in given.items()]
    code = main(["retrieve", *words, "n_docs=5", "device=cpu", "match=none", *more])
    return code, [] if code else json.loads((folder / f"{run}.json").read_text())


def searched(folder: Path, found: list[dict[str, Any]]) -> None:
    """A search in the folder finds what retrieval found."""
    hits = Retriever.open(folder, device="cpu").search(found[0]["question"], 5)
    assert [hit.passage.id for hit in hits] == [hit["id"] for hit in found[0]["ctxs"]]


@pytest.fixture(scope="module")
def vectors(folder: Path) -> np.ndarray:
    return embed(folder, "prompted", "vectors")


def test_training_and_validation_are_those_of_the_prefixes(folder: Path) -> None:
    assert_same_bits(stored(folder / "prompted"), stored(folder / "prefixed"))
    assert metrics(folder / "prompted") == metrics(folder / "prefixed") != []


def test_the_token_store_gives_what_the_text_gives(folder: Path) -> None:
    web = "encoder.prompts={web: '" + WEB + "'}"
    assert train(folder, "direct", *PROMPTS[:2], web, entry="prompt: web", store="off") == 0
    assert train(folder, "stored", *PROMPTS, entry="prompt: web") == 0
    assert_same_bits(stored(folder / "stored"), stored(folder / "direct"))


def test_embedding_retrieval_and_search_apply_them(folder: Path, vectors: np.ndarray) -> None:
    corpus = [
        "ctx_src=it",
        f"ctx_sources.it.file={folder / 'corpus.tsv'}",
        f"ctx_sources.it.passage_prefix={PASSAGE}",
    ]
    np.testing.assert_array_equal(vectors, embed(folder, "prefixed", "by_hand_vectors", *corpus))
    # a prefix that repeats the prompt
    np.testing.assert_array_equal(vectors, embed(folder, "prompted", "repeated", *corpus))
    asked = f"datasets.q={{file: {folder / 'questions.jsonl'}"
    found = retrieve(folder, "prompted", "vectors", f"{asked}}}")
    assert found[0] == 0
    assert found == retrieve(folder, "prefixed", "by_hand_vectors", f"{asked}, query_prefix: '{QUERY}'}}")
    searched(folder / "prompted", found[1])


def test_a_search_folder_keeps_those_named_for_a_model_without(folder: Path) -> None:
    model = BiEncoder.load(folder / "prefixed")
    shutil.copytree(folder / "bert", folder / "foreign")
    model.ctx_model.backbone.save_pretrained(folder / "foreign")
    named = [f"encoder.query_prompt={QUERY}", f"encoder.passage_prompt={PASSAGE}"]
    embed(folder, "foreign", "foreign_vectors", f"ctx_src={folder / 'corpus.tsv'}", *named)
    asked = f"datasets.q.file={folder / 'questions.jsonl'}"
    assert retrieve(folder, "foreign", "foreign_vectors", asked)[0] == 3
    code, found = retrieve(folder, "foreign", "foreign_vectors", asked, *named)
    assert code == 0
    searched(folder / "foreign", found)


def test_checked_data_show_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-data", str(folder / "train.json"), f"model_file={folder / 'prompted'}"]) == 0
    assert "[CLS] ca ce " in capsys.readouterr().out


def test_mining_applies_them(folder: Path, vectors: np.ndarray) -> None:
    named = [f"encoder.query_prompt={QUERY}", f"encoder.passage_prompt={PASSAGE}"]
    mined = []
    for number, (run, more) in enumerate(
        [
            ("prompted", []),
            ("prefixed", [*named, "encoder.allow_other_prompts=true"]),
            ("prompted", [f"vectors={folder / 'vectors'}_0"]),
        ]
    ):
        out = folder / f"mined-{number}.jsonl"
        names = [f"corpus={folder / 'corpus.tsv'}", f"out={out}", f"model_file={folder / run}", "device=cpu"]
        assert main(["mine", str(folder / "train.json"), *names, "per_question=3", *more]) == 0
        rows = map(json.loads, out.read_text().splitlines())
        mined.append([[each["passage_id"] for each in row["hard_negative_ctxs"]] for row in rows])
    assert mined[0] == mined[1] == mined[2]
    assert any(mined[0])


@pytest.mark.parametrize(
    ("entry", "more", "message"),
    [
        ("", ["encoder.query_prompt=fa "], "encoder.query_prompt='fa ', but .* was trained with 'ca ce '"),
        ("query_prefix: 'fa '", [], "query_prefix='fa ', but the model was trained with 'ca ce ' there"),
        ("passage_prefix: 'fa '", [], "passage_prefix='fa '"),
        ("prompt: news", [], "prompt=news is not a prompt of the model; it has web"),
        ("", ["encoder.normalize=true"], "encoder.normalize=True, but .*prompted has False"),
    ],
    ids=range(5),
)
def test_training_on_with_others_is_refused(
    folder: Path, entry: str, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(folder, "refused", f"model_file={folder / 'prompted'}", *more, entry=entry) == 2
    assert re.search(message, capsys.readouterr().err)


def test_they_change_when_that_is_forced(
    folder: Path, vectors: np.ndarray, capsys: pytest.CaptureFixture[str]
) -> None:
    more = [
        f"model_file={folder / 'prompted'}",
        "encoder.query_prompt=fa ",
        "encoder.allow_other_prompts=true",
    ]
    assert train(folder, "forced", *more, entry="") == 0
    model = BiEncoder.load(folder / "forced")
    assert (model.settings.query_prompt, model.settings.passage_prompt, model.settings.prompts) == (
        "fa ",
        PASSAGE,
        {"web": WEB},
    )
    # Vectors of the same weights with another prompt are those of another model.
    asked = f"datasets.q.file={folder / 'questions.jsonl'}"
    assert retrieve(folder, "prompted", "vectors", asked, *more[1:])[0] == 3
    assert "vectors of another model" in capsys.readouterr().err


def test_a_resumed_run_keeps_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(folder, "resumed", *PROMPTS, "train.stop_at_epoch=1", entry="") == 0
    copy = folder / "changed"
    shutil.copytree(folder / "resumed", copy)
    assert train(folder, "changed", "encoder.query_prompt=fa ", *PROMPTS[1:], entry="") == 3
    assert "encoder.query_prompt was ca ce , is now fa" in capsys.readouterr().err
    assert train(folder, "resumed", *PROMPTS, entry="") == 0
    assert_same_bits(stored(folder / "resumed"), stored(folder / "prompted"))
    assert BiEncoder.load(folder / "resumed").settings.query_prompt == QUERY
