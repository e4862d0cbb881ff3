"""What may change between two starts of a run, what may not, and what is decided alike on all ranks."""

import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from dpr.formats.training_files.dpr import write_training_set
from tests.faults.conftest import Case, Trial, fault
from tests.faults.runs import NAME, Workshop, all_files, final_hash, logged_values, saved_steps
from tests.helpers.tiny import make_samples

REFUSED = 3


@pytest.fixture(scope="module")
def half(workshop: Workshop) -> Path:
    """A run that was killed when the checkpoint of step 4 was there."""
    folder = workshop.folder / "half"
    run = workshop.start(folder)
    run.wait_for(r"saved .*step4")
    run.kill()
    for step in saved_steps(folder):
        if step > 4:
            shutil.rmtree(folder / f"{NAME}.step{step}")
    return folder


@fault("A11", "a finished run is started again", "exit 0, no file changes, the same report", trials=4)
def test_a_finished_run_is_left_alone(trial: Trial, workshop: Workshop, undisturbed: dict[int, str]) -> None:
    ranks = 1 + trial.number % 2
    finished = workshop.folder / f"undisturbed-{ranks}"
    before = all_files(finished)
    again = workshop.finish(finished, ranks=ranks)
    assert not re.search(r"step \d+/", again.text)
    after = all_files(finished)
    assert after.keys() == before.keys()
    assert [name for name in before if before[name] != after[name]] == []


def rows_of(text: str) -> dict[int, Counter[int]]:
    found: dict[int, Counter[int]] = {}
    for epoch, rows in re.findall(r"^rows (\d+) ([\d ]+)$", text, re.MULTILINE):
        found.setdefault(int(epoch), Counter()).update(map(int, rows.split()))
    return found


@pytest.mark.fault(
    "A12",
    "resumed on other ranks (2 -> 1, 1 -> 2)",
    "warned: not bitwise; every row once per epoch, losses within 1e-5",
)
def test_another_number_of_ranks(case: Case, workshop: Workshop) -> None:
    for trial in case.trials(4, fast=1):
        with trial:
            before, after = ((2, 1), (1, 2))[trial.number % 2]
            step = 2 * trial.random.randint(1, 4)
            options = {"injections": [("tell_rows", {})]}
            # Without a stated global batch: that of the first start, 4 questions on each of 2 ranks or 8 on 1, is
            # kept.
            given = ["train.global_batch_size=0", "train.num_workers=0", "encoder.dropout=0"]
            given += [f"train.batch_size={8 // before}"]
            whole = workshop.finish(case.folder / f"whole-{trial.number}", *given, ranks=before, **options)
            run = workshop.start(trial.output_dir, *given, ranks=before, **options)
            run.wait_for(rf"saved .*step{step}\n")
            run.kill()
            (step, *_) = saved_steps(trial.output_dir)
            again = workshop.finish(trial.output_dir, *given, ranks=after, **options)
            assert f"environment.world_size changed from {before} to {after}" in again.rank_text(0)
            assert "not be bitwise" in again.rank_text(0)
            steps_per_epoch = 6
            for epoch, rows in rows_of(whole.text).items():
                assert set(rows.values()) == {1} and len(rows) == 48
                redone = rows_of(again.text).get(epoch, Counter())
                if epoch * steps_per_epoch >= step:
                    assert redone == rows
                else:
                    assert set(redone.values()) <= {1}
                    assert len(redone) == 48 - 8 * min(step - epoch * steps_per_epoch, steps_per_epoch)
            losses = logged_values(trial.output_dir, "train/loss")
            expected = logged_values(case.folder / f"whole-{trial.number}", "train/loss")
            assert losses.keys() == expected.keys()
            assert all(
                abs(losses[key] - expected[key]) < 1e-5 * (1 + abs(expected[key]))
                for key in expected
                if key <= step + 1
            )


