"""``dpr mine``: the same file however often it was interrupted and by how many processes."""

import json
import os
import random
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpr.cli.main import main
from dpr.core.errors import InputError, LostRankError
from dpr.core.records import Passage, TrainingSample
from dpr.formats.corpora import write_passages
from dpr.formats.stored_training_set import TrainingSet
from dpr.formats.training_files.dpr import write_training_set
from dpr.formats.training_sets import open_training_set
from dpr.mining import blocks
from dpr.mining.negatives import Mining
from dpr.mining.search import Found, LexicalSearch, Query
from dpr.mining.settings import MiningSettings
from tests.helpers.tiny import WORDS
from tests.unit.mining.conftest import bm25_of, mine, records


def corpus(count: int = 80) -> list[Passage]:
    rng = random.Random(1)
    return [Passage(" ".join(rng.choices(WORDS, k=12)), rng.choice(WORDS), f"d{row}") for row in range(count)]


def samples(count: int = 30) -> list[TrainingSample]:
    rng = random.Random(2)
    made = []
    for gold, answer in zip(corpus()[:count], WORDS, strict=False):
        question = " ".join(rng.sample(gold.text.split(), 4))
        made.append(TrainingSample(question, (Passage(gold.text, gold.title),), answers=(answer,)))
    return made


def train_set(tmp_path: Path, rows: list[TrainingSample] | None = None) -> TrainingSet:
    write_training_set(tmp_path / "train.jsonl", rows or samples())
    return open_training_set(tmp_path / "train.jsonl", name="train")


def test_own_passages_serve_where_there_is_no_corpus(tmp_path: Path) -> None:
    data = train_set(tmp_path)
    mine(data, tmp_path / "out.jsonl", MiningSettings(per_question=4))
    own = {sample.positives[0].text for sample in samples()}
    for record in records(tmp_path / "out.jsonl"):
        assert {entry["text"] for entry in record["hard_negative_ctxs"]} <= own - {
            record["positive_ctxs"][0]["text"]
        }
        # without ids as in the data, so that a passage is the same one wherever it stands
        assert all(
            "passage_id" not in entry for entry in record["hard_negative_ctxs"] + record["positive_ctxs"]
        )
    mined = open_training_set(tmp_path / "out.jsonl", name="mined")
    assert len(mined) == len(data)
    assert not (tmp_path / "out.jsonl.mining").exists()


@pytest.mark.parametrize("damaged", ["", "part"])
def test_interrupted_mining_resumes_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: str
) -> None:
    data = train_set(tmp_path)
    settings = MiningSettings(per_question=2)
    mine(data, tmp_path / "whole.jsonl", settings)
    real, done = Mining.do_block, []

    def breaking(miner: Mining, rows: range) -> Any:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(rows.start)
        return real(miner, rows)

    monkeypatch.setattr(Mining, "do_block", breaking)
    with pytest.raises(KeyboardInterrupt):
        mine(data, tmp_path / "broken.jsonl", settings)
    assert not (tmp_path / "broken.jsonl").exists()
    if damaged:
        (file,) = (tmp_path / "broken.jsonl.mining" / "blocks").glob(f"{damaged}-000000007-*[!6]")
        file.write_bytes(file.read_bytes().replace(b"1", b"2"))
    later: list[int] = []
    monkeypatch.setattr(Mining, "do_block", lambda miner, rows: later.append(rows.start) or real(miner, rows))
    mine(data, tmp_path / "broken.jsonl", settings)
    assert (done, later) == ([0, 7, 14], [*([7] if damaged else []), 21, 28])
    assert (tmp_path / "broken.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert (tmp_path / "broken.jsonl.audit.json").read_bytes() == (
        tmp_path / "whole.jsonl.audit.json"
    ).read_bytes()


