"""Labelled questions are split by passage, and the base model stays unless another is better."""

import json
from pathlib import Path
from typing import Any

import pytest

from dpr.adaptation.label_choice import AVERAGE, BASE, TUNED, WEIGHTS, Measured, chosen_model, chosen_weight
from dpr.adaptation.label_split import split_labels
from dpr.adaptation.settings import AdaptSettings
from dpr.core.errors import InputError
from dpr.formats.metrics_files import MetricsFile, PerQuestion
from dpr.formats.question_sets import read_qrels, read_questions


def corpus(folder: Path, count: int) -> list[dict[str, str]]:
    rows = [
        {"_id": f"d{row}", "title": f"Title {row}", "text": f"Text of passage {row}."} for row in range(count)
    ]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def split(folder: Path, rows: list[tuple[str, str]], **given: Any) -> dict[str, Any]:
    """Splits pairs of question and passage; returns what was written, by part, and the counts."""
    (folder / "train.tsv").write_text("".join(f"{question}\t{text}\n" for question, text in rows))
    config = AdaptSettings(
        corpus=str(folder / "corpus.jsonl"),
        model_file="m",
        train=str(folder / "train.tsv"),
        out=str(folder),
        **given,
    )
    split_labels(config)
    texts = folder / "data" / "texts"
    made: dict[str, Any] = json.loads((texts / "manifest.json").read_text())["metadata"]["counts"]
    samples = map(json.loads, (texts / "train.jsonl").read_text().splitlines())
    made["train"] = [
        (row["question"], context.get("passage_id")) for row in samples for context in row["positive_ctxs"]
    ]
    for part in ("dev", "test"):
        made[part] = []
        if not made[f"{part} questions"]:
            continue
        asked = {each.id: each.text for each in read_questions(texts / f"{part}_questions.jsonl")}
        judged = read_qrels(texts / f"{part}_qrels.tsv")
        made[part] = [(asked[key], passage) for key, grades in judged.items() for passage in grades]
    return made


def sides(made: dict[str, Any], column: int) -> list[set[str]]:
    return [{pair[column] for pair in made[part]} for part in ("train", "dev", "test")]


def disjoint(parts: list[set[str]]) -> bool:
    return len(set().union(*parts)) == sum(map(len, parts))


def test_no_passage_and_no_question_is_on_two_sides(tmp_path: Path) -> None:
    passages = corpus(tmp_path, 120)
    rows = [(f"question {number}", passages[number % 100]["text"]) for number in range(240)]
    rows += [("Question  7", passages[110]["text"])]  # the seventh once more, which links two passages
    made = split(tmp_path, rows)
    assert disjoint(sides(made, 0)) and disjoint(sides(made, 1))
    assert made["labelled questions"] == 240 and made["passages"] == 120
    assert 55 <= made["dev questions"] <= 65 and 45 <= made["test questions"] <= 52
    assert made["train questions"] + made["dev questions"] + made["test questions"] == 240
    (part,) = [part for part in ("train", "dev", "test") if ("question 7", "d110") in made[part]]
    assert ("question 7", "d7") in made[part]

    few = split(tmp_path, rows[:60])
    assert few["dev questions"] == 15 and few["test questions"] == 0
    none = split(tmp_path, rows[:49])
    assert none["dev questions"] == none["test questions"] == 0 and none["train questions"] == 49


def test_questions_that_are_all_linked_are_held_out_one_by_one_and_training_loses_their_passages(
    tmp_path: Path,
) -> None:
    passages = corpus(tmp_path, 120)
    rows = [
        (f"question {number}", passages[(number + more) % 100]["text"])
        for number in range(100)
        for more in (0, 1)
    ]
    made = split(tmp_path, rows)
    train, dev, _ = sides(made, 1)
    assert made["dev questions"] == 25 and train and not train & dev
    assert disjoint(sides(made, 0))
    with pytest.raises(InputError, match="no question is left to train on"):
        split(tmp_path, [(f"question {number}", passages[0]["text"]) for number in range(100)])