SAFE = {
    "train.learning_rate=2e-3": "train.learning_rate changed from 0.001 to 0.002",
    "train.max_grad_norm=0.5": "train.max_grad_norm changed",
    "train.warmup_steps=2": "train.warmup_steps changed from 3 to 2",
    "train.lr_schedule=constant": "train.lr_schedule changed from linear to constant",
    "train.weight_decay=0.1": "train.weight_decay changed",
    "train.num_train_epochs=1": "train.max_steps changed from 12 to 6",
    "train.precision=bf16": "train.precision changed from fp32 to bf16",
}
UNSAFE = {
    "seed=1": "seed was 12345, is now 1",
    "train.global_batch_size=4": "train.global_batch_size was 8, is now 4",
    "train.gradient_accumulation_steps=2": "train.gradient_accumulation_steps was 1, is now 2",
    "train.hard_negatives=0": "train.hard_negatives was 1, is now 0",
    "train.other_negatives=1": "train.other_negatives was 0, is now 1",
    "loss.temperature=0.5": "loss.temperature was 1.0, is now 0.5",
    "loss.candidates=dpr": "loss.candidates was distinct, is now dpr",
    "encoder.pooling=mean": "encoder.pooling was ",
    "encoder.sequence_length=20": "encoder.sequence_length was ",
    "train.augment.crop_tokens=5": "train.augment.crop_tokens was ",
    "train_sampling_rates=[0.5]": "train_sampling_rates was ",
}


@pytest.mark.fault(
    "A13",
    "another setting on resume (18 keys)",
    "safe: accepted with a warning; unsafe: exit 3 everywhere, unless forced",
)
def test_changed_settings(case: Case, workshop: Workshop, half: Path) -> None:
    table = [
        *((key, text, True) for key, text in SAFE.items()),
        *((key, text, False) for key, text in UNSAFE.items()),
    ]
    for trial in case.trials(len(table), fast=2):
        with trial:
            override, text, is_safe = table[trial.number if case.takes_all else trial.number * 8]
            shutil.copytree(half, trial.output_dir)
            if is_safe:
                assert text in workshop.finish(trial.output_dir, override).rank_text(0)
                continue
            (trial.output_dir / "run.lock").unlink()  # of the run that was killed
            before = all_files(trial.output_dir)
            run = workshop.run(trial.output_dir, override)
            assert run.wait() == [REFUSED, REFUSED], run.text
            assert text in run.rank_text(0), run.text
            assert "resume=force" in run.rank_text(0)
            assert all_files(trial.output_dir) == before
            if trial.number % 3 == 0 and not override.startswith("encoder"):
                assert "resuming with" in workshop.finish(
                    trial.output_dir, override, "resume=force"
                ).rank_text(0)


@pytest.mark.fault(
    "A14", "a row appended to the training file, or a byte changed", "refused with exit 3 unless forced"
)
def test_changed_data(case: Case, workshop: Workshop) -> None:
    for trial in case.trials(2, fast=1):
        with trial:
            data, samples = case.folder / f"train-{trial.number}.json", make_samples(48)
            write_training_set(data, samples)
            started = workshop.start(trial.output_dir, f"train_datasets=[{data}]", ranks=1)
            started.wait_for("step 5/")
            started.kill()
            if trial.number == 0:
                write_training_set(data, [*samples, samples[0]])
            else:
                text = data.read_text()
                place = text.index("question") + 13
                data.write_text(text[:place] + ("b" if text[place] != "b" else "d") + text[place + 1 :])
            run = workshop.run(trial.output_dir, f"train_datasets=[{data}]", ranks=1)
            assert run.wait() == [REFUSED], run.text
            assert "train_datasets[0] was " in run.rank_text(0)
            assert "resuming with" in workshop.finish(
                trial.output_dir, f"train_datasets=[{data}]", "resume=force", ranks=1
            ).rank_text(0)


@pytest.mark.fault(
    "A18",
    "ranks start up to 1 s apart, with clocks up to an hour off",
    "one run folder for all ranks; equal weights",
)
def test_one_folder_for_all_ranks(case: Case, workshop: Workshop, undisturbed: dict[int, str]) -> None:
    for trial in case.trials(30, fast=0):
        with trial:
            place = case.folder / f"place-{trial.number}"
            workshop.finish(place / "run", injections=[("late_start", {"seed": trial.number})])
            assert [path.name for path in place.iterdir()] == ["run"]
            assert final_hash(place / "run") == undisturbed[2]
            assert saved_steps(place / "run")[0] == 12


@fault(
    "A22",
    "the same seed twice; another seed; workers 0, 1, 2",
    "equal weights; others; equal weights",
    trials=20,
    fast=0,
)
def test_determinism(trial: Trial, workshop: Workshop, undisturbed: dict[int, str]) -> None:
    overrides = {0: ("train.num_workers=0",), 1: ("train.num_workers=2",), 3: ("seed=7",)}.get(
        trial.number % 4, ()
    )
    workshop.finish(trial.output_dir, *overrides)
    assert (final_hash(trial.output_dir) == undisturbed[2]) == (trial.number % 4 != 3)
