"""A model trained with prompts is a model trained with the same prefixes, in every job, without being told
again.

pytest tests/invariants/test_prompts.py
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from dpr.cli.main import main
from dpr.core.records import Passage
from dpr.formats.checkpoints import read_tensors, resolve_checkpoint
from dpr.formats.corpora import write_passages
from dpr.formats.training_sets import write_training_set
from dpr.formats.vector_shards import open_shards
from dpr.models.biencoder import BiEncoder
from dpr.retrieval.retriever import Retriever
from tests.helpers.tiny import encoder_folder, make_samples

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
        dict.fromkeys(Passage(each.text, each.title) for sample in samples for each in sample.positives)
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


def weights(run: Path) -> dict[str, torch.Tensor]:
    return read_tensors(resolve_checkpoint(run), "model.safetensors")


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


@pytest.fixture(scope="module")
def vectors(folder: Path) -> np.ndarray:
    return embed(folder, "prompted", "vectors")


def test_training_and_validation_are_those_of_the_prefixes(folder: Path) -> None:
    ours, theirs = weights(folder / "prompted"), weights(folder / "prefixed")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert metrics(folder / "prompted") == metrics(folder / "prefixed") != []


def test_the_token_store_gives_what_the_text_gives(folder: Path) -> None:
    assert (
        train(
            folder,
            "direct",
            *PROMPTS[:2],
            "encoder.prompts={web: '" + WEB + "'}",
            entry="prompt: web",
            store="off",
        )
        == 0
    )
    assert train(folder, "stored", *PROMPTS, entry="prompt: web") == 0
    direct, stored = (weights(folder / name) for name in ("direct", "stored"))
    assert all(torch.equal(direct[name], stored[name]) for name in direct)


def test_embedding_retrieval_and_search_apply_them(folder: Path, vectors: np.ndarray) -> None:
    corpus = [
        "ctx_src=it",
        f"ctx_sources.it.file={folder / 'corpus.tsv'}",
        f"ctx_sources.it.passage_prefix={PASSAGE}",
    ]
    np.testing.assert_array_equal(vectors, embed(folder, "prefixed", "by_hand_vectors", *corpus))
    # a prefix that repeats the prompt
    np.testing.assert_array_equal(vectors, embed(folder, "prompted", "repeated", *corpus))
    found = {}
    for run, shards, options in (
        ("prompted", "vectors", ""),
        ("prefixed", "by_hand_vectors", f", query_prefix: '{QUERY}'"),
    ):
        arguments = [
            f"model_file={folder / run}",
            f"encoded_ctx_files=[{folder / shards}_0]",
            f"ctx_datasets=[{folder / 'corpus.tsv'}]",
        ]
        arguments += [
            "qa_dataset=q",
            f"datasets.q={{file: {folder / 'questions.jsonl'}{options}}}",
            f"out_file={folder / run}.json",
        ]
        assert (
            main(
                [
                    "retrieve",
                    *arguments,
                    f"search_folder={folder / run}",
                    "n_docs=5",
                    "device=cpu",
                    "match=none",
                ]
            )
            == 0
        )
        found[run] = json.loads((folder / f"{run}.json").read_text())
    assert found["prompted"] == found["prefixed"]
    hits = Retriever.open(folder / "prompted", device="cpu").search(found["prompted"][0]["question"], 5)
    assert [hit.passage.id for hit in hits] == [hit["id"] for hit in found["prompted"][0]["ctxs"]]


def test_a_search_folder_keeps_those_named_for_a_model_without(folder: Path) -> None:
    model = BiEncoder.load(folder / "prefixed")
    shutil.copytree(folder / "bert", folder / "foreign")
    model.ctx_model.backbone.save_pretrained(folder / "foreign")
    named = [f"encoder.query_prompt={QUERY}", f"encoder.passage_prompt={PASSAGE}"]
    embed(folder, "foreign", "foreign_vectors", f"ctx_src={folder / 'corpus.tsv'}", *named)
    arguments = [
        f"model_file={folder / 'foreign'}",
        f"encoded_ctx_files=[{folder}/foreign_vectors_0]",
        "n_docs=5",
        "device=cpu",
    ]
    arguments += [
        f"ctx_datasets=[{folder / 'corpus.tsv'}]",
        f"qa_dataset={folder / 'questions.jsonl'}",
        "match=none",
    ]
    assert (
        main(
            [
                "retrieve",
                *arguments,
                f"out_file={folder / 'foreign.json'}",
                f"search_folder={folder / 'foreign'}",
            ]
        )
        == 3
    )
    assert (
        main(
            [
                "retrieve",
                *arguments,
                *named,
                f"out_file={folder / 'foreign.json'}",
                f"search_folder={folder / 'foreign'}",
            ]
        )
        == 0
    )
    (first, *_) = json.loads((folder / "foreign.json").read_text())
    hits = Retriever.open(folder / "foreign", device="cpu").search(first["question"], 5)
    assert [hit.passage.id for hit in hits] == [hit["id"] for hit in first["ctxs"]]


def test_checked_data_show_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-data", str(folder / "train.json"), f"model_file={folder / 'prompted'}"]) == 0
    assert "[CLS] ca ce " in capsys.readouterr().out


def test_mining_applies_them(folder: Path, vectors: np.ndarray) -> None:
    mined = {}
    for run, more in (
        ("prompted", []),
        (
            "prefixed",
            [
                f"encoder.query_prompt={QUERY}",
                f"encoder.passage_prompt={PASSAGE}",
                "encoder.allow_other_prompts=true",
            ],
        ),
        ("shards", []),
    ):
        more = [*more, f"vectors={folder / 'vectors'}_0"] if run == "shards" else more
        names = [
            f"corpus={folder / 'corpus.tsv'}",
            f"out={folder / run}.jsonl",
            f"model_file={folder / run.replace('shards', 'prompted')}",
        ]
        assert main(["mine", str(folder / "train.json"), *names, "device=cpu", "per_question=3", *more]) == 0
        mined[run] = [json.loads(line) for line in (folder / f"{run}.jsonl").read_text().splitlines()]
    ids = {
        run: [[each["passage_id"] for each in row["hard_negative_ctxs"]] for row in rows]
        for run, rows in mined.items()
    }
    assert ids["prompted"] == ids["prefixed"] == ids["shards"]
    assert any(ids["prompted"])


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
    arguments = [
        f"model_file={folder / 'prompted'}",
        f"encoded_ctx_files=[{folder / 'vectors'}_0]",
        "device=cpu",
        "match=none",
    ]
    arguments += [
        f"qa_dataset={folder / 'questions.jsonl'}",
        f"trec_run_file={folder / 'run.trec'}",
        *more[1:],
    ]
    assert main(["retrieve", *arguments]) == 3
    assert "vectors of another model" in capsys.readouterr().err


def test_a_resumed_run_keeps_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(folder, "resumed", *PROMPTS, "train.stop_at_epoch=1", entry="") == 0
    copy = folder / "changed"
    shutil.copytree(folder / "resumed", copy)
    assert train(folder, "changed", "encoder.query_prompt=fa ", *PROMPTS[1:], entry="") == 3
    assert "encoder.query_prompt was ca ce , is now fa" in capsys.readouterr().err
    assert train(folder, "resumed", *PROMPTS, entry="") == 0
    ours, theirs = weights(folder / "resumed"), weights(folder / "prompted")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert BiEncoder.load(folder / "resumed").settings.query_prompt == QUERY