def test_other_settings_do_not_take_over_unfinished_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, out = train_set(tmp_path), tmp_path / "out.jsonl"
    real = blocks.durable_text
    monkeypatch.setattr(blocks, "durable_text", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        mine(data, out, MiningSettings(per_question=1))
    monkeypatch.setattr(blocks, "durable_text", real)
    mine(data, out, MiningSettings(per_question=2))
    assert max(len(record["hard_negative_ctxs"]) for record in records(out)) == 2


@pytest.mark.parametrize("held", [30, 1, 0])
def test_a_corpus_without_the_positives_is_refused_and_missing_ones_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], held: int
) -> None:
    rows = [TrainingSample(f"ba {row}", (Passage(f"right {row}", id=f"d{row}"),)) for row in range(30)]
    of_rows = [replace(sample.positives[0], id=f"x{n}") for n, sample in enumerate(rows[:held])]
    write_passages(tmp_path / "corpus.tsv", [*corpus(), *of_rows])
    names = (f"corpus={tmp_path / 'corpus.tsv'}", f"out={tmp_path / 'o'}")
    arguments = ["mine", str(tmp_path / "train.jsonl"), *names]
    train_set(tmp_path, rows)
    assert main(arguments) == (3 if held == 0 else 0)
    assert f"contains {held} of the 30 positives" in capsys.readouterr().err
    if not held:
        assert main([*arguments, "allow_missing=true"]) == 0
        cleaned = [replace(sample.positives[0], text=f"(right) {n}.") for n, sample in enumerate(rows)]
        write_passages(tmp_path / "corpus.tsv", cleaned)
        assert main([*arguments, "overwrite=true"]) == 0
        assert "contains 30 of the 30 positives" in capsys.readouterr().err, "the same ids, similar texts"


def test_the_audit_counts_what_is_in_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_set(tmp_path)
    out = tmp_path / "out.jsonl"
    assert main(["mine", str(tmp_path / "train.jsonl"), f"out={out}", "per_question=3"]) == 0
    text = capsys.readouterr().out
    audit = json.loads((tmp_path / "out.jsonl.audit.json").read_text())
    mined = [entry for record in records(out) for entry in record["hard_negative_ctxs"]]
    assert audit["counts"]["negatives"] == len(mined) > 60
    assert audit["left_out"]["known positive"] > 20
    assert audit["score_quantiles"] == sorted(audit["score_quantiles"])
    assert len(audit["examples"]) == 5
    assert f"{len(mined):,}  negatives written" in text
    assert text.splitlines()[-1] == f"{out}: 30 questions, {len(mined)} mined negatives"


def test_a_finished_output_is_left_alone_by_the_same_command_and_refused_to_another(tmp_path: Path) -> None:
    data, out = train_set(tmp_path), tmp_path / "out.jsonl"
    write_passages(tmp_path / "corpus.tsv", corpus())
    first = mine(data, out, MiningSettings(per_question=2), corpus=tmp_path / "corpus.tsv")
    before = out.stat().st_mtime_ns, out.with_name("out.jsonl.audit.json").stat().st_mtime_ns
    (tmp_path / "corpus.tsv").touch()  # the same content counts, not its time
    assert mine(data, out, MiningSettings(per_question=2), corpus=tmp_path / "corpus.tsv") == first
    assert (out.stat().st_mtime_ns, out.with_name("out.jsonl.audit.json").stat().st_mtime_ns) == before
    with pytest.raises(InputError, match="already exists"):
        mine(data, out, MiningSettings(per_question=3), corpus=tmp_path / "corpus.tsv")
    with pytest.raises(InputError, match="already exists"):
        mine(data, out, MiningSettings(per_question=2))
    out.write_text(out.read_text().replace("ba", "be"))  # edited since
    with pytest.raises(InputError, match="already exists"):
        mine(data, out, MiningSettings(per_question=2), corpus=tmp_path / "corpus.tsv")


def test_a_run_killed_between_output_and_audit_is_finished_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, out = train_set(tmp_path), tmp_path / "out.jsonl"
    whole = mine(data, tmp_path / "whole.jsonl", MiningSettings())
    real = blocks.describe_file

    def killed(path: Path) -> Any:
        if path == out:
            raise KeyboardInterrupt
        return real(path)

    monkeypatch.setattr(blocks, "describe_file", killed)
    with pytest.raises(KeyboardInterrupt):
        mine(data, out, MiningSettings())
    assert out.is_file()
    monkeypatch.setattr(blocks, "describe_file", real)
    assert mine(data, out, MiningSettings()) == whole
    assert not (tmp_path / "out.jsonl.mining").exists()


