"""Every setting of a run is read by the job that it belongs to; names and paths before any data."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from dpr.cli.main import main
from dpr.core.errors import ConfigError, DprError
from dpr.data import pairs
from dpr.formats.training_files.dpr import write_training_set
from dpr.jobs import train
from dpr.jobs.explain import explain
from dpr.jobs.train import build_model, open_sets
from dpr.losses.candidates import find_candidates
from dpr.preparation import conversion, folder_data, new_encoder
from dpr.training.command_settings import ExplainCommand, TrainCommand
from dpr.training.data_sets import resolve_training_files
from dpr.training.settings import TrainNode
from tests.architecture.source_files import package_sources
from tests.helpers.tiny import encoder_folder, make_samples, training_folder
from tests.helpers.training import small_command, trainer_of


@pytest.mark.parametrize("kind", [TrainNode, TrainCommand])
def test_every_setting_of_training_is_read_somewhere(kind: type) -> None:
    texts = "".join(
        re.sub(r'"""(?s:.*?)"""', "", source.text) for source in package_sources() if source.room != "cli"
    )
    unread = [item.name for item in fields(kind) if not re.search(rf"\.{item.name}\b", texts)]
    assert not unread


RETRIEVAL = {"kind": "retrieval", "corpus": "missing.tsv", "questions": "missing.jsonl"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"output_dir": "{folder}/train.json/run"}, r"cannot be written \(.*train.json is not a folder\)"),
        ({"train.callbacks": ["json:nothing"]}, "train.callbacks=json:nothing: json has no nothing"),
        (
            {"train.best_metric": "eval/acc"},
            "train.best_metric=eval/acc is not a metric of any validation.*choose one of eval/nll_loss",
        ),
        ({"loss.dimensions": [8, 4096]}, "loss.dimensions names 4096"),
        ({"loss.name": "json:JSONDecoder"}, "loss.name=json:JSONDecoder"),
        ({"loss.guide": ["nowhere_*"]}, "nowhere_"),
        ({"train.validation": [RETRIEVAL]}, r"train.validation\[0\].corpus=missing.tsv is not a file"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_names_and_paths_are_checked_before_data_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], message: str
) -> None:
    training_folder(tmp_path, train=4, dev=4)
    monkeypatch.setattr(train, "open_sets", lambda *_: pytest.fail("data were read"))
    values = {
        key: value.format(folder=tmp_path) if isinstance(value, str) else value
        for key, value in values.items()
    }
    with pytest.raises(DprError, match=message):
        train.run(small_command(tmp_path, dev_datasets=[str(tmp_path / "dev.json")], **values))


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExplainCommand:
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    encoder_folder(tmp_path / "encoder")
    write_training_set(tmp_path / "train.json", make_samples(30, num_passages=12))
    write_training_set(tmp_path / "more.json", make_samples(20, seed=4))
    config = ExplainCommand(output_dir=str(tmp_path / "run"), device="cpu", questions=0)
    config.train_datasets = [str(tmp_path / "train.json"), str(tmp_path / "more.json")]
    config.encoder.pretrained_model_cfg, config.encoder.pretrained = str(tmp_path / "encoder"), False
    config.encoder.sequence_length = 24
    config.train.batch_size, config.train.num_workers, config.train.num_train_epochs = 4, 0, 3
    config.train.gradient_accumulation_steps, config.train.other_negatives = 2, 1
    config.train.warmup_steps = 0
    config.check()
    return config


@pytest.mark.parametrize("step", [1, 16])
def test_rows_passages_tokens_and_masks_are_those_of_the_step(config: ExplainCommand, step: int) -> None:
    sets = open_sets(resolve_training_files(config.train_datasets, config.datasets), config)
    trainer = trainer_of(config, build_model(config), sets, [])
    assert trainer.total_steps == 18
    trainer.progress.step = step - 1
    batches = trainer.micro_batches()
    expected = [next(batches) for _ in range(2)]
    config.step = step
    text = "\n".join(explain(config))
    assert (
        f"step {step} of 18: epoch {(step - 1) // 6} (step {(step - 1) % 6 + 1} of 6), 2 global batches"
        in text
    )
    global_batches = re.split(r"(?m)^global batch ", text)[1:]
    for global_batch, batch in zip(global_batches, expected, strict=True):
        assert f"rows {', '.join(map(str, batch.rows))}\n" in global_batch
        words = trainer.model.tensorizer.tokenizer.convert_ids_to_tokens
        tokens = batch.contexts.tokens.split(batch.contexts.lengths.tolist())
        shown = re.findall(r"(?m)^              (.+)$", global_batch)
        valid = [int(row) for row, own in zip(batch.context_row, batch.context_valid, strict=True) if own]
        assert shown == [" ".join(words(tokens[row].tolist())) for row in valid]
        known = batch.known_positive_ids, batch.known_positive_valid
        found = find_candidates(
            trainer.loss.candidates, batch.positive_idx, batch.context_valid, batch.context_ids, *known
        )
        masked = [
            sorted({slot for slot in row if slot < len(batch.context_valid)}) for row in found.masked.tolist()
        ]
        assert any(masked), "else this proves little"
        lines = re.findall(r"(?m)^    masked    (.+)$", global_batch)
        assert [re.findall(r"\d+", line) for line in lines] == [[str(slot) for slot in row] for row in masked]


def test_a_mixed_global_batch_is_reported_set_by_set_with_its_prefixes(config: ExplainCommand) -> None:
    first, second = config.train_datasets
    config.datasets = {
        "first": {"file": first, "query_prefix": "ba: ", "weight": 1},
        "second": {"file": second, "passage_prefix": "bo: ", "weight": 1, "loss_scale": 0.5},
    }
    config.train_datasets, config.step = ["first", "second"], 3
    config.train.sampling.mixed = config.train.sampling.group_by_words = True
    config.check()
    sets = open_sets(resolve_training_files(config.train_datasets, config.datasets), config)
    trainer = trainer_of(config, build_model(config), sets, [])
    trainer.progress.step = 2
    batches = trainer.micro_batches()
    text = "\n".join(explain(config))
    for global_batch in re.split(r"(?m)^global batch ", text)[1:]:
        batch = next(batches)
        found = [
            (int(row), name)
            for row, name in re.findall(r"(?m)^  question \d+, row (\d+) of (\w+):", global_batch)
        ]
        assert found == [
            (row, ("first", "second")[dataset])
            for row, dataset in zip(batch.rows, batch.datasets, strict=True)
        ]
        assert set(batch.datasets) == {0, 1}
        assert re.search(r"questions of first, rows [\d, ]+, 'ba: ' before questions\n", global_batch)
        assert re.search(
            r"(?m)^  and \d questions of second, rows [\d, ]+, 'bo: ' before passages$", global_batch
        )
        assert len(re.findall(r"tokens    \[CLS\] ba ", global_batch)) >= batch.datasets.count(0)


def test_the_global_batch_of_the_run_is_taken_and_a_step_too_far_is_refused(config: ExplainCommand) -> None:
    sets = open_sets(resolve_training_files(config.train_datasets, config.datasets), config)
    config.train.max_steps = 1
    trainer_of(config, build_model(config), sets, []).train()
    config.train.batch_size, config.train.max_steps = 2, 0
    assert "global batch 0: 4 questions" in "\n".join(explain(config))
    config.step = 19
    with pytest.raises(ConfigError, match="step=19, but the run has 18 steps"):
        list(explain(config))


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (conversion, "prepare {there}/data.tsv out={there}/data.tsv/out.jsonl"),
        (folder_data, "prepare {there} out={other}/file/out"),
        (pairs, "prepare {there}/data.tsv pairs=mixed out={other}/file/out"),
        (new_encoder, "new-encoder corpus={there}/data.tsv out={there}/data.tsv/out"),
    ],
    ids=["prepare", "prepare-folder", "prepare-pairs", "new-encoder"],
)
def test_an_output_that_cannot_be_written_is_refused_before_anything_is_read(
    module: object,
    line: str,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    there, other = tmp_path_factory.mktemp("there"), tmp_path_factory.mktemp("other")
    (there / "data.tsv").write_text("question\tpassage\n")
    (other / "file").touch()
    monkeypatch.setattr(module, "content_sha256", lambda *_, **__: pytest.fail("data were read"))
    assert main(line.format(there=there, other=other).split()) == 3
    message = capsys.readouterr().err
    assert (
        "is not a folder" in message
        and str(Path(line.format(there=there, other=other).partition("out=")[2]).parent) in message
    )
