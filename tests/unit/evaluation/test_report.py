"""The page of a run: whole, safe to open, and never in the way."""

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from dpr.core.errors import ConfigError, InputError
from dpr.evaluation.page_text import flatten
from dpr.evaluation.report import build_page, curves_svg, write_report
from dpr.evaluation.runs import Retrieval, Training
from dpr.evaluation.significance import estimate
from dpr.formats.metrics_files import MetricsFile, PerQuestion, write_metrics
from dpr.storage.durable import append_jsonl, write_json
from tests.helpers.jobs import report as main

HOSTILE = [
    "</title></style></script><img src=x onerror=alert(1)><svg onload='alert(1)'>",
    "' onmouseover='alert(1) \" <!-- -->]]> &lt;b&gt; &amp; &#60; {{7*7}} ${7*7} %s",
    "@import url(https://evil.example/x.css); <a href='https://evil.example/x'>x</a><base href=//evil.example>",
    "a\x00b\x1bc\ud800d\ufffe\u202etxt.exe",
]
SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
ELEMENTS = set(
    "html head meta title style body main h1 h2 h3 p dl dt dd div section figure ol li table thead tbody tr"
    " th td details summary span b".split()
) | {f"{SVG}{name}" for name in "svg defs style g path clipPath rect use text tspan".split()}
ATTRIBUTES = set(
    "charset http-equiv content name lang class scope tabindex open dir id type style version viewBox x y"
    " width height d transform clip-path".split()
) | {LINK}


def elements(page: str) -> list[ElementTree.Element]:
    """Of a page that is well-formed XML too, and holds only what we put there."""
    found = list(ElementTree.fromstring(page).iter())
    assert {element.tag for element in found} <= ELEMENTS
    assert {name for element in found for name in element.attrib} <= ATTRIBUTES
    anchors = [f"#{element.get('id')}" for element in found if element.get("id")]
    assert len(anchors) == len(set(anchors))
    assert {element.get(LINK) for element in found if element.get(LINK)} <= set(anchors), (
        "marks of a picture are taken from the page itself"
    )
    return found


def texts(page: str) -> str:
    return " ".join("".join(one.itertext()) for one in elements(page) if one.tag in ("main", "title"))


def run_folder(folder: Path, *, steps: int = 5, config: dict[str, object] | None = None) -> Path:
    for step in range(1, steps + 1):
        metrics = {"train/loss": 2 / step, "train/in_batch_acc": 0.5, "perf/padding_share": 0.1}
        metrics |= {"optim/lr": 1e-5 * step, "optim/grad_norm": 1.0}
        append_jsonl(folder / "metrics.jsonl", {"step": step, "epoch": 0, **metrics})
    validation = {"eval/nll_loss": 1.5, "eval/in_batch_acc": 0.25}
    append_jsonl(folder / "metrics.jsonl", {"step": steps, "epoch": 0, **validation})
    best = {"best_metric": "eval/nll_loss", "best_value": 1.5}
    write_json(folder / "run.json", {**best, "last_checkpoint": "dpr.step5"})
    config = config or {"seed": 1, "train": {"batch_size": 8}, "datasets": {"secret_set": {}}}
    write_json(folder / "dpr.step5" / "config.json", config)
    identity = {"fixed": {"train.global_batch_size": 16}, "free": {"environment.torch": "9.9"}}
    write_json(folder / "dpr.step5" / "trainer_state.json", {"identity": identity})
    return folder


def metrics_file(path: Path, *, name: str = "test") -> Path:
    report = {
        "question_set": name,
        "num_questions": 4,
        "metrics": {"accuracy@1": 0.25, "accuracy@5": 0.5, "mrr@10": 0.375},
    }
    write_json(path, report | {"first_right_rank": {"counts": [1, 1, 0, 0, 0], "not_found": 2}})
    return path


