"""Questions written by a model: what it would write passage by passage, the same after any kill, from folders that can be trusted."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpr.cli.main import main
from dpr.core.errors import InputError
from dpr.core.records import Passage
from dpr.core.seeding import generator_for
from dpr.data.order import PAIRS
from dpr.formats.corpora import read_passages
from dpr.formats.question_sets import read_qrels, read_questions
from dpr.formats.training_sets import open_training_set
from dpr.preparation import pseudo_questions, question_writer
from dpr.preparation.question_writer import QuestionWriter
from dpr.preparation.settings import WriterSettings
from dpr.storage.durable import read_manifest
from dpr.storage.steps import StepsInOrder
from tests.helpers.jobs import raising
from tests.helpers.tiny import encoder_folder, writer_folder
from tests.unit.data.test_pseudo_pairs import made_rows, write_corpus

prepare_pairs = raising("prepare-pairs")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return writer_folder(tmp_path_factory.mktemp("writer"))


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(question_writer, "BLOCK_ROWS", 16)
    return write_corpus(tmp_path / "corpus.jsonl", made_rows(90))


def command(corpus: Path, folder: Path, out: Path, *more: str) -> list[str]:
    given = [str(corpus), f"out={out}", f"questions_by={folder}", "rounds=2", "held_back=0.3", "max_question_tokens=8", "device=cpu"]
    return [*given, *more]


def opened(folder: Path, **settings: Any) -> QuestionWriter:
    return QuestionWriter(WriterSettings(questions_by=str(folder), device="cpu", **settings))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def passages(corpus: Path) -> list[tuple[int, Passage]]:
    return [(row, passage) for row, passage in enumerate(read_passages(corpus)) if passage.text.strip()]


def test_questions_are_drawn_word_by_word_from_the_ten_likeliest(folder: Path, corpus: Path) -> None:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    settings: dict[str, Any] = {"passage_prefix": "ba: ", "max_question_tokens": 6, "seed": 5, "batch_tokens": 200}
    given = passages(corpus)[:12]
    found = opened(folder, **settings).write(given, 2)
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    for (row, passage), questions in zip(given, found, strict=True):
        text = f"{passage.title} {passage.text}" if passage.title else passage.text
        inputs = tokenizer("ba: " + text, return_tensors="pt", return_token_type_ids=False)
        for number, question in enumerate(questions):
            tokens = [0]
            for draw in generator_for(PAIRS, 5, number, 0, row).random(6):
                with torch.no_grad():
                    scores = model(**inputs, decoder_input_ids=torch.tensor([tokens])).logits[0, -1].double()
                best = scores.argsort(descending=True)[:10]
                shares = (scores[best].exp() / scores[best].exp().sum()).cumsum(0)
                tokens.append(int(best[int(np.searchsorted(shares.numpy(), draw, side="right"))]))
                if tokens[-1] == tokenizer.eos_token_id:
                    break
            assert question == tokenizer.decode(tokens, skip_special_tokens=True)
    assert len({question for questions in found for question in questions}) > 12


def test_neither_batches_nor_neighbours_nor_the_number_of_questions_change_a_question(folder: Path, corpus: Path) -> None:
    given, length = passages(corpus)[:40], {"max_question_tokens": 10}
    whole = opened(folder, **length).write(given, 3)
    assert opened(folder, **length, batch_tokens=64).write(given, 3) == whole
    assert opened(folder, **length, batch_tokens=300).write(given[20:], 2) == [questions[:2] for questions in whole[20:]]
    assert opened(folder, **length).write([], 2) == []


def test_questions_of_documents_held_back_and_pairs_of_the_others(
    corpus: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    prepare_pairs(command(corpus, folder, out))
    printed = capsys.readouterr().out
    first = contents(out)
    prepare_pairs(command(corpus, folder, out, "batch_tokens=100"))  # made already
    assert contents(out) == first
    assert capsys.readouterr().out == printed
    known = {str(passage.id): passage for passage in read_passages(corpus)}
    questions, qrels = read_questions(out / "dev_questions.jsonl"), read_qrels(out / "dev_qrels.tsv")
    asked = {passage for grades in qrels.values() for passage in grades}
    pairs = open_training_set(out / "train.jsonl", name="pairs")
    rows = [pairs[row] for row in range(len(pairs))]
    positives = [row.positives[0] for row in rows]
    assert len(questions) == len(asked) > 10
    assert all((known[str(one.id)].text, known[str(one.id)].title) == (one.text, one.title) for one in positives)
    assert {str(one.id) for one in positives} & asked == set()
    origins = {known[key].origin for key in asked} - {None}
    assert origins and origins & {known[str(one.id)].origin for one in positives} == set()
    assert len({(row.question, row.positives[0].id) for row in rows}) == len(rows)
    counts = read_manifest(out)["metadata"]["counts"]
    written = len(questions) + 2 * (len(passages(corpus)) - len(questions))  # all that are held back are asked for
    left_out = counts["repeated ones left out"] + counts.get("empty ones left out", 0)
    assert (counts["pseudo-questions"], counts["training pairs"]) == (len(questions), len(rows))
    assert left_out == written - len(questions) - len(rows) > 0
    assert printed == f"{out}: " + ", ".join(f"{count:,} {name}" for name, count in counts.items()) + "\n"


def test_a_killed_command_goes_on_with_the_block_that_was_lost(
    corpus: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_pairs(command(corpus, folder, tmp_path / "whole"))
    whole, out, work = contents(tmp_path / "whole"), tmp_path / "out", tmp_path / "out.writing"
    real_commit, done, stop = StepsInOrder.commit, list[int](), 0

    def commit(steps: StepsInOrder) -> None:
        if len(done) == stop:
            raise KeyboardInterrupt  # what was written since the last step does not count
        done.append(steps.num_done)
        real_commit(steps)

    def killed(*more: str) -> None:
        with pytest.raises(KeyboardInterrupt):
            prepare_pairs(command(corpus, folder, out, *more))
        assert not out.exists() and work.is_dir()

    with monkeypatch.context() as patched:
        patched.setattr(StepsInOrder, "commit", commit)
        for stop in (0, 1, 4):  # noqa: B007  the function reads it
            killed()
        stop = -1
        patched.setattr(pseudo_questions, "write_training_set", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        killed()
        killed("batch_tokens=64")
    assert done == list(range(len(done))) and len(done) > 6
    other = writer_folder(tmp_path / "other", seed=1)
    for changed, key in (([f"questions_by={other}"], "model"), (["seed=1"], "seed"), (["passage_prefix=ba: "], "passage_prefix")):
        with pytest.raises(InputError, match=rf"out\.writing: holds unfinished output with questions_by\.{key}=.*or remove the folder"):
            prepare_pairs(command(corpus, folder, out, *changed))
    prepare_pairs(command(corpus, folder, out))
    assert contents(out) == whole and not work.exists()
    work.mkdir()
    (work / "mine.txt").touch()  # another folder of that name stays
    prepare_pairs(command(corpus, folder, out))
    assert list(work.iterdir()) == [work / "mine.txt"]
    shutil.rmtree(work)
    with pytest.raises(InputError, match="exists already, made with another questions_by"):
        prepare_pairs(command(corpus, folder, out, "seed=1"))
    prepare_pairs(command(corpus, folder, out, "seed=1", "overwrite=true"))
    assert contents(out)["train.jsonl"] != whole["train.jsonl"]


def test_without_rounds_only_passages_held_back_are_asked_for(corpus: Path, folder: Path, tmp_path: Path) -> None:
    prepare_pairs(command(corpus, folder, tmp_path / "some", "rounds=0", "questions=5"))
    assert sorted(contents(tmp_path / "some")) == ["dev_qrels.tsv", "dev_questions.jsonl", "manifest.json"]
    assert len(read_questions(tmp_path / "some" / "dev_questions.jsonl")) == 5


def test_a_model_that_writes_nothing_is_said(corpus: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuestionWriter, "write", lambda _, given, count: [[""] * count for _ in given])
    with pytest.raises(InputError, match="no question was written for any passage that is held back"):
        prepare_pairs(command(corpus, folder, tmp_path / "out"))


def _no_writer(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    from transformers import AutoConfig, AutoModel

    AutoModel.from_config(AutoConfig.from_pretrained(encoder_folder(folder))).save_pretrained(folder)


def _own_code(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "mine", "auto_map": {"AutoModelForSeq2SeqLM": "code.Model"}}))
    (folder / "code.py").write_text("raise SystemExit('was run')")


def _not_finite(folder: Path) -> None:
    from transformers import T5ForConditionalGeneration

    model = T5ForConditionalGeneration.from_pretrained(folder)
    model.shared.weight.data[:] = float("nan")
    model.save_pretrained(folder)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"), r"pytorch_model\.bin is a pickle"),
        (
            lambda folder: (folder / "config.json").unlink(),
            r"has no config\.json, expected a folder of a Hugging Face sequence-to",
        ),
        (lambda folder: [path.unlink() for path in folder.glob("*[vt]o[ck]*")], "no tokenizer could be loaded|has no vocabulary"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"nonsense"), r"model\.safetensors: cannot be read"),
        (_no_writer, r"BertConfig.* for this kind of AutoModel: AutoModelForSeq2SeqLM.*expected a folder of a Hugging Face sequence-to"),
        (_own_code, "model_type is the string 'mine'"),
        (_not_finite, "scores that are NaN or infinite"),
    ],
)
def test_folders_that_cannot_write_are_refused(
    corpus: Path, tmp_path: Path, spoil: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = writer_folder(tmp_path / "spoilt")
    spoil(folder)
    assert main(["prepare-pairs", *command(corpus, folder, tmp_path / "out")]) == 3
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert re.search(message, line) and str(folder) in line
    assert not (tmp_path / "out").exists()


def test_a_folder_does_not_say_how_words_are_chosen(corpus: Path, folder: Path, tmp_path: Path) -> None:
    copy = writer_folder(tmp_path / "copy")
    stated = json.loads((copy / "generation_config.json").read_text())
    more = {"num_beams": 3, "do_sample": True, "temperature": 5.0, "no_repeat_ngram_size": 1, "max_length": 3, "num_return_sequences": 2}
    (copy / "generation_config.json").write_text(json.dumps(stated | more))
    assert opened(copy).write(passages(corpus), 1) == opened(folder).write(passages(corpus), 1)


@pytest.mark.parametrize("given", ["seed=1", "precision=bf16", "passage_prefix=x", "batch_tokens=9"])
def test_settings_of_a_writer_without_one_are_refused(corpus: Path, tmp_path: Path, given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare-pairs", str(corpus), f"out={tmp_path / 'out'}", given]) == 2
    assert "set questions_by=..." in capsys.readouterr().err


@pytest.mark.parametrize("given", ["pairs=crops", "drop_words=0.1", "drop_shared=0.1"])
def test_settings_of_cutting_beside_a_writer_are_refused(
    corpus: Path, folder: Path, tmp_path: Path, given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare-pairs", *command(corpus, folder, tmp_path / "out", given)]) == 2
    assert "has no effect with questions_by=" in capsys.readouterr().err
