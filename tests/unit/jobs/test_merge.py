"""``dpr merge``: models between a model and what it was tuned to, and means of several."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dpr.core.errors import ConfigError, InputError
from dpr.core.records import Passage, Question
from dpr.export.towers import merged
from dpr.formats import checkpoints
from dpr.formats.corpora import write_passages
from dpr.formats.question_sets import write_qrels, write_questions
from dpr.jobs import merge
from dpr.jobs.merge import mixed
from dpr.models.biencoder import BiEncoder
from dpr.storage.durable import verify_folder
from tests.helpers.adapters import base_folder, randomize_adapters
from tests.helpers.jobs import raising
from tests.helpers.tiny import encoder_folder, make_samples, tiny_model

run = raising("merge")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, two models tuned from it, one of them badly, and dev questions."""
    place = tmp_path_factory.mktemp("merge")
    for name, seed in (("base", 0), ("tuned", 1), ("bad", 2)):
        model = tiny_model(place / "encoder", seed=seed, dtype=torch.float32, pooling="mean")
        with torch.no_grad():
            for tensor in model.weights().values():
                tensor.view(-1)[:3] = torch.tensor([0.0, -0.0, 1e-40] if seed else [-0.0, 0.0, 1e-40])
        model.save(place / name)
    for number, name in enumerate(("dev", "more")):
        (place / name / "qrels").mkdir(parents=True)
        samples = make_samples(8, seed=number)
        passages = {f"p{row}": sample.positives[0] for row, sample in enumerate(samples)}
        write_passages(
            place / name / "corpus.jsonl",
            [Passage(each.text, each.title, key) for key, each in passages.items()],
        )
        write_questions(
            place / name / "queries.jsonl",
            [Question(sample.question, f"q{row}") for row, sample in enumerate(samples)],
        )
        write_qrels(
            place / name / "qrels" / "dev.tsv", {f"q{row}": {f"p{row}": 1} for row in range(len(samples))}
        )
    return place


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    assert not verify_folder(folder)
    return checkpoints.read_tensors(folder, checkpoints.MODEL_FILE)


def candidates(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / merge.PROVENANCE).read_text())["candidates"]
    return found


def with_dev(place: Path, out: Path, *more: str) -> list[str]:
    return [
        f"base={place / 'base'}",
        f"tuned={place / 'tuned'}",
        f"out={out}",
        f"set={place / 'dev'}",
        "weights=0,0.5,1",
        "device=cpu",
        *more,
    ]


def between(base: Path, tuned: Path, out: Path, weight: float) -> int:
    return run([f"base={base}", f"tuned={tuned}", f"out={out}", f"weights={weight}"])


@pytest.mark.parametrize(("weight", "end"), [(0, "base"), (1, "tuned")])
def test_the_ends_are_the_models_bit_for_bit(place: Path, tmp_path: Path, weight: int, end: str) -> None:
    out = tmp_path / "out"
    assert between(place / "base", place / "tuned", out, weight) == 0
    assert (out / checkpoints.MODEL_FILE).read_bytes() == (place / end / checkpoints.MODEL_FILE).read_bytes()
    assert BiEncoder.load(out).fingerprint == BiEncoder.load(place / end).fingerprint


def test_between_the_ends_it_is_the_sum_in_float64(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert between(place / "base", place / "tuned", out, 0.3) == 0
    base, tuned = weights_of(place / "base"), weights_of(place / "tuned")
    for name, tensor in weights_of(out).items():
        assert torch.equal(tensor, (0.7 * base[name].double() + 0.3 * tuned[name].double()).float()), name
    assert json.loads((out / merge.PROVENANCE).read_text())["weights"] == {"tuned1": 0.3, "base": 0.7}


@pytest.fixture(scope="module")
def chosen(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("chosen") / "out"
    assert run(with_dev(place, out)) == 0
    return out


def test_dev_questions_choose(place: Path, chosen: Path, tmp_path: Path) -> None:
    tried = candidates(chosen)
    assert [line["weights"] for line in tried] == [{"tuned1": part, "base": 1 - part} for part in (0, 0.5, 1)]
    values = [line["metrics"]["ndcg@10"] for line in tried]
    assert len(set(values)) > 1, "the candidates differ"
    metadata = json.loads((chosen / merge.PROVENANCE).read_text())
    best = tried[values.index(max(values))]
    assert metadata["weights"] == best["weights"] and metadata["metrics"] == best["metrics"]
    base, tuned = weights_of(place / "base"), weights_of(place / "tuned")
    expected = mixed([tuned, base], [best["weights"][name] for name in ("tuned1", "base")])
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights_of(chosen).items())
    # What is measured is what dpr evaluate measures of the same model.
    line = [f"set={place / 'dev'}", "split=dev", "systems=[dense]", f"model_file={chosen}"]
    assert raising("evaluate")([*line, f"output_dir={tmp_path}"]) == 0
    measured = json.loads((tmp_path / "dev" / "dense.json").read_text())["metrics"]
    assert measured["ndcg@10"] == pytest.approx(best["metrics"]["ndcg@10"])


def test_the_same_command_again_does_nothing_and_another_is_refused(place: Path, chosen: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in chosen.rglob("*")}
    assert run(with_dev(place, chosen)) == 0
    assert {file: file.stat().st_mtime_ns for file in chosen.rglob("*")} == before
    with pytest.raises(InputError, match="already exists, made with another metric"):
        run(with_dev(place, chosen, "metric=mrr@10"))
    with pytest.raises(InputError, match="already exists, made with another models"):
        run([*with_dev(place, chosen)[:1], f"tuned={place / 'bad'}", *with_dev(place, chosen)[2:]])


def test_of_several_models_the_mean_is_taken_and_of_several_sets_the_mean_decides(
    place: Path, tmp_path: Path
) -> None:
    several = f"tuned={place / 'base'},{place / 'tuned'},{place / 'bad'}"
    assert run([several, f"out={tmp_path / 'mean'}"]) == 0
    expected = mixed([weights_of(place / name) for name in ("base", "tuned", "bad")], (1 / 3,) * 3)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights_of(tmp_path / "mean").items())

    line = [several, f"base={place / 'base'}", f"out={tmp_path / 'line'}", f"set={place}", "weights=0,1"]
    assert run([*line, "device=cpu"]) == 0
    last = candidates(tmp_path / "line")[-1]["metrics"]
    assert last["ndcg@10"] == pytest.approx((last["eval/dev/ndcg@10"] + last["eval/more/ndcg@10"]) / 2)