def test_a_run_and_its_retrieval_are_on_one_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_folder(tmp_path / "model").parent
    files = {"BM25": metrics_file(tmp_path / "a.json"), "trained": metrics_file(tmp_path / "b.json")}
    assert main([str(folder), *(f"{label}={file}" for label, file in files.items())]) == 0
    page = (folder / "report.html").read_text(encoding="utf-8")
    shown = texts(page)
    for words in ("Training loss", "Learning rate", "Padding share", "Accuracy@k", "top-1", "BM25"):
        assert words in shown
    assert "batch_size" in shown and "16" in shown and "9.9" in shown
    assert "secret_set" not in shown, "catalogues of data sets are not settings of the run"
    assert str(folder / "report.html") in capsys.readouterr().out


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text_wherever_it_stands(tmp_path: Path, text: str) -> None:
    config = {"seed": text, text: text, "train": {text: {text: text}}}
    training = Training(text, settings=flatten(config), notes=[text])
    training.logs = [{"step": step, "train/loss": 2.0, f"train/{text}/loss": 2.0} for step in (1.0, 2.0)]
    training.validations = [{"step": 1.0, f"eval/{text}/nll_loss": 1.0, "eval/other/nll_loss": 1.0}]
    training.best = {"best_metric": text, "best_value": 1.0}
    training.verdict = {"line": text}
    stored = {"first_right_rank": {"counts": [1, 0], "not_found": 0}}
    metrics = {text: 1.0, "accuracy@20": 0.5, "recall@20": 0.1}
    retrievals = [
        Retrieval(text, MetricsFile(text, 1, metrics, stored)),
        Retrieval("x", MetricsFile(text, 1, {}, {})),
    ]
    page = build_page(text, training, retrievals, notes=[text])
    found = elements(page)
    page.encode("utf-8")
    assert not [element for element in found if element.tag in ("script", "img", "base", "link")]
    readable = re.sub("[\x00\x1b\ud800\ufffe\u202e]", "\ufffd", text)
    assert texts(page).count(readable) > 5


def test_nothing_is_fetched_and_nothing_runs(tmp_path: Path) -> None:
    page = write_report(
        run_folder(tmp_path), [("a", metrics_file(tmp_path / "a.json", name="see https://example.org/x"))]
    ).read_text()
    assert not re.search(
        r"(?i)<script|\bsrc=|\bhref=[\"'](?!#)|@import|url\((?!#)|<link|<iframe|\bon\w+=", page
    )
    assert page.count("https://") == page.count("see https://"), "addresses occur as text only"
    (policy,) = [element for element in elements(page) if element.get("http-equiv")]
    assert policy.get("content", "").startswith("default-src 'none'")


def test_a_long_curve_is_a_small_picture_that_keeps_its_peak_and_the_same_bytes() -> None:
    points = [(float(step), 100.0 if step == 777 else math.sin(step)) for step in range(10_000)]
    drawing = curves_svg("title", {"a": points})
    assert len(drawing) < 50_000
    assert drawing == curves_svg("title", {"a": points})
    curve = max((element.get("d", "") for element in elements(drawing)), key=len)
    heights = [float(y) for _, y in re.findall(r"([\d.]+) ([\d.]+)", curve)]
    assert min(heights) < 0.25 * max(heights), "the axis, and the curve up to its end"


def measured(path: Path, ranks: list[int], *, indexer: str = "exact", hybrid: str = "none") -> Path:
    """A metrics file of questions whose first right passage has these ranks; 0 = none among the first 100."""
    values: dict[str, list[float | None]] = {
        f"accuracy@{k}": [float(0 < rank <= k) for rank in ranks] for k in (1, 5, 20, 100)
    }
    values |= {f"mrr@{k}": [1 / rank if 0 < rank <= k else 0.0 for rank in ranks] for k in (10, 100)}
    counts = [ranks.count(rank) for rank in range(1, 101)]
    report = {"question_set": "test", "num_questions": len(ranks), "indexer": indexer, "hybrid": hybrid}
    report |= {"first_right_rank": {"counts": counts, "not_found": ranks.count(0)}}
    report |= {"metrics": {name: sum(one or 0.0 for one in own) / len(own) for name, own in values.items()}}
    names = [f"q{number}" for number in range(len(ranks))]
    write_metrics(
        path,
        report,
        PerQuestion(
            names, [f"question {name}" for name in names], {name: list(each) for name, each in values.items()}
        ),
    )
    return path


