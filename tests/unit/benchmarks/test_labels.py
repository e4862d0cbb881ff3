"""The benchmark of labelled questions: no passage on two sides, the rule is the product's, tables of results."""

import json
from pathlib import Path

import numpy as np

from benchmarks import labels_table
from benchmarks.adapt_trained import Collection
from benchmarks.labels import settings_of, split, training_pairs
from benchmarks.labels_table import Draws, metrics_of
from dpr.adaptation.choices import WEIGHT_OF_GIVEN
from dpr.adaptation.label_choice import AVERAGE, BASE, MARGIN, TUNED, WEIGHTS, chosen_model
from dpr.core.records import Passage

QUESTIONS = 120


def made() -> Collection:
    """Returns a collection with two questions for each passage."""
    found = Collection()
    ids: dict[object, str] = {}
    for number in range(QUESTIONS):
        found.ask(f"question {number}", str(number), Passage(f"passage {number // 2}"), ids)
    return found


def test_no_passage_is_on_two_sides() -> None:
    collection = made()
    sides = split(collection, 60, 0)
    assert [len(sides[side]) for side in ("train", "choice", "test")] == [44, 16, 40]
    passages = {
        side: {name for key in keys for name in collection.qrels[key]} for side, keys in sides.items()
    }
    assert not passages["train"] & (passages["choice"] | passages["test"])
    assert len(training_pairs(collection, sides)) == 44


def test_questions_that_all_share_a_passage_are_split_without_its_pairs() -> None:
    collection = made()
    for judged in collection.qrels.values():
        judged["0"] = 1
    sides = split(collection, 60, 0)
    trained = {passage.id for _, passage in training_pairs(collection, sides)}
    held = {name for side in ("choice", "test") for key in sides[side] for name in collection.qrels[key]}
    assert trained and not trained & held


def test_a_recipe_may_be_settings() -> None:
    assert settings_of("ema_decay=0.9,num_train_epochs=2") == {"ema_decay": 0.9, "num_train_epochs": 2}
    assert settings_of("plain") == {}


def test_the_simulated_rule_is_the_rule_of_adapt() -> None:
    rng = np.random.default_rng(0)
    average = rng.normal(0.01, 0.1, (200, 30))
    tuned = average + rng.normal(0.01, 0.1, (200, 30))
    chooses_average, chooses_tuned = Draws(average, tuned).choices(MARGIN)
    chosen = []
    for row in range(len(average)):
        measured = {
            (name, weight): metrics_of(values)
            for weight in (WEIGHT_OF_GIVEN, 1.0)
            for name, values in (
                (BASE, [0.0] * 30),
                (AVERAGE, average[row].tolist()),
                (TUNED, tuned[row].tolist()),
            )
        }
        chosen.append(chosen_model(measured))
    assert set(chosen) == {BASE, AVERAGE, TUNED}
    assert [name == AVERAGE for name in chosen] == chooses_average.tolist()
    assert [name == TUNED for name in chosen] == chooses_tuned.tolist()


def test_tables_of_results(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    base = rng.uniform(0.2, 0.7, 56)

    def values(gain: float) -> dict[str, list[float]]:
        return {f"{weight:g}": (base + gain * weight).round(5).tolist() for weight in WEIGHTS}

    for seed in (0, 1):
        folder = tmp_path / f"Made-up-60-{seed}"
        folder.mkdir()
        apart = {"train seconds": 3.0, "choice seconds": 1.0, "cpu": 5.0, "wall": 5.0, "gb": 1.0}
        ours = {"pairs": 44, "tuned": values(0.1), "average": values(0.05)} | apart
        results = {
            "base": {"base": values(0.0)},
            "plain": ours,
            "ema": ours | {"tuned": values(0.12)},
            "theirs-2e-5": apart | {"pairs": 44, "tuned": values(0.08), "cpu": 10.0},
        }
        for name, record in results.items():
            (folder / f"{name}.json").write_text(json.dumps(record))
    runs = labels_table.read_runs(tmp_path, 60, {"Made up": made})
    assert [run.seed for run in runs] == [0, 1]
    text = labels_table.tables(runs, "plain")
    assert "| ema | 1 | 2 | +0.020 (+0.020 to +0.020) | +0.000 (+0.000 to +0.000) |" in text
    assert "+0.020 (+0.020 to +0.020) | +0.020 (+0.020 to +0.020) |" in text, "ours less theirs"
    assert "| theirs-2e-5 | 2 | 3.0 (1.00) | 1.0 (1.00) | 10.0 (2.00) |" in text
    simulated = labels_table.simulation(tmp_path, 60, None, 10)
    assert "| 25 | 1 | 1.000 | 0.000 | +0.0825 | +0.0825 |" in simulated
