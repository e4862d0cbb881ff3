"""Export to the original's format: bit for bit there and back, and plain contents."""

import resource
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

from dpr.core.errors import InputError, OutputError
from dpr.core.records import Passage
from dpr.export.folders import check, edge_cases, export_folder, format_of
from dpr.export.original import export_dpr_file
from dpr.export.towers import merged
from dpr.formats.original.checkpoints import write_dpr_checkpoint
from dpr.models.biencoder import BiEncoder
from dpr.storage.durable import durable_folder
from tests.helpers.exports import COSINE, MODELS, PROMPTS, bert, shared
from tests.helpers.jobs import export as main
from tests.helpers.original import nested_params, original_extras, original_names, write_original
from tests.helpers.tiny import tiny_model

TEXTS = ["ba be bi", "bo bu ca ce ci co cu da de di do"]


def original_file(folder: Path, **settings: Any) -> tuple[BiEncoder, Path]:
    model = tiny_model(folder / "bert", dtype=torch.float32, **settings)
    params = nested_params(str(folder / "bert"), projection_dim=settings.get("projection_dim", 0))
    return model, write_original(
        folder / "x.cp", original_extras(original_names(model.weights()), 16), params
    )


@pytest.mark.parametrize("projection", [0, 5])
def test_there_and_back_every_bit_is_the_same(tmp_path: Path, projection: int) -> None:
    _, file = original_file(tmp_path, projection_dim=projection)
    first = BiEncoder.load(file)
    assert main(["to=dpr", f"model_file={file}", f"out_file={tmp_path / 'out' / 'y.cp'}"]) == 0
    second = BiEncoder.load(tmp_path / "out" / "y.cp")
    assert second.settings == first.settings
    assert second.fingerprint == first.fingerprint
    assert all(torch.equal(second.weights()[name], tensor) for name, tensor in first.weights().items())
    assert (second.encode_questions(TEXTS) == first.encode_questions(TEXTS)).all()


def test_the_file_is_plain_and_a_strict_loader_takes_it(tmp_path: Path) -> None:
    model, file = original_file(tmp_path)
    export_dpr_file(
        BiEncoder.load(file), tmp_path / "y.cp", source=str(file), pretrained_model_cfg="bert-base-uncased"
    )
    state = torch.load(tmp_path / "y.cp", weights_only=True)
    assert sorted(state) == "encoder_params epoch model_dict offset optimizer_dict scheduler_dict".split()
    assert state["encoder_params"]["do_lower_case"] is True
    assert state["encoder_params"]["encoder"]["pretrained_model_cfg"] == "bert-base-uncased"
    assert state["encoder_params"]["encoder"]["sequence_length"] == 24
    for tower in ("question_model", "ctx_model"):
        plain = BertModel(BertConfig.from_pretrained(str(tmp_path / "bert")))
        own = {
            name.removeprefix(f"{tower}."): value
            for name, value in state["model_dict"].items()
            if name.startswith(tower)
        }
        plain.load_state_dict(own, strict=True)
        name = "encoder.layer.1.output.dense.weight"
        assert torch.equal(plain.state_dict()[name], model.state_dict()[f"{tower}.backbone.{name}"])


