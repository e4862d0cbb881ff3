"""``train.merge_with_base``: at its end, a run is opened as the best of the weights between its start and its best checkpoint.

pytest tests/invariants/test_merge_with_base.py
"""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dpr.core.errors import ConfigError, OutputError
from dpr.core.records import TrainingSample
from dpr.export.adapters import merged
from dpr.formats.checkpoints import CONFIG_FILE, MODEL_FILE, read_tensors
from dpr.formats.corpora import read_passages
from dpr.formats.question_sets import read_qrels, read_questions
from dpr.models.biencoder import BiEncoder
from dpr.models.settings import EncoderSettings
from dpr.storage.durable import remove_folder, verify_folder
from dpr.training.callbacks import merging
from dpr.training.command_settings import BiEncoderTrainConfig
from dpr.training.settings import TrainSettings
from dpr.training.trainer import BiEncoderTrainer
from dpr.training.validations.protocol import run_validations
from tests.helpers.adapters import base_folder
from tests.helpers.processes import run_on_ranks
from tests.helpers.tiny import ListSource, make_samples, tiny_model
from tests.helpers.training import KilledAt, make_trainer
from tests.unit.training.test_retrieval_validation import entry, write_retrieval_set

SAMPLES, NEW = make_samples(40, seed=2), make_samples(40, seed=9)
START, MERGED = "dpr_biencoder.step0", "dpr_biencoder.merged"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus to search, and a base that has learned half of the questions that runs are judged by."""
    folder = write_retrieval_set(tmp_path_factory.mktemp("merging"))
    model = tiny_model(folder / "encoder", dtype=torch.float32)
    make_trainer(model, [ListSource(SAMPLES)], [], folder / "first", num_train_epochs=4, learning_rate=1e-2).train()
    model.save(folder / "base")
    return folder


def trainer(folder: Path, output_dir: Path, *callbacks: Any, model: BiEncoder | None = None, **options: Any) -> BiEncoderTrainer:
    """Eight updates from the base on new questions, judged by these and by those that the base knows, of which it forgets some."""
    defaults = {"learning_rate": 1e-2, "global_batch_size": 10, "merge_with_base": True, "keep_last": 1, "max_steps": 8}
    sets = [ListSource(NEW)], [ListSource(SAMPLES + NEW, "dev")]
    return make_trainer(model or BiEncoder.load(folder / "base"), *sets, output_dir, *callbacks, **{**defaults, **options})


def trained(folder: Path, output_dir: Path, **options: Any) -> dict[str, Any]:
    """What the run says of itself."""
    trainer(folder, output_dir, **options).train()
    return dict(json.loads((output_dir / "verdict.json").read_text()))


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    assert not verify_folder(folder)
    return read_tensors(folder, MODEL_FILE)


def contents(run: Path) -> dict[str, bytes]:
    """Everything but the log lines, which have times."""
    kept = (path for path in run.rglob("*") if path.is_file() and path.name not in ("metrics.jsonl", "report.html", "run.json"))
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in kept}


@pytest.fixture(scope="module")
def whole(folder: Path) -> Path:
    """A run that was not disturbed, with a search among its validations."""
    trained(folder, folder / "whole", validation=[entry(folder)])
    return folder / "whole"


def test_the_run_is_opened_as_the_best_mixture_by_its_own_validations(folder: Path, whole: Path) -> None:
    found = json.loads((whole / "verdict.json").read_text())
    tried = {float(weight): value for weight, value in found["merge"]["tried"].items()}
    assert list(tried) == [step / 10 for step in range(11)]
    weight = min(tried, key=lambda each: tried[each])
    assert 0 < weight < 1 and found["merge"]["weight"] == weight and found["opens"] == MERGED, "or this tests nothing"
    start, tuned = weights_of(whole / START), weights_of(whole / found["best_checkpoint"])
    expected = merging.mixed([tuned, start], (weight, 1 - weight))
    opened = BiEncoder.load(whole)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in opened.weights().items())
    assert all(torch.equal(tensor, start[name]) for name, tensor in weights_of(folder / "base").items())
    metrics = run_validations(trainer(folder, whole, validation=[entry(folder)]).validations, opened)
    assert metrics["eval/nll_loss"] == tried[weight] < min(tried[0], tried[1])
    run = json.loads((whole / "run.json").read_text())
    assert (run["best_checkpoint"], run["best_metric"], run["best_value"]) == (MERGED, "eval/nll_loss", tried[weight])
    assert (whole / run["last_checkpoint"]).is_dir() and (whole / MERGED / CONFIG_FILE).is_file()
    won = {(one["against"], one["metric"]): one for one in found["comparisons"]}
    for against, before in (("the start", tried[0.0]), ("the best checkpoint", tried[1.0])):
        one = won[against, "eval/nll_loss"]
        assert (one["before"], one["after"], one["num_questions"]) == (pytest.approx(before), pytest.approx(tried[weight]), 80)
    assert won["the start", "eval/own/ndcg@10"]["after"] == pytest.approx(metrics["eval/own/ndcg@10"])
    assert f"{weight:g} of {found['best_checkpoint']}" in found["line"] and found["verdict"] in ("better", "no difference")
    assert json.loads((whole / "metrics.json").read_text())["best_checkpoint"] == MERGED


@pytest.mark.parametrize("moment", ["an update", "a mixture", "the model", "the verdict"])
def test_killed_anywhere_it_ends_with_the_same_bytes(
    folder: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    measured: list[int] = []
    append = merging.append_jsonl

    def count(path: Path, line: Any) -> None:
        if moment == "a mixture" and len(measured) == 4:
            measured.append(0)  # it is measured again
            path.open("a").write('{"torn')
            raise KeyboardInterrupt
        measured.append(1)
        append(path, line)

    def killed(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    run = tmp_path / "run"
    monkeypatch.setattr(merging, "append_jsonl", count)
    job = trainer(folder, run, *([KilledAt(5)] if moment == "an update" else []), validation=[entry(folder)])
    with monkeypatch.context() as patch:
        if moment == "the model":
            patch.setattr(BiEncoder, "write_to", _unless_merged(BiEncoder.write_to))
        elif moment == "the verdict":
            patch.setattr("dpr.training.callbacks.verdict.write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            job.train()
    trained(folder, run, validation=[entry(folder)])
    assert sum(measured) == 9, "what was measured is not measured again"
    ours, theirs = contents(run), contents(whole)
    assert ours.pop(merging.CANDIDATES).replace(b'{"torn\n', b"") == theirs.pop(merging.CANDIDATES)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name].replace(str(run).encode(), b"") != theirs[name].replace(str(whole).encode(), b"")] == []


def _unless_merged(write: Any) -> Any:
    def stopped(model: BiEncoder, folder: Path, weights: Any = None) -> None:
        write(model, folder, weights)
        if "merged" in folder.name:
            raise KeyboardInterrupt

    return stopped


def test_a_finished_run_does_nothing_again_and_one_that_goes_on_merges_anew(folder: Path, tmp_path: Path) -> None:
    first = trained(folder, tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / MERGED).rglob("*")}
    again = trainer(folder, tmp_path / "run")
    again.validate = lambda: pytest.fail("it validates")  # type: ignore[method-assign]
    model = {name: tensor.clone() for name, tensor in again.model.weights().items()}
    again.train()
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / MERGED).rglob("*")} == before
    assert json.loads((tmp_path / "run" / "verdict.json").read_text()) == first
    last = weights_of(tmp_path / "run" / "dpr_biencoder.step8")
    assert all(torch.equal(tensor, last[name]) for name, tensor in again.model.weights().items()), "the model is that of the last step"
    assert model.keys() == last.keys()
    longer = trained(folder, tmp_path / "run", num_train_epochs=3, max_steps=12)
    assert longer["step"] == 12 and longer["merge"]["weight"] > 0
    best = json.loads((tmp_path / "run" / "run.json").read_text())["best_checkpoint"]
    assert best == longer["opens"] and (tmp_path / "run" / best).is_dir()


def test_the_ends_are_the_start_and_the_best_checkpoint(folder: Path, tmp_path: Path) -> None:
    ruined = trained(folder, tmp_path / "ruined", learning_rate=3.0)
    assert (ruined["merge"]["weight"], ruined["opens"]) == (0, START) and ruined["verdict"] != "better"
    assert not (tmp_path / "ruined" / MERGED).exists()
    opened = BiEncoder.load(tmp_path / "ruined").weights()
    assert all(torch.equal(tensor, opened[name]) for name, tensor in weights_of(folder / "base").items())
    new = [ListSource(NEW)], [ListSource(NEW, "dev")]
    options = {"merge_with_base": True, "num_train_epochs": 3, "learning_rate": 3e-3}
    make_trainer(BiEncoder.load(folder / "base"), *new, tmp_path / "good", **options).train()
    good = json.loads((tmp_path / "good" / "verdict.json").read_text())
    assert (good["merge"]["weight"], good["opens"]) == (1, good["best_checkpoint"]) and good["verdict"] == "better"


def test_a_full_disk_is_one_sentence_and_the_same_command_goes_on(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, line: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(merging, "append_jsonl", full)
        with pytest.raises(OutputError, match=r"merge\.jsonl.*No space left on device.*rerun the same command"):
            trainer(folder, tmp_path).train()
    assert trained(folder, tmp_path)["opens"] == MERGED


def test_load_best_at_end_and_averages(folder: Path, tmp_path: Path) -> None:
    job = trainer(folder, tmp_path, ema_decay=0.8, load_best_at_end=True)
    job.train()
    opened = BiEncoder.load(tmp_path).weights()
    assert all(torch.equal(tensor, opened[name]) for name, tensor in job.model.weights().items())
    assert job.progress.best_checkpoint == MERGED
    remove_folder(tmp_path / START)  # to save space
    trainer(folder, tmp_path, ema_decay=0.8).train()
    assert weights_of(tmp_path / MERGED).keys() == opened.keys(), "what cannot be made again stays"


@pytest.fixture(scope="module")
def searched(folder: Path) -> Path:
    """A base that has learned the questions of the searched corpus, which a guard protects."""
    questions, qrels = read_questions(folder / "questions.jsonl"), read_qrels(folder / "qrels.tsv")
    texts = {str(passage.id): passage for passage in read_passages(folder / "corpus.tsv")}
    samples = [TrainingSample(one.text, tuple(texts[key] for key in qrels[one.id])) for one in questions]
    base = BiEncoder.load(folder / "base")
    make_trainer(base, [ListSource(samples)], [], folder / "second", num_train_epochs=20, learning_rate=1e-2).train()
    base.save(folder / "searched")
    return folder / "searched"


def guarded(
    folder: Path, base: Path, output_dir: Path, every: int, guard: float | None, learning_rate: float = 2e-3
) -> tuple[dict[str, Any], dict[float, float]]:
    """What a run says of itself, and the guarded metric of each of its mixtures."""
    options = {
        "model": BiEncoder.load(base),
        "validation": [entry(folder, guard=guard)],
        "eval_every_steps": every,
        "learning_rate": learning_rate,
    }
    said = trained(folder, output_dir, **options)
    lines = [json.loads(line) for line in (output_dir / merging.CANDIDATES).read_text().splitlines()]
    return said, {line["weight"]: line["metrics"]["eval/own/ndcg@10"] for line in lines}


def test_a_mixture_may_keep_a_guard_that_every_checkpoint_breaks(folder: Path, searched: Path, tmp_path: Path) -> None:
    free, found = guarded(folder, searched, tmp_path / "free", every=8, guard=None)
    start = json.loads((tmp_path / "free" / "metrics.jsonl").read_text().splitlines()[0])["eval/own/ndcg@10"]
    fine = {weight for weight, value in found.items() if value >= start - 0.04}
    kept, _ = guarded(folder, searched, tmp_path / "kept", every=8, guard=0.04)
    assert kept["best_checkpoint"] is None and fine and len(fine) < 9 and free["best_checkpoint"], "or this tests nothing"
    tried = {float(weight): value for weight, value in kept["merge"]["tried"].items()}
    assert tried.keys() == {0.0, *fine} and kept["merge"]["weight"] == min(tried, key=lambda weight: tried[weight]) > 0
    assert kept["opens"] == MERGED and kept["verdict"] == "better" and kept["line"].split(" of ")[1].startswith("dpr_biencoder.step8")


def test_where_a_guard_stops_the_last_checkpoint_its_mixtures_are_tried_beside_the_best(
    folder: Path, searched: Path, tmp_path: Path
) -> None:
    kept, found = guarded(folder, searched, tmp_path, every=1, guard=0.04, learning_rate=5e-4)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines() if "eval/own/ndcg@10" in line]
    values = {f"dpr_biencoder.step{line['step']}": (line["eval/own/ndcg@10"], line["eval/nll_loss"]) for line in lines}
    best, last, limit = kept["best_checkpoint"], values["dpr_biencoder.step8"], values[START][0] - 0.04
    assert values[best][0] >= limit > last[0] and values[best][1] > last[1], "or this tests nothing"
    tried = kept["merge"]["tried"]
    assert tried.keys() == {"0", *(f"{weight:g}" for weight, value in found.items() if value >= limit), best}
    weight = kept["merge"]["weight"]
    assert 0 < weight < 1 and kept["opens"] == MERGED and tried[f"{weight:g}"] == min(tried.values()) < tried[best]
    assert kept["line"].startswith(f"{weight:g} of dpr_biencoder.step8 and ")
    assert (kept["comparisons"][-1]["against"], kept["comparisons"][-1]["before"]) == ("the best checkpoint", pytest.approx(tried[best]))
    expected = merging.mixed([weights_of(tmp_path / "dpr_biencoder.step8"), weights_of(tmp_path / START)], (weight, 1 - weight))
    assert all(torch.equal(tensor, expected[name]) for name, tensor in BiEncoder.load(tmp_path).weights().items())
    (tmp_path / "verdict.json").unlink()
    assert guarded(folder, searched, tmp_path, every=1, guard=0.04, learning_rate=5e-4)[0] == kept


def on_ranks(folder: Path, output_dir: Path, **options: Any) -> tuple[dict[str, Any], str]:
    job = trainer(folder, output_dir, validation=[entry(folder)], **options)
    job.train()
    return json.loads((output_dir / "verdict.json").read_text()), str(job.progress.best_checkpoint)


@pytest.mark.parametrize("sharding", ["none", "fsdp2"])
def test_any_number_of_ranks_chooses_the_same(folder: Path, whole: Path, tmp_path: Path, sharding: str) -> None:
    alone = json.loads((whole / "verdict.json").read_text())
    for found, best in run_on_ranks(on_ranks_sharded if sharding == "fsdp2" else on_ranks, 2, folder, tmp_path):
        assert best == MERGED and found["merge"]["weight"] == alone["merge"]["weight"]
        assert found["merge"]["tried"] == pytest.approx(alone["merge"]["tried"], rel=1e-4)


def on_ranks_sharded(folder: Path, output_dir: Path) -> tuple[dict[str, Any], str]:
    return on_ranks(folder, output_dir, sharding="fsdp2")


def test_adapters_are_scaled(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    base = base_folder(tmp_path / "bert")
    settings = EncoderSettings(sequence_length=24, pooling="mean", adapter="lora", lora_rank=2)
    start = BiEncoder.from_pretrained(str(base), settings)
    found = trained(folder, tmp_path / "run", model=start, learning_rate=0.05, max_steps=12)
    weight = found["merge"]["weight"]
    if not 0 < weight < 1:
        weight = 0.4
        ends = [read_tensors(tmp_path / "run" / name, MODEL_FILE) for name in (START, found["best_checkpoint"])]
        start.load_weights(merging.between(ends, weight), source=tmp_path)
        opened = start
    else:
        opened = BiEncoder.load(tmp_path / "run")
    untuned, tuned = (merged(BiEncoder.load(tmp_path / "run" / name)).weights() for name in (START, found["best_checkpoint"]))
    for name, tensor in merged(opened).weights().items():
        torch.testing.assert_close(tensor, (1 - weight) * untuned[name] + weight * tuned[name], rtol=0, atol=1e-6)
    again = BiEncoder.load(tmp_path / "run" / found["best_checkpoint"])
    with pytest.raises(ConfigError, match=r"the adapters that this run starts from are trained already.* dpr merge"):
        trainer(folder, tmp_path / "again", model=again).train()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"train\.merge_with_base=true has no effect with dev_datasets=null and train\.validation=null"),
        ({"validation": "m:C", "eval_at_start": False}, r"train\.merge_with_base=true has no effect with train\.eval_at_start=false"),
    ],
)
def test_it_needs_a_validation_and_its_start(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BiEncoderTrainConfig(train_datasets="train.json", train=TrainSettings(merge_with_base=True, **settings)).check()


def test_random_weights_are_no_base(folder: Path, tmp_path: Path) -> None:
    model = BiEncoder.from_pretrained(str(folder / "encoder"), EncoderSettings(sequence_length=24), pretrained=False)
    with pytest.raises(ConfigError, match=r"train\.merge_with_base=true, but this run starts from random weights"):
        trainer(folder, tmp_path, model=model).train()
    with pytest.raises(ConfigError, match=r"train\.merge_with_base=true, but this run has no validation"):
        make_trainer(BiEncoder.load(folder / "base"), [ListSource(NEW)], [], tmp_path / "bare", merge_with_base=True).train()


def test_a_run_that_asks_for_it_too_late_keeps_its_best(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer(folder, tmp_path, merge_with_base=False, eval_at_start=True).train()
    found = trained(folder, tmp_path)
    assert "the start was not saved" in caplog.text and found["opens"] == found["best_checkpoint"] and "merge" not in found
