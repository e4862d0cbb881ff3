"""Figures of retrieval, evaluation and validation on tiny data, equal to the last digit."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from dpr.core.records import Passage, Question
from dpr.evaluation import ranking_metrics
from dpr.evaluation.ranking_metrics import METRICS, Metric
from dpr.formats.corpora import write_passages
from dpr.formats.metrics_files import read_metrics
from dpr.formats.question_sets import write_questions
from dpr.training.validations.retrieval import RetrievalValidation, RetrievalValidationSettings
from tests.helpers.jobs import compare, evaluate, retrieve
from tests.helpers.tiny import encoder_folder, tiny_model

FIGURES = Path(__file__).parents[2] / "golden" / "retrieval_figures.json"
"""By source, the mean of each metric and its value for every question."""

PASSAGES = [
    Passage(text, title, f"p{number}")
    for number, (title, text) in enumerate(
        [
            ("ba", "de di do du ba be bi"),
            ("be", "de di do du ba be bi"),  # ties with the first but for its title
            ("bi", "bo bu ba be ba be bi de"),
            ("bo", "da da da de bi bo bu"),
            ("bu", "bu bu ba"),
            ("da", "Bé bi, 1990-2000 bo du du di do"),
            ("de", "di di di do do do du du du"),
            ("di", "de de di"),
            ("do", "de de di"),  # ties
            ("du", "ba be bi bo bu da de di do du"),
            ("ba", "bo bo bo bo bi"),
            ("be", "da de di do du da de di do du"),
        ]
    )
]
QUESTIONS = [
    Question("de di?", "q0", ("de di",)),
    Question("ba be bi", "q1", ("Bé bi", "bo bu")),
    Question("da da bo", "q2", ("1990-2000",)),
    Question("du do", "q3"),
    Question("bu ba bu", "q4", ("nowhere",)),
    Question("bo bi ba", "q5", ("ba be", " ")),
    Question("di do bo", "q6", ("de de di",)),
]
# q4 is judged, but nothing is right for it; q5 has no judgements; q9 is not asked; gone is not in the corpus.
QRELS = {
    "q1": {"p0": 2, "p2": 1, "p9": 3, "p5": 0, "p10": -1},
    "q0": {"p7": 1, "p8": 1, "p0": 1},
    "q2": {"p3": 3, "gone": 2, "p11": 1},
    "q9": {"p1": 1},
    "q3": {"p6": 1},
    "q4": {"p4": 0},
    "q6": {"p1": 2, "p5": 1},
}
# Scores that tie, also once they are narrowed to 32 bits; ranks that say something else; a question too many.
RUN = """\
q1 Q0 p0 9 1.0 x
q1 Q0 p9 1 1.0000000001 x
q1 Q0 p10 2 1.0 x
q1 Q0 p2 3 0.5 x
q0 Q0 p1 1 3 x
q0 Q0 p8 2 3 x
q0 Q0 p7 3 2 x
q2 Q0 p11 1 -1 x
q2 Q0 p3 1 -2 x
q6 Q0 p9 1 1 x
q7 Q0 p9 1 1 x
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("figures") / "tiny"
    (folder / "qrels").mkdir(parents=True)
    write_passages(folder / "corpus.jsonl", PASSAGES)
    write_questions(folder / "queries.jsonl", QUESTIONS)
    lines = [f"{key}\t{passage}\t{grade}\n" for key, of in QRELS.items() for passage, grade in of.items()]
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    (folder / "other.run").write_text(RUN)
    return folder


def of_file(file: Path) -> dict[str, Any]:
    found = read_metrics(file)
    assert found.each is not None
    return {"means": found.metrics, "questions": found.each.ids, "values": found.each.values}


def retrieved(folder: Path, out: Path, *more: str) -> dict[str, Any]:
    line = ["indexer=bm25", f"qa_dataset={folder / 'queries.jsonl'}"]
    line += [f"ctx_datasets=[{folder / 'corpus.jsonl'}]", f"metrics_file={out}"]
    assert retrieve([*line, *more]) == 0
    return of_file(out)


def validated(folder: Path, **options: str) -> RetrievalValidationSettings:
    files = {"corpus": "corpus.jsonl", "questions": "queries.jsonl", "qrels": "qrels/test.tsv"}
    return RetrievalValidationSettings(
        **{key: str(folder / name) for key, name in files.items()},
        **options,  # type: ignore[arg-type]
    )


