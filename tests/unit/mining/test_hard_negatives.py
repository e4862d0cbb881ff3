"""``dpr.mine_hard_negatives``: the negatives of ``dpr mine``, from data in memory."""

import datetime
from pathlib import Path
from typing import Any

import pytest

import dpr
from dpr.formats.stored_training_set import TrainingSet
from tests.helpers.jobs import command
from tests.unit.mining.conftest import records, repeating_corpus


@pytest.mark.parametrize("corpus", [True, False])
def test_the_rows_are_those_of_the_command(
    train: TrainingSet, corpus_file: Path, model_folder: Path, tmp_path: Path, corpus: bool
) -> None:
    """With a corpus given as a dictionary, and from the passages of the training data."""
    day = datetime.date(2020, 2, 29)  # as in a frame; no job reads it
    given = {str(one.id): {"text": one.text, "title": one.title, "day": day} for one in repeating_corpus()}
    line = [str(tmp_path / "train.jsonl"), "per_question=3", "max_relative_score=0.95", "keep_within=30"]
    line += [f"corpus={corpus_file}"] * corpus
    settings: dict[str, Any] = {"per_question": 3, "max_relative_score": 0.95, "keep_within": 30}
    settings |= {"corpus": given} if corpus else {}
    for number, model in enumerate(("bm25", str(model_folder))):
        more = [] if model == "bm25" else [f"model={model}"]
        out = tmp_path / f"out{number}.jsonl"
        assert command("mine")([*line, *more, f"out={out}"]) == 0
        mined = dpr.mine_hard_negatives(train, model, **settings)
        assert dpr.open_training_set(train, name="other") is train
        assert [*mined] == records(out) and any(row["hard_negative_ctxs"] for row in mined)
        assert "negatives written" in repr(mined) and mined.audit["counts"]["questions"] == len(mined)
    with_model = dpr.mine_hard_negatives(
        records(tmp_path / "train.jsonl"), dpr.BiEncoder.load(model_folder), **settings
    )
    assert [*with_model] == [*mined]


def test_a_trainer_takes_the_rows(train: TrainingSet, model_folder: Path, tmp_path: Path) -> None:
    rows = dpr.mine_hard_negatives(train, per_question=2)
    model = dpr.BiEncoder.load(model_folder)
    trainer = dpr.BiEncoderTrainer(
        model, train_sets=rows, output_dir=tmp_path / "run", batch_size=8, max_steps=1, hard_negatives=1
    )
    trainer.train()


def test_settings_of_others_are_named(train: TrainingSet) -> None:
    for name, message in (("num_negatives", "per_question"), ("out", "no argument 'out'")):
        with pytest.raises(TypeError, match=message):
            dpr.mine_hard_negatives(train, **{name: 3})
    with pytest.raises(dpr.ConfigError, match="keep_within=200 is above to_rank=100"):
        dpr.mine_hard_negatives(train, keep_within=200)


def test_a_positive_is_the_passage_with_its_title() -> None:
    """One text stands under several titles, as in manuals."""
    corpus = {
        f"{device}{number}": {"title": device, "text": text}
        for device in ("fridge", "telly")
        for number, text in enumerate(("clean the filter", "level the feet"))
    }
    pairs = [
        {"question": f"my {one['title']} {one['text'][:5]}", "positive_ctxs": [one]}
        for one in corpus.values()
    ]
    for given in (corpus, None):
        rows = dpr.mine_hard_negatives(pairs, corpus=given, per_question=1)
        ids = [row["positive_ctxs"][0].get("passage_id") for row in rows]
        assert ids == (list(corpus) if given else 4 * [None])
        assert rows.audit["counts"]["candidates above the positive"] == 0
        titles = [row["hard_negative_ctxs"][0]["title"] for row in rows]
        assert titles == ["fridge", "fridge", "telly", "telly"]
