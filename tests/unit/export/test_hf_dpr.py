"""Folders for the DPR classes of transformers give the model's vectors, or are refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpr.core.errors import InputError
from dpr.core.records import Passage
from dpr.export.folders import check, edge_cases, export_folder, format_of
from dpr.export.towers import merged
from dpr.models.biencoder import BiEncoder
from tests.helpers.exports import COSINE, MODELS, PROMPTS, bert, shared
from tests.helpers.jobs import export as main

OF_DPR = ["shared, two lengths", "projection", "adapters"]


@pytest.mark.parametrize("name", OF_DPR)
def test_the_classes_of_dpr_give_the_same_vectors(name: str, tmp_path: Path) -> None:
    model = MODELS[name](tmp_path / "made_of")
    (tmp_path / "out").mkdir()
    format_of("hf-dpr").write(merged(model), tmp_path / "out", source=name)
    found = check(merged(model), tmp_path / "out", format_of("hf-dpr"), name)
    assert found is not None and found.largest < 1e-5
    print(f"{name}: {found}")


def test_the_tokenizers_of_the_classes_give_the_same_vectors_whatever_types_they_number(
    tmp_path: Path,
) -> None:
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
    assert {bool(passage.title) for passage in texts.passages} == {True, False} and Passage(
        ""
    ) in texts.passages
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
