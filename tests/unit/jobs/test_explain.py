"""What is printed of a step is what the trainer does in it."""

import re
from pathlib import Path

import pytest

from dpr.core.errors import ConfigError
from dpr.formats.training_files.dpr import write_training_set
from dpr.jobs.explain import explain
from dpr.jobs.train import build_model, open_sets
from dpr.losses.candidates import find_candidates
from dpr.training.command_settings import ExplainCommand
from dpr.training.data_sets import resolve_training_files
from tests.helpers.tiny import encoder_folder, make_samples
from tests.helpers.training import trainer_of


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
        valid = [
            int(row) for row, is_there in zip(batch.context_row, batch.context_valid, strict=True) if is_there
        ]
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
