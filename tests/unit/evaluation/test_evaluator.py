"""Figures of retrieval, evaluation and validation: to the last digit on tiny data, by hand, in any case of ties."""

import json
import math
import random
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from dpr.core.errors import InputError
from dpr.core.records import Passage, Question
from dpr.evaluation import answer_match, ranking_metrics
from dpr.evaluation.answer_match import has_answer, match_hits, warn_of_empty_answers
from dpr.evaluation.ranking_metrics import (
    CUTOFFS,
    METRICS,
    Metric,
    Qrels,
    Run,
    evaluate_questions,
    format_table,
    mean_metrics,
)
from dpr.formats.corpora import write_passages
from dpr.formats.metrics_files import read_metrics
from dpr.formats.question_sets import write_questions
from dpr.training.validations.retrieval import RetrievalValidation, RetrievalValidationSettings
from tests.helpers.jobs import compare, evaluate, retrieve
from tests.helpers.patience import patient
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


def evaluate_run(run: Run, qrels: Qrels, cutoffs: Iterable[int] = CUTOFFS) -> dict[str, float]:
    return mean_metrics(evaluate_questions(run, qrels, cutoffs))


def test_metrics_by_hand() -> None:
    qrels = {"q": {"a": 2, "b": 1, "z": 0}}
    run = {"q": [("x", 3.0), ("b", 2.0), ("a", 1.0)]}
    values = evaluate_run(run, qrels, cutoffs=(1, 2, 3))
    ideal = 2 + 1 / math.log2(3)
    assert values == pytest.approx(
        {
            "accuracy@1": 0, "accuracy@2": 1, "accuracy@3": 1,
            "recall@1": 0, "recall@2": 0.5, "recall@3": 1,
            "mrr@1": 0, "mrr@2": 0.5, "mrr@3": 0.5,
            "ndcg@1": 0, "ndcg@2": (1 / math.log2(3)) / ideal, "ndcg@3": (1 / math.log2(3) + 2 / 2) / ideal,
            "map": (1 / 2 + 2 / 3) / 2,
        }
    )  # fmt: skip
    by_passage = {"q": {"b": 2.0, "a": 1.0, "x": 3.0}}
    assert mean_metrics(evaluate_questions(by_passage, qrels, (1, 2, 3))) == values


@pytest.mark.parametrize("rank", [1, 2, 3, 9, 10, 11, 99, 100, 101])
def test_reciprocal_rank_stops_exactly_at_the_cutoff(rank: int) -> None:
    run = {"q": [(f"n{number}", 1.0) for number in range(1, rank)] + [("gold", 0.0)]}
    values = evaluate_run(run, {"q": {"gold": 1}}, cutoffs=(1, 2, 10, 100))
    for k in (1, 2, 10, 100):
        assert values[f"mrr@{k}"] == pytest.approx(1 / rank if rank <= k else 0)


def test_the_order_of_the_list_counts_not_ties_or_narrowed_scores() -> None:
    for first, second in ((1.0, 1.0), (1.00000001, 1.0), (float("inf"), 5.0), (0.0, 1.0)):
        run = {"q": [("a_gold", first), ("z_other", second)]}
        assert evaluate_run(run, {"q": {"a_gold": 1}}, cutoffs=(1,))["accuracy@1"] == 1


def test_a_judged_question_without_hits_counts_as_zero() -> None:
    qrels = {"q1": {"a": 1}, "q2": {"a": 1}, "q3": {"a": 1}, "unanswerable": {"a": 0}}
    values = evaluate_run({"q1": [("a", 1.0)], "q2": []}, qrels, cutoffs=(10,))
    assert values["recall@10"] == pytest.approx(1 / 3)


def test_no_judged_question_and_repeated_passages_are_refused() -> None:
    with pytest.raises(InputError, match="no question"):
        evaluate_run({"q": [("a", 1.0)]}, {"other": {"a": 0}})
    with pytest.raises(InputError, match="'q'"):
        evaluate_run({"q": [("a", 1.0), ("a", 0.5)]}, {"q": {"a": 1}})


def test_a_table_lines_up() -> None:
    table = format_table(
        {"BM25": {"accuracy@20": 0.75123}, "hybrid": {"accuracy@20": 0.8, "mrr@10": 0.5}},
        {"accuracy@20": "top-20", "mrr@10": "MRR@10"},
    )
    assert table.splitlines() == [
        "        top-20  MRR@10",
        "------  ------  ------",
        "BM25     0.751       -",
        "hybrid   0.800   0.500",
    ]


