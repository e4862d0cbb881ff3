"""Questions that are passages of the corpus are named, and left out among their own hits on request."""

import json
from pathlib import Path

import pytest

from dpr.cli.main import main
from dpr.formats.metrics_files import read_metrics
from dpr.formats.results import read_trec_run

NAMES = "rivers mountains planets cheese bridges".split()
TEXTS = [f"The {name} of the {side} are old" for side in ("north", "south") for name in NAMES]


def beir_set(folder: Path, *, key: str, text: str) -> Path:
    """Every question asks for the other passage about its subject; number 3 is ``key`` and reads ``text``."""
    (folder / "qrels").mkdir(parents=True)
    passages = [json.dumps({"_id": f"d{row}", "text": each}) + "\n" for row, each in enumerate(TEXTS)]
    (folder / "corpus.jsonl").write_text("".join(passages))
    questions = [
        (key if row == 3 else f"q{row}", text if row == 3 else f"which {name} are old")
        for row, name in enumerate(NAMES)
    ]
    (folder / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": name, "text": each}) + "\n" for name, each in questions)
    )
    judged = "".join(f"{name}\td{row + 5}\t1\n" for row, (name, _) in enumerate(questions))
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    return folder


def retrieved(folder: Path, *more: str) -> float:
    """accuracy@1 of the question that may be a passage."""
    line = [f"qa_dataset={folder / 'queries.jsonl'}", f"qrels={folder / 'qrels' / 'test.tsv'}"]
    line += [f"ctx_datasets=[{folder / 'corpus.jsonl'}]", f"metrics_file={folder / 'm.json'}", "n_docs=4"]
    assert main(["retrieve", "indexer=bm25", *line, *more]) == 0
    each = read_metrics(folder / "m.json").each
    assert each is not None
    return float(each.values["accuracy@1"][3] or 0)


@pytest.mark.parametrize(
    ("key", "text", "is_said"),
    [
        ("d3", TEXTS[3], True),
        ("d0", "which cheese are old", False),  # a question and a passage may both be number 1
        ("d8", TEXTS[8], False),  # judged right
    ],
    ids=["own id", "equal ids alone", "right"],
)
def test_a_question_that_is_a_passage_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, text: str, is_said: bool
) -> None:
    folder = beir_set(tmp_path / "set", key=key, text=text)
    retrieved(folder)
    assert (
        "the first hit of 1 of 5 questions has the question's own id" in capsys.readouterr().err
    ) == is_said
    (tmp_path / "suite.yaml").write_text("sets: {kept: set, left: {folder: set, skip_same_id: true}}")
    out = tmp_path / "out"
    assert main(["evaluate", f"suite={tmp_path / 'suite.yaml'}", f"output_dir={out}", "n_docs=4"]) == 0
    assert capsys.readouterr().err.count("skip_same_id") == is_said
    kept, left = (read_trec_run(out / name / "bm25.run")[key] for name in ("kept", "left"))
    rest = [score for passage, score in kept if passage != key]
    assert [score for _, score in left][: len(rest)] == rest and len(left) == 4 and key not in dict(left)


def test_retrieve_leaves_out_hits_of_the_questions_own_id(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = beir_set(tmp_path / "set", key="d3", text=TEXTS[3])
    assert retrieved(folder) == 0
    capsys.readouterr()
    assert retrieved(folder, "skip_same_id=true") == 1
    assert "passages of the corpus" not in capsys.readouterr().err
