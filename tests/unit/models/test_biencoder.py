"""Towers, checkpoints, cut vectors, and the plain Python way of using a model."""

import re
from contextlib import nullcontext
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from datasets import Dataset

from dpr.core.batch import TokenBatch
from dpr.core.errors import CheckpointError, ConfigError, InputError, LostRankError
from dpr.core.records import Passage, Question
from dpr.embedding.encode import fit_to_vectors
from dpr.embedding.job import embed_shard
from dpr.embedding.settings import EmbedConfig
from dpr.embedding.source import PassageSource
from dpr.formats import checkpoints
from dpr.formats.corpora import write_passages
from dpr.formats.vector_shards import open_shards
from dpr.models.backbones import load_backbone
from dpr.models.biencoder import BiEncoder, TowerOptions
from dpr.models.settings import EncoderSettings
from tests.helpers.tiny import encoder_folder, tiny_model

TEXTS = ["ba be bi", "bo", "ca ce ci co cu da de di do du"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encoder_folder(tmp_path_factory.mktemp("encoder"))


@pytest.mark.parametrize(
    "settings", [{}, {"shared": True}, {"pooling": "mean", "normalize": True}, {"projection_dim": 5}]
)
def test_a_saved_model_has_its_vectors(folder: Path, tmp_path: Path, settings: dict[str, object]) -> None:
    model = tiny_model(folder, dtype=torch.float32, **settings)
    model.save(tmp_path / "checkpoint")
    loaded = BiEncoder.load(tmp_path / "checkpoint")
    assert loaded.settings == model.settings
    assert loaded.fingerprint == model.fingerprint
    np.testing.assert_array_equal(loaded.encode_questions(TEXTS), model.encode_questions(TEXTS))
    np.testing.assert_array_equal(loaded.encode_passages(TEXTS), model.encode_passages(TEXTS))
    assert loaded.encode_questions(TEXTS).shape == (3, model.dimension)
    same = np.allclose(model.encode_questions(TEXTS), model.encode_passages(TEXTS))
    assert same == bool(settings.get("shared"))


@pytest.mark.parametrize(
    ("key", "value"), [("hidden_act", "relu"), ("layer_norm_eps", 1e-3), ("hidden_dropout_prob", 0.3)]
)
def test_the_fingerprint_follows_the_config(folder: Path, tmp_path: Path, key: str, value: object) -> None:
    """So vectors that were embedded before are not searched with what the folder gives now."""
    model, other = tiny_model(folder), tiny_model(encoder_folder(tmp_path, **{key: value}))
    assert all(torch.equal(tensor, other.weights()[name]) for name, tensor in model.weights().items())
    vectors = [each.encode_questions(TEXTS) for each in (model, other)]
    assert (other.fingerprint == model.fingerprint) == np.array_equal(*vectors)


def test_save_writes_a_folder_that_load_reads_and_overwrites_if_asked(folder: Path, tmp_path: Path) -> None:
    model = tiny_model(folder, dtype=torch.float32)
    model.save(str(tmp_path / "model"))
    assert BiEncoder.load(tmp_path / "model").fingerprint == model.fingerprint
    with pytest.raises(InputError, match="already exists"):
        tiny_model(folder, seed=1, dtype=torch.float32).save(tmp_path / "model")
    tiny_model(folder, seed=1, dtype=torch.float32).save(tmp_path / "model", overwrite=True)
    assert BiEncoder.load(tmp_path / "model").fingerprint != model.fingerprint


def test_a_single_text_gives_one_vector(folder: Path) -> None:
    model = tiny_model(folder, dtype=torch.float32)
    np.testing.assert_array_equal(model.encode_questions("ba be bi"), model.encode_questions(["ba be bi"])[0])
    np.testing.assert_array_equal(model.encode_passages("ba be bi"), model.encode_passages(["ba be bi"])[0])
    titled = Passage("ba", "be")
    np.testing.assert_array_equal(model.encode_passages(titled), model.encode_passages([titled])[0])
    for texts in (("ba", "be"), iter(["ba", "be"]), np.array(["ba", "be"])):
        assert model.encode_questions(texts).shape == (2, model.dimension)
    assert model.encode_questions([]).shape == (0, model.dimension)


@pytest.mark.parametrize("wrong", [None, 3, b"ba", ["ba", None], [("title", "text")], [["ba"]]])
def test_what_is_no_text_is_a_type_error_that_says_what_is_taken(folder: Path, wrong: Any) -> None:
    model = tiny_model(folder, dtype=torch.float32)
    with pytest.raises(
        TypeError, match="encode_questions takes a text or a dictionary with 'question', or a list"
    ):
        model.encode_questions(wrong)
    with pytest.raises(TypeError, match="encode_passages takes a text, a Passage or a dictionary"):
        model.encode_passages(wrong)


@pytest.mark.parametrize("table", [pd.DataFrame, pl.DataFrame, pa.table, Dataset.from_dict])
def test_tables_and_dictionaries_are_taken_alike(folder: Path, table: Any) -> None:
    model = tiny_model(folder, dtype=torch.float32, shared=True)
    expected = model.encode_questions(["ba be", "bi"])
    for name in ("question", "query", "text"):
        given = table({name: ["ba be", "bi"]})
        np.testing.assert_array_equal(model.encode_questions(given), expected)
    for encode in (model.encode_passages, model.encode, model.encode_document):
        np.testing.assert_array_equal(encode(given), model.encode_passages(["ba be", "bi"]))
    for one in ({"query": "ba be"}, Question("ba be", "7")):
        np.testing.assert_allclose(model.encode_questions(one), expected[0], atol=1e-6)
    assert model.encode_passages({"text": "ba", "title": "be"}).shape == (16,)
    with pytest.raises(ValueError, match="no question among the keys"):
        model.encode_questions(table({"other": ["ba"]}))


def test_encode_is_for_models_with_one_tower(folder: Path) -> None:
    shared = tiny_model(folder, dtype=torch.float32, shared=True)
    np.testing.assert_array_equal(shared.encode(TEXTS), shared.encode_passages(TEXTS))
    with pytest.raises(ConfigError, match="call encode_questions or encode_passages"):
        tiny_model(folder, dtype=torch.float32).encode(TEXTS)


def test_the_vector_of_a_text_does_not_depend_on_its_batch(folder: Path) -> None:
    model = tiny_model(folder, dtype=torch.float32)
    together = model.encode_passages(TEXTS, batch_tokens=10_000)
    for budget in (1, 11):
        np.testing.assert_allclose(model.encode_passages(TEXTS, batch_tokens=budget), together, atol=1e-5)
    alone = np.concatenate([model.encode_passages([text]) for text in reversed(TEXTS)])[::-1]
    np.testing.assert_allclose(alone, together, atol=1e-5)
    assert model.encode_passages([]).shape == (0, 16)


def test_encoding_restores_the_mode_and_turns_dropout_off(folder: Path) -> None:
    model = tiny_model(folder, dropout=0.5).train()
    batch = TokenBatch.from_lists(model.tensorizer.question_tokens(TEXTS))
    assert not torch.equal(model.question_model(batch), model.question_model(batch))
    np.testing.assert_array_equal(model.encode_questions(TEXTS), model.encode_questions(TEXTS))
    assert model.training
    assert model.question_model.training


def test_a_frozen_context_tower_has_no_dropout_and_no_gradient(folder: Path) -> None:
    model = tiny_model(folder, dropout=0.5, options=TowerOptions(fix_ctx_encoder=True)).train()
    batch = TokenBatch.from_lists(model.tensorizer.passage_tokens([Passage(text) for text in TEXTS]))
    vectors = model(batch, batch)
    torch.testing.assert_close(vectors.contexts, model(batch, batch).contexts, rtol=0, atol=0)
    assert not vectors.contexts.requires_grad
    assert vectors.questions.requires_grad
    assert not any(parameter.requires_grad for parameter in model.ctx_model.parameters())


def test_both_sides_can_go_through_one_tower(folder: Path) -> None:
    model = tiny_model(folder)
    batch = TokenBatch.from_lists(model.tensorizer.question_tokens(TEXTS))
    for kind, tower in (("question", model.question_model), ("ctx", model.ctx_model)):
        vectors = model(batch, batch, kind)
        torch.testing.assert_close(vectors.questions, tower(batch), rtol=0, atol=1e-12)
        torch.testing.assert_close(vectors.contexts, tower(batch), rtol=0, atol=1e-12)
    vectors.questions.sum().backward()
    assert all(parameter.grad is not None for parameter in model.question_model.parameters())


@pytest.mark.parametrize(("shared", "lookups"), [(False, 2), (True, 1)])
def test_words_are_looked_up_once_for_all_packs_and_for_both_sides_of_one_tower(
    folder: Path, monkeypatch: pytest.MonkeyPatch, shared: bool, lookups: int
) -> None:
    """The gradient of the table is as large as the table for every time it is read."""
    monkeypatch.setattr("dpr.models.fast.packed.CPU_FORWARD_TOKENS", 4)
    model, calls, packs = tiny_model(folder, shared=shared), list[int](), list[int]()
    for tower in {model.question_model, model.ctx_model}:
        words = tower.backbone.get_input_embeddings()
        words.register_forward_hook(lambda module, inputs, output: calls.append(inputs[0].numel()))
        tower.backbone.register_forward_hook(lambda module, inputs, output: packs.append(1))
    batch = TokenBatch.from_lists(model.tensorizer.question_tokens(TEXTS))
    vectors = model(batch, batch)
    assert len(calls) == lookups and sum(calls) == 2 * len(batch.tokens)
    assert len(packs) > 3
    for side, tower in ((vectors.questions, model.question_model), (vectors.contexts, model.ctx_model)):
        torch.testing.assert_close(side, tower(batch), rtol=0, atol=1e-12)


def test_two_backbones_do_not_share_a_config_object(folder: Path) -> None:
    model = tiny_model(folder)
    assert model.question_model.config is not model.ctx_model.config


def test_missing_weights_are_an_error(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = tiny_model(folder, dtype=torch.float32)
    model.question_model.backbone.save_pretrained(str(tmp_path))
    assert load_backbone(str(tmp_path)).config.hidden_size == 16
    weights = load_file(str(tmp_path / "model.safetensors"))
    weights.pop("encoder.layer.1.output.dense.weight")
    save_file(weights, str(tmp_path / "model.safetensors"), metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"1 weights of BertModel.*layer\.1\.output\.dense\.weight"):
        load_backbone(str(tmp_path))


def test_half_precision_files_train_in_single_precision(folder: Path, tmp_path: Path) -> None:
    tiny_model(folder, dtype=torch.float16).question_model.backbone.save_pretrained(str(tmp_path))
    assert {parameter.dtype for parameter in load_backbone(str(tmp_path)).parameters()} == {torch.float32}


def test_folders_that_are_no_checkpoint_and_damaged_ones_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no such file or folder"):
        BiEncoder.load(tmp_path / "absent")
    (tmp_path / "dpr_biencoder.step36").mkdir()
    with pytest.raises(CheckpointError, match=r"no such file or folder, expected dpr_biencoder\.step36$"):
        BiEncoder.load(tmp_path / "dpr_biencoder.1")
    target = tmp_path / "checkpoint"
    tiny_model(folder, dtype=torch.float32).save(target)
    data = bytearray((target / checkpoints.MODEL_FILE).read_bytes())
    data[-1] ^= 1
    (target / checkpoints.MODEL_FILE).write_bytes(data)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        BiEncoder.load(target)


def test_encoding_takes_the_options_of_sentence_transformers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpr.core.logs._FIRST_LINES_EVERY_S", 0.0)
    model = tiny_model(tmp_path, dtype=torch.float32, shared=True)
    texts = ["ba be", "bi", "bo bu ba", "be"]
    sizes = list[int]()
    model.question_model.register_forward_pre_hook(lambda _, arguments: sizes.append(len(arguments[0])))
    for encode in (model.encode_questions, model.encode_passages, model.encode):
        expected = encode(texts)
        sizes.clear()
        with caplog.at_level("INFO"):
            found = encode(texts, batch_size=3, convert_to_tensor=True, show_progress_bar=True)
        assert isinstance(found, torch.Tensor) and max(sizes) == 3 and sum(sizes) == 4
        assert found.device == model.device
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)
        assert "4 of 4" in caplog.text
        assert encode("ba", convert_to_tensor=True).shape == (model.dimension,)
        listed = encode(texts, convert_to_numpy=False)
        assert type(listed) is list and torch.equal(torch.stack(listed), torch.from_numpy(encode(texts)))
        with pytest.raises(TypeError, match=r"encode\(\) has no argument 'batchsize'"):
            encode(texts, batchsize=3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"settings": {"pooling": "mean"}}, "settings is of type dict; give dpr.EncoderSettings"),
        ({"options": {"temperature": 1}}, "options is of type dict; give dpr.TowerOptions"),
        ({"settings": EncoderSettings(shared="yes")}, "encoder.shared='yes' is not true or false"),  # type: ignore[arg-type]
        ({"settings": EncoderSettings(sequence_length="32")}, "sequence_length='32' is not a whole number"),  # type: ignore[arg-type]
    ],
)
def test_wrong_settings_are_one_sentence(folder: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        BiEncoder.from_pretrained(str(folder), **given)


def test_a_prompt_is_a_text_or_a_name(tmp_path: Path) -> None:
    tiny_model(tmp_path / "encoder", dtype=torch.float32, shared=True).save(tmp_path / "model")
    plain = BiEncoder(tmp_path / "model")
    model = BiEncoder(tmp_path / "model", prompts={"query": "ba: ", "document": "be: ", "web": "bi: "})
    for given, before in (("web", "bi: "), ("query", "ba: "), ("ko ", "ko "), ("", ""), (None, "ba: ")):
        found = model.encode_query(["ca"], prompt=given)
        np.testing.assert_allclose(found, plain.encode_query([f"{before}ca"]), atol=1e-6)
        if given is not None:
            np.testing.assert_allclose(model.encode(["ca"], prompt=given), found, atol=1e-6)
    found = model.encode_document(["ca"], prompt="ko: ")
    np.testing.assert_allclose(found, plain.encode(["ko: ca"]), atol=1e-6)
    np.testing.assert_array_equal(model.encode_query("ca", prompt="ko: ", prompt_name="web"), found[0])
    for name in ("prompt", "prompt_name"):
        with pytest.raises(ConfigError, match="no prompt named wbe; it has query, document, web"):
            model.encode_query("ca", **{name: "wbe"})
    assert model.encode_query(["ca"]).shape == model.encode_query(["ca"], prompt="ko: ").shape


@pytest.mark.parametrize("normalize", [False, True])
def test_a_call_can_cut_its_vectors_and_choose_its_arithmetic(tmp_path: Path, normalize: bool) -> None:
    model = tiny_model(tmp_path, dtype=torch.float32, shared=True, normalize=normalize)
    whole = model.encode(TEXTS)
    cut = model.encode(TEXTS, truncate_dim=8)
    fast = model.encode(TEXTS, precision="bf16")
    assert fast.dtype == np.float32 and 0 < np.abs(fast - whole).max() < 0.1
    np.testing.assert_array_equal(model.encode(TEXTS, precision="float32"), whole)
    with pytest.raises(ConfigError, match="truncate_dim=17, but the model's vectors have 16"):
        model.encode(TEXTS, truncate_dim=17)
    model.keep_dimensions(8)
    np.testing.assert_allclose(cut, model.encode(TEXTS), atol=1e-6)


def test_processes_on_several_devices_give_equal_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(tmp_path, dtype=torch.float32, shared=True)
    texts = ["ba be bi", "ko", "sa ba", "ko ku ba", "be"]
    before = {*active_children()}
    expected = model.encode(texts, batch_size=2)
    found = model.encode(texts, batch_size=2, device=["cpu", "cpu"])
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(LostRankError, match="encoding failed: meta: "):
        model.encode(texts, devices="meta")

    def interrupted(connections: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("dpr.models.several_devices.wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.encode(texts, devices=["cpu"])
    assert {*active_children()} <= before  # other tests may have processes of their own


SHORT = ["ba be bi", "ko ku", "sa"]


@pytest.mark.parametrize("normalize", [False, True])
def test_a_cut_vector_is_the_prefix(tmp_path: Path, normalize: bool) -> None:
    model = tiny_model(tmp_path, normalize=normalize, dtype=torch.float32)
    whole, fingerprint = model.encode_passages(SHORT), model.fingerprint
    model.keep_dimensions(16)
    assert model.fingerprint == fingerprint, "all dimensions are those that it has"
    model.keep_dimensions(5)
    expected = whole[:, :5] / (np.linalg.norm(whole[:, :5], axis=1, keepdims=True) if normalize else 1)
    np.testing.assert_allclose(model.encode_passages(SHORT), expected, rtol=1e-5)
    assert model.dimension == 5 and model.fingerprint != fingerprint
    with pytest.raises(ConfigError, match="dimensions=6, but the model's vectors have 5"):
        model.keep_dimensions(6)


def test_questions_are_cut_as_the_passages_are(tmp_path: Path) -> None:
    tiny_model(tmp_path / "encoder", dtype=torch.float32).save(tmp_path / "model")
    write_passages(tmp_path / "corpus.tsv", [Passage(text, "", f"p{row}") for row, text in enumerate(TEXTS)])
    for dimensions in (5, 7, 0):
        name = "narrow" if dimensions else "whole"
        config = EmbedConfig(out_file=str(tmp_path / name), dimensions=dimensions)
        again = pytest.raises(InputError, match="finished vectors with dimension=5, this run has 7")
        with again if dimensions == 7 else nullcontext():
            embed_shard(BiEncoder.load(tmp_path / "model"), PassageSource(tmp_path / "corpus.tsv"), config)
    model = BiEncoder.load(tmp_path / "model")
    fit_to_vectors(model, open_shards([tmp_path / "narrow_0"]))
    assert model.dimension == 5
    with pytest.raises(InputError, match="vectors of another model"):
        fit_to_vectors(model, open_shards([tmp_path / "whole_0"]))