@pytest.mark.parametrize(
    ("answer", "text", "expected"),
    [
        ("new york", "the NEW  York\tTimes", True),
        ("art", "a party of artists", False),  # whole tokens, never parts of them
        ("U.S.", "the u. s. army", True),  # every mark is a token of its own, spaces do not matter
        ("U.S.", "the US army", False),
        ("don't", "do n't", False),
        ("caf\u00e9", "at the cafe\u0301", True),  # NFD: composed and decomposed are the same
        ("cafe", "at the caf\u00e9", False),  # accents are kept
        # marks belong to the run
        ("\u0939\u093f\u0928\u094d\u0926\u0940", "\u0939\u093f\u0928\u094d\u0926\u0940 text", True),
        ("a_b", "a _ b", True),  # underscore is no letter
        ("\u00c5NGSTR\u00d6M", "\u00e5ngstr\u00f6m", True),
        # capital sigma: final in the token, not in the text
        ("\u039f\u0394\u039f\u03a3", "\u039f\u0394\u039f\u03a3.\u0391", True),
        # a sigma that is not final is another letter
        ("\u03bf\u03b4\u03bf\u03c3", "\u039f\u0394\u039f\u03a3", False),
    ],
)
def test_string_match(answer: str, text: str, expected: bool) -> None:
    assert has_answer([answer], text, "string") is expected


def test_string_match_equals_a_slow_search_for_the_token_list() -> None:
    rng = random.Random(0)
    alphabet = ["a", "b", "A", " ", ".", "-", "e\u0301", "1", "\n"]
    matches = 0
    for _ in range(3000):
        text = "".join(rng.choices(alphabet, k=rng.randrange(12)))
        answer = "".join(rng.choices(alphabet, k=rng.randrange(4)))
        words, wanted = slow_tokens(text), slow_tokens(answer)
        expected = bool(wanted) and any(
            words[start : start + len(wanted)] == wanted for start in range(len(words) - len(wanted) + 1)
        )
        assert has_answer([answer], text) is expected, (answer, text)
        matches += expected
    assert 200 < matches < 2700


def slow_tokens(text: str) -> list[str]:
    tokens: list[str] = []
    in_run = False
    for character in text.lower():
        is_word = character.isalnum() or character == "\u0301"
        if is_word and in_run:
            tokens[-1] += character
        elif not character.isspace():
            tokens.append(character)
        in_run = is_word
    return tokens


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        (r"19\d\d", "born in 1972", True),
        (r"^second", "first\nSECOND line", True),
        (r"first$", "First\nsecond", True),
        (r"\bart\b", "party", False),
        ("caf\u00e9", "cafe\u0301", True),
        (r"(unclosed", "(unclosed", False),
    ],
)
def test_regex_match(pattern: str, text: str, expected: bool) -> None:
    assert has_answer([pattern], text, "regex") is expected


def test_any_of_the_answers_is_enough_and_none_without_answers() -> None:
    assert has_answer(["no", "yes"], "yes indeed")
    assert not has_answer([], "yes indeed")
    assert not has_answer(["(", "z"], "yes", "regex")
    assert has_answer(["(", "y"], "yes", "regex")


def test_a_pattern_that_explodes_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_match, "REGEX_TIMEOUT_S", 0.2)
    start = time.monotonic()
    assert not has_answer([r"(x+x+)+(?<!x)y"], "x" * 5000 + "z", "regex")
    assert time.monotonic() - start < patient(2)


@pytest.mark.parametrize("kind", ["string", "regex"])
@pytest.mark.parametrize("answer", ["", " ", "\n\t", "\u200b", "\u00a0\u2028", "\x00"])
def test_an_empty_answer_matches_nothing_and_is_said(
    answer: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    text = "Élan is \u200b a\u00a0word\n\t\u2028\x00 of a text"
    assert not has_answer([answer], text, kind)
    assert has_answer([answer, "word"], text, kind)
    assert match_hits([[answer], [answer, "of"]], [["p"], ["p"]], {"p": text}, kind=kind) == [[False], [True]]
    warn_of_empty_answers([Question("q", "a", ("x",), 1), Question("r", "b", ("y", answer), 7)])
    assert "1 answers are empty" in caplog.text and "line 7" in caplog.text