def test_given_dev_and_test_questions_are_used_as_they_are(tmp_path: Path) -> None:
    passages = corpus(tmp_path, 120)
    rows = [(f"question {number}", passages[number % 100]["text"]) for number in range(240)]
    (tmp_path / "test.tsv").write_text("".join("\t".join(row) + "\n" for row in rows[:30]))
    made = split(tmp_path, rows, test=str(tmp_path / "test.tsv"))
    assert made["test"] == [(f"question {number}", f"d{number}") for number in range(30)]
    assert disjoint(sides(made, 0)) and 50 <= made["dev questions"] <= 55
    both = split(tmp_path, rows, test=str(tmp_path / "test.tsv"), dev=str(tmp_path / "test.tsv"))
    assert both["dev questions"] == both["test questions"] == 30 and both["train questions"] == 210
    with pytest.raises(InputError, match="all of its questions are dev or test questions"):
        split(tmp_path, rows[:30], test=str(tmp_path / "test.tsv"))


def test_positives_are_found_by_their_text_with_or_without_a_title(tmp_path: Path) -> None:
    passages = corpus(tmp_path, 60)
    rows = [(f"question {number}", passages[number]["text"]) for number in range(50)]
    rows[1] = ("question 1", "title 1  TEXT of passage 1.")
    rows[2] = ("question 2", "A text that no passage has.")
    made = split(tmp_path, rows)
    found = dict(pair for part in ("train", "dev", "test") for pair in made[part])
    assert found["question 1"] == "d1" and made["train questions"] == 50  # 49 can be found: too few to choose
    assert found["question 2"] is None

    with pytest.raises(InputError, match="none of its passages is in the corpus"):
        split(tmp_path, [("question", "Another text.")] * 3)


def measured(**differences: list[float]) -> Measured:
    """Metrics of a base model with 0.5 on every question, and of others that differ from it."""
    ids = [f"q{row}" for row in range(40)]

    def run(values: list[float]) -> MetricsFile:
        each = PerQuestion(ids, ids, {"ndcg@10": list(values)})
        return MetricsFile("dev", 40, {"ndcg@10": sum(values) / 40}, {}, each)

    by_name = {BASE: [0.0] * 40, AVERAGE: [0.0] * 40, TUNED: [0.0] * 40} | differences
    return {
        (name, weight): run([0.5 + one + (weight == 0.7) * 0.1 for one in each])
        for name, each in by_name.items()
        for weight in WEIGHTS
    }


def test_another_model_must_be_better_by_more_than_chance() -> None:
    half = [0.1, -0.1] * 20
    assert chosen_model(measured()) == BASE
    assert chosen_model(measured(**{TUNED: [one + 0.01 for one in half]})) == BASE  # 0.6 standard errors
    assert chosen_model(measured(**{TUNED: [one + 0.02 for one in half]})) == TUNED  # 1.3
    better = [one + 0.02 for one in half]
    assert chosen_model(measured(**{AVERAGE: better, TUNED: better})) == AVERAGE
    assert chosen_model(measured(**{AVERAGE: better, TUNED: [one + 0.01 for one in better]})) == TUNED
    assert chosen_model(measured(**{AVERAGE: [-one for one in better], TUNED: half})) == BASE
    # a gain of the model alone does not count if its hybrid loses as much
    lost = measured(**{TUNED: better})
    lost[TUNED, 0.5] = measured(**{TUNED: [-one for one in better]})[TUNED, 0.5]
    assert chosen_model(lost) == BASE


def test_the_weight_is_the_one_nearest_to_the_default_that_is_not_worse_than_the_best() -> None:
    by_weight = measured()
    assert chosen_weight(by_weight, BASE) == 0.7
    # 0.6 is worse than 0.7 by 0.6 standard errors
    by_weight[BASE, 0.6] = measured(**{AVERAGE: [0.09 + one for one in [0.1, -0.1] * 20]})[AVERAGE, 0.6]
    assert chosen_weight(by_weight, BASE) == 0.6
    by_weight[BASE, 0.4] = by_weight[BASE, 0.6]  # as near, and as good
    by_weight[BASE, 0.6] = measured()[BASE, 0.6]
    assert chosen_weight(by_weight, BASE) == 0.4
    by_weight[BASE, 0.5] = by_weight[BASE, 0.7]
    assert chosen_weight(by_weight, BASE) == 0.5
