"""The table of several retrieval runs, and the tests of their differences."""

import json
import random
from pathlib import Path

import pytest

from dpr.core.errors import ConfigError, InputError
from dpr.evaluation.comparison import as_records, difference_table, differences, rows_of
from dpr.evaluation.significance import estimate, paired_test
from dpr.formats.metrics_files import PerQuestion, read_metrics, write_metrics
from tests.helpers.jobs import compare as main


def report(folder: Path, name: str, *, questions: int = 7, **metrics: float) -> str:
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"question_set": "test", "num_questions": questions, "metrics": metrics}))
    return str(path)


def full_report(
    folder: Path, name: str, values: dict[str, list[float | None]], ids: list[str] | None = None
) -> str:
    ids = ids or [f"q{number}" for number in range(len(next(iter(values.values()))))]
    means = {
        metric: sum(filter(None, listed)) / sum(item is not None for item in listed)
        for metric, listed in values.items()
    }
    metadata = {"question_set": "test", "num_questions": len(ids), "metrics": means}
    write_metrics(
        folder / f"{name}.json", metadata, PerQuestion(ids, [f"what is {key}" for key in ids], values)
    )
    return str(folder / f"{name}.json")


def test_runs_stand_side_by_side_in_the_order_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = full_report(tmp_path, "first", {"accuracy@20": [1.0, 0.0, 1.0, 0.0], "mrr@10": [0.25] * 4})
    second = full_report(tmp_path, "second", {"accuracy@20": [1.0, 1.0, 1.0, 0.0]})
    assert main([f"BM25={first}", second, "--out", str(tmp_path / "all.json")]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["test,", "4", "questions"]
    assert lines[1] == ["top-20", "MRR@10"]
    assert lines[3:5] == [["BM25", "0.500", "0.250"], ["second", "0.750", "-"]]
    assert lines[6][:3] == ["second", "against", "BM25:"]
    stored = json.loads((tmp_path / "all.json").read_text())
    assert stored["runs"]["BM25"]["metrics"] == {"accuracy@20": 0.5, "mrr@10": 0.25}


def test_runs_about_other_questions_other_files_and_double_labels_are_refused(tmp_path: Path) -> None:
    first = report(tmp_path, "first", **{"mrr@10": 0.5})
    with pytest.raises(InputError, match="8 questions"):
        main([first, report(tmp_path, "other", questions=8, **{"mrr@10": 0.5})])
    with pytest.raises(ConfigError, match="two files"):
        main([first, first])
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(InputError, match="metrics file"):
        main([str(tmp_path / "list.json")])


def test_each_run_is_tested_against_the_first_question_by_question(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(0)
    before: list[float | None] = [rng.random() for _ in range(30)]
    after: list[float | None] = [min(1.0, (value or 0) + rng.random() / 2) for value in before]
    before[4] = after[4] = None  # a question without judgements
    order = [*range(15, 30), *range(15)]  # a file may list the questions in another order
    first = full_report(tmp_path, "first", {"mrr@10": before, "ndcg@10": before})
    second = full_report(
        tmp_path,
        "second",
        {"mrr@10": [after[row] for row in order], "ndcg@10": [before[row] for row in order]},
        [f"q{row}" for row in order],
    )
    assert main([first, second, "--metrics", "mrr@10,ndcg@10", "--out", str(tmp_path / "all.json")]) == 0
    stored = json.loads((tmp_path / "all.json").read_text())
    tests = {test["metric"]: test for test in stored["tests"]}
    expected = paired_test(
        ([item for item in before if item is not None], [item for item in after if item is not None])
    )
    assert tests["mrr@10"]["num_questions"] == 29
    assert tests["mrr@10"]["difference"] == pytest.approx(expected.difference)
    assert (tests["mrr@10"]["p_t"], tests["mrr@10"]["detectable"]) == pytest.approx(
        (expected.p_t, expected.detectable)
    )
    assert tests["mrr@10"]["p_holm"] == tests["mrr@10"]["p_flips"]
    assert tests["ndcg@10"]["p_holm"] == tests["ndcg@10"]["p_flips"] == 1  # all equal: not in the family
    gains = {f"q{row}": abs((after[row] or 0) - (before[row] or 0)) for row in range(30)}
    most = max(gains, key=lambda key: gains[key])
    printed = capsys.readouterr().out
    assert "second against first: 29 judged questions; Holm over 1 comparisons" in printed
    assert f"{most}: what is {most}" in printed
    assert "per_question" not in stored["runs"]["first"]


def test_metrics_can_be_named_and_the_family_is_all_that_is_tested(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [
        full_report(tmp_path, name, {"mrr@10": [0.5, 1.0, value], "recall@5": [0, 1, 1 - value]})
        for name, value in zip("abc", (0.1, 0.2, 0.3))
    ]
    assert main([*files, "--metrics", "recall@5,mrr@10"]) == 0
    printed = capsys.readouterr().out
    assert "2 runs against a: 3 judged questions; Holm over 4 comparisons" in printed
    assert "c, recall@5" in printed
    with pytest.raises(ConfigError, match=r"--metrics mrr@11 .* did you mean mrr@10"):
        main([*files, "--metrics", "mrr@11"])
    with pytest.raises(InputError, match="no values of each question"):
        main([files[0], report(tmp_path, "old", questions=3, **{"mrr@10": 0.5})])


def test_sets_of_equal_figures_do_not_count_and_no_interval_leaves_the_range_of_the_metric() -> None:
    rng = random.Random(1)
    ids = [f"q{row}" for row in range(20)]
    before = [rng.random() for _ in ids]
    after = [value + rng.random() / 3 for value in before]
    nearly_all = [0.0, *[1.0] * 19]

    def runs(first: list[float], second: list[float]) -> dict[str, PerQuestion]:
        return {
            name: PerQuestion(ids, ids, {"ndcg@10": list(values)})
            for name, values in (("a", first), ("b", second))
        }

    one = differences({"moved": runs(before, after)}, ["ndcg@10"])
    equal = {f"equal{number}": runs(before, before) for number in range(3)}
    family = differences({"moved": runs(before, after), **equal}, ["ndcg@10"])
    assert one[0].adjusted == one[0].test.p_flips
    # the set that moved, and the mean over all sets
    assert family[0].adjusted == 2 * family[0].test.p_flips
    assert [found.adjusted for found in family[1:4]] == [1.0, 1.0, 1.0]

    far = difference_table(differences({"far": runs([0.0] * 20, nearly_all)}, ["ndcg@10"]))
    assert "[+0.845, +1.000]" in far
    found = estimate(nearly_all)
    assert found.high > 1 and found.ends == (found.low, 1.0)
    assert estimate(before).ends == (estimate(before).low, estimate(before).high)
    table = rows_of({"set": {"model": {"ndcg@10": found}}})
    assert table[1][1] == "0.950 [0.845, 1.000]"
    assert as_records({"set": {"model": {"ndcg@10": found}}})["set"]["model"]["ndcg@10"]["high"] == 1.0


def test_runs_over_other_judged_questions_are_not_compared(tmp_path: Path) -> None:
    first = full_report(tmp_path, "first", {"mrr@10": [0.5, 1.0, 0.0]})
    with pytest.raises(InputError, match="of question 'q2' is only in first"):
        main([first, full_report(tmp_path, "fewer", {"mrr@10": [0.5, 1.0, None]})])
    with pytest.raises(InputError, match="of question 'other' is only in renamed"):
        main([first, full_report(tmp_path, "renamed", {"mrr@10": [0.5, 1.0, 0.0]}, ["q0", "q1", "other"])])


@pytest.mark.parametrize(
    "changed",
    [
        {"ids": ["a", "a"]},
        {"ids": "ab"},
        {"questions": ["one"]},
        {"values": {"mrr@10": [0.5]}},
        {"values": {"mrr@10": [0.5, "x"]}},
    ],
)
def test_values_that_do_not_fit_together_are_refused(tmp_path: Path, changed: dict[str, object]) -> None:
    path = Path(full_report(tmp_path, "x", {"mrr@10": [0.5, 1.0]}))
    assert read_metrics(path).each is not None
    value = json.loads(path.read_text())
    value["per_question"] |= changed
    path.write_text(json.dumps(value))
    with pytest.raises(InputError, match="per_question does not"):
        read_metrics(path)
