"""The page of a run: whole, safe to open, and never in the way."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from dpr.core.errors import ConfigError, InputError
from dpr.evaluation.report.charts import finite, line_chart, nice_ticks, number_text
from dpr.evaluation.report.examples import cut, example_of, spread
from dpr.evaluation.report.overview import duel, headline, interval
from dpr.evaluation.report.page import LARGEST, Report, build_page, rank_histogram, render
from dpr.evaluation.report.reading import Retrieval, Training, flatten, printable, read_retrieval
from dpr.evaluation.report.write import write_report
from dpr.formats.metrics_files import PerQuestion, write_metrics
from dpr.formats.results import Hit, RetrievedQuestion, write_results
from dpr.storage.durable import append_jsonl, write_json
from tests.helpers.jobs import report as main

HOSTILE = [
    "<script>alert(1)</script>",
    "</title></style></script><img src=x onerror=alert(1)>",
    "\"><svg onload='alert(1)'>",
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "<!--",
    "-->]]>",
    "&lt;b&gt; &amp; &#60;",
    "<a href='https://evil.example/x'>x</a>",
    "@import url(https://evil.example/x.css);",
    "a\x00b\x1bc\ud800d\ufffe",
    "\u202etxt.exe",
    "<base href=//evil.example>",
    "{{7*7}} ${7*7} %s",
]
ELEMENTS = set(
    "html head meta title style body main h1 h2 h3 p dl dt dd div section figure figcaption ul ol li svg g"
    " line path rect circle text table thead tbody tr th td details summary span b mark nav a".split()
)
ATTRIBUTES = set(
    "charset http-equiv content name lang class viewBox role aria-label aria-hidden x y x1 x2 y1 y2 dy cx cy"
    " r d width height text-anchor scope tabindex open dir preserveAspectRatio id href".split()
)


def elements(page: str) -> list[ElementTree.Element]:
    """Of a page that is well-formed XML too, and holds only what we put there."""
    found = list(ElementTree.fromstring(page).iter())
    assert {element.tag for element in found} <= ELEMENTS
    assert {name for element in found for name in element.attrib} <= ATTRIBUTES
    anchors = [f"#{element.get('id')}" for element in found if element.get("id")]
    assert len(anchors) == len(set(anchors))
    assert {element.get("href") for element in found if element.tag == "a"} <= set(anchors), (
        "links lead to parts of the page alone"
    )
    assert {element.tag for element in found if element.get("href")} <= {"a"}
    return found


def texts(page: str) -> str:
    return " ".join(
        "".join(element.itertext()) for element in elements(page) if element.tag in ("main", "title")
    )


def run_folder(folder: Path, *, steps: int = 5, config: dict[str, object] | None = None) -> Path:
    for step in range(1, steps + 1):
        metrics = {
            "train/loss": 2 / step,
            "train/in_batch_acc": 0.5,
            "optim/lr": 1e-5 * step,
            "optim/grad_norm": 1.0,
        }
        append_jsonl(
            folder / "metrics.jsonl", {"step": step, "epoch": 0, **metrics, "perf/padding_share": 0.1}
        )
    append_jsonl(
        folder / "metrics.jsonl", {"step": steps, "epoch": 0, "eval/nll_loss": 1.5, "eval/in_batch_acc": 0.25}
    )
    write_json(
        folder / "run.json",
        {"best_metric": "eval/nll_loss", "best_value": 1.5, "last_checkpoint": "dpr.step5"},
    )
    write_json(
        folder / "dpr.step5" / "config.json",
        config or {"seed": 1, "train": {"batch_size": 8}, "datasets": {"secret_set": {}}},
    )
    free = {"environment.torch": "9.9"}
    write_json(
        folder / "dpr.step5" / "trainer_state.json",
        {"identity": {"fixed": {"train.global_batch_size": 16}, "free": free}},
    )
    return folder


def metrics_file(path: Path, *, text: str = "a text", question: str = "who?", name: str = "test") -> Path:
    hits = [{"title": text, "text": text, "score": 1.5, "right": True}] * 5
    example = {"question": question, "id": question, "answers": [text], "first_right_rank": 1, "hits": hits}
    report = {
        "question_set": name,
        "num_questions": 4,
        "metrics": {"accuracy@1": 0.25, "accuracy@5": 0.5, "mrr@10": 0.375},
    }
    write_json(
        path,
        report
        | {
            "first_right_rank": {"counts": [1, 1, 0, 0, 0], "not_found": 2},
            "examples": [example] * 10,
        },
    )
    return path


def test_a_run_and_its_retrieval_are_on_one_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_folder(tmp_path / "model").parent
    assert (
        main(
            [
                str(folder),
                f"BM25={metrics_file(tmp_path / 'a.json')}",
                f"trained={metrics_file(tmp_path / 'b.json')}",
            ]
        )
        == 0
    )
    page = (folder / "report.html").read_text(encoding="utf-8")
    shown = texts(page)
    for words in (
        "Loss",
        "Learning rate",
        "Padding share",
        "Accuracy@k",
        "Rank of the first right passage",
        "who?",
        "a text",
        "BM25",
    ):
        assert words in shown
    assert "batch_size" in shown and "16" in shown and "9.9" in shown
    assert "secret_set" not in shown, "catalogues of data sets are not settings of the run"
    assert str(folder / "report.html") in capsys.readouterr().out


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text_wherever_it_stands(tmp_path: Path, text: str) -> None:
    config = {"seed": text, text: text, "train": {text: {text: text}}}
    training = Training(text, settings=flatten(config), environment={text: text}, notes=[text])
    training.logs = [{"step": 1.0, "train/loss": 2.0}]
    training.validations = [{"step": 1.0, f"eval/{text}/nll_loss": 1.0, "eval/other/nll_loss": 1.0}]
    training.best = {"best_metric": text, "best_value": 1.0}
    record = RetrievedQuestion(
        text, text, (text,), [Hit(text, text, text, 1.0, True), Hit("b", "", text, math.nan, None)]
    )
    retrieval = Retrieval(
        text, text, 1, {text: 1.0, "accuracy@20": 0.5, "recall@20": 0.1}, [1, 0], 0, [example_of(record)]
    )
    page = build_page(Report(text, training, [retrieval, Retrieval("x", text, 1, {})], {text: text}, [text]))
    found = elements(page)
    page.encode("utf-8")
    assert not [element for element in found if element.tag in ("script", "img", "base", "link")]
    readable = re.sub("[\x00\x1b\ud800\ufffe\u202e]", "\ufffd", text)
    assert texts(page).count(readable) > 10


def test_file_names_and_labels_are_escaped(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "<img src=x onerror=alert(1)>")
    path = write_report(
        folder, [("<script>1</script>", metrics_file(tmp_path / "<b>.json", name="<i>set</i>"))]
    )
    shown = texts(path.read_text(encoding="utf-8"))
    assert "<img src=x onerror=alert(1)>" in shown and "<script>1</script>" in shown and "<i>set</i>" in shown


def test_nothing_is_fetched_and_nothing_runs(tmp_path: Path) -> None:
    page = write_report(
        run_folder(tmp_path), [("a", metrics_file(tmp_path / "a.json", text="see https://example.org/x"))]
    ).read_text()
    assert not re.search(r"(?i)<script|\bsrc=|\bhref=[\"'](?!#)|@import|url\(|<link|<iframe|\bon\w+=", page)
    assert page.count("https://") == page.count("see https://"), "addresses occur as text of passages only"
    (policy,) = [element for element in elements(page) if element.get("http-equiv")]
    assert policy.get("content", "").startswith("default-src 'none'")


def test_a_long_page_has_contents_and_settings_are_folded(tmp_path: Path) -> None:
    path = write_report(
        run_folder(tmp_path),
        [("a", metrics_file(tmp_path / "a.json")), ("b", metrics_file(tmp_path / "b.json"))],
    )
    found = elements(path.read_text(encoding="utf-8"))
    wanted = ["#retrieval-1", "#examples", "#training", "#configuration", "#environment"]
    assert [element.get("href") for element in found if element.tag == "a"] == wanted
    assert len([element for element in found if element.tag == "details" and element.get("open")]) == 1, (
        "the first example"
    )


def test_large_inputs_give_a_small_file(tmp_path: Path) -> None:
    text = "&<\N{PILE OF POO} " * 50_000
    with open(tmp_path / "metrics.jsonl", "w") as file:
        for step in range(20_000):
            file.write(
                json.dumps(
                    {"step": step, "train/loss": math.sin(step), "optim/lr": 1.0, "perf/tokens_per_s": step}
                )
                + "\n"
            )
            file.write(json.dumps({"step": step, "eval/nll_loss": 1.0, f"eval/{step % 30}/x": 1.0}) + "\n")
    config = {f"key{number}": text if number < 3 else text[:500] for number in range(2000)}
    write_json(tmp_path / "run.json", {"last_checkpoint": "c"})
    write_json(tmp_path / "c" / "config.json", config)
    runs = [
        (
            f"run {number} {text}",
            metrics_file(tmp_path / f"{number}.json", text=text, question=f"{number}{text}"),
        )
        for number in range(8)
    ]
    path = write_report(tmp_path, runs, title=text)
    assert path.stat().st_size < LARGEST
    elements(path.read_text(encoding="utf-8"))


def test_curves_are_thinned_without_losing_their_peaks() -> None:
    points = [(float(step), 100.0 if step == 777 else math.sin(step)) for step in range(10_000)]
    kept = finite(points)
    assert len(kept) <= 250
    assert (777.0, 100.0) in kept and kept[0] == points[0] and kept[-1] == points[-1]


def measured(path: Path, ranks: list[int], *, indexer: str = "exact", hybrid: str = "none") -> Path:
    """A metrics file of questions whose first right passage has these ranks; 0 = none among the first 100."""
    values: dict[str, list[float | None]] = {
        f"accuracy@{k}": [float(0 < rank <= k) for rank in ranks] for k in (1, 5, 20, 100)
    }
    values |= {f"mrr@{k}": [1 / rank if 0 < rank <= k else 0.0 for rank in ranks] for k in (10, 100)}
    counts = [ranks.count(rank) for rank in range(1, 101)]
    report = {
        "question_set": "test",
        "num_questions": len(ranks),
        "indexer": indexer,
        "hybrid": hybrid,
        "examples": [],
    }
    report |= {"first_right_rank": {"counts": counts, "not_found": ranks.count(0)}}
    report |= {
        "metrics": {name: sum(value or 0.0 for value in each) / len(each) for name, each in values.items()}
    }
    names = [f"q{number}" for number in range(len(ranks))]
    write_metrics(
        path,
        report,
        PerQuestion(
            names, [f"question {name}" for name in names], {name: list(each) for name, each in values.items()}
        ),
    )
    return path


def test_the_page_opens_with_a_sentence_and_a_picture(tmp_path: Path) -> None:
    files = [
        ("words", measured(tmp_path / "a.json", [1, 30, 0, 2] * 50, indexer="bm25")),
        ("model", measured(tmp_path / "b.json", [1, 30, 0, 0] * 50)),
        ("both", measured(tmp_path / "c.json", [1, 3, 0, 2] * 50, hybrid="linear")),
    ]
    page = write_report(run_folder(tmp_path / "model").parent, files).read_text()
    sentence = "Of 100 questions, both has a right passage among its first 20 for 75, words for 50."
    assert sentence in page
    assert (
        page.index(sentence)
        < page.index("<svg")
        < page.index("Accuracy@k")
        < page.index("wins and loses")
        < page.index("Learning rate")
    )
    assert "both against words on 200 questions: +25.0 points, 95 % interval +18.9 to +31.1." in page
    widths = [
        float(width) for width in re.findall(r'<rect x="0" y="0" width="([\d.]+)" height="10" class="f', page)
    ]
    assert widths == [50, 25, 75]
    assert len([one for one in elements(page) if one.get("class", "").startswith("band")]) == 3
    alone = headline([read_retrieval("model", files[1][1])])
    assert (
        alone is not None
        and alone["sentence"] == "Of 100 questions, model has a right passage among its first 20 for 25."
    )
    same = headline([read_retrieval(label, files[0][1]) for label in ("a", "b")])
    assert same is not None and "can be chance" in same["note"]
    assert headline([Retrieval("x", "s", 3, {"map": 0.5})]) is None


def test_the_page_shows_where_the_model_wins_and_loses(tmp_path: Path) -> None:
    words = read_retrieval(
        "words", measured(tmp_path / "a.json", [2, 1, 1, 0, 50] + [0] * 20, indexer="bm25")
    )
    model = read_retrieval("model", measured(tmp_path / "b.json", [1, 1, 4, 90, 0] + [1] * 20))
    both = read_retrieval("both", measured(tmp_path / "c.json", [1] * 25, hybrid="rrf"))
    found = duel([both, words, model])
    assert found is not None and (found["first"], found["model"], found["counts"]) == (
        "words",
        "model",
        (22, 2, 1),
    )
    (ahead, wins), (behind, losses) = found["sides"]
    assert (ahead, behind) == ("model is ahead", "words is ahead")
    assert losses == [("question q2", "1", "4"), ("question q4", "50", "-")]
    assert len(wins) == 10 and set(wins[0][1:]) == {"-", "1"}
    assert wins[-1][0] > "question q20", "of those that tie, some from everywhere"
    assert duel([words]) is None
    report = json.loads((tmp_path / "b.json").read_text())
    write_json(tmp_path / "b.json", report | {"per_question": {"ids": 3}})
    assert duel([words, read_retrieval("model", tmp_path / "b.json")]) is None


def test_intervals_of_shares_are_wilsons() -> None:
    from scipy.stats import binomtest

    for hits, count in ((0, 10), (3, 7), (50, 200), (200, 200), (1, 1)):
        expected = binomtest(hits, count).proportion_ci(method="wilson")
        assert interval(hits / count, count) == pytest.approx((expected.low, expected.high), abs=1e-6)
    assert interval(0.0, 0) == (0.0, 1.0)


def test_an_empty_folder_gives_a_page_that_says_what_is_missing(tmp_path: Path) -> None:
    shown = texts(write_report(tmp_path).read_text())
    assert "No training run found" in shown and "No retrieval metrics" in shown


def test_the_steps_are_those_of_the_run_and_not_of_its_last_log_line(tmp_path: Path) -> None:
    run_folder(tmp_path, steps=5)
    append_jsonl(tmp_path / "metrics.jsonl", {"step": 8, "epoch": 1, "eval/nll_loss": 1.25})
    assert "run.step8" not in (shown := texts(write_report(tmp_path).read_text())) and "8 steps" in shown
    write_json(tmp_path / "run.json", {"last_checkpoint": "dpr.step11"})
    assert "11 steps" in texts(write_report(tmp_path).read_text())
    write_json(tmp_path / "run.json", {"last_checkpoint": "dpr.stepmother"})
    assert "8 steps" in texts(write_report(tmp_path).read_text())


def test_memory_is_not_said_to_be_that_of_a_gpu(tmp_path: Path) -> None:
    append_jsonl(tmp_path / "metrics.jsonl", {"step": 1, "train/loss": 1.0, "perf/mem_gb": 0.5})
    shown = texts(write_report(tmp_path).read_text())
    assert "peak memory" in shown and "GPU" not in shown


def test_questions_without_a_judgement_are_not_counted_as_judged(tmp_path: Path) -> None:
    file = metrics_file(tmp_path / "a.json")
    write_json(file, {**json.loads(file.read_text()), "num_questions": 1109})
    assert "4 of 1,109 questions judged" in texts(write_report(tmp_path, [("a", file)]).read_text())
    hits = [Hit("p", "t", "text", 1.0, True)]
    write_results(
        tmp_path / "b.json",
        [RetrievedQuestion(f"q{number}", "", (), hits if number < 3 else []) for number in range(5)],
    )
    unjudged = [Hit("p", "t", "text", 1.0, None)]
    write_results(
        tmp_path / "c.json",
        [RetrievedQuestion(f"q{number}", "", (), hits if number < 3 else unjudged) for number in range(5)],
    )
    found = [read_retrieval("x", tmp_path / name) for name in ("b.json", "c.json")]
    assert [(one.num_judged, one.metrics["accuracy@1"]) for one in found] == [(5, 0.6), (3, 1.0)]


def test_damaged_and_absent_files_of_a_run_are_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "train/loss": 2.5}\n{"step": 2, "tra\n[]\n{"step": "x"}\n'
    )
    assert "3 lines of metrics.jsonl are damaged" in texts(write_report(tmp_path).read_text())
    (tmp_path / "run.json").write_text('{"last_checkpoint": "dpr.step1"}')
    assert "config.json is missing or damaged" in texts(write_report(tmp_path).read_text())
    (tmp_path / "run.json").write_text('{"last_checkpoint": "../../etc"}')
    assert "no checkpoint yet" in texts(write_report(tmp_path).read_text())


@pytest.mark.parametrize(
    "values",
    [
        [],
        [math.nan],
        [math.inf, -math.inf],
        [1.0],
        [0.0],
        [-3.0],
        [5.0, 5.0],
        [1e-30, 2e-30],
        [1e300, -1e300],
        [math.nan, 2.0, 3.0],
    ],
)
@pytest.mark.parametrize(("log_x", "percent"), [(False, False), (True, True)])
def test_any_numbers_can_be_drawn(values: list[float], log_x: bool, percent: bool) -> None:
    points = [(float(place), value) for place, value in enumerate(values, 1)]
    drawing = line_chart("title", [("a", points), ("b", [])], log_x=log_x, percent=percent)
    chart = render("figure.html", {"chart": drawing})
    found = elements(chart)
    drawn = [value for value in values if math.isfinite(value)]
    assert ("No metrics yet." in chart) == (not drawn)
    assert len([element for element in found if element.tag == "circle"]) == len(drawn)
    assert not re.search(r'"[^"]*\b(?:nan|inf)\b[^"]*"', chart)


def test_values_that_were_not_finite_leave_a_gap(tmp_path: Path) -> None:
    for step, loss in enumerate([1.0, math.nan, 3.0], 1):
        append_jsonl(tmp_path / "metrics.jsonl", {"step": step, "train/loss": loss})
    found = elements(write_report(tmp_path).read_text())
    assert len([element for element in found if element.tag == "circle"]) == 2


def test_ticks_enclose_the_values_and_are_round() -> None:
    assert nice_ticks([0.0, 97.0]) == [0, 25, 50, 75, 100]
    assert nice_ticks([0.2, 0.9])[0] == 0.0
    assert [number_text(value) for value in nice_ticks([1e-5, 2e-5])] == [
        "0",
        "5e-6",
        "1e-5",
        "1.5e-5",
        "2e-5",
    ]
    assert number_text(12_345.0) == "12.35k" and number_text(0.0) == "0"


def test_histogram_counts_every_question_once() -> None:
    counts = [0] * 20
    counts[0], counts[4], counts[9], counts[19] = 4, 3, 2, 1
    names, (shares,) = rank_histogram([Retrieval("a", "s", 20, {}, counts, 10)])
    assert names == ["1", "2-5", "6-10", "11-20", "none"]
    assert shares == pytest.approx([0.2, 0.15, 0.1, 0.05, 0.5])


def test_results_of_dpr_give_curve_histogram_and_examples(tmp_path: Path) -> None:
    def result(number: int, right: int | None) -> RetrievedQuestion:
        hits = [Hit(f"p{rank}", "t", "the answer is 42", 9.0 - rank, rank == right) for rank in range(5)]
        return RetrievedQuestion(f"question {number}", str(number), ("42",), hits)

    ranks = [0, 0, 2, None] * 10
    write_results(tmp_path / "results.json", [result(number, right) for number, right in enumerate(ranks)])
    found = read_retrieval("DPR", tmp_path / "results.json")
    assert (found.rank_counts, found.num_without, found.num_questions) == ([20, 0, 10, 0, 0], 10, 40)
    assert found.accuracy_curve() == [(1, 0.5), (2, 0.5), (3, 0.75), (4, 0.75), (5, 0.75)]
    assert len(found.examples) == 10 and {example.first_right_rank for example in found.examples} >= {1}
    write_results(tmp_path / "other.json", [result(number, None) for number in range(40, 80)])
    page = build_page(Report("r", None, [found, read_retrieval("again", tmp_path / "results.json")]))
    assert "<mark>42</mark>" in page
    assert page.count("Accuracy@k") == 2, "one chart, whose name is its label too: the same questions"
    assert (
        build_page(Report("r", None, [found, read_retrieval("other", tmp_path / "other.json")])).count(
            "Accuracy@k"
        )
        == 4
    )


def test_examples_are_spread_evenly() -> None:
    assert spread(range(5), 10) == [0, 1, 2, 3, 4]
    assert spread(range(1000), 4) == [0, 256, 512, 768]
    assert len(spread(range(39), 10)) == 10


def test_what_a_page_should_not_tell_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnopqrstuv")
    config = {
        "output_dir": "/home/alice/work/runs/first",
        "train_datasets": [
            "/home/alice/data/train.json",
            "~/data/more.json",
            "C:\\Users\\alice\\x.json",
            "data/relative.json",
        ],
        "dev_datasets": "/home/alice smith/dev set.json",
        "tracking": {"api_key": "0123456789", "wandb_token": "t0p", "note": "hf_abcdefghijklmnopqrstuv"},
        "source": "https://alice:pw@example.org/data.json",
        "train": {"augment": {"crop_tokens": 48}},
    }
    page = write_report(run_folder(tmp_path / "model", config=config)).read_text()
    for secret in ("alice", "0123456789", "t0p", "hf_abc", ":pw@", str(tmp_path), str(Path.home())):
        assert secret not in page, secret
    assert ".../train.json" in page and "data/relative.json" in page and "48" in page


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (1e-5, "1e-05"), ("(0.9, 0.999)", "(0.9, 0.999)"), ("a/b", "a/b"), (True, "true")],
)
def test_settings_read_as_they_were_written(value: object, shown: str) -> None:
    assert printable(value) == shown


def test_cut_text_keeps_its_limit() -> None:
    assert cut("a  b\n c", 10) == "a b c"
    assert cut("word " * 100, 20) == "word word word word ..."
    assert len(cut("x" * 1000, 20)) == 24


def test_files_without_metrics_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": 1}')
    with pytest.raises(InputError, match="metrics file"):
        main([str(tmp_path), str(tmp_path / "x.json")])
    with pytest.raises(InputError, match="absent"):
        main([str(tmp_path), str(tmp_path / "absent.json")])
    with pytest.raises(ConfigError, match="two files"):
        main([str(tmp_path), "x.json", "y/x.json"])
    with pytest.raises(InputError, match="no such folder"):
        main([str(tmp_path / "absent")])
    assert not (tmp_path / "report.html").exists()
