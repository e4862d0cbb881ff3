"""The Python of docs/extending.md runs as it stands there, and so do the settings beside it."""

import json
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dpr.cli.main import main as dpr
from dpr.formats.training_files.dpr import write_training_set
from dpr.models.biencoder import BiEncoder
from dpr.models.pooling import MeanPooling
from dpr.models.settings import EncoderSettings
from dpr.training.validations.protocol import Metrics, Validation
from tests.architecture.source_files import REPOSITORY
from tests.helpers.jobs import train as main
from tests.helpers.processes import run_on_ranks
from tests.helpers.tiny import encoder_folder, make_samples, training_folder
from tests.helpers.training import assert_near, assert_same_bits, stored
from tests.invariants.test_one_gradient import Symmetric

PAGE = (REPOSITORY / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCKS: dict[str, str] = dict(re.findall(r"```python\n# (\w+\.py)\n(.+?)```", PAGE, re.DOTALL))
SMALL = (
    "encoder.pretrained_model_cfg=tiny encoder.pretrained=false encoder.sequence_length=24 train.batch_size=4"
    " train.num_workers=0 train.log_batch_step=1 train.warmup_steps=0 train.num_train_epochs=1 device=cpu"
    " train_datasets=train.json"
).split()


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    encoder_folder(Path("tiny"))
    write_training_set(Path("train.json"), make_samples(12))
    write_training_set(Path("dev.json"), make_samples(5, seed=1))
    for name, code in BLOCKS.items():
        Path(name).write_text(code)
    yield tmp_path
    for name in BLOCKS:
        sys.modules.pop(name.removesuffix(".py"), None)


def lines(folder: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]


def test_the_page_has_its_examples_each_under_twenty_lines() -> None:
    own = ["my_callbacks.py", "my_data.py", "my_loss.py", "my_pooling.py", "my_terms.py", "my_validation.py"]
    assert sorted(BLOCKS) == ["early_stopping.py", *own]
    for name, code in BLOCKS.items():
        assert len([line for line in code.splitlines() if line.strip()]) < 20, name


def test_own_callback_from_the_command_line_and_over_a_restart(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train.callbacks=[my_callbacks:CountQuestions]", "output_dir=runs/mine", *SMALL]
    assert main([*arguments, "train.max_steps=2"]) == 0
    assert main(arguments) == 0
    assert "GiB  my/questions_seen 12  ETA" in capsys.readouterr().err
    assert [line["my/questions_seen"] for line in lines("runs/mine")] == [4, 8, 12]


def test_early_stopping(capsys: pytest.CaptureFixture[str]) -> None:
    code = BLOCKS["early_stopping.py"]
    # The same lines, with a small untrained encoder in place of the published one, and an improvement nobody
    # can reach.
    wanted = '"bert-base-uncased"', "min_delta=0.01", "num_train_epochs=40,"
    assert all(word in code for word in wanted)
    code = code.replace(wanted[0], '"tiny", EncoderSettings(sequence_length=24), pretrained=False')
    code = code.replace(wanted[1], "min_delta=100.0").replace(wanted[2], "num_train_epochs=40, batch_size=4,")
    Path("early_stopping.py").write_text("from dpr import EncoderSettings\n" + code)
    variables = runpy.run_path("early_stopping.py")
    trainer = variables["trainer"]
    assert trainer.progress.step == 3 * trainer.steps_per_epoch < trainer.total_steps
    stored = sorted(path.name for path in Path("runs/stopped").glob("*.step*"))
    assert trainer.progress.best_checkpoint in stored


def test_user_defined_validation_and_loss_from_the_command_line() -> None:
    validation = "train.validation=[{use: my_validation:Neighbours, first: ba be, second: bo bu}]"
    loss = "loss.name={use: my_loss:Smoothed, smoothing: 0.05}"
    assert main([validation, loss, "output_dir=runs/mine", *SMALL, "train.best_metric=eval/alike"]) == 0
    assert -1 <= lines("runs/mine")[-1]["eval/alike"] <= 1
    assert json.loads(Path("runs/mine/metrics.json").read_text())["best_metric"] == "eval/alike"


def test_own_data_set_from_the_command_line() -> None:
    rows = ["question,answer,wrong", *(f"ba {two},be {two},bi {two}" for two in "bo bu ca ce ci co".split())]
    Path("faq.csv").write_text("\n".join(rows) + "\n")
    named = ["datasets.faq.file=faq.csv", "datasets.faq.reader=my_data:FaqTable", "train_datasets=[faq]"]
    assert main([*named, "output_dir=runs/faq", *SMALL[:-1], "train.batch_size=3"]) == 0
    assert [line["step"] for line in lines("runs/faq")] == [1, 2]
    # Other rows in the file are other data, so the run is not continued.
    Path("faq.csv").write_text("\n".join([*rows[:-1], "ba cu,be cu,bi cu"]) + "\n")
    assert main([*named, "output_dir=runs/faq", *SMALL[:-1], "train.batch_size=3"]) == 3


def test_own_term_beside_those_of_the_toolkit_from_the_command_line() -> None:
    terms = "loss.terms={use: my_terms:Repelled, weight: 0.1, margin: 0.3}"
    assert terms in PAGE
    assert main([terms, "output_dir=runs/terms", *SMALL]) == 0
    assert main([terms.replace("0.3", "0.2"), "output_dir=runs/terms", *SMALL]) == 3
    assert [line["step"] for line in lines("runs/terms")] == [1, 2, 3]


HERE = "tests.cli.test_extending_page"
TOY = f"{HERE}:Toy"


class Spread(Validation):
    """The mean distance of some words' vectors from their centre."""

    def __init__(self, name: str = "spread", words: tuple[str, ...] = ("ba be", "ci", "do du")) -> None:
        self.name, self.words = name, list(words)

    def __call__(self, model: BiEncoder) -> Metrics:
        vectors = torch.from_numpy(model.encode_questions(self.words))
        return {f"eval/{self.name}": float((vectors - vectors.mean(0)).norm(dim=1).mean())}


class Toy(nn.Module):
    """The mean over all tokens beside the first token, which has weights of its own."""

    def __init__(self, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.mean, self.weight = MeanPooling(hidden_size, vocab_size), nn.Parameter(torch.ones(hidden_size))

    def token_read(self, lengths: Tensor, position: Tensor) -> Tensor | None:
        return None

    def padded(self, hidden: Tensor, tokens: Tensor, mask: Tensor, position: Tensor) -> Tensor:
        mean = self.mean.padded(hidden, tokens, mask, position)
        return torch.cat([mean, hidden[:, 0] * self.weight], dim=1)

    def packed(self, hidden: Tensor, tokens: Tensor, lengths: Tensor, position: Tensor) -> Tensor:
        first = hidden[torch.cumsum(lengths, 0) - lengths]
        return torch.cat([self.mean.packed(hidden, tokens, lengths, position), first * self.weight], dim=1)


class Greedy(Symmetric):
    needs = frozenset({"contexts", "teacher"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = training_folder(tmp_path_factory.mktemp("contracts"), train=24, dev=6)
    rows = "".join(f"{row}\tba be {word}\t\n" for row, word in enumerate("bi bo ca co".split()))
    (folder / "corpus.tsv").write_text(f"id\ttext\ttitle\n{rows}")
    (folder / "questions.csv").write_text("ba be\t['bi']\nco\t['co']\n")
    return folder


# adam_eps is above most gradients, so that updates do not magnify the rounding of small ones
SETTINGS = (
    "encoder.pretrained=false encoder.sequence_length=24 encoder.dropout=0 encoder.normalize=true"
    " train.global_batch_size=8 train.num_train_epochs=2 train.learning_rate=0.05 train.warmup_steps=0"
    " loss.temperature=0.1 loss.learn_temperature=true train.adam_eps=0.01 train.num_workers=0"
    " train.keep_last=0 device=cpu"
)


def arguments(folder: Path, name: str, *more: str) -> list[str]:
    return [
        f"train_datasets=[{folder}/train.json]",
        f"dev_datasets=[{folder}/dev.json]",
        f"output_dir={folder}/{name}",
        f"encoder.pretrained_model_cfg={folder}/encoder",
        f"encoder.pooling={TOY}",
        *SETTINGS.split(),
        f"loss.name={{use: '{HERE}:Symmetric', share: 4}}",
        f"train.validation=['{HERE}:Spread',{{use: '{HERE}:Spread', name: other, words: [ka, lo]}}]",
        "train.best_metric=eval/other",
        *more,
    ]


def train(folder: Path, name: str, *more: str, ranks: int = 1) -> dict[str, Tensor]:
    command = ["train", *arguments(folder, name, *more)]
    assert run_on_ranks(dpr, ranks, command, join=False) == [0] * ranks
    return stored(folder / name)


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, Tensor]:
    weights = train(folder, "alone")
    own = [tensor for name, tensor in weights.items() if name.endswith("_model.pooling.weight")]
    assert own and not any(torch.equal(tensor, torch.ones_like(tensor)) for tensor in own)
    return weights


def test_they_train_alike_padded_and_cached_on_two_processes(folder: Path, alone: dict[str, Tensor]) -> None:
    other = ["encoder.packed=false", "train.grad_cache_tokens=60", "train.batch_size=4"]
    assert_near(train(folder, "two-ranks", *other, ranks=2), alone, 3e-4)


def test_a_run_is_resumed_bit_for_bit_and_another_loss_is_refused(
    folder: Path, alone: dict[str, Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    train(folder, "halves", "train.stop_at_epoch=1")
    assert_same_bits(train(folder, "halves", "train.stop_at_epoch=2"), alone)
    assert main(arguments(folder, "halves", f"loss.name={{use: '{HERE}:Symmetric', share: 0.5}}")) == 3
    assert "loss.name" in capsys.readouterr().err


def test_a_loss_is_what_is_trained(folder: Path, alone: dict[str, Tensor]) -> None:
    plain = train(folder, "plain", "loss.name=nll")
    assert any(not torch.allclose(tensor, plain[key], atol=1e-3) for key, tensor in alone.items())


def test_metrics_of_every_validation_are_written_and_any_may_choose_the_best(
    folder: Path, alone: dict[str, Tensor]
) -> None:
    lines = [json.loads(line) for line in (folder / "alone" / "metrics.jsonl").read_text().splitlines()]
    validations = [line for line in lines if "eval/other" in line]
    assert [line["step"] for line in validations] == [3, 6]
    assert all({"eval/nll_loss", "eval/in_batch_acc", "eval/spread"} <= line.keys() for line in validations)
    best = max(validations, key=lambda line: line["eval/other"])
    summary = json.loads((folder / "alone" / "metrics.json").read_text())
    assert (summary["best_metric"], summary["best_value"]) == ("eval/other", best["eval/other"])
    assert summary["best_checkpoint"] == f"dpr_biencoder.step{best['step']}"
    model = BiEncoder.load(folder / "alone" / "dpr_biencoder.step6", settings=EncoderSettings(pooling=TOY))
    assert model.dimension == 32
    assert Spread()(model)["eval/spread"] == pytest.approx(validations[1]["eval/spread"], abs=1e-5)


def test_evaluation_only_has_them_too(
    folder: Path, alone: dict[str, Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    model = [f"model_file={folder}/alone", f"encoder.pooling={TOY}", "device=cpu"]
    model += [f"dev_datasets=[{folder}/dev.json]"]
    assert main([*model, f"train.validation='{HERE}:Spread'", "train.dev_batch_size=6"]) == 0
    shown = dict(row.split()[:2] for row in capsys.readouterr().out.splitlines() if row.startswith("eval/"))
    assert {"eval/spread", "eval/dev/nll_loss", "eval/dev/avg_rank"} <= shown.keys()


def test_commands_load_a_pooling_where_its_class_is_named_and_refuse_it_otherwise(
    folder: Path, alone: dict[str, Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    named, model = f"encoder.pooling={TOY}", [f"model_file={folder}/alone", "device=cpu"]
    corpus, vectors = f"{folder}/corpus.tsv", f"{folder}/vectors"
    asked = [f"qa_dataset={folder}/questions.csv", f"out_file={folder}/found.json"]
    for command, *words in (
        ("embed", *model, f"ctx_src={corpus}", f"out_file={vectors}"),
        ("retrieve", *model, f"ctx_datasets=[{corpus}]", f"encoded_ctx_files=[{vectors}_0]", *asked),
        ("mine", f"{folder}/train.json", *model, f"out={folder}/mined.jsonl"),
    ):
        assert dpr([command, *words]) == 3
        assert f"set {named}" in capsys.readouterr().err
        assert dpr([command, *words, named]) == 0
    assert dpr(["export", model[0], f"out_file={folder}/exported.cp", "to=dpr", named]) == 3
    assert f"pooling is {TOY}" in capsys.readouterr().err


REFUSED: list[tuple[str, str]] = [
    ("loss.name=margin", "loss.name=margin"),
    (f"loss.name={HERE}:Greedy", "needs teacher; only contexts, known_positives, questions are gathered"),
    (f"loss.name={{use: '{HERE}:Symmetric', shore: 1}}", "arguments given: shore"),
    ("train.validation=os:system", "train.validation=os:system is not a class"),
    (f"train.validation=['{HERE}:Spread','{HERE}:Spread']", "two validations return the metric eval/spread"),
]


@pytest.mark.parametrize(("argument", "found"), REFUSED)
def test_what_fulfils_no_contract_is_refused_in_a_line(
    folder: Path, tmp_path: Path, argument: str, found: str, capsys: pytest.CaptureFixture[str]
) -> None:
    key = argument.partition("=")[0]
    argv = [text for text in arguments(folder, "refused") if not text.startswith(("output_dir", key))]
    assert main([*argv, f"output_dir={tmp_path}/run", argument]) == 2
    text = capsys.readouterr().err
    assert found in text and "Traceback" not in text, text
