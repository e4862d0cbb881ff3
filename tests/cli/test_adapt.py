"""``dpr adapt`` and ``dpr quickstart`` make texts searchable without labels; rerun, they do only what has changed."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpr import BiEncoder, Retriever
from dpr.adaptation.choices import AdaptTexts, chosen_weight, clearly_best, training_settings
from dpr.adaptation.settings import AdaptSettings
from dpr.cli.main import main
from dpr.evaluation.ranking_metrics import values_of
from dpr.formats.question_sets import read_qrels
from dpr.training.settings import TrainNode
from tests.helpers.tiny import sentence, tiny_model

STAGES = ["prepare", "new-encoder", "train", "embed", "embed", "retrieve"]
QUICKSTART_STAGES = [*STAGES, *["retrieve"] * 3]


def write_corpus(file: Path) -> None:
    rng = random.Random(3)
    with file.open("w") as out:
        for number in range(60):
            row = {"_id": f"d{number}", "title": sentence(rng, 3)}
            row["text"] = " ".join(f"{sentence(rng, 8).capitalize()}." for _ in range(4))
            out.write(json.dumps(row) + "\n")


def write_test_set(folder: Path) -> None:
    folder.mkdir()
    write_corpus(folder / "corpus.jsonl")
    rows = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()][:20]
    (folder / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": f"q{row['_id']}", "text": row["title"]}) + "\n" for row in rows)
    )
    (folder / "qrels").mkdir()
    judged = "".join(f"q{row['_id']}\t{row['_id']}\t1\n" for row in rows)
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)


def test_a_corpus_becomes_a_run_that_can_be_searched_and_nothing_is_made_twice(
    commands: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "my, corpus.jsonl"
    write_corpus(corpus)
    line = ["adapt", corpus.name, "out=runs/x", "device=cpu", "max_pairs=64"]
    assert main(line) == 0
    assert commands == STAGES
    told = capsys.readouterr().out
    for expected in ("used to choose the weight, not to measure quality", "with weight", "dpr search runs/x"):
        assert expected in told, expected
    run = Path("runs") / "x"
    metadata, search = (
        json.loads((run / "adapted.json").read_text()),
        json.loads((run / "search.json").read_text()),
    )
    assert search["hybrid_weight"] == metadata["hybrid_weight"]
    config = json.loads(next((run / "model").glob("*.step*/config.json")).read_text())
    assert config["loss"]["temperature"] == 0.15
    assert config["datasets"]["corpus"]["held_back"] == 0.1

    text = json.loads(corpus.read_text().splitlines()[17])["text"]
    assert main(["search", str(run), text]) == 0
    assert capsys.readouterr().out.splitlines()[0].lstrip().startswith("1.")
    assert main(["export", f"model_file={run}", "to=sentence-transformers", "out=exported"]) == 0
    assert main(["embed", f"model_file={run}", f"ctx_src={corpus.name}", "out_file=again"]) == 0

    commands.clear()
    write_test_set(tmp_path / "asked")
    assert main(line) == 0
    assert commands == []
    assert main(["evaluate", f"run={run}", "set=asked", "no_cuda=true"]) == 0
    assert "asked" in capsys.readouterr().out
    result = json.loads((run / "evaluation" / "asked" / "hybrid.json").read_text())
    assert result["hybrid_weight"] == search["hybrid_weight"]
    assert main(["verify", str(run)]) == 0

    Path("few.jsonl").write_text("".join(corpus.read_text().splitlines(keepends=True)[:15]))
    assert main(["adapt", "few.jsonl", "device=cpu"]) == 3
    assert "has 15 passages, too few to train on" in capsys.readouterr().err


def test_a_backbone_alone_is_trained_on(commands: list[str], tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus.jsonl")
    model = tiny_model(tmp_path / "base", dtype=torch.float32)
    model.ctx_model.backbone.save_pretrained(tmp_path / "base")
    assert main(["adapt", "corpus.jsonl", "model_file=base", "device=cpu", "max_pairs=64"]) == 0
    assert commands == ["prepare", "train", "embed", "embed", "retrieve"]
    config = next((tmp_path / "runs" / "corpus" / "model").glob("*.step*/config.json"))
    assert json.loads(config.read_text())["loss"]["temperature"] == 0.05


def test_a_trained_model_gets_a_linear_layer_and_keeps_its_weights(
    commands: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_corpus(tmp_path / "corpus.jsonl")
    given = tiny_model(
        tmp_path / "base", pooling="mean", normalize=True, shared=True, plain_apostrophes=False
    )
    given.save(tmp_path / "given")
    line = ["adapt", "corpus.jsonl", "model_file=given", "device=cpu", "max_pairs=64", "out=runs/x"]
    assert main(line) == 0
    assert commands == ["adapt", "embed"]
    assert "The hybrid weights the encoder by 0.5" in capsys.readouterr().out

    adapted = BiEncoder("runs/x")
    before = given.ctx_model.backbone.state_dict()
    after = adapted.ctx_model.backbone.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    layer = adapted.ctx_model.encode_proj
    assert layer is not None and not torch.equal(layer.weight, torch.eye(given.dimension))
    text = json.loads((tmp_path / "corpus.jsonl").read_text().splitlines()[17])["text"]
    assert main(["search", "runs/x", text]) == 0
    assert capsys.readouterr().out.splitlines()[0].lstrip().startswith("1.")
    assert main(["export", "model_file=runs/x", "to=sentence-transformers", "out=exported"]) == 0

    commands.clear()
    assert main(line) == 0
    assert commands == []
    assert main([*line, "seed=1"]) == 0
    assert commands == ["adapt", "embed"]
    assert not torch.equal(BiEncoder("runs/x").ctx_model.encode_proj.weight, layer.weight)
    commands.clear()
    assert main(["adapt", "corpus.jsonl", "device=cpu", "max_pairs=64", "out=runs/x"]) == 0
    assert commands == STAGES


@pytest.mark.parametrize("normalize", [True, False])
def test_static_towers_learn_the_vectors_of_a_model(
    commands: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], normalize: bool
) -> None:
    write_corpus(tmp_path / "corpus.jsonl")
    given = tiny_model(
        tmp_path / "base",
        dtype=torch.float32,
        pooling="mean",
        normalize=normalize,
        shared=True,
        plain_apostrophes=False,
        title_template="{title} {text}",
        query_prompt="ba be ",
    )
    given.save(tmp_path / "given")
    texts = [json.loads(row)["text"] for row in (tmp_path / "corpus.jsonl").read_text().splitlines()]
    questions = [" ".join(text.split()[:4]) for text in texts]
    wanted = torch.tensor(given.encode_questions(questions))

    def explained(vectors: Any) -> float:
        """The share of the variance of the model's vectors that these have."""
        apart = (torch.tensor(vectors) - wanted).square().sum()
        return 1 - float(apart / (wanted - wanted.mean(0)).square().sum())

    line = ["adapt", "corpus.jsonl", "model=given", "device=cpu", "out=runs/x"]
    assert main([*line, "static=questions"]) == 0
    assert commands == ["adapt", "embed"]
    table = BiEncoder("runs/x")
    assert table.question_model.config.model_type == "static"
    assert explained(table.encode_questions(questions)) > 0.5
    assert np.array_equal(table.encode_passages(texts), given.encode_passages(texts))

    assert main([*line, "static=both"]) == 0
    assert commands == ["adapt", "embed"] * 2
    both = BiEncoder("runs/x")
    assert both.question_model is both.ctx_model and both.ctx_model.config.model_type == "static"
    assert both.tensorizer.text == given.tensorizer.text and both.settings.normalize == normalize
    assert np.array_equal(both.encode_questions(questions), table.encode_questions(questions))
    assert main(["search", "runs/x", questions[17]]) == 0
    if normalize:
        assert main(["export", "model_file=runs/x", "to=sentence-transformers", "out=exported"]) == 0
    assert main([*line, "static=both"]) == 0
    assert commands == ["adapt", "embed"] * 2
    assert main(["verify", "runs/x"]) == 0

    # what was damaged since is made again, as it was
    stored = next(Path("runs/x/model").rglob("model.safetensors"))
    content = stored.read_bytes()
    stored.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    capsys.readouterr()
    assert main(["verify", "runs/x"]) == 3
    assert main([*line, "static=both"]) == 0
    assert commands == ["adapt", "embed"] * 3 and stored.read_bytes() == content


