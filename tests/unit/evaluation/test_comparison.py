"""The table of several retrieval runs, and the tests of their differences."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from dpr.core.errors import ConfigError, InputError
from dpr.evaluation.comparison import as_records, difference_table, differences, rows_of
from dpr.evaluation.significance import (
    detectable_difference,
    estimate,
    holm,
    mean_of,
    paired_test,
    sign_flip_p,
)
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
        folder / f"{name}.json", metadata, PerQuestion(ids, [f"what is {one}" for one in ids], values)
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
    with pytest.raises(ConfigError, match=r"metrics=mrr@11 .* did you mean mrr@10"):
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


def test_the_randomisation_test_is_the_share_of_all_signs() -> None:
    from scipy import stats

    differences = np.random.default_rng(0).normal(0.3, 0.5, 10)
    signs = 1 - 2 * ((np.arange(1024)[:, None] >> np.arange(10)) & 1)
    exact = (np.abs(signs @ differences) >= abs(differences.sum()) - 1e-12).mean()
    assert sign_flip_p(differences) == pytest.approx(exact, abs=0.004)
    theirs = stats.permutation_test((differences,), np.sum, permutation_type="samples", n_resamples=np.inf)
    assert exact == pytest.approx(theirs.pvalue)


def test_questions_without_a_difference_change_only_the_spread() -> None:
    differences = np.array([0.5, 0.25, -0.125, 0.5])
    padded = np.concatenate([differences, np.zeros(1000)])
    assert sign_flip_p(padded) == sign_flip_p(differences)
    assert sign_flip_p(np.zeros(5)) == 1.0


def test_equal_sums_count_as_equally_far() -> None:
    """Of 0/1 metrics most sums tie; here 6 of 6 signs alike are 2 of 64."""
    assert sign_flip_p(np.full(6, 0.1)) == pytest.approx(2 / 64, abs=0.002)


def test_the_t_test_and_the_interval_are_those_of_the_books() -> None:
    from scipy import stats

    rng = np.random.default_rng(1)
    first, second = rng.random(40), rng.random(40) + 0.1
    test = paired_test((first.tolist(), second.tolist()), flips=1000)
    reference = stats.ttest_rel(second, first)
    assert test.p_t == pytest.approx(reference.pvalue)
    interval = reference.confidence_interval(0.95)
    assert (test.low, test.high) == pytest.approx((interval.low, interval.high))
    assert test.difference == pytest.approx(second.mean() - first.mean())
    swapped = paired_test((second.tolist(), first.tolist()), flips=1000)
    assert (swapped.difference, swapped.p_flips) == pytest.approx((-test.difference, test.p_flips))


def test_differences_that_are_all_alike_have_no_spread() -> None:
    same = paired_test(([0.5] * 9, [0.5] * 9))
    assert (same.p_t, same.p_flips, same.low, same.high, same.detectable) == (1, 1, 0, 0, 0)
    with pytest.raises(InputError, match="no judged questions"):
        paired_test(([], []))
    assert (estimate([0.5]).low, estimate([0.5]).high) == (0.5, 0.5)


def spread(number: int, mean: float) -> list[float]:
    """Values around a mean, half of them 0.1 above, half of them below."""
    return [mean + 0.1 * (-1) ** index for index in range(number)]


@pytest.mark.parametrize(
    ("sets", "outcome"),
    [
        ([([0.0], [1.0])], "too few questions"),
        ([([0.0] * 9, spread(9, 0.9))], "too few questions"),
        ([([0.9, 0.5] * 20, [0.8, 0.4] * 20)], "too few questions"),  # alike but for rounding
        ([([0.0] * 4, spread(4, 0.9)), ([0.0] * 4, [1.0] * 4)], "too few questions"),
        ([([0.5] * 12, [0.5] * 12)], "no difference"),
        ([([0.5, 1.0] * 20, [0.5, 1.0] * 20)] * 2, "no difference"),
        # 2.559 both, and p < 0.001
        ([([2.5592] * 400, [2.5588 + value / 1000 for value in spread(400, 0)])], "no difference"),
        ([([0.0] * 10, spread(10, 0.9))], "higher"),
        ([(spread(10, 0.9), [0.0] * 10)] * 2, "lower"),
        ([([0.0] * 10, spread(10, 0.01))], "no difference"),
    ],
)
def test_a_difference_is_told_where_its_spread_is_known_and_its_figures_show_it(
    sets: list[tuple[list[float], list[float]]], outcome: str
) -> None:
    test = paired_test(*sets)
    assert test.outcome == outcome
    assert test.p_t > 0 or test.low < test.high


def test_chance_is_taken_for_a_find_as_often_as_promised() -> None:
    rng = np.random.default_rng(2)
    values = [paired_test(tuple(rng.random((2, 30)).tolist()), flips=500) for _ in range(400)]
    for p in ([test.p_t for test in values], [test.p_flips for test in values]):
        assert 0.02 < np.mean(np.array(p) <= 0.05) < 0.08
    assert 0.92 < np.mean([test.low <= 0 <= test.high for test in values]) < 0.98


def test_a_difference_as_large_as_detectable_is_found_four_times_in_five() -> None:
    rng = np.random.default_rng(3)
    true = detectable_difference(0.025)
    found = [
        paired_test(([0.0] * 100, rng.normal(true, 0.25, 100).tolist()), flips=500).p_flips <= 0.05
        for _ in range(300)
    ]
    assert 0.72 < np.mean(found) < 0.88
    assert [round(detectable_difference(0.25 / number**0.5), 3) for number in (50, 300, 2012)] == [
        0.099,
        0.040,
        0.016,
    ]


def test_a_mean_of_sets_weighs_sets_the_same_and_its_interval_holds_as_often_as_promised() -> None:
    rng = np.random.default_rng(4)
    held, found = [], []
    for _ in range(300):
        sets = [
            rng.normal(true, deviation, number)
            for true, deviation, number in ((0.2, 0.3, 12), (0.6, 0.1, 60))
        ]
        mean = mean_of([estimate(values) for values in sets])
        assert mean.mean == pytest.approx((sets[0].mean() + sets[1].mean()) / 2)
        held.append(mean.low <= 0.4 <= mean.high)
        found.append(paired_test(*([[0.4] * len(own), own.tolist()] for own in sets), flips=300).p_t <= 0.05)
    assert 0.91 < np.mean(held) < 0.99
    assert [not hit for hit in held] == found, "the t test and the interval agree"


def test_several_sets_are_one_test_of_their_mean() -> None:
    from scipy import stats

    rng = np.random.default_rng(5)
    small, large = rng.random((2, 8)), rng.random((2, 50))
    large[1] += 0.2
    test = paired_test((small[0], small[1]), (large[0], large[1]), flips=20_000)
    weights = np.concatenate([np.full(8, 1 / 8), np.full(50, 1 / 50)]) / 2
    differences = np.concatenate([small[1] - small[0], large[1] - large[0]])
    assert test.difference == pytest.approx(weights @ differences)
    assert test.second - test.first == pytest.approx(test.difference)
    signs = 1 - 2 * np.random.default_rng(6).integers(0, 2, (20_000, 58))
    as_far = np.abs(signs @ (weights * differences)) >= abs(weights @ differences)
    assert test.p_flips == pytest.approx(as_far.mean(), abs=0.02)
    alike = rng.random((2, 2, 30))
    # the same degrees of freedom
    welch = stats.ttest_ind(*(second - first for first, second in alike), equal_var=False)
    found = mean_of([estimate(second - first) for first, second in alike])
    assert found.freedom == pytest.approx(welch.df)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1, 1]
    assert holm([]) == []
