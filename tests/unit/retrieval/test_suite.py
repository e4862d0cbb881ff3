"""``dpr evaluate``: suites of test sets, published collections, and TREC runs of other programs."""

import json
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import pytrec_eval

from dpr.core.errors import ConfigError, DprError, InputError, OutputError
from dpr.core.records import Passage, TrainingSample
from dpr.evaluation.evaluator import Evaluator
from dpr.formats.corpora import write_passages
from dpr.formats.metrics_files import read_metrics
from dpr.formats.question_sets import read_qrels, read_questions, write_qrels, write_questions
from dpr.formats.results import read_trec_run
from dpr.formats.text_input import read_yaml
from dpr.formats.training_files.dpr import write_training_set
from dpr.retrieval.retriever import Retriever
from dpr.retrieval.suites import read_suite
from tests.architecture.source_files import REPOSITORY
from tests.helpers.jobs import compare, retrieve
from tests.helpers.jobs import evaluate as main
from tests.unit.retrieval.conftest import World


@pytest.fixture(scope="module")
def beir(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Test sets ``first`` (12 questions, 60 passages) and ``second`` (8 over 40), and a folder that is none."""
    folder = tmp_path_factory.mktemp("beir")
    for name, passages, questions in (
        ("second", world.passages[:40], world.questions[:8]),
        ("first", world.passages, world.questions),
    ):
        (folder / name / "qrels").mkdir(parents=True)
        write_passages(folder / name / "corpus.jsonl.gz", passages)
        write_questions(
            folder / name / "queries.jsonl",
            [*questions, *world.questions[10:]] if name == "second" else questions,
        )
        grades = {
            question.id: {str(passages[number].id): 2, str(passages[number + 1].id): 1}
            for number, question in enumerate(questions)
        }
        write_qrels(folder / name / "qrels" / "test.tsv", grades)
    (folder / "notes").mkdir()
    return folder


def arguments(world: World, out: Path, suite: Path, *more: str) -> list[str]:
    line = f"suite={suite} model_file={world.path('model')} output_dir={out} n_docs=20 no_cuda=true"
    return [*line.split(), *more]


@pytest.fixture(scope="module")
def evaluated(world: World, beir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of an undisturbed evaluation of both sets."""
    out = tmp_path_factory.mktemp("evaluated") / "out"
    assert main(arguments(world, out, beir)) == 0
    return out


def test_one_command_evaluates_a_run(
    world: World, beir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder in BEIR's layout, one of dpr prepare, a file of training data; vectors are kept beside the run."""
    run = tmp_path / "run"
    Retriever.build(world.folder / "model", world.passages[:5], folder=run)
    assert main([f"run={run}", f"set={beir / 'first'}", "no_cuda=true", "n_docs=20"]) == 0
    printed = capsys.readouterr().out
    assert all(system in printed for system in ("bm25", "dense", "hybrid"))
    results = json.loads((run / "evaluation" / "results.json").read_text())
    assert results["sets"] == ["first"] and Path(results["model_file"]) == world.folder / "model"
    vectors = sorted((run / "evaluation" / "cache").glob("first-*_0/manifest.json"))
    times = [path.stat().st_mtime_ns for path in vectors]
    again = ["no_cuda=true", "n_docs=10", "overwrite=true"]
    assert len(vectors) == 1 and main([f"run={run}", f"set={beir / 'first'}", *again]) == 0
    assert [path.stat().st_mtime_ns for path in vectors] == times

    prepared = tmp_path / "prepared"
    prepared.mkdir()
    # not this one: it has the held-out questions' own words
    write_passages(prepared / "corpus.jsonl", world.passages[:3])
    write_passages(prepared / "evaluation_corpus.jsonl", world.passages)
    shutil.copy(world.folder / "questions.jsonl", prepared / "test_questions.jsonl")
    shutil.copy(world.folder / "qrels.tsv", prepared / "test_qrels.tsv")
    assert read_suite(prepared)[0].corpus.name == "evaluation_corpus.jsonl"

    samples = [
        TrainingSample(question.text, (world.passages[number],), (world.passages[number + 20],))
        for number, question in enumerate(world.questions)
    ]
    write_training_set(tmp_path / "dev.json", samples)
    given = [f"set={tmp_path / 'dev.json'}", f"output_dir={tmp_path / 'dev'}", "no_cuda=true"]
    assert main([f"run={run}", *given]) == 0
    (made,) = (tmp_path / "dev" / "cache").glob("dev-*/corpus.jsonl")
    assert len(made.read_text().splitlines()) == 24
    assert read_metrics(tmp_path / "dev" / "dev" / "bm25.json").metrics["accuracy@5"] > 0.9
    with pytest.raises(InputError, match=r"is not a test set.*queries\.csv"):
        read_suite(world.folder / "questions.jsonl")


def test_questions_with_answers_need_no_judgements(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "sets" / "answers"
    folder.mkdir(parents=True)
    write_passages(folder / "corpus.tsv", world.passages)
    asked = [(question.text, world.passages[number].text) for number, question in enumerate(world.questions)]
    lines = [f"{text}\t{[answer]!r}" for text, answer in asked[:-1]] + [f"{asked[-1][0]}\t[]"]
    (folder / "queries.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    line = [f"model_file={world.folder / 'model'}", "no_cuda=true", "n_docs=20"]
    assert main([*line, f"set={folder}", f"output_dir={tmp_path / 'out'}"]) == 0
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["top-20", "top-1"] in printed and sum(line[:1] == ["answers,"] for line in printed) == 3
    by_answers = read_metrics(tmp_path / "out" / "answers" / "bm25.json")
    assert by_answers.each is not None and len(by_answers.each.ids) == len(asked) - 1
    qrels = shutil.copytree(folder, folder.with_name("judged")) / "qrels"
    qrels.mkdir()
    write_qrels(qrels / "test.tsv", {str(row): {f"p{row:03d}": 1} for row in range(len(asked) - 1)})
    assert main([*line, f"suite={folder.parent}", f"output_dir={tmp_path / 'both'}"]) == 0
    judged = read_metrics(tmp_path / "both" / "judged" / "bm25.json")
    assert judged.metrics["accuracy@5"] == by_answers.metrics["accuracy@5"] > 0.5, "all texts differ"
    assert not (tmp_path / "both" / "answers" / "qrels.txt").exists()
    figures = json.loads((tmp_path / "both" / "results.json").read_text())["figures"]
    assert "ndcg@10" in figures["judged"]["bm25"] and not figures.get("mean")
    (folder / "queries.csv").write_text("\n".join(f"{text}\t[]" for text, _ in asked), encoding="utf-8")
    with pytest.raises(InputError, match=r"no qrels.*questions with answers"):
        read_suite(folder)


def files_of(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_every_system_has_the_metrics_of_dpr_retrieve(
    world: World, beir: Path, evaluated: Path, tmp_path: Path
) -> None:
    line = [f"qa_dataset={world.path('questions.jsonl')}", f"ctx_datasets=[{world.path('corpus.tsv')}]"]
    line += [f"qrels={beir / 'first' / 'qrels' / 'test.tsv'}", "match=qrels", "n_docs=20", "no_cuda=true"]
    dense = [f"model_file={world.path('model')}", f"encoded_ctx_files=[{world.path('vectors_*')}]"]
    systems = {"bm25": ["indexer=bm25"], "dense": dense, "hybrid": [*dense, "hybrid=linear"]}
    for system, more in systems.items():
        assert retrieve([*line, f"metrics_file={tmp_path / 'm.json'}", *more]) == 0
        ours, theirs = read_metrics(evaluated / "first" / f"{system}.json"), read_metrics(tmp_path / "m.json")
        assert ours.metrics == pytest.approx(theirs.metrics, abs=1e-12), system
        assert ours.each == theirs.each
        assert 0 < ours.metrics["ndcg@10"] < 1


def test_ids_that_trec_files_cannot_hold_are_said(
    world: World, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "set"
    (folder / "qrels").mkdir(parents=True)
    write_passages(folder / "corpus.jsonl", [Passage(one.text, "", f"a {one.id}") for one in world.passages])
    write_questions(folder / "queries.jsonl", world.questions)
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq0\ta p000\t1\n")
    assert main([f"set={folder}", f"output_dir={tmp_path / 'out'}"]) == 0
    assert "not all TREC files are written: the id 'a p" in capfd.readouterr().err
    assert {path.name for path in (tmp_path / "out" / "set").iterdir()} == {"bm25.json", "manifest.json"}


def test_judgements_of_another_corpus_are_found_before_it_is_embedded(
    world: World, beir: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "set", tmp_path / "out"
    shutil.copytree(beir / "second", folder)
    judged = {question.id: {f"d{number}": 1} for number, question in enumerate(world.questions[:8])}
    for first, code, message in (
        ("d0", 3, "none of the 8 passages judged relevant is in the corpus"),
        ("p000", 0, "7 of 8 passages judged relevant are not in the corpus"),
    ):
        judged[world.questions[0].id] = {first: 1}
        write_qrels(folder / "qrels" / "test.tsv", judged)
        assert main(arguments(world, out, folder)) == code
        error = capfd.readouterr().err
        assert error.count(message) == 1
        assert (
            error.find(message) < error.find("index of 40 passages built")
            if not code
            else not list(out.glob("cache/*"))
        )


def test_results_hold_every_figure_with_its_interval_and_the_means(evaluated: Path) -> None:
    results = json.loads((evaluated / "results.json").read_text())
    assert (results["sets"], results["systems"]) == (["first", "second"], ["bm25", "dense", "hybrid"])
    figures = results["figures"]
    for system in results["systems"]:
        # of the second, questions without judgements are not asked
        for name, count, t in (("first", 12, 2.200985), ("second", 8, 2.364624)):
            run = read_metrics(evaluated / name / f"{system}.json")
            assert run.num_questions == count and run.each is not None
            values = np.array(list(run.each.judged("mrr@10").values()))
            half = t * values.std(ddof=1) / count**0.5
            expected = values.mean(), max(values.mean() - half, 0.0), min(values.mean() + half, 1.0)
            found = figures[name][system]["mrr@10"]
            assert (found["mean"], found["low"], found["high"]) == pytest.approx(expected)
        means = [figures[name][system]["ndcg@10"]["mean"] for name in ("first", "second", "mean")]
        assert means[2] == pytest.approx(sum(means[:2]) / 2)
    shown = figures["mean"]["dense"]["ndcg@10"]
    text = f"{shown['mean']:.3f} [{shown['low']:.3f}, {shown['high']:.3f}]"
    assert f"| {text} |" in (evaluated / "results.md").read_text()


def test_the_same_command_again_does_nothing_and_a_stopped_one_continues(
    world: World,
    beir: Path,
    evaluated: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    out, judge = tmp_path / "out", Evaluator.evaluate
    calls: list[str] = []

    def stopped(*given: object, **options: object) -> object:
        calls.append("judged")
        if len(calls) == 5:
            raise DprError("stopped")
        return judge(*given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Evaluator, "evaluate", stopped)
    assert main(arguments(world, out, beir)) == 1
    assert (out / "first").is_dir() and not (out / "second").exists()
    assert main(arguments(world, out, beir)) == 0
    assert len(calls) == 8, "the first set was not judged again"
    assert files_of(out) == files_of(evaluated)
    assert main(arguments(world, out, beir)) == 0
    assert len(calls) == 8
    assert "nothing to do" in capfd.readouterr().err


def test_another_model_or_changed_data_are_refused_unless_overwritten(
    world: World, beir: Path, evaluated: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(evaluated, tmp_path / "out")
    shutil.copytree(beir, tmp_path / "beir")
    assert main(arguments(world, tmp_path / "out", beir, "dimensions=8")) == 3
    assert "made with another model" in capfd.readouterr().err
    qrels = tmp_path / "beir" / "second" / "qrels" / "test.tsv"
    write_qrels(qrels, read_qrels(qrels) | {"q0": {"p030": 1}})
    assert main(arguments(world, tmp_path / "out", tmp_path / "beir")) == 3
    assert "made with another qrels" in capfd.readouterr().err
    assert main(arguments(world, tmp_path / "out", tmp_path / "beir", "overwrite=true")) == 0
    fresh = tmp_path / "fresh"
    assert main(arguments(world, fresh, tmp_path / "beir", f"cache_dir={tmp_path / 'out' / 'cache'}")) == 0
    expected = {
        name: text for name, text in files_of(tmp_path / "out").items() if not name.startswith("cache")
    }
    assert files_of(fresh) == expected, "vectors of the first evaluation serve the second"


def test_a_yaml_lists_sets_splits_and_prefixes(
    world: World, beir: Path, evaluated: Path, tmp_path: Path
) -> None:
    shutil.copytree(beir / "first", tmp_path / "data")
    (tmp_path / "data" / "qrels" / "test.tsv").rename(tmp_path / "data" / "qrels" / "dev.tsv")
    (tmp_path / "suite.yaml").write_text(
        "sets:\n  plain: {folder: data, split: dev}\n  asked:\n    folder: data\n    split: dev\n   "
        " query_prefix: 'ba '\n    passage_prefix: 'be '\n"
    )
    out = tmp_path / "out"
    assert main(arguments(world, out, tmp_path / "suite.yaml", "systems=[dense]")) == 0
    plain, asked = (read_metrics(out / name / "dense.json") for name in ("plain", "asked"))
    assert plain.each == read_metrics(evaluated / "first" / "dense.json").each
    assert asked.each != plain.each
    assert asked.each is not None and asked.each.texts == [question.text for question in world.questions]


@pytest.mark.parametrize(
    ("text", "error", "found"),
    [
        ("a: 1", InputError, "no sets"),
        ("sets: {a: {folder: data, splits: dev}}", ConfigError, "sets.a.splits; did you mean split"),
        ("sets: {a: {folder: data, split: dev}}", InputError, "a: no qrels, .* it has the splits test"),
        ("sets: {a: nowhere}", InputError, "a: no such folder"),
        ("sets: {cache: data}", InputError, "cannot be called cache"),
        ("sets: {../a: data}", InputError, "cannot be that of a folder"),
        ("sets:\n  a: data\n  a: {folder: data}", InputError, "suite.yaml:3: not YAML: the key 'a' is also"),
        ("sets: !!python/object/apply:os.getcwd []", InputError, "not YAML"),
    ],
)
def test_a_suite_that_cannot_be_read_says_why(
    beir: Path, tmp_path: Path, text: str, error: type[Exception], found: str
) -> None:
    shutil.copytree(beir / "first", tmp_path / "data")
    (tmp_path / "suite.yaml").write_text(text)
    with pytest.raises(error, match=found):
        read_suite(tmp_path / "suite.yaml")
    with pytest.raises(InputError, match="no such file or folder"):
        read_suite(tmp_path / "none")
    with pytest.raises(InputError, match="holds no test set"):
        read_suite(beir / "notes")


def foreign_run(folder: Path) -> tuple[Path, Path]:
    """Has ties, scores that float32 makes equal, ranks that say something else, more and fewer questions."""
    rng = random.Random(0)
    passages = [f"d{number}" for number in range(300)]
    lines, grades = [], []
    for question in range(30):
        for rank, passage in enumerate(rng.sample(passages, 150)):
            score = rng.choice([rng.randrange(12), 1 + rng.random() * 1e-9, rng.gauss(0, 5)])
            lines.append(f"{question} Q0 {passage} {150 - rank} {score!r} other")
        grades += [
            f"{question + 2} 0 {one} {rng.choice([0, 0, 1, 2, -1])}" for one in rng.sample(passages, 40)
        ]
    (folder / "other.run").write_text("\n".join(lines) + "\n")
    (folder / "qrels.txt").write_text("\n".join(grades) + "\n")
    return folder / "other.run", folder / "qrels.txt"


def test_a_run_of_another_program_has_the_metrics_of_trec_eval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_file, qrels_file = foreign_run(tmp_path)
    assert main([f"run_file={run_file}", f"qrels={qrels_file}", f"metrics_file={tmp_path / 'm.json'}"]) == 0
    assert "qrels, 30 questions" in capsys.readouterr().out
    found = read_metrics(tmp_path / "m.json")
    assert found.each is not None
    qrels, run = read_qrels(qrels_file), {}
    for line in run_file.read_text().splitlines():
        question, _, passage, _, score, _ = line.split()
        run.setdefault(question, {})[passage] = float(score)
    names = {"map": "map", "ndcg_cut_10": "ndcg@10", "recip_rank": "mrr@100"}
    names |= {"recall_20": "recall@20", "recall_100": "recall@100", "success_5": "accuracy@5"}
    measures = {"map", "recip_rank", "ndcg_cut.10", "recall.20,100", "success.5"}
    reference = pytrec_eval.RelevanceEvaluator(qrels, measures).evaluate(run)
    assert len(reference) == 28
    for theirs, ours in names.items():
        expected = {question: one[theirs] for question, one in reference.items()}
        if theirs == "recip_rank":  # ours ends at rank 100
            expected = {question: value if value >= 0.01 else 0 for question, value in expected.items()}
        values = found.each.judged(ours)
        # trec_eval -c: the two that are not in the run count as 0
        absent = dict.fromkeys(values.keys() - expected.keys(), 0)
        assert values == pytest.approx(expected | absent, abs=1e-12) and len(absent) == 2
        assert found.metrics[ours] == pytest.approx(sum(expected.values()) / 30, abs=1e-12)


def test_what_an_evaluation_writes_trec_eval_reads(evaluated: Path) -> None:
    qrels = read_qrels(evaluated / "second" / "qrels.txt")
    run = {key: dict(hits) for key, hits in read_trec_run(evaluated / "second" / "dense.run").items()}
    reference = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10"}).evaluate(run)
    stored = read_metrics(evaluated / "second" / "dense.json")
    assert stored.each is not None
    assert stored.each.judged("ndcg@10") == pytest.approx(
        {key: one["ndcg_cut_10"] for key, one in reference.items()}, abs=1e-12
    )


def test_runs_and_suites_are_not_mixed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_file, _ = foreign_run(tmp_path)
    (tmp_path / "others.txt").write_text("x 0 d1 1\n")
    others = f"no question of {run_file} has judgements: one of its ids is '0', one of the judgements' is 'x'"
    for given, code, message in (
        ([], 2, "neither set nor run_file is set; e.g. run=runs/first set=data/scifact"),
        (["run=r"], 2, "neither set nor run_file"),
        (["run=r", "run_file=x", "qrels=q"], 2, "run and run_file are mutually exclusive"),
        ([f"run_file={run_file}"], 2, "qrels is not set"),
        (["suite=s", "output_dir=o", "systems=[dense]"], 2, "model_file is not set"),
        ([f"run_file={run_file}", f"qrels={tmp_path / 'others.txt'}"], 3, others),
    ):
        assert main(given) == code
        assert message in capsys.readouterr().err


def test_evaluations_are_compared_set_by_set(
    world: World, beir: Path, evaluated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare([str(evaluated), "--metrics", "ndcg@10"]) == 0  # the systems of one evaluation
    printed = capsys.readouterr().out
    assert "2 runs against bm25: 8 to 12 judged questions; Holm over 6 comparisons" in printed
    assert "second, hybrid, nDCG@10" in printed and "mean of 2 sets, dense, nDCG@10" in printed
    assert main(arguments(world, tmp_path / "cut", beir, "dimensions=8", "systems=[dense]")) == 0
    out = tmp_path / "out.json"
    assert compare([f"whole={evaluated}", f"cut={tmp_path / 'cut'}", "--out", str(out)]) == 0
    assert "cut against whole: 8 to 12 judged questions; Holm over 15 comparisons" in capsys.readouterr().out
    stored = json.loads(out.read_text())
    values = [
        read_metrics(folder / "second" / "dense.json").metrics["mrr@10"]
        for folder in (evaluated, tmp_path / "cut")
    ]
    (test,) = (one for one in stored["tests"] if (one["question_set"], one["metric"]) == ("second", "mrr@10"))
    assert (test["first"], test["second"]) == pytest.approx(tuple(values))
    assert stored["sets"].keys() == {"first", "second"}
    with pytest.raises(InputError, match="has no results of hybrid, expected --system with one of dense"):
        compare([f"whole={evaluated}", f"cut={tmp_path / 'cut'}", "--system", "hybrid"])
    with pytest.raises(InputError, match=r"no results\.json"):
        compare([str(beir)])


def test_a_set_is_not_sealed_without_the_files_that_a_full_disk_refused(
    beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, *_: object) -> None:
        raise OutputError(path, "No space left on device")

    line = [f"suite={beir / 'second'}", f"output_dir={tmp_path}", "n_docs=5"]
    monkeypatch.setattr("dpr.jobs.evaluate.write_trec_run", full)
    assert main(line) == 3
    assert "No space left on device" in capfd.readouterr().err
    monkeypatch.undo()
    assert main(line) == 0
    assert {"bm25.json", "bm25.run", "qrels.txt"} <= {path.name for path in (tmp_path / "second").iterdir()}


KNOWN = read_yaml(REPOSITORY / "conf" / "suites" / "known.yaml")


@pytest.fixture
def data(world: World, tmp_path: Path) -> Path:
    """Four of the seven collections, made up, each in its own form."""
    folder = tmp_path / "data"
    asked = list(zip(world.questions, world.passages, strict=False))
    for name in ("cranfield/qrels", "squad", "qed", "medquad"):
        (folder / name).mkdir(parents=True)
    write_passages(folder / "cranfield" / "corpus.jsonl", world.passages)
    write_questions(folder / "cranfield" / "queries.jsonl", world.questions)
    write_qrels(folder / "cranfield" / "qrels" / "test.tsv", {one.id: {str(own.id): 1} for one, own in asked})
    paragraphs = [{"context": own.text, "qas": [{"question": one.text, "answers": []}]} for one, own in asked]
    article = {"title": "An_article", "paragraphs": paragraphs}
    (folder / "squad" / "dev-v1.1.json").write_text(json.dumps({"version": "1.1", "data": [article]}))
    qed = [
        {"question_text": one.text, "paragraph_text": right.text, "title_text": right.title}
        for one, right in asked
    ]
    (folder / "qed" / "qed-dev.jsonlines").write_text("".join(json.dumps(row) + "\n" for row in qed))
    medquad = [
        {"id": "1#1", "question": one.text, "answer": right.text, "focus": right.title}
        for one, right in asked
    ]
    medquad.append(medquad[0] | {"answer": world.passages[30].text})
    (folder / "medquad" / "medquad.jsonl").write_text("".join(json.dumps(row) + "\n" for row in medquad))
    return folder


def known(data: Path, out: Path, *more: str) -> list[str]:
    return ["suite=known", f"data={data}", f"output_dir={out}", "n_docs=20", "no_cuda=true", *more]


def test_known_collections_are_read_as_they_are_published(
    world: World, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(known(data, out)) == 0
    printed = capfd.readouterr()
    for name in ("npl", "squadshifts-wiki", "squadshifts-amazon"):
        assert (
            f"{name} is left out, since {data} does not contain it; source: {KNOWN['known'][name]['source']}"
            in printed.err
        )
    assert "'answer' is not read" not in printed.err, "columns that are named are read"
    results = json.loads((out / "results.json").read_text())
    assert (results["sets"], results["systems"]) == (["cranfield", "squad", "qed", "medquad"], ["bm25"])
    counts = {name: read_metrics(out / name / "bm25.json").num_questions for name in results["sets"]}
    assert counts == dict.fromkeys(counts, 12), "a question of two rows is asked once"
    (made,) = (out / "cache").glob("medquad-*/qrels/test.tsv")
    questions = {one.text: one.id for one in read_questions(made.parent.parent / "queries.jsonl")}
    assert len(read_qrels(made)[questions[world.questions[0].text]]) == 2, "both passages are right"
    (squad,) = (out / "cache").glob("squad-*/corpus.jsonl")
    assert json.loads(squad.read_text().splitlines()[0])["title"] == "An article"


def test_what_is_not_there_is_named(
    world: World, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["suite=known", f"output_dir={tmp_path / 'out'}"]) == 2
    assert "data is not set, e.g. data=" in capfd.readouterr().err
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds none of the sets cranfield, npl, squad"):
        read_suite("known", data=str(tmp_path / "empty"), suites=KNOWN)
    with pytest.raises(InputError, match="none: no such folder"):
        read_suite("known", data=str(tmp_path / "none"), suites=KNOWN)
    with pytest.raises(ConfigError, match=r"is for a YAML or a named suite \(known\)"):
        read_suite(data / "cranfield", data=str(data), suites=KNOWN)
    shutil.copy(data / "squad" / "dev-v1.1.json", data / "squad" / "dev-v2.0.json")
    with pytest.raises(InputError, match=r"squad: .*dev-v1.1.json, .*dev-v2.0.json, expected one file"):
        read_suite("known", data=str(data), suites=KNOWN)


def test_a_yaml_names_files_below_another_folder(data: Path, tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text(
        "sets: {asked: {file: qed/*.jsonlines, columns: {question: question_text, positive: paragraph_text}}}"
    )
    (found,) = read_suite(suite, data=str(data), cache=tmp_path / "cache")
    assert found.name == "asked" and json.loads(found.corpus.read_text().splitlines()[0])["title"] == ""
    suite.write_text("sets: {asked: {file: qed/none.jsonl}}")
    with pytest.raises(InputError, match=r"asked: .*none\.jsonl is no file, expected one file"):
        read_suite(suite, data=str(data))


@pytest.mark.parametrize(("name", "questions", "ndcg"), [("cranfield", 225, 0.335), ("qed", 1355, 0.911)])
def test_real_collections_have_the_figures_of_bm25(
    shared_data: Path, tmp_path: Path, name: str, questions: int, ndcg: float
) -> None:
    """Another program's BM25 with the same parameters has 0.335 and 0.909."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).symlink_to(shared_data / name)
    assert (
        main(["suite=known", f"data={tmp_path / 'data'}", f"output_dir={tmp_path / 'out'}", "systems=[bm25]"])
        == 0
    )
    found = read_metrics(tmp_path / "out" / name / "bm25.json")
    assert found.num_questions == questions and found.metrics["ndcg@10"] == pytest.approx(ndcg, abs=0.002)


def test_the_page_s_lines_join_the_passages_and_read_medquad(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (REPOSITORY / "benchmarks" / "results" / "collections.md").read_text(encoding="utf-8")
    join, medquad = re.findall(r"```python\n(.+?)```", page, re.DOTALL)
    (tmp_path / "data" / "collections").symlink_to(data)
    monkeypatch.chdir(tmp_path)
    assert main(known(data, Path("runs/known"), "systems=[bm25]")) == 0
    exec(join, {})  # noqa: S102
    rows = [json.loads(line) for line in Path("texts.jsonl").read_text().splitlines()]
    assert len({row["_id"] for row in rows}) == len(rows) == 60 + 12 + 12 + 13
    assert {row["_id"].partition("-")[0] for row in rows} == {"cranfield", "squad", "qed", "medquad"}
    pairs = (
        "<QAPair><Question>What is it?</Question><Answer> An\n answer"
        " </Answer></QAPair><QAPair><Question>?</Question><Answer/></QAPair>"
    )
    Path("MedQuAD").mkdir()
    Path("MedQuAD/1.xml").write_text(f"<Document><Focus>It</Focus><QAPairs>{pairs}</QAPairs></Document>")
    exec(medquad, {})  # noqa: S102
    assert json.loads(Path("medquad.jsonl").read_text()) == {
        "focus": "It",
        "question": "What is it?",
        "answer": "An answer",
    }
