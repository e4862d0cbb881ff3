"""``dpr doctor RUN``: rules on runs that have the fault, and on some that have not."""

import re
from pathlib import Path

import pytest

from dpr.cli.main import main
from dpr.evaluation.runs import Training
from dpr.evaluation.symptoms import symptoms
from dpr.formats.training_files.dpr import write_training_set
from tests.helpers.tiny import make_samples, static_folder

REPOSITORY = Path(__file__).resolve().parents[3]
USUAL = {
    "encoder": "static",
    "encoder.pretrained_model_cfg": "encoder",
    "encoder.pooling": "idf",
    "encoder.normalize": "true",
    "loss.temperature": "0.1",
    "train_datasets": "train.json",
    "train.hard_negatives": "0",
    "train.batch_size": "16",
    "dev_datasets": "train.json",
    "train.num_train_epochs": "4",
    "train.learning_rate": "0.003",
    "train.log_batch_step": "1",
    "train.eval_per_epoch": "1",
    "train.num_workers": "0",
    "device": "cpu",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    static_folder(tmp_path / "encoder", width=32)
    write_training_set(tmp_path / "train.json", make_samples(64))
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def seen(capsys: pytest.CaptureFixture[str], changed: dict[str, str]) -> dict[str, str]:
    """What the doctor finds in a run with these settings: figures and advice of each symptom."""
    given = {**USUAL, **changed}
    main(["train", *(f"{name}={value}" for name, value in given.items()), "output_dir=run"])
    capsys.readouterr()
    code = main(["doctor", "run"])
    printed = capsys.readouterr().out
    found = dict(re.findall(r"\n(.+) \(docs/troubleshooting.md\)\n((?:  .+\n?)+)", printed))
    assert code == bool(found), printed
    return found


def test_a_good_run_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert seen(capsys, {}) == {}


def test_a_fault_is_named_with_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    wild = {"encoder.normalize": "false", "loss.temperature": "1", "train.learning_rate": "1e30"}
    found = seen(capsys, {**wild, "train.num_train_epochs": "12", "train.lr_schedule": "constant"})
    assert re.search(r"\d+ steps skipped", found["NaN"])
    assert "\n## NaN\n" in (REPOSITORY / "docs" / "troubleshooting.md").read_text()


def test_a_folder_without_a_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "encoder"]) == 3
    assert "encoder: no training run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("losses", "accuracy", "names"),
    [
        # down to chance, and no further
        ([9.0, 4.0, 2.79, 2.78, 2.77, 2.76, 2.78, 2.77], 0.06, ["The loss does not fall"]),
        ([2.78], 0.09, ["The loss does not fall"]),
        ([3.2, 3.1, 2.9, 2.8, 2.75, 2.72], 0.3, []),  # on its way down
        ([40.0, 12.0, 6.0], 0.07, ["The loss does not fall"]),
        ([40.0, 12.0, 6.0], 0.4, []),  # another objective
        ([2.76, 2.75, 2.76, 2.76], 0.7, []),  # a flat softmax that ranks well
    ],
)
def test_a_loss_at_chance_is_named_however_it_came_there(
    losses: list[float], accuracy: float, names: list[str]
) -> None:
    run = Training("run", validations=[{"step": 1, "eval/nll_loss": 1.0}])
    run.logs = [
        {"step": step, "train/loss": loss, "train/in_batch_acc": accuracy, "pool/candidates": 16.0}
        for step, loss in enumerate(losses, 1)
    ]
    assert [symptom.name for symptom in symptoms(run)] == names


@pytest.mark.parametrize(
    ("losses", "more", "validations", "name", "seen"),
    [
        ([9.0, 0.5, 3.0, 3.0], {}, [2.0], "The loss rises again", "loss 0.500 at step 2, 3.000 over"),
        (
            [3, 2, 1, 0.5],
            {"pool/effective_rank": [9, 5, 2, 1.5]},
            [2.0],
            "The vectors collapse",
            "9.0 to 1.5",
        ),
        (
            [3, 2, 1, 0.5],
            {},
            [1.0, 1.5, 2.0, 2.5],
            "The loss falls, the metric does not",
            "eval/nll_loss 1.0000 at step 1, 2.5000 at step 4",
        ),
    ],
)
def test_figures_tell_a_fault(
    losses: list[float], more: dict[str, list[float]], validations: list[float], name: str, seen: str
) -> None:
    run = Training("run", best={"best_metric": "eval/nll_loss"})
    for row, loss in enumerate(losses):
        others = {key: values[row] for key, values in more.items()}
        run.logs.append({"step": row + 1, "train/loss": loss, "train/in_batch_acc": 0.6, **others})
    run.validations = [{"step": step, "eval/nll_loss": value} for step, value in enumerate(validations, 1)]
    (found,) = symptoms(run)
    assert found.name == name and seen in found.seen
    assert f"\n## {name}\n" in (REPOSITORY / "docs" / "troubleshooting.md").read_text()


def test_what_a_guard_keeps_from_being_the_best_is_no_fault() -> None:
    """The best checkpoint is the first one, since later ones forget the guarded set."""
    name, steps = "eval/med/ndcg@10", (100, 200, 300, 400)
    run = Training("run", best={"best_metric": name, "best_value": 0.89})
    run.logs = [{"step": step, "train/loss": 40 / step, "train/in_batch_acc": 0.8} for step in steps]
    run.validations = [
        {"step": step, name: value}
        for step, value in zip((0, *steps), (0.68, 0.89, 0.926, 0.933, 0.934), strict=True)
    ]
    assert list(symptoms(run)) == []
    ends = {
        "against": "the start",
        "verdict": "worse",
        "metric": "eval/squad/ndcg@10",
        "before": 0.619,
        "after": 0.611,
    }
    run.verdict = {
        "best_checkpoint": "x.step100",
        "comparisons": [{**ends, "metric": name, "verdict": "better"}, ends],
    }
    (found,) = symptoms(run)
    assert (found.name, found.seen) == (
        "Worse than before",
        "eval/squad/ndcg@10 0.6190 before the first step, 0.6110 of x.step100",
    )


def test_a_run_that_was_never_validated_is_named() -> None:
    run = Training("run", logs=[{"step": 1, "train/loss": 1.0}])
    assert [symptom.name for symptom in symptoms(run)] == ["Nothing was measured"]
