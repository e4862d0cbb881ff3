"""Original checkpoint files give the vectors that the original gave, or are refused clearly."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpr.core.errors import CheckpointError, InputError
from dpr.core.records import Passage
from dpr.models.biencoder import BiEncoder
from tests.helpers.original import flat_params, nested_params, original_extras, original_names, write_original
from tests.helpers.tiny import WORDS, tiny_model

TEXTS = [" ".join(WORDS[start : start + count]) for start, count in ((0, 3), (9, 30), (20, 12), (4, 1))]
PASSAGES = [Passage(text, title) for text, title in zip(TEXTS, ["ba", "", "be bi", ""], strict=True)]


def file_of(model: BiEncoder, path: Path, params: dict[str, Any], *, as_zip: bool = True) -> Path:
    weights = original_extras(original_names(model.float().weights()), 16)
    return write_original(path, weights, params, as_zip=as_zip)


def original_vectors(model: BiEncoder, texts: list[tuple[str, ...]], tower: str) -> torch.Tensor:
    """The original's way: one padded window of 24 per text, [SEP] at its last place, first token, projection."""
    encoder, tokenizer = getattr(model, tower), model.tensorizer.tokenizer
    rows = []
    for pair in texts:
        tokens = tokenizer(*pair, truncation="longest_first", max_length=24)["input_ids"]
        tokens = [*tokens, *[0] * (24 - len(tokens))]
        tokens[-1] = tokenizer.sep_token_id
        ids = torch.tensor([tokens])
        mask = (ids != 0).long()
        types = torch.zeros_like(ids)
        state = encoder.backbone(ids, attention_mask=mask, token_type_ids=types).last_hidden_state[0, 0]
        rows.append(state if encoder.encode_proj is None else encoder.encode_proj(state))
    return torch.stack(rows).detach()


@pytest.mark.parametrize("projection", [0, 5])
@pytest.mark.parametrize("as_zip", [True, False], ids=["zip", "sequence"])
@pytest.mark.parametrize("params", [flat_params, nested_params])
def test_vectors_are_those_of_the_original(
    tmp_path: Path, params: Callable[..., dict[str, Any]], as_zip: bool, projection: int
) -> None:
    made = tiny_model(tmp_path / "bert", dtype=torch.float32, projection_dim=projection)
    given = params(str(tmp_path / "bert"), projection_dim=projection)
    file = file_of(made, tmp_path / "x.cp", given, as_zip=as_zip)
    loaded = BiEncoder.load(file)
    assert loaded.settings.dpr_trailing_sep
    assert (loaded.settings.sequence_length, loaded.dimension) == (24, projection or 16)
    pairs: list[tuple[str, ...]] = [(p.title, p.text) if p.title else (p.text,) for p in PASSAGES]
    expected = {
        "passages": original_vectors(made, pairs, "ctx_model"),
        "questions": original_vectors(made, [(t,) for t in TEXTS], "question_model"),
    }
    np.testing.assert_allclose(loaded.encode_passages(PASSAGES), expected["passages"], atol=1e-6)
    np.testing.assert_allclose(loaded.encode_questions(TEXTS), expected["questions"], atol=1e-6)


def test_another_encoder_stands_in_for_a_missing_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tiny_model(tmp_path / "bert", dtype=torch.float32)
    file = file_of(made, tmp_path / "x.cp", nested_params("some/unknown-encoder"))
    with pytest.raises(CheckpointError, match=r"x\.cp: it builds on some/unknown.*pretrained_model_cfg="):
        BiEncoder.load(file)
    loaded = BiEncoder.load(file, pretrained_model_cfg=str(tmp_path / "bert"))
    assert loaded.weights().keys() == made.weights().keys()
    with pytest.raises(InputError, match="absent"):
        BiEncoder.load(file, pretrained_model_cfg=str(tmp_path / "absent"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("ctx_model.encoder.layer.1.output.dense.bias"), r"1 missing: .*layer\.1\.output"),
        (lambda w: w.update({"reader.qa.weight": torch.zeros(2)}), r"1 not known: reader\.qa\.weight"),
        (lambda w: w.update({"ctx_model.embeddings.LayerNorm.bias": torch.zeros(7)}), "1 of another shape"),
    ],
)
def test_weights_that_do_not_fit_are_named(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], Any], message: str
) -> None:
    made = tiny_model(tmp_path / "bert", dtype=torch.float32)
    weights = original_names(made.weights())
    change(weights)
    file = write_original(tmp_path / "x.cp", weights, flat_params(str(tmp_path / "bert")))
    with pytest.raises(CheckpointError, match=message):
        BiEncoder.load(file)


def test_other_kinds_are_refused(tmp_path: Path) -> None:
    made = tiny_model(tmp_path / "bert", dtype=torch.float32)
    folder = str(tmp_path / "bert")
    for changes, message in (
        ({"encoder_model_type": "pytext_bert"}, "encoder_model_type is pytext_bert"),
        ({"pretrained_model_cfg": None}, "names no encoder"),
    ):
        file = file_of(made, tmp_path / "x.cp", flat_params(folder, **changes))
        with pytest.raises(CheckpointError, match=message):
            BiEncoder.load(file)


def test_saved_as_a_folder_it_stays_the_same_model(tmp_path: Path) -> None:
    made = tiny_model(tmp_path / "bert", dtype=torch.float32)
    loaded = BiEncoder.load(file_of(made, tmp_path / "x.cp", nested_params(str(tmp_path / "bert"))))
    loaded.save(tmp_path / "model")
    again = BiEncoder.load(tmp_path / "model")
    assert again.fingerprint == loaded.fingerprint and again.settings.dpr_trailing_sep
    assert (again.encode_passages(PASSAGES) == loaded.encode_passages(PASSAGES)).all()


def test_special_tokens_take_their_old_places(tmp_path: Path) -> None:
    made = tiny_model(tmp_path / "bert", dtype=torch.float32)
    file = file_of(made, tmp_path / "x.cp", flat_params(str(tmp_path / "bert")))
    loaded = BiEncoder.load(file, special_tokens=["[ENT]"])
    assert loaded.tensorizer.question_tokens(["ba [ENT] be"])[0][2] == 1  # the row of [unused0]