def test_existing_negatives_are_replaced_or_kept(tmp_path: Path) -> None:
    rows = [TrainingSample(s.question, s.positives, (Passage("old one"),)) for s in samples(10)]
    data = train_set(tmp_path, rows)
    mine(data, tmp_path / "replaced.jsonl", MiningSettings(per_question=1))
    assert all(
        [entry["text"] for entry in record["hard_negative_ctxs"]] != ["old one"]
        for record in records(tmp_path / "replaced.jsonl")
    )
    mine(data, tmp_path / "kept.jsonl", MiningSettings(per_question=1, keep_existing=True))
    for record in records(tmp_path / "kept.jsonl"):
        assert record["hard_negative_ctxs"][0] == {"title": "", "text": "old one"}
        assert all("rank" in entry for entry in record["hard_negative_ctxs"][1:])


def test_questions_that_do_not_find_their_passage_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep_within = 3
    write_passages(tmp_path / "corpus.tsv", corpus())
    rng = random.Random(4)
    rows = [
        replace(sample, question=" ".join([*sample.question.split()[:2], *rng.choices(WORDS, k=4)]))
        for sample in samples()
    ]
    rows[5] = replace(rows[5], positives=(Passage("elsewhere"), *rows[5].positives))
    train_set(tmp_path, [*rows, replace(rows[0], positives=(Passage("elsewhere"),))])
    index = bm25_of(corpus())
    _, found = index.search([row.question for row in rows], keep_within)
    kept = [number for number, keys in enumerate(found) if f"d{number}" in keys]
    assert 0 < len(kept) < len(rows)
    given = ["mine", str(tmp_path / "train.jsonl"), f"corpus={tmp_path / 'corpus.tsv'}", "per_question=2"]
    assert main([*given, f"out={tmp_path / 'all.jsonl'}"]) == 0
    assert "left out, since no positive" not in capsys.readouterr().out
    assert main([*given, f"out={tmp_path / '1.jsonl'}", f"keep_within={keep_within}"]) == 0
    left_out = len(rows) + 1 - len(kept)
    line = f"{left_out:>10,}  questions left out, since no positive is among the first found"
    assert line in capsys.readouterr().out.splitlines()
    whole = records(tmp_path / "all.jsonl")
    assert records(tmp_path / "1.jsonl") == [whole[number] for number in kept]
    assert main([*given, f"out={tmp_path / '1.jsonl'}"]) == 3  # made otherwise
    assert main([*given, f"out={tmp_path / 'x.jsonl'}", "keep_within=200"]) == 2


def test_mining_that_finds_nothing_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [
        TrainingSample("ba be", (Passage("ba be bi bo bu", id="1"),)),
        TrainingSample("ba bi", (Passage("ba be bi bo bu da", id="2"),)),
    ]
    train = train_set(tmp_path, rows)
    for _ in range(2):  # again for the same, finished file
        caplog.clear()
        audit = mine(train, tmp_path / "out.jsonl", MiningSettings())
        assert audit["counts"]["negatives"] == 0
        (warning,) = [entry.getMessage() for entry in caplog.records if entry.levelname == "WARNING"]
        assert "out.jsonl: 2 of 2 questions have no mined negatives (" in warning
        assert "left out: " in warning
    train = train_set(tmp_path, [replace(row, question="zu zo") for row in rows])
    mine(train, tmp_path / "none.jsonl", MiningSettings())
    assert "2 of 2 questions have no mined negatives (0 candidates" in caplog.text
    mine(train, tmp_path / "kept.jsonl", MiningSettings(), keep_within=1)
    assert "2 questions left out, since no positive is among the first found" in caplog.text


class KillingSearch(LexicalSearch):
    def find(self, queries: Sequence[Query], depth: int) -> list[Found]:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def test_a_killed_process_of_several_ends_the_command_with_a_message(
    tmp_path: Path, train: TrainingSet, corpus_file: Path
) -> None:
    given: dict[str, Any] = {"search": KillingSearch(), "corpus": corpus_file, "processes": 2}
    with pytest.raises(LostRankError, match="rerun the same command"):
        mine(train, tmp_path / "out.jsonl", MiningSettings(), **given)
    whole = mine(train, tmp_path / "whole.jsonl", MiningSettings(), corpus=corpus_file)
    assert mine(train, tmp_path / "out.jsonl", MiningSettings(), corpus=corpus_file, processes=2) == whole