def test_a_checkpoint_folder_with_one_tower_becomes_two(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "bert", dtype=torch.float32, shared=True, dpr_trailing_sep=True)
    with durable_folder(tmp_path / "model") as folder:
        model.write_to(folder)
    assert main([f"model_file={tmp_path / 'model'}", f"out_file={tmp_path / 'y.cp'}"]) == 0
    loaded = BiEncoder.load(tmp_path / "y.cp")
    assert (loaded.encode_passages(TEXTS) == model.eval().encode_passages(TEXTS)).all()
    assert (loaded.encode_questions(TEXTS) == model.encode_questions(TEXTS)).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pooling": "mean", "dpr_trailing_sep": True}, "pooling is mean"),
        ({"normalize": True, "dpr_trailing_sep": True}, "normalised"),
        ({}, r"without the \[SEP\].*allow_other_vectors=true"),
        ({"question_length": 8, "dpr_trailing_sep": True}, "questions end at 8 tokens"),
    ],
)
def test_what_would_mean_something_else_is_refused(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    model = tiny_model(tmp_path / "bert", dtype=torch.float32, **settings)
    with pytest.raises(InputError, match=message):
        export_dpr_file(model, tmp_path / "y.cp", source="runs/first")
    assert not (tmp_path / "y.cp").exists()


def test_other_vectors_can_be_allowed_and_files_are_not_overwritten(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "bert", dtype=torch.float32)
    export_dpr_file(model, tmp_path / "y.cp", source="runs/first", allow_other_vectors=True)
    written = (tmp_path / "y.cp").stat()
    export_dpr_file(model, tmp_path / "y.cp", source="runs/first", allow_other_vectors=True)
    assert (tmp_path / "y.cp").stat().st_mtime_ns == written.st_mtime_ns  # the same again: nothing is done
    other = tiny_model(tmp_path / "bert", seed=1, dtype=torch.float32)
    with pytest.raises(InputError, match="already exists, made with another model"):
        export_dpr_file(other, tmp_path / "y.cp", source="runs/second", allow_other_vectors=True)
    assert BiEncoder.load(tmp_path / "y.cp").settings.dpr_trailing_sep


def test_the_documented_line_exports_a_model_trained_with_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (line,) = [
        line.split()
        for line in Path("docs/from_dpr.md").read_text().splitlines()
        if "dpr export to=dpr" in line
    ]
    with durable_folder(tmp_path / "runs" / "nq") as folder:
        tiny_model(tmp_path / "bert", dtype=torch.float32).write_to(folder)
    monkeypatch.chdir(tmp_path)
    assert main(line[2:]) == 0
    assert BiEncoder.load("nq.cp", pretrained_model_cfg="bert").settings.dpr_trailing_sep


@pytest.mark.parametrize("most_bytes", [0, 1000, 20_000, 41_000, 60_000])
def test_a_disk_that_is_full_after_some_bytes_is_one_line(tmp_path: Path, most_bytes: int) -> None:
    weights = {name: torch.zeros(100, 100) for name in ("first", "second")}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        with pytest.raises(OutputError, match=r"x\.cp: cannot be written"):
            write_dpr_checkpoint(tmp_path / "x.cp", weights, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert not list(tmp_path.iterdir())


OF_DPR = ["shared, two lengths", "projection", "adapters"]


@pytest.mark.parametrize("name", OF_DPR)
def test_the_classes_of_dpr_give_the_same_vectors(name: str, tmp_path: Path) -> None:
    model = MODELS[name](tmp_path / "made_of")
    (tmp_path / "out").mkdir()
    format_of("hf-dpr").write(merged(model), tmp_path / "out", source=name)
    found = check(merged(model), tmp_path / "out", format_of("hf-dpr"), name)
    assert found is not None and found.largest < 1e-5
    print(f"{name}: {found}")


def test_tokenizers_of_the_classes_give_the_same_vectors_whatever_types_they_number(tmp_path: Path) -> None:
    from transformers import DPRContextEncoder, DPRContextEncoderTokenizerFast

    model = bert(tmp_path / "made_of")
    export_folder(model, tmp_path / "out", "hf-dpr", source="model")
    folder = str(tmp_path / "out" / "ctx_encoder")
    tokenizer, loaded = (
        DPRContextEncoderTokenizerFast.from_pretrained(folder),
        DPRContextEncoder.from_pretrained(folder).eval(),
    )
    tokens = tokenizer(["Ba be"], ["bi bo"], return_tensors="pt")
    numbered = tokens["input_ids"].ne(0).cumsum(1).gt(4).to(torch.int64)
    expected = model.encode_passages([Passage("bi bo", "Ba be")])
    for types in (torch.zeros_like(numbered), numbered):
        with torch.no_grad():
            found = loaded(tokens["input_ids"], tokens["attention_mask"], types).pooler_output
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (COSINE, "pooling is mean, and its vectors are normalised"),
        (PROMPTS, "prompts"),
        ({"dimensions": 4}, "vectors are cut"),
        ({"title_template": "{title} {text}"}, "template"),
        ({"dpr_trailing_sep": True}, "SEP"),
    ],
)
def test_what_cannot_be_said_is_refused(settings: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=reason):
        export_folder(bert(tmp_path / "made_of", **settings), tmp_path / "out", "hf-dpr", source="model")
    assert not (tmp_path / "out").exists()


def test_edge_cases_are_what_they_say(tmp_path: Path) -> None:
    tensorizer = shared(tmp_path).tensorizer
    texts = edge_cases(tensorizer)
    lengths = [len(tensorizer.tokenizer(text)["input_ids"]) for text in texts.questions]
    assert min(lengths) == 2 and max(lengths) > tensorizer.sequence_length
    assert {bool(one.title) for one in texts.passages} == {True, False} and Passage("") in texts.passages
    assert any(
        len(tensorizer.bare_tokens([passage.title])[0]) > tensorizer.sequence_length
        for passage in texts.passages
    )
    assert any("\u2019" in text for text in texts.questions)


def test_without_the_library_the_folder_is_written_unchecked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dpr.export.folders.version_of", lambda package: None)
    export_folder(shared(tmp_path / "made_of"), tmp_path / "out", "sentence-transformers", source="model")
    assert (
        "not checked, since sentence-transformers is not installed: pip install sentence-transformers"
        in caplog.text
    )
    assert (tmp_path / "out" / "modules.json").is_file()


def test_a_library_that_cannot_use_the_folder_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> np.ndarray:
        raise KeyError("pooling")

    form = replace(format_of("hf-dpr"), encode=fails)
    monkeypatch.setattr("dpr.export.hf_dpr.FORMAT", form)
    with pytest.raises(
        InputError, match=r"transformers .* cannot use what was written \(KeyError: 'pooling'\)"
    ):
        export_folder(bert(tmp_path / "made_of"), tmp_path / "out", "hf-dpr", source="model")
    assert not (tmp_path / "out").exists()


def test_the_command_drops_the_rule_of_apostrophes_where_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared(tmp_path / "made_of", plain_apostrophes=True).save(tmp_path / "model")
    arguments = ["to=sentence-transformers", f"model_file={tmp_path / 'model'}", f"out={tmp_path / 'out'}"]
    assert main(arguments) == 3
    assert "encoder.plain_apostrophes=false encoder.allow_other_prompts=true" in capsys.readouterr().err
    told = ["encoder.plain_apostrophes=false", "encoder.allow_other_prompts=true"]
    assert main([*arguments, *told, "dimensions=4"]) == 0
    assert BiEncoder.load(tmp_path / "out").encode_questions("don\u2019t").shape == (4,)