def test_adapters_are_merged_into_the_base(place: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    lora: dict[str, Any] = {"adapter": "lora", "pooling": "mean", "shared": True}
    base_folder(tmp_path / "bert")
    for seed, (name, rank) in enumerate((("one", 2), ("two", 4)), 1):
        model = BiEncoder.from_pretrained(
            str(tmp_path / "bert"), merge.EncoderSettings(sequence_length=24, **lora, lora_rank=rank)
        )
        torch.manual_seed(seed)
        randomize_adapters(model)
        model.save(tmp_path / name)
    one, two = (merged(BiEncoder.load(tmp_path / name)).weights() for name in ("one", "two"))
    base = BiEncoder.from_pretrained(
        str(tmp_path / "bert"), merge.EncoderSettings(sequence_length=24, pooling="mean", shared=True)
    ).weights()
    assert between(tmp_path / "bert", tmp_path / "one", tmp_path / "half", 0.5) == 0
    assert run([f"tuned={tmp_path / 'one'},{tmp_path / 'two'}", f"out={tmp_path / 'both'}"]) == 0
    for name, tensor in weights_of(tmp_path / "half").items():
        torch.testing.assert_close(tensor, (base[name] + one[name]) / 2, rtol=0, atol=1e-6)
    for name, tensor in weights_of(tmp_path / "both").items():
        torch.testing.assert_close(tensor, (one[name] + two[name]) / 2, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "config", "message"),
    [
        ({"pooling": "cls"}, {}, "its pooling is 'cls', that of .*tuned is 'mean'"),
        (
            {},
            {"intermediate_size": 64},
            r"its shape of \S*intermediate.dense.weight is \(64, 16\), that of .*tuned is \(32, 16\)",
        ),
    ],
)
def test_models_that_differ_otherwise_are_refused(
    place: Path, tmp_path: Path, settings: dict[str, Any], config: dict[str, Any], message: str
) -> None:
    folder = encoder_folder(tmp_path / "encoder", **config)
    tiny_model(folder, dtype=torch.float32, **{"pooling": "mean", **settings}).save(tmp_path / "other")
    with pytest.raises(InputError, match=message):
        between(tmp_path / "other", place / "tuned", tmp_path / "out", 0.5)
    assert not (tmp_path / "out").exists()


def test_another_tokenizer_is_refused(place: Path, tmp_path: Path) -> None:
    folder = encoder_folder(tmp_path / "encoder")
    words = (folder / "vocab.txt").read_text().split("\n")
    (folder / "vocab.txt").write_text("\n".join([*words[:20], *reversed(words[20:-1]), ""]))
    tiny_model(folder, dtype=torch.float32, pooling="mean").save(tmp_path / "other")
    with pytest.raises(InputError, match="its tokenizer's fingerprint is"):
        between(tmp_path / "other", place / "tuned", tmp_path / "out", 0.5)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["tuned=a", "out=b"], "base is not set, and tuned names one model"),
        (["tuned=a", "base=c", "out=b"], "one of 11 weights has to be chosen"),
        (["tuned=a", "base=c", "out=b", "weights=1.5"], r"weights=1\.5 is out of range"),
        ([], "metric=ndcg is not known; choose one of accuracy@1"),
    ],
)
def test_settings_that_say_nothing_are_refused(
    place: Path, tmp_path: Path, more: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(more or with_dev(place, tmp_path / "out", "metric=ndcg"))
