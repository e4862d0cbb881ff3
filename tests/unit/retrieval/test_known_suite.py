"""``dpr evaluate suite=known``: published collections as their files are."""

import json
import re
import shutil
from pathlib import Path

import pytest

from dpr.core.errors import ConfigError, InputError
from dpr.formats.corpora import write_passages
from dpr.formats.metrics_files import read_metrics
from dpr.formats.question_sets import read_qrels, read_questions, write_qrels, write_questions
from dpr.formats.text_input import read_yaml
from dpr.retrieval.suites import read_suite
from tests.architecture.source_files import REPOSITORY
from tests.helpers.jobs import evaluate as main
from tests.unit.retrieval.conftest import World

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


def arguments(data: Path, out: Path, *more: str) -> list[str]:
    return ["suite=known", f"data={data}", f"output_dir={out}", "n_docs=20", "no_cuda=true", *more]


def test_known_collections_are_read_as_they_are_published(
    world: World, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(arguments(data, out)) == 0
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
    assert main(arguments(data, Path("runs/known"), "systems=[bm25]")) == 0
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
