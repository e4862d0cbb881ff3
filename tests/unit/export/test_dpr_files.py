"""Export to the original's format: bit for bit there and back, and plain contents."""

import resource
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel

from dpr.core.errors import InputError, OutputError
from dpr.export.original import export_dpr_file
from dpr.formats.original.checkpoints import write_dpr_checkpoint
from dpr.models.biencoder import BiEncoder
from dpr.storage.durable import durable_folder
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