def test_several_runs_are_a_table_with_intervals_and_one_picture(tmp_path: Path) -> None:
    files = [
        ("words", measured(tmp_path / "a.json", [1, 30, 0, 2] * 50, indexer="bm25")),
        ("model", measured(tmp_path / "b.json", [1, 30, 0, 0] * 50)),
        ("both", measured(tmp_path / "c.json", [1, 3, 0, 2] * 50, hybrid="linear")),
    ]
    page = write_report(run_folder(tmp_path / "model").parent, files).read_text()
    found = elements(page)
    lines = [list(line.iter("td")) for line in found if line.tag == "tr"]
    rows = {"".join(cells[0].itertext()): cells[1:] for cells in lines if cells}
    top20 = estimate([1.0, 0.0, 0.0, 1.0] * 50)
    shown = " ".join("".join(rows["words"][2].itertext()).split())
    assert shown == f"0.500 {top20.low:.3f} to {top20.high:.3f}"
    assert page.count("Accuracy@k") == 1
    assert page.index("<svg") < page.index("Learning rate")
    assert {"words", "model", "both"} <= {"".join(one.itertext()) for one in found if "text" in one.tag}


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


def test_questions_without_a_judgement_are_not_counted_as_judged(tmp_path: Path) -> None:
    file = metrics_file(tmp_path / "a.json")
    write_json(file, {**json.loads(file.read_text()), "num_questions": 1109})
    assert "4 of 1,109 questions judged" in texts(write_report(tmp_path, [("a", file)]).read_text())


def test_damaged_and_absent_files_of_a_run_are_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "train/loss": 2.5}\n{"step": 2, "tra\n[]\n{"step": "x"}\n'
    )
    assert "3 lines of metrics.jsonl are damaged" in texts(write_report(tmp_path).read_text())
    (tmp_path / "run.json").write_text('{"last_checkpoint": "dpr.step1"}')
    assert "config.json is missing or damaged" in texts(write_report(tmp_path).read_text())
    (tmp_path / "run.json").write_text('{"last_checkpoint": "../../etc"}')
    assert "no checkpoint yet" in texts(write_report(tmp_path).read_text())


def test_what_was_measured_before_the_first_step_alone_is_a_level(tmp_path: Path) -> None:
    begun = {"step": 0, "eval/dev/ndcg@10": 0.25, "eval/dev/bm25/ndcg@10": 0.5}
    for metrics in (begun, {"step": 9, "eval/dev/ndcg@10": 0.75}):
        append_jsonl(tmp_path / "metrics.jsonl", metrics)
    found = elements(write_report(tmp_path).read_text())
    assert "eval/dev/bm25/ndcg@10" in {"".join(one.itertext()) for one in found if "text" in one.tag}


def test_a_picture_shows_like_with_like_and_none_shows_nothing(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        metrics = {"step": step, "train/loss": 2.0 / step, "perf/padding_share": 0.0}
        append_jsonl(tmp_path / "metrics.jsonl", metrics)
    for step in (0, 3):
        append_jsonl(
            tmp_path / "metrics.jsonl", {"step": step, "eval/nll_loss": 2.5, "eval/dev/nll_loss": 2.5}
        )
    page = write_report(tmp_path, notes=["made from the texts"]).read_text()
    shown = texts(page)
    assert "Training loss" in shown and "Loss on dev sets" in shown, "they have other candidates"
    assert "Padding share" not in shown, "a line on the edge"
    assert "dev/nll_loss" not in shown, "of one set, as nll_loss"
    assert "made from the texts" in shown


def test_a_matplotlibrc_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib

    plain = curves_svg("title", {"$x$": [(1.0, 1.0), (2.0, 3.0)]})
    with matplotlib.rc_context({"font.size": 30, "axes.grid": True}):
        assert curves_svg("title", {"$x$": [(1.0, 1.0), (2.0, 3.0)]}) == plain
        assert matplotlib.rcParams["font.size"] == 30
    assert "$x$" in plain, "labels are text, not formulas"


def test_settings_that_are_as_ever_are_not_shown(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, config={"seed": 1, "train": {"batch_size": 8, "adam_eps": 1e-8}})
    defaults = {"seed": 1, "train": {"batch_size": 2, "adam_eps": 1e-8}}
    page = write_report(folder, defaults=defaults).read_text()
    assert "train.batch_size" in page and "adam_eps" not in page


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