def measured(folder: Path, tmp_path: Path) -> dict[str, Any]:
    qrels = folder / "qrels" / "test.tsv"
    found: dict[str, Any] = {}

    # k below and above the size of the corpus
    for k in (3, 100):
        found[f"retrieve {k}"] = retrieved(
            folder, tmp_path / "m.json", f"qrels={qrels}", "match=qrels", f"n_docs={k}"
        )
    found["retrieve answers"] = retrieved(folder, tmp_path / "m.json", "n_docs=20")
    found["retrieve both"] = retrieved(folder, tmp_path / "m.json", f"qrels={qrels}", "n_docs=20")
    found["retrieve regex"] = retrieved(folder, tmp_path / "m.json", "match=regex", "n_docs=5")

    assert evaluate([f"set={folder}", f"output_dir={tmp_path / 'judged'}", "systems=[bm25]"]) == 0
    found["evaluate"] = of_file(tmp_path / "judged" / "tiny" / "bm25.json")
    found["evaluate table"] = json.loads((tmp_path / "judged" / "results.json").read_text())["figures"]
    answers = tmp_path / "answers"
    answers.mkdir()
    for name in ("corpus.jsonl", "queries.jsonl"):
        (answers / name).write_bytes((folder / name).read_bytes())
    assert evaluate([f"set={answers}", f"output_dir={tmp_path / 'found'}", "systems=[bm25]"]) == 0
    found["evaluate answers"] = of_file(tmp_path / "found" / "answers" / "bm25.json")
    run = [f"run_file={folder / 'other.run'}", f"qrels={qrels}", f"metrics_file={tmp_path / 'run.json'}"]
    assert evaluate(run) == 0
    found["run file"] = of_file(tmp_path / "run.json")

    # in training BM25 stands beside the model, so that its figures do not depend on the weights
    model = tiny_model(encoder_folder(tmp_path / "encoder"), dtype=torch.float32)
    for match in ("auto", "string"):
        validation = RetrievalValidation(validated(folder, name="own", match=match))
        means = validation.at_start(model)
        found[f"validation {match}"] = {
            "means": {key: value for key, value in means.items() if key.startswith("eval/own/bm25/")},
            "values": {
                key: list(validation.values[key]) for key in means if key.startswith("eval/own/bm25/")
            },
        }
    return found


def test_figures_are_those_that_were_written_down(folder: Path, tmp_path: Path) -> None:
    found, expected = measured(folder, tmp_path), json.loads(FIGURES.read_text())
    assert found.keys() == expected.keys()
    for source, figures in expected.items():
        # Python 3.12 began to round sums of floats once
        nearly = json.loads(json.dumps(figures), parse_float=lambda one: pytest.approx(float(one), rel=1e-12))
        assert found[source] == nearly, source


def test_one_entry_is_all_that_a_new_metric_needs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files, tables, tests, training: the share of the first k that is relevant."""

    def precision(grades: Sequence[int], k: int) -> float:
        return sum(grade > 0 for grade in grades[:k]) / k

    entry = Metric("precision", precision, "P@{k}", cutoffs=(1, 2, 10))
    monkeypatch.setattr(ranking_metrics, "METRICS", [*METRICS, entry])
    qrels = f"qrels={folder / 'qrels' / 'test.tsv'}"
    found = retrieved(folder, tmp_path / "m.json", qrels, "match=qrels")
    assert found["values"]["precision@1"] == found["values"]["accuracy@1"]
    assert found["values"]["precision@2"][found["questions"].index("q1")] == 1
    assert "precision@10" in capsys.readouterr().out
    assert evaluate([f"set={folder}", f"output_dir={tmp_path / 'out'}", "systems=[bm25]"]) == 0
    assert "P@10" in capsys.readouterr().out
    assert "P@10" in (tmp_path / "out" / "results.md").read_text()
    assert (
        "precision@10"
        in json.loads((tmp_path / "out" / "results.json").read_text())["figures"]["tiny"]["bm25"]
    )
    assert compare([f"a={tmp_path / 'm.json'}", f"b={tmp_path / 'm.json'}"]) == 0
    assert "P@10" in capsys.readouterr().out
    names = RetrievalValidation(validated(folder, name="own")).names()
    assert "eval/own/precision@10" in names
