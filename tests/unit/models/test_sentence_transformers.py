"""Models that sentence-transformers itself saved give the vectors that it gives, or are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpr.core.errors import CheckpointError, ConfigError
from dpr.core.records import Passage
from dpr.models.biencoder import BiEncoder, TowerOptions
from dpr.models.settings import EncoderSettings
from tests.helpers.decoders import byte_tokenizer, decoder_folder
from tests.helpers.tiny import VOCABULARY, WORDS, encoder_folder

library = pytest.importorskip("sentence_transformers")
modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")

LONG = " ".join(WORDS[:40])
TEXTS = ["ba be bi", "", "don\u2019t ca ce?", "\u00e9t\u00e9 - d\u00fc du", "  fa  fe ", LONG, "ga"]
PROMPTS = {"query": "ba be: ", "document": "bo bu - ", "web": "ka "}
IDENTITY = torch.nn.Identity()


def body(folder: Path, name: str = "bert", *, seed: int = 0, **options: Any) -> Any:
    """A Transformer with the tokenizer of its family, and weights large enough that vectors differ."""
    from transformers import AutoModel, AutoTokenizer, BertModel

    sizes = {key: options.pop(key) for key in ("hidden_size",) if key in options}
    place = folder / f"{name}{seed}"
    torch.manual_seed(seed)
    if name == "decoder":
        decoder_folder(place, "qwen3 embedding", initializer_range=0.2)
        AutoModel.from_config(_config(place)).save_pretrained(str(place))
    else:
        encoder_folder(place, initializer_range=0.2, **sizes)
        BertModel(_config(place)).save_pretrained(str(place))
        tokenizer = AutoTokenizer.from_pretrained(str(place))
        if name == "bytes":
            tokenizer = byte_tokenizer("llama", pad_token="<bos>")
        tokenizer.save_pretrained(str(place))
    return modules.Transformer(str(place), **options)


def _config(folder: Path) -> Any:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(str(folder))


def dense(rows: int = 5, *, in_features: int = 16, **options: Any) -> Any:
    torch.manual_seed(5)
    return modules.Dense(in_features, rows, **{"activation_function": IDENTITY, **options})


def static(folder: Path, *, length: int | None = None) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(encoder_folder(folder / "static")))
    if length is not None:
        tokenizer.backend_tokenizer.enable_truncation(length)
    torch.manual_seed(1)
    table = torch.randn(len(VOCABULARY), 16)
    return modules.StaticEmbedding(tokenizer.backend_tokenizer, embedding_weights=table)


def pooling(mode: str = "cls", width: int = 16, **options: Any) -> Any:
    return modules.Pooling(width, pooling_mode=mode, **options)


def router(query: list[Any], document: list[Any]) -> Any:
    return modules.Router.for_query_document(query, document)


Made = tuple[list[Any], dict[str, Any]]
MODELS: dict[str, Callable[[Path], Made]] = {
    "mean, scaled": lambda path: ([body(path), pooling("mean"), modules.Normalize()], {}),
    "prompts": lambda path: ([body(path), pooling("mean")], {"prompts": PROMPTS}),
    "two lengths": lambda path: ([body(path, query_length=9, document_length=14), pooling("mean")], {}),
    "tanh": lambda path: ([body(path), pooling(), dense(activation_function=torch.nn.Tanh())], {}),
    "projections after each other": lambda path: (
        [body(path), pooling("mean"), dense(40), dense(6, in_features=40, bias=False), modules.Normalize()],
        {},
    ),
    "projection, cut": lambda path: ([body(path), pooling("mean"), dense()], {"truncate_dim": 3}),
    "two towers": lambda path: (
        [router([body(path), pooling()], [body(path, seed=1, max_seq_length=16), pooling()])],
        {"prompts": PROMPTS},
    ),
    "two towers, then the same modules": lambda path: (
        [router([body(path, query_length=7)], [body(path, seed=1)]), pooling("mean"), modules.Normalize()],
        {},
    ),
    "static, cut, scaled": lambda path: ([static(path, length=9), modules.Normalize()], {"prompts": PROMPTS}),
    "decoder": lambda path: (
        [_plain_texts(body(path, "decoder")), pooling("lasttoken", 32), modules.Normalize()],
        {"prompts": PROMPTS},
    ),
}


def _plain_texts(transformer: Any) -> Any:
    """Without the chat template that the library makes up for a decoder."""
    transformer.modality_config = {"text": transformer.modality_config["text"]}
    return transformer


def saved(
    path: Path, parts: list[Any], *, similarity: str | None = "dot", **options: Any
) -> tuple[Any, Path]:
    """The model as the library loads it again, and the folder."""
    model = library.SentenceTransformer(modules=parts, device="cpu", similarity_fn_name=similarity, **options)
    model.save(str(path / "st"), create_model_card=False)
    return library.SentenceTransformer(str(path / "st"), device="cpu", local_files_only=True), path / "st"


def assert_same(model: BiEncoder, theirs: Any, *, pairs: bool = False, atol: float = 2e-6) -> None:
    scale = max(1.0, float(np.abs(theirs.encode_query(TEXTS)).max()))
    np.testing.assert_allclose(model.encode_questions(TEXTS), theirs.encode_query(TEXTS), atol=atol * scale)
    expected = theirs.encode_document([text.strip() for text in TEXTS])
    np.testing.assert_allclose(model.encode_passages(TEXTS), expected, atol=atol * scale)
    titled = [Passage(text, "bi bo") for text in TEXTS]
    joined = [("bi bo", text.strip()) if pairs else f"bi bo {text.strip()}" for text in TEXTS]
    expected = theirs.encode_document(joined)
    np.testing.assert_allclose(model.encode_passages(titled), expected, atol=atol * scale)


@pytest.mark.parametrize("kind", MODELS)
def test_a_saved_model_gives_the_same_vectors(tmp_path: Path, kind: str) -> None:
    parts, options = MODELS[kind](tmp_path)
    theirs, folder = saved(tmp_path, parts, **options)
    model = BiEncoder.load(folder)
    assert_same(model, theirs)
    if options.get("prompts") == PROMPTS:
        expected = theirs.encode(TEXTS, prompt_name="web", task="query")
        np.testing.assert_allclose(model.encode_questions(TEXTS, prompt="web"), expected, atol=3e-6)
    model.save(tmp_path / "again")
    again = BiEncoder.load(tmp_path / "again")
    assert again.fingerprint == model.fingerprint
    np.testing.assert_array_equal(again.encode_passages(TEXTS), model.encode_passages(TEXTS))


def test_a_model_in_memory_gives_the_same_vectors(tmp_path: Path) -> None:
    parts, options = MODELS["prompts"](tmp_path)
    theirs = library.SentenceTransformer(
        modules=parts, device="cpu", truncate_dim=6, similarity_fn_name="dot", **options
    )
    model = BiEncoder.from_sentence_transformers(theirs)
    assert (model.dimension, model.settings.query_prompt) == (6, PROMPTS["query"])
    assert_same(model, theirs)


@pytest.mark.parametrize("scaled", [False, True])
def test_cosine_scores_are_products_of_vectors(tmp_path: Path, scaled: bool) -> None:
    parts = [body(tmp_path), pooling("mean"), *([modules.Normalize()] if scaled else [])]
    theirs, folder = saved(tmp_path, parts, similarity=None, truncate_dim=7)
    model = BiEncoder.load(folder)
    assert model.similarity_fn_name == theirs.similarity_fn_name == "cosine"
    expected = theirs.similarity(theirs.encode_query(TEXTS), theirs.encode_document(TEXTS))
    scores = model.encode_questions(TEXTS) @ model.encode_passages(TEXTS).T
    np.testing.assert_allclose(scores, expected, atol=1e-6)


def general_tokenizer(transformer: Any, **options: Any) -> Any:
    """Its tokenizer as the class that takes tokenizer.json as it is."""
    from transformers import PreTrainedTokenizerFast

    special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    values = {"model_max_length": 64, **special, **options}
    return PreTrainedTokenizerFast(tokenizer_object=transformer.tokenizer.backend_tokenizer, **values)


def test_titles_stay_pairs_where_no_token_type_marks_them(tmp_path: Path) -> None:
    transformer = body(tmp_path)
    transformer.processor = general_tokenizer(transformer, model_input_names=["input_ids", "attention_mask"])
    theirs, folder = saved(tmp_path, [transformer, pooling("mean")])
    assert_same(BiEncoder.load(folder), theirs, pairs=True)


def test_a_rule_for_apostrophes_of_questions_is_found_in_their_tokenizer(tmp_path: Path) -> None:
    from tokenizers import normalizers

    parts = [body(tmp_path), body(tmp_path, seed=1)]
    for part, has_rule in zip(parts, (True, False), strict=True):
        backend = part.tokenizer.backend_tokenizer
        if has_rule:
            rule = normalizers.Replace("\u2019", "'")
            backend.normalizer = normalizers.Sequence([rule, backend.normalizer])
        part.processor = general_tokenizer(part, model_max_length=24)
    theirs, folder = saved(tmp_path, [router([parts[0], pooling()], [parts[1], pooling()])])
    model = BiEncoder.load(folder)
    assert model.settings.plain_apostrophes
    assert_same(model, theirs, pairs=True)
    np.testing.assert_array_equal(*model.encode_questions(["don\u2019t ca", "don't ca"]))


def then(*parts: Any, **options: Any) -> Callable[[Path], Made]:
    """A Transformer and its pooling before these modules."""
    return lambda path: ([body(path), pooling(), *parts], options)


def routed(second: Callable[[Path], list[Any]]) -> Callable[[Path], Made]:
    """Questions by a Transformer and its pooling, passages by other modules."""
    return lambda path: ([router([body(path), pooling()], second(path))], {})


def by_modality(path: Path) -> Made:
    parts = [body(path), pooling()]
    routes = {"query": parts, "document": parts}
    return [modules.Router(routes, route_mappings={(None, "text"): "query"})], {}


def left_and_right(path: Path) -> Made:
    return [modules.Router({"left": [body(path), pooling()], "right": [body(path, seed=1), pooling()]})], {}


def without_prompts(path: Path) -> Made:
    return [body(path), pooling("mean", include_prompt=False)], {"prompts": PROMPTS}


REFUSED: dict[str, tuple[Callable[[Path], Made], str]] = {
    "activation": (then(dense(activation_function=torch.nn.ReLU())), "ReLU.*, expected Identity or Tanh"),
    "activation in the middle": (then(modules.Dense(16, 16), dense()), "another Dense comes after"),
    "scaled, projected": (then(modules.Normalize(), dense()), "are Transformer, Pooling, Normalize, Dense"),
    "other module": (then(modules.LayerNorm(16)), "the modules are Transformer, Pooling, LayerNorm"),
    "residual connection": (then(dense(use_residual=True)), "use_residual is the boolean True"),
    "similarity": (then(similarity="manhattan"), "the similarity is"),
    "cut after scaling": (then(modules.Normalize(), truncate_dim=3), "truncate_dim is"),
    "token types": (lambda path: ([_marked(body(path)), pooling()], {}), "tokens of a text other types"),
    "no prompts": (without_prompts, "1_Pooling/config.json: this Pooling leaves the tokens of prompts out"),
    "poolings joined": (lambda path: ([body(path), pooling(["mean", "max"])], {}), "is by mean and max"),
    "chat template": (
        lambda path: ([_chat(body(path, "decoder")), pooling("lasttoken", 32)], {}),
        "modality_config is an object",
    ),
    "cut by the library": (
        lambda path: ([body(path, processing_kwargs={"text": {"max_length": 5}}), pooling()], {}),
        "processing_kwargs",
    ),
    "other tokenizers": (
        routed(lambda path: [body(path, "bytes", seed=1), pooling()]),
        "the tokenizers of questions and passages differ",
    ),
    "other sizes": (
        routed(lambda path: [body(path, seed=1, hidden_size=32), pooling(width=32)]),
        r"its two encoders differ in hidden_size \(16 and 32\)",
    ),
    "other poolings": (
        routed(lambda path: [body(path, seed=1), pooling("mean")]),
        "pools or normalises questions and passages differently",
    ),
    "other routes": (left_and_right, "the routes are left, right"),
    "routes by modality": (by_modality, "route_mappings"),
}


def _marked(transformer: Any) -> Any:
    """All tokens are of type 1."""
    from tokenizers import processors

    special = [(token, VOCABULARY.index(token)) for token in ("[CLS]", "[SEP]")]
    template = {"single": "[CLS]:1 $A:1 [SEP]:1", "pair": "[CLS]:1 $A:1 [SEP]:1 $B:1 [SEP]:1"}
    transformer.tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        **template, special_tokens=special
    )
    transformer.processor = general_tokenizer(
        transformer, model_input_names=["input_ids", "token_type_ids", "attention_mask"]
    )
    return transformer


def _chat(transformer: Any) -> Any:
    transformer.modality_config["message"] = transformer.modality_config["text"] | {"format": "flat"}
    return transformer


@pytest.mark.parametrize("kind", REFUSED)
def test_what_the_towers_cannot_do_is_refused(tmp_path: Path, kind: str) -> None:
    make, message = REFUSED[kind]
    parts, options = make(tmp_path)
    model = library.SentenceTransformer(
        modules=parts, device="cpu", similarity_fn_name=options.pop("similarity", "dot"), **options
    )
    model.save(str(tmp_path / "st"), create_model_card=False)
    with pytest.raises(CheckpointError, match=message):
        BiEncoder.load(tmp_path / "st")


def test_a_projection_of_another_width_is_refused(tmp_path: Path) -> None:
    _, folder = saved(tmp_path, [body(tmp_path), pooling(), dense(5)])
    assert BiEncoder.load(folder, settings=EncoderSettings(projection_dim=5)).dimension == 5
    with pytest.raises(CheckpointError, match="projection_dim=4"):
        BiEncoder.load(folder, settings=EncoderSettings(projection_dim=4))


def test_a_table_of_model2vec_is_read_and_a_quantized_vocabulary_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    _, folder = saved(tmp_path, [static(tmp_path)])
    torch.manual_seed(3)
    table = torch.randn(len(VOCABULARY), 16)
    save_file({"embeddings": table}, str(folder / "model.safetensors"))
    theirs = library.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    assert_same(BiEncoder.load(folder), theirs)
    mapping = torch.randint(0, 20, (len(VOCABULARY),))
    save_file({"embeddings": table, "mapping": mapping}, str(folder / "model.safetensors"))
    with pytest.raises(CheckpointError, match="holds embeddings, mapping, expected a table"):
        BiEncoder.load(folder)


def test_new_towers_take_what_the_folder_of_their_encoder_states(tmp_path: Path) -> None:
    from dpr.jobs.train import build_model
    from dpr.training.command_settings import TrainCommand

    def build(folder: Path) -> BiEncoder:
        config = TrainCommand()
        config.encoder.pretrained_model_cfg, config.encoder.sequence_length = str(folder), 24
        return build_model(config)

    for kind in ("prompts", "two towers"):
        (tmp_path / kind).mkdir()
        parts, options = MODELS[kind](tmp_path / kind)
        saved(tmp_path / kind, parts, **options)
    opened = BiEncoder.load(tmp_path / "prompts" / "st").settings
    taken = build(tmp_path / "prompts" / "st").settings
    assert taken.query_prompt == opened.query_prompt != ""
    assert taken.pooling == opened.pooling == "mean"
    assert (taken.sequence_length, taken.shared) == (24, True)  # what was said, and what the folder says
    given = EncoderSettings(pooling="last", query_prompt="bo ", sequence_length=24)
    towers = BiEncoder.from_pretrained(str(tmp_path / "prompts" / "st"), given)
    assert (towers.settings.pooling, towers.settings.query_prompt) == ("last", "bo ")
    whole = BiEncoder.from_pretrained(str(tmp_path / "prompts" / "st"))
    assert whole.fingerprint == BiEncoder.load(tmp_path / "prompts" / "st").fingerprint
    with pytest.raises(ConfigError, match="is in a subfolder, or which has two encoders; set model_file="):
        build(tmp_path / "two towers" / "st")


def test_what_the_folder_says_holds_unless_it_is_set(tmp_path: Path) -> None:
    _, folder = saved(tmp_path, [body(tmp_path, max_seq_length=24), pooling("mean"), dense()])
    opened = BiEncoder.load(folder)
    made = BiEncoder.from_pretrained(str(folder), EncoderSettings(sequence_length=16))
    assert (made.settings.shared, made.settings.pooling, made.dimension) == (True, "mean", 5)
    np.testing.assert_array_equal(made.encode_passages(TEXTS[:1]), opened.encode_passages(TEXTS[:1]))
    for length in (16, 64, 256):  # 256 is the default
        given = EncoderSettings(sequence_length=length)
        for door in (BiEncoder.load, BiEncoder, BiEncoder.from_pretrained):
            if length > 64:
                with pytest.raises(ConfigError, match="=256, but a BertModel has 64 positions"):
                    door(str(folder), settings=given)
                continue
            model = door(str(folder), settings=given)
            assert model.max_seq_length == model.tensorizer.question_length == length
            assert model.fingerprint != opened.fingerprint
    given = EncoderSettings(shared=False, projection_dim=0, pooling="cls")
    two = BiEncoder.from_pretrained(str(folder), given)
    assert (two.settings.shared, two.settings.pooling, two.dimension) == (False, "cls", 16)
    assert two.max_seq_length == 24


@pytest.mark.parametrize("stated", [48, None])
def test_rotary_positions_have_no_end(stated: int | None, tmp_path: Path) -> None:
    from transformers import AutoModel, NomicBertConfig

    body(tmp_path)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    config = NomicBertConfig(vocab_size=len(VOCABULARY), max_position_embeddings=12, pad_token_id=0, **sizes)
    place = tmp_path / "bert0"
    AutoModel.from_config(config).save_pretrained(str(place))
    _, folder = saved(tmp_path, [modules.Transformer(str(place)), pooling("mean")])
    if stated is not None:
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": stated}))
    theirs = library.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    for packed in (True, False):
        model = BiEncoder.load(folder, options=TowerOptions(packed=packed))
        assert model.max_seq_length == theirs.max_seq_length == (stated or 12)
        assert_same(model, theirs)


def test_two_towers_are_not_made_one_by_a_setting(tmp_path: Path) -> None:
    from dpr.jobs.train import build_model
    from dpr.training.command_settings import TrainCommand

    parts, options = MODELS["two towers"](tmp_path)
    config = TrainCommand(model_file=str(saved(tmp_path, parts, **options)[1]))
    assert not build_model(config).settings.shared
    config.encoder.shared = True
    assert not build_model(config).settings.shared
    config.train_datasets = "train.json"
    with pytest.raises(ConfigError, match=r"encoder.shared=True, but .* has False"):
        build_model(config)
