"""Prompts, title template and apostrophe rule are stored in the model's folder and change its vectors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpr.core.errors import ConfigError
from dpr.core.records import Passage
from dpr.formats.checkpoints import SETTINGS_FILE
from dpr.models.biencoder import BiEncoder
from dpr.models.settings import EncoderSettings, GivenTextSettings
from dpr.storage.durable import write_manifest
from tests.helpers.tiny import encoder_folder, tiny_model
from tests.unit.data.test_joining import fast_tokenizer

PROMPTS: dict[str, Any] = {"query_prompt": "ba be ", "passage_prompt": "bi bo "}
PROMPTS["prompts"] = {"web": "bu ", "code": "ca "}
LATER = "query_prompt passage_prompt prompts title_template plain_apostrophes dpr_trailing_sep".split()
PASSAGES = [Passage("da de di", "do du"), Passage("fa fe")]


def saved(folder: Path, **settings: Any) -> tuple[BiEncoder, Path]:
    model = tiny_model(folder / "bert", dtype=torch.float32, **settings)
    model.save(folder / "model")
    return model, folder / "model"


def test_a_saved_model_applies_its_prompts(tmp_path: Path) -> None:
    model, folder = saved(tmp_path, **PROMPTS)
    plain, again = tiny_model(tmp_path / "bert", dtype=torch.float32), BiEncoder.load(folder)
    assert again.fingerprint == model.fingerprint != plain.fingerprint
    for each in (model, again):
        np.testing.assert_array_equal(each.encode_questions(["ga"]), plain.encode_questions(["ba be ga"]))
        np.testing.assert_array_equal(
            each.encode_questions("ga", prompt="web"), plain.encode_questions("bu ga")
        )
        expected = plain.encode_passages([Passage("da de di", "bi bo do du"), Passage("bi bo fa fe")])
        np.testing.assert_array_equal(each.encode_passages(PASSAGES), expected)
    with pytest.raises(ConfigError, match="no prompt named news; it has query, document, code, web"):
        again.encode_questions("ga", prompt="news")


def test_a_model_without_prompts_is_stored_as_it_was(tmp_path: Path) -> None:
    model, folder = saved(tmp_path)
    stored = json.loads((folder / SETTINGS_FILE).read_text())
    assert not stored.keys() & set(LATER)
    assert not EncoderSettings().as_dict().keys() & set(LATER)
    assert BiEncoder.load(folder).settings == model.settings


def test_the_order_of_prompts_does_not_matter(tmp_path: Path) -> None:
    orders = {"a": "ba ", "b": "be "}, {"b": "be ", "a": "ba "}
    one, other = (tiny_model(tmp_path, prompts=prompts) for prompts in orders)
    assert one.fingerprint == other.fingerprint


def test_other_prompts_are_refused_unless_forced(tmp_path: Path) -> None:
    model, folder = saved(tmp_path, **PROMPTS)
    others: list[tuple[dict[str, Any], str]] = [
        ({"query_prompt": "di "}, "query_prompt='di ', but .* 'ba be '.*encoder.allow_other_prompts=true"),
        ({"query_prompt": ""}, "encoder.query_prompt=''"),
        ({"prompts": {"web": "di "}}, "encoder.prompts="),
        ({"title_template": "{title} {text}"}, "encoder.title_template="),
        ({"plain_apostrophes": False}, "encoder.plain_apostrophes=False"),
    ]
    for given, message in others:
        with pytest.raises(ConfigError, match=message):
            BiEncoder.load(folder, text=GivenTextSettings(**given))
    for given, _ in others[2:4]:
        forced = BiEncoder.load(folder, text=GivenTextSettings(**given, allow_other_prompts=True))
        name, value = next(iter(given.items()))
        assert getattr(forced.settings, name) == (PROMPTS["prompts"] | value if name == "prompts" else value)
        assert forced.fingerprint != model.fingerprint
    given = GivenTextSettings(query_prompt="ba be ", prompts={"web": "bu ", "new": "di "})
    same = BiEncoder.load(folder, text=given)
    assert same.settings.prompts == PROMPTS["prompts"] | {"new": "di "}


def test_a_folder_that_states_none_takes_those_given(tmp_path: Path) -> None:
    plain = tiny_model(tmp_path / "bert", dtype=torch.float32)
    plain.question_model.backbone.save_pretrained(tmp_path / "bert")
    plain = BiEncoder.load(tmp_path / "bert")
    given = {"query_prompt": "ba be ", "plain_apostrophes": False}
    model = BiEncoder.load(tmp_path / "bert", text=GivenTextSettings(**given))
    np.testing.assert_array_equal(model.encode_questions(["ga"]), plain.encode_questions(["ba be ga"]))
    assert not model.settings.plain_apostrophes
    by_settings = BiEncoder.load(tmp_path / "bert", settings=EncoderSettings(**given))
    assert by_settings.fingerprint == model.fingerprint


def test_a_tokenizer_without_a_separator_has_a_stored_template(tmp_path: Path) -> None:
    encoder_folder(tmp_path / "bert")
    fast_tokenizer("gpt2").save_pretrained(tmp_path / "bert")
    model, folder = saved(tmp_path)
    assert model.settings.title_template == "{title} {text}"
    again = BiEncoder.load(folder)
    np.testing.assert_array_equal(again.encode_passages(PASSAGES[0]), again.encode_passages("do du da de di"))
    # Of an earlier version: nothing is stored, and the texts stay a pair.
    stored = json.loads((folder / SETTINGS_FILE).read_text())
    del stored["title_template"]
    (folder / SETTINGS_FILE).write_text(json.dumps(stored))
    write_manifest(folder, {})
    assert BiEncoder.load(folder).settings.title_template == ""


STATED: dict[str, tuple[dict[str, str], str | None, str]] = {
    "none": ({}, None, ""),
    "both sides": ({"query": "ba be ", "document": "bi bo ", "web": "bu "}, None, ""),
    "one side, by a name that is never come to": (
        {"query": "ba be ", "passage": "bi bo "},
        None,
        "encoder.passage_prompt='bi bo '",
    ),
    "a default": ({"all": "ba "}, "all", "encoder.query_prompt='ba '"),
    "a default that is the prompt of a side": (
        {"query": "ba be "},
        "query",
        "encoder.passage_prompt='ba be '",
    ),
}


@pytest.mark.parametrize(("kind", "by_hand"), [*((kind, False) for kind in STATED), ("none", True)])
def test_prompts_and_lengths_are_those_of_sentence_transformers(
    tmp_path: Path, kind: str, by_hand: bool, caplog: pytest.LogCaptureFixture
) -> None:
    library = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    prompts, default, said = STATED[kind]
    plain = tiny_model(tmp_path / "bert", dtype=torch.float32)
    plain.question_model.backbone.save_pretrained(tmp_path / "bert")
    fast_tokenizer("bert").save_pretrained(tmp_path / "bert")
    body = modules.Transformer(str(tmp_path / "bert"), max_seq_length=16, query_length=9, document_length=14)
    parts = [body, modules.Pooling(body.get_embedding_dimension(), pooling_mode="mean"), modules.Normalize()]
    saved_by = library.SentenceTransformer(
        modules=parts, device="cpu", prompts=prompts, default_prompt_name=default
    )
    saved_by.save(str(tmp_path / "st"))
    if by_hand:
        file = tmp_path / "st" / "config_sentence_transformers.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"prompts": prompts}))
    theirs = library.SentenceTransformer(str(tmp_path / "st"), device="cpu", local_files_only=True)
    model, texts = BiEncoder.load(tmp_path / "st"), ["ca ce ci", " ".join(["da de di do du"] * 5)]
    assert (model.settings.question_length, model.settings.sequence_length) == (9, 14)
    np.testing.assert_allclose(model.encode_questions(texts), theirs.encode_query(texts), atol=1e-6)
    np.testing.assert_allclose(model.encode_passages(texts), theirs.encode_document(texts), atol=1e-6)
    for name in prompts.keys() - {"query", "document"}:
        expected = theirs.encode(texts, prompt_name=name, task="query")
        np.testing.assert_allclose(model.encode_questions(texts, prompt=name), expected, atol=1e-6)
    # Where a folder can be read in two ways it is said which was taken, and the other may be asked for; where
    # it cannot, it may not.
    assert said in caplog.text and bool(said) == ("no prompt is used where" in caplog.text)
    other = {"query_prompt": "do "} if "query_prompt" in said else {"passage_prompt": "do "}
    if said or not prompts:
        model = BiEncoder.load(tmp_path / "st", text=GivenTextSettings(**other))  # type: ignore[arg-type]
        sides = {
            "query_prompt": (model.encode_questions, "query"),
            "passage_prompt": (model.encode_passages, "document"),
        }
        (encode, side), prompt = sides[next(iter(other))], next(iter(other.values()))
        np.testing.assert_allclose(encode(texts), theirs.encode(texts, prompt=prompt, task=side), atol=1e-6)  # type: ignore[operator]
    else:
        with pytest.raises(ConfigError, match="was trained with"):
            BiEncoder.load(tmp_path / "st", text=GivenTextSettings(**other))  # type: ignore[arg-type]
