"""A corpus as a training set on the command line, and ``dpr prepare pairs=``."""

import json
from pathlib import Path

import pytest

from dpr.formats.corpora import read_passages
from dpr.formats.question_sets import read_qrels, read_questions
from dpr.formats.training_sets import open_training_set
from dpr.models.biencoder import BiEncoder
from tests.helpers.jobs import explain, raising, train
from tests.helpers.tiny import static_folder
from tests.unit.data.test_pseudo_pairs import made_rows, write_corpus

prepare = raising("prepare")


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    return write_corpus(tmp_path / "corpus.jsonl", made_rows(90))


def arguments(corpus: Path, out: Path | None, *more: str) -> list[str]:
    encoder = static_folder(corpus.parent / "encoder")
    line = (
        f"encoder.pretrained_model_cfg={encoder} encoder=static encoder.pooling=idf_sqrt train_datasets=[docs]"
        f" datasets.docs.file={corpus} train.hard_negatives=0 no_cuda=true train.batch_size=16"
        " train.num_train_epochs=2 train.save_every_steps=4"
    )
    given = [*line.split(), "datasets.docs.pairs={crops: 2, title: 1}"]
    return [*given, *([f"output_dir={out}"] if out else []), *more]


def weights(folder: Path) -> str:
    return BiEncoder.load(folder).fingerprint


def test_training_on_a_corpus_is_the_same_from_text_and_tokens_and_after_a_stop(
    corpus: Path, tmp_path: Path
) -> None:
    assert train(arguments(corpus, tmp_path / "tokens")) == 0
    assert list((tmp_path / "cache").glob("tokens-*"))
    assert train(arguments(corpus, tmp_path / "text", "train.token_store=off")) == 0
    assert train(arguments(corpus, tmp_path / "resumed", "train.stop_at_epoch=1")) == 0
    assert train(arguments(corpus, tmp_path / "resumed")) == 0
    assert len({weights(tmp_path / name) for name in ("tokens", "text", "resumed")}) == 1


def test_pairs_that_differ_are_another_run(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(arguments(corpus, tmp_path / "run")) == 0
    for more in (["datasets.docs.held_back=0.2"], []):
        assert train(arguments(corpus, tmp_path / "run", *more)) not in (0, 1)
        assert "was written by a different run: train_datasets" in capsys.readouterr().err
        write_corpus(corpus, made_rows(91))


def test_rows_that_share_words_and_a_labelled_set_beside_it(corpus: Path, tmp_path: Path) -> None:
    labelled = tmp_path / "train.jsonl"
    row = {"question": "ba be", "positive_ctxs": [{"title": "", "text": "bi bo"}]}
    labelled.write_text("".join(json.dumps({**row, "question": f"ba be {one}"}) + "\n" for one in range(40)))
    more = [f"train_datasets=[docs,{labelled}]", "train.sampling.temperature=2", "train.sampling.mixed=true"]
    assert train(arguments(corpus, tmp_path / "mixed", *more)) == 0
    for name, store in (("grouped", "auto"), ("grouped_text", "off")):
        grouped = ["train.sampling.group_by_words=true", f"train.token_store={store}"]
        assert train(arguments(corpus, tmp_path / name, *grouped)) == 0
    assert weights(tmp_path / "grouped") == weights(tmp_path / "grouped_text")


def test_explain_shows_the_pairs_of_a_step(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(arguments(corpus, None, "step=2", "questions=0")) == 0
    shown = capsys.readouterr().out
    assert "16 questions of docs" in shown
    assert "which also answer it" in shown  # passages of one file


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["datasets.docs.reader=a:B"], "datasets.docs.pairs and datasets.docs.reader are mutually exclusive"),
        (["datasets.docs.pairs=nonsense"], "datasets.docs.pairs=nonsense is not a kind of pairs"),
        (["datasets.docs.held_back=1"], "it must be in [0, 1)"),
        (["datasets.docs.file={folder}/corpus*.jsonl"], "names 2 files, but pairs are cut from one corpus"),
    ],
)
def test_what_does_not_fit_is_said(
    corpus: Path, tmp_path: Path, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_corpus(tmp_path / "corpus2.jsonl", made_rows(8))
    given = [item.replace("{folder}", str(tmp_path)) for item in more]
    assert train(arguments(corpus, tmp_path / "run", *given)) == 2
    assert message in capsys.readouterr().err


def test_pseudo_questions_and_pairs(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "pseudo"
    write_corpus(corpus, made_rows(300))
    command = [str(corpus), f"out={out}", "pairs=mixed", "rounds=2"]
    prepare(command)
    first = {path.name: path.read_bytes() for path in out.iterdir()}
    prepare(command)  # made already
    prepare([*command[:1], f"out={tmp_path / 'again'}", *command[2:]])
    again = {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()}
    assert {name: content for name, content in again.items() if name != "manifest.json"} == {
        name: content for name, content in first.items() if name != "manifest.json"
    }
    before = {passage.id: passage for passage in read_passages(corpus)}
    after = {passage.id: passage for passage in read_passages(out / "evaluation_corpus.jsonl")}
    questions, qrels = read_questions(out / "dev_questions.jsonl"), read_qrels(out / "dev_qrels.tsv")
    assert before.keys() == after.keys()
    asked = {passage for grades in qrels.values() for passage in grades}
    assert len(questions) == len(asked) > 5
    for key, passage in after.items():
        assert (passage != before[key]) == (key in asked)
    for question in questions:
        (key,) = qrels[question.id]
        words = set(question.text.split())
        assert words <= {*before[key].text.split(), *before[key].title.split()}
        assert question.text not in after[key].text
    held = {before[key].origin for key in asked}
    pairs = open_training_set(out / "train.jsonl", name="pairs")
    rows = [pairs[row] for row in range(len(pairs))]
    assert len(rows) >= 500
    assert {row.positives[0].id for row in rows} & asked == set()
    assert {
        before[str(row.positives[0].id)].origin for row in rows if before[str(row.positives[0].id)].origin
    } & (held - {None}) == set()