LABELLED = ["adapt", "train", "merge", "embed", "embed", "embed", "adapt", "adapt", "adapt"]


def write_labels(file: Path, count: int, *, corpus: str = "corpus.jsonl") -> None:
    """Labelled questions: some words of each passage in turn."""
    rng = random.Random(count)
    texts = [json.loads(row)["text"] for row in Path(corpus).read_text().splitlines()]
    rows = [(" ".join(rng.sample(texts[row % 60].split(), 5)), texts[row % 60]) for row in range(count)]
    file.write_text("".join(f"{question}\t{text}\n" for question, text in rows))


def test_labelled_questions_tune_the_model_and_choose_what_is_searched(
    commands: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_corpus(tmp_path / "corpus.jsonl")
    write_labels(tmp_path / "labels.tsv", 240)
    tiny_model(tmp_path / "base", pooling="mean", normalize=True, shared=True).save(tmp_path / "given")
    line = ["adapt", "corpus.jsonl", "model=given", "train=labels.tsv", "device=cpu", "out=runs/x"]
    assert main(line) == 0
    assert commands == LABELLED
    told = capsys.readouterr().out
    assert "test questions, with 95 % intervals:" in told and "over BM25 alone" in told
    assert "With more labels" in told
    made, search = (json.loads(Path("runs/x", name).read_text()) for name in ("adapted.json", "search.json"))
    assert made["hybrid_weight"] == search["hybrid_weight"] < 0.5  # words find most, random weights little
    assert f"Search with the hybrid of the {made['model']} and BM25" in told or "alone: nDCG@10" in told
    # the table has the figures of the metrics files, and the folder searches as they were measured
    name = f"{made['model'].replace(' ', '_')}_{made['hybrid_weight']:g}.json"
    measured = json.loads(Path("runs/x/test", name).read_text())
    assert f"{measured['metrics']['ndcg@10']:.3f}" in told
    found = Retriever.open("runs/x").search(measured["per_question"]["questions"], k=10)
    judged = read_qrels("runs/x/data/texts/test_qrels.tsv")
    run = {
        key: [(hit.id, hit.score) for hit in hits]
        for key, hits in zip(measured["per_question"]["ids"], found, strict=True)
    }
    again = values_of(run, judged, ["ndcg@10"])
    assert [again[key]["ndcg@10"] for key in run] == measured["per_question"]["values"]["ndcg@10"]
    assert main(["compare", "runs/x/test/base_model_0.json", "runs/x/test/base_model_1.json"]) == 0
    assert main(["verify", "runs/x"]) == 0

    commands.clear()
    assert main(line) == 0 and commands == []
    assert main([*line, "static=both"]) == 0
    assert commands == [*LABELLED[:-1], "embed", "adapt", "adapt"]
    assert "static encoder" in capsys.readouterr().out
    assert BiEncoder("runs/x").ctx_model.config.model_type == "static"

    commands.clear()
    write_labels(tmp_path / "labels.tsv", 40)
    capsys.readouterr()
    assert main(line) == 0 and commands == ["adapt", "embed", "adapt"]
    assert "a choice needs 12 dev questions, and there are 0" in capsys.readouterr().out
    assert json.loads(Path("runs/x/adapted.json").read_text()) == {
        "model": "base model",
        "hybrid_weight": 0.5,
    }
    commands.clear()
    write_labels(tmp_path / "labels.tsv", 41)
    assert main(line) == 0 and commands == ["adapt", "embed", "adapt"]
    write_labels(tmp_path / "labels.tsv", 80)
    assert main([*line, "test=labels.tsv"]) == 3
    write_labels(tmp_path / "test.tsv", 30)
    assert main([*line, "test=test.tsv"]) == 0
    assert "30 test questions" in capsys.readouterr().out


def write_documents(folder: Path) -> None:
    rng = random.Random(5)
    folder.mkdir()
    for number in range(6):
        sections = (
            f"## {sentence(rng, 4)}\n\n" + " ".join(f"{sentence(rng, 9).capitalize()}." for _ in range(3))
            for _ in range(12)
        )
        (folder / f"page{number}.md").write_text(f"# {sentence(rng, 4)}\n\n" + "\n\n".join(sections))
    (folder / "broken.txt").write_bytes(b"\0")


def test_a_folder_becomes_a_run_that_can_be_searched_and_only_what_changes_is_made_again(
    commands: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_documents(tmp_path / "docs")
    line = ["quickstart", "docs", "device=cpu"]
    assert main(line) == 0
    assert commands == QUICKSTART_STAGES
    said = capsys.readouterr()
    assert len((said.out + said.err).splitlines()) < 40
    log = (tmp_path / "runs" / "docs" / "log.txt").read_text()
    for command in ("prepare", "new-encoder", "train", "embed", "retrieve"):
        assert f" D $ dpr {command} " in log
    assert "epoch 0 step " in log and "epoch 0 step " not in said.err
    told = said.out
    for expected in ("1 files could not be read", "uses the hybrid by default", "dpr search runs/docs"):
        assert expected in told, expected
    assert told.index("favours the encoder") < told.index("MRR@10"), "before the figures"
    run = tmp_path / "runs" / "docs"
    compared = json.loads((run / "compared.json").read_text())
    assert compared["num_questions"] == 18 and set(compared["runs"]) == {"BM25", "encoder", "hybrid"}
    assert "favours the encoder" in (run / "report.html").read_text()

    passage = json.loads((run / "data" / "texts" / "corpus.jsonl").read_text().splitlines()[17])
    assert main(["search", str(run), passage["text"]]) == 0
    assert capsys.readouterr().out.splitlines()[0].lstrip().startswith("1.")
    assert main(["search", str(run), "--mode", "bm25", "--top", "1", passage["text"]]) == 0
    assert passage["title"] in capsys.readouterr().out

    commands.clear()
    assert main(line) == 0
    assert commands == []
    capsys.readouterr()
    (tmp_path / "docs" / "broken.txt").write_text("Now it says something of use to those who look for it.")
    assert main(line) == 0
    assert commands == QUICKSTART_STAGES
    told = capsys.readouterr()
    assert "could not be read" not in told.out
    assert "and all later stages: " in told.err


def test_given_questions_of_a_folder_tune_a_given_model(
    commands: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_documents(tmp_path / "docs")
    tiny_model(tmp_path / "base", pooling="mean", normalize=True, shared=True).save(tmp_path / "given")
    rng = random.Random(1)
    texts = [
        text for page in (tmp_path / "docs").glob("*.md") for text in page.read_text().split("\n\n")[2::2]
    ]
    rows = [f"{' '.join(rng.sample(text.split(), 4))}?\t{text.strip()}\n" for text in texts * 2]
    (tmp_path / "faq.tsv").write_text("".join(rows))
    assert main(["quickstart", "docs", "questions=faq.tsv", "encoder=given", "device=cpu"]) == 0
    assert commands == ["prepare", *LABELLED[1:]]
    told = capsys.readouterr().out
    assert "36 test questions, with 95 % intervals:" in told and "favours the encoder" not in told
    assert main(["search", "runs/docs", texts[0]]) == 0


def test_a_folder_with_too_few_questions_is_searched_by_bm25(
    commands: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    for name in ("one", "two", "three"):
        (tmp_path / "docs" / f"{name}.md").write_text(
            f"# Page {name}\n\nThis page tells of {name} and of nothing else at all.\n"
        )
    assert (
        main(["quickstart", str(tmp_path / "docs" / "one.md")]) == 3
        and "is a file" in capsys.readouterr().err
    )
    (tmp_path / "runs" / "docs" / "data" / "texts").mkdir(parents=True)
    assert (
        main(["search", "runs/docs", "two"]) == 3 and "unfinished dpr quickstart" in capsys.readouterr().err
    )
    (tmp_path / "runs" / "docs" / "data" / "texts").rmdir()
    assert main(["quickstart", "docs"]) == 0 and commands == ["prepare"]
    assert "BM25 searches them" in capsys.readouterr().out
    assert main(["search", "runs/docs", "tells of two"]) == 0
    assert "two.md" in capsys.readouterr().out
    commands.clear()
    assert main(["quickstart", "docs"]) == 0 and not commands


def test_what_cannot_work_is_said_before_any_work(
    commands: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    cases = {
        "adapt out=runs/x": "corpus is not set",
        "adapt none.tsv": "corpus=none.tsv does not exist",
        "adapt docs": "dpr quickstart docs",
        "adapt docs processes=3": "expected 1, 2, 4, 8 or 16",
        "adapt corpus.jsonl model_file=docs": "model_file=docs holds no model.safetensors",
        "adapt corpus.jsonl static=both": "static=both needs model_file",
        "adapt corpus.jsonl train=corpus.jsonl": "train=corpus.jsonl needs model_file",
        "adapt corpus.jsonl model=backbone test=corpus.jsonl": "test=corpus.jsonl needs train",
        "adapt corpus.jsonl model=backbone train=no.tsv": "train=no.tsv does not exist",
        "adapt corpus.jsonl model=backbone train=corpus.jsonl": "does not state how a text becomes a vector",
        "adapt corpus.jsonl static=both model_file=backbone": "does not state how a text becomes a vector",
        "adapt corpus.jsonl model_file=backbone out=.": "model_file=backbone is inside out=., which this command replaces",
        "adapt corpus.jsonl out=trained": "out=trained holds a training run (model.step5); name a new folder",
        "quickstart docs encoder=./none": "encoder=./none: there is no such file or folder",
        "quickstart none": "no such folder",
        "quickstart docs": "holds no documents",
        "quickstart docs out=docs/run": "whose files are read",
        "quickstart docs questions=no.tsv": "questions=no.tsv does not exist",
        "quickstart docs words=5": "words=5 is out of range; it must be at least 20",
    }
    write_corpus(tmp_path / "corpus.jsonl")
    tiny_model(tmp_path / "backbone").ctx_model.backbone.save_pretrained(tmp_path / "backbone")
    (tmp_path / "trained" / "model.step5").mkdir(parents=True)
    (tmp_path / "trained" / "run.json").write_text("{}")
    for words, expected in cases.items():
        assert main(words.split()) in (2, 3)
        assert expected in capsys.readouterr().err, words
    assert commands == []


@pytest.mark.parametrize(
    ("values", "weight"),
    [
        ({0: 0.9, 0.2: 0.5, 0.4: 0.5, 0.6: 0.5, 1: 0.9}, 0.4),  # no difference
        ({0.2: 0.5, 0.4: 0.45, 0.6: 0.4}, 0.2),
        ({0.2: 0.3, 0.4: 0.4, 0.5: 0.45, 0.55: 0.46, 0.6: 0.47, 1: 0.9}, 0.5),
    ],
)
def test_the_weight_stays_in_bounds_and_near_the_default(values: dict[float, float], weight: float) -> None:
    assert chosen_weight(values) == weight


def test_batches_leave_steps_to_learn_in_and_pairs_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = AdaptTexts(tmp_path, tmp_path / "corpus.tsv", tmp_path / "corpus.tsv", {})

    def made(passages: int, **given: Any) -> TrainNode:
        monkeypatch.setattr(AdaptTexts, "counts", lambda self: {"passages": passages})
        config = AdaptSettings(out=str(tmp_path), **given)
        return training_settings(config, texts).train

    sizes = [20, 120, 1400, 25_000, 10_000_000]
    assert [made(size).batch_size for size in sizes] == [16, 32, 512, 1024, 1024]
    pairs = [made(size).batch_size * made(size).max_steps for size in sizes]
    assert pairs == [8192, 8192, 22_528, 131_072, 131_072]
    assert made(25_000, model_file=str(tmp_path)).batch_size == 32
    for size in (20, 25_000):  # processes share the batch of one
        many = made(size, processes=16)
        assert many.batch_size * 16 == many.global_batch_size == made(size).batch_size
        assert replace(many, batch_size=1) == replace(made(size), batch_size=1)


def test_the_hybrid_is_searched_unless_another_is_clearly_better_on_real_questions() -> None:
    assert clearly_best({"bm25": 0.5, "dense": 0.4, "hybrid": 0.49}, "hybrid") == "hybrid"
    assert clearly_best({"bm25": 0.5, "dense": 0.4, "hybrid": 0.47}, "hybrid") == "bm25"
    assert clearly_best({"bm25": 0.5, "dense": 0.6, "hybrid": 0.55}, "hybrid") == "dense"
