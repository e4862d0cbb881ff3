"""A static encoder is a table, token weights and a mean, for both sides or for questions alone."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from dpr import Retriever
from dpr.core.batch import TokenBatch
from dpr.core.errors import ConfigError, InputError
from dpr.core.records import Passage
from dpr.export.folders import check, export_folder, format_of
from dpr.formats.corpora import write_passages
from dpr.formats.token_frequencies import TOKEN_FREQUENCIES_FILE, TokenFrequencies
from dpr.jobs.train import build_model
from dpr.models.biencoder import BiEncoder, TowerOptions
from dpr.models.encoder import EncoderSettings
from dpr.models.properties import is_static
from dpr.training.command_settings import TrainCommand
from tests.helpers.jobs import embed, retrieve, train
from tests.helpers.tiny import VOCABULARY, encoder_folder, static_folder, tiny_model, training_folder
from tests.helpers.training import assert_near, encoded

BATCH = TokenBatch.from_lists([[5, 9, 9, 30, 6], [5, 6], [5, 12, 9, 6, 40, 41, 9]])


@pytest.mark.parametrize("side", ["question", "ctx"])
@pytest.mark.parametrize("pooling", ["idf", "idf_sqrt", "mean", "weighted_mean", "last"])
def test_packed_equals_padded_in_vectors_and_gradients(tmp_path: Path, pooling: str, side: str) -> None:
    folder = static_folder(tmp_path)
    results = []
    for packed in (True, False):
        model = tiny_model(
            folder, shared=True, pooling=pooling, normalize=True, options=TowerOptions(packed=packed)
        )
        tower = model.tower(side)
        assert tower.is_packed == packed
        results.append(encoded(tower, BATCH))
    assert len(results[0]) == (3 if pooling in ("idf", "idf_sqrt") else 2)
    assert_near(*results, 1e-13)


def test_a_vector_is_the_mean_of_rows_times_idf(tmp_path: Path) -> None:
    folder = static_folder(tmp_path)
    tower = tiny_model(folder, shared=True, pooling="idf").question_model
    count = torch.arange(len(VOCABULARY), dtype=torch.float64) % 100
    idf = torch.log1p((100 - count + 0.5) / (count + 0.5))
    idf = idf / idf.mean()
    texts = BATCH.tokens.split(BATCH.lengths.tolist())
    rows = tower.backbone.words.weight
    expected = [(idf[tokens, None] * rows[tokens]).mean(0) for tokens in texts]
    torch.testing.assert_close(tower(BATCH), torch.stack(expected), rtol=0, atol=1e-6)
    torch.testing.assert_close(tower.pooling.token_weights.detach(), idf, rtol=1e-6, atol=0)


def test_repeats_count_by_their_root_and_weights_begin_with_the_root_of_idf(tmp_path: Path) -> None:
    folder = static_folder(tmp_path)
    idf, root = (tiny_model(folder, shared=True, pooling=name).question_model for name in ("idf", "idf_sqrt"))
    start = idf.pooling.token_weights.detach().sqrt()
    torch.testing.assert_close(root.pooling.token_weights.detach(), start / start.mean(), rtol=1e-6, atol=0)
    rows = root.pooling.token_weights[:, None] * root.backbone.words.weight
    expected = [(rows[5] + 2**0.5 * rows[9] + rows[30] + rows[6]) / 5, (rows[5] + rows[6]) / 2]
    torch.testing.assert_close(root(BATCH)[:2], torch.stack(expected), rtol=0, atol=1e-12)


def test_the_gradient_holds_the_tokens_of_the_batch_alone(tmp_path: Path) -> None:
    tower = tiny_model(static_folder(tmp_path), shared=True, pooling="idf").question_model
    tower(BATCH).sum().backward()
    gradient = tower.backbone.words.weight.grad
    assert gradient.is_sparse and gradient._indices().tolist() == [sorted(set(BATCH.tokens.tolist()))]


def test_its_folder_keeps_everything(tmp_path: Path) -> None:
    folder, options = static_folder(tmp_path / "encoder"), TowerOptions(temperature=0.05)
    model = tiny_model(folder, shared=True, pooling="idf", normalize=True, options=options)
    nn.init.normal_(model.question_model.pooling.token_weights)
    model.float().save(tmp_path / "model")
    loaded = BiEncoder.load(tmp_path / "model")
    assert loaded.fingerprint == model.fingerprint and loaded.stored_temperature == 0.05
    assert (loaded.encode(["ba be bi", ""]) == model.encode(["ba be bi", ""])).all()


def test_opening_one_imports_none_of_transformers_models(tmp_path: Path) -> None:
    tiny_model(static_folder(tmp_path / "encoder"), shared=True, pooling="idf").save(tmp_path / "model")
    program = (
        "import sys; from dpr import BiEncoder; BiEncoder.load(sys.argv[1]).encode_questions(['ba be'])\n"
        "print({'transformers.modeling_utils', 'torch._dynamo', 'scipy', 'peft'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "model")], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "set()"


def test_a_folder_that_transformers_wrote_of_one_is_read(tmp_path: Path) -> None:
    model = tiny_model(static_folder(tmp_path), shared=True, pooling="mean")
    rows = model.question_model.backbone.words.weight.detach()
    save_file({"words.weight": rows.half()}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    opened = BiEncoder.from_pretrained(str(tmp_path), model.settings).question_model.backbone
    assert (opened.words.weight == rows.half().to(rows)).all() and not opened.training
    save_file({"words.weight": rows[:-1].contiguous()}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="of another shape: words"):
        BiEncoder.from_pretrained(str(tmp_path), model.settings)


def test_without_frequencies_all_tokens_begin_alike(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_model(static_folder(tmp_path / "uncounted", counted=False), shared=True, pooling="idf")
    assert "token weights of encoder.pooling=idf begin with 1" in caplog.text
    assert (model.question_model.pooling.token_weights == 1).all()


@pytest.mark.parametrize(
    "stored",
    [
        {"passages": 3},
        {"passages": 3, "passages_with": [1]},
        {"passages": 3, "passages_with": [4] * len(VOCABULARY)},
        {"passages": 3, "passages_with": [1] * len(VOCABULARY), "mean_length": -1},
    ],
)
def test_damaged_frequencies_are_refused(tmp_path: Path, stored: object) -> None:
    static_folder(tmp_path)
    (tmp_path / TOKEN_FREQUENCIES_FILE).write_text(json.dumps(stored))
    with pytest.raises(InputError, match="is not a count of tokens"):
        TokenFrequencies.read(tmp_path, vocab_size=len(VOCABULARY))


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dpr_trailing_sep"):
        tiny_model(static_folder(tmp_path / "static"), pooling="mean", dpr_trailing_sep=True)
    with pytest.raises(ConfigError, match=r"encoder\.pooling=cls"):
        tiny_model(tmp_path / "static")
    config = TrainCommand()
    config.encoder.encoder_model_type = "static"
    config.encoder.pretrained_model_cfg = str(encoder_folder(tmp_path / "bert"))
    with pytest.raises(ConfigError, match=r"not the folder of a static .*make one with dpr new-encoder"):
        build_model(config)


KINDS: dict[str, dict[str, Any]] = {
    "cls": {},
    "cosine, mean, prompts": {
        "pooling": "mean",
        "normalize": True,
        "query_prompt": "a: ",
        "passage_prompt": "e: ",
    },
    "the original's [SEP]": {"dpr_trailing_sep": True},
    "cut": {"dimensions": 5, "normalize": True},
    "projection, cut": {"projection_dim": 6, "projection_activation": "tanh", "dimensions": 4},
}
TEXTS = ["ba be bi", "bo", "ba ba ba bu ke"]


def with_table(folder: Path, **settings: Any) -> BiEncoder:
    model = tiny_model(folder, dtype=torch.float32, static_questions=True, **settings)
    with torch.no_grad():  # as if it were trained
        weights = model.question_model.pooling.token_weights
        weights.uniform_(0.2, 3, generator=torch.Generator().manual_seed(1))
    return model.eval()


@pytest.mark.parametrize("kind", KINDS)
def test_questions_are_weighted_means_of_rows_and_survive_a_save(kind: str, tmp_path: Path) -> None:
    model = with_table(tmp_path / "encoder", **KINDS[kind])
    table, tokens = model.question_model, model.tensorizer.question_tokens(TEXTS)
    rows = table.backbone.get_input_embeddings().weight * table.pooling.token_weights[:, None]
    expected = torch.stack([rows[torch.tensor(sequence)].mean(0)[: model.dimension] for sequence in tokens])
    expected = torch.nn.functional.normalize(expected, dim=1) if model.settings.normalize else expected
    np.testing.assert_allclose(model.encode_questions(TEXTS), expected.detach(), atol=1e-6)
    model.save(tmp_path / "saved")
    again = BiEncoder.load(tmp_path / "saved")
    assert again.fingerprint == model.fingerprint
    assert again.settings.static_questions and not again.settings.shared
    assert is_static(again.question_model.backbone) and not is_static(again.ctx_model.backbone)
    assert np.array_equal(again.encode_questions(TEXTS), model.encode_questions(TEXTS))
    assert np.array_equal(again.encode_passages(TEXTS), model.encode_passages(TEXTS))
    with pytest.raises(ConfigError, match="encodes questions and passages differently"):
        again.encode("ba")


@pytest.mark.parametrize("shared", [True, False])
def test_rows_begin_as_the_vectors_of_a_trained_model(shared: bool, tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "encoder", dtype=torch.float32, shared=shared, pooling="mean").eval()
    passages, plain = model.encode_passages(TEXTS), model.fingerprint
    words = ["ba", "ke", "tu"]
    alone = model.encode_questions(words)
    ids = [model.tensorizer.tokenizer.convert_tokens_to_ids(word) for word in words]
    model.use_static_questions()
    assert np.array_equal(model.encode_passages(TEXTS), passages) and model.fingerprint != plain
    np.testing.assert_allclose(
        model.question_model.backbone.get_input_embeddings().weight[ids].detach(), alone, atol=1e-6
    )
    assert sum(parameter.numel() for parameter in model.question_model.parameters()) == 17 * len(
        model.tensorizer.tokenizer.get_vocab()
    )


def test_it_needs_a_transformer_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the model of the passages is static itself"):
        BiEncoder.from_pretrained(
            str(static_folder(tmp_path / "static")), EncoderSettings(static_questions=True, pooling="mean")
        )
    lora = tiny_model(encoder_folder(tmp_path / "bert"), adapter="lora", lora_rank=2)
    with pytest.raises(ConfigError, match=r"has adapters; merge them first \(dpr export to=model\)"):
        lora.use_static_questions()


def test_another_library_gives_the_same_vectors(tmp_path: Path) -> None:
    to = "sentence-transformers"
    kind = "cosine, mean, prompts"
    form = format_of(to)
    pytest.importorskip(form.library.replace("-", "_"))
    model = with_table(tmp_path / "encoder", **KINDS[kind])
    export_folder(model, tmp_path / "out", to, source=kind)
    found = check(model, tmp_path / "out", form, kind)
    assert found is not None and found.largest < 1e-5
    card = (tmp_path / "out" / "README.md").read_text()
    assert "a static embedding table for questions" in card and "| architecture | bert, 2 layers" in card


TRAIN = "train_datasets=train.json train.batch_size=8 train.num_workers=0 train.num_train_epochs=1 device=cpu"
TABLE = "encoder.static_questions=true encoder.fix_ctx_encoder=true train.learning_rate=0.01"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with an encoder and training data."""
    monkeypatch.chdir(tmp_path)
    return training_folder(tmp_path, train=16, dev=4)


def test_a_model_of_sentence_transformers_gets_a_table_in_training(place: Path) -> None:
    stated = {"pooling": "mean", "normalize": True, "shared": True, "plain_apostrophes": False}
    model = tiny_model(place / "encoder", dtype=torch.float32, **stated)
    export_folder(model, place / "given", "sentence-transformers", source="model")
    assert train(f"{TRAIN} {TABLE} model_file=given output_dir=run".split()) == 0
    run = BiEncoder.load(place / "run")
    assert is_static(run.question_model.backbone)
    np.testing.assert_allclose(run.encode_passages(TEXTS), model.encode_passages(TEXTS), atol=1e-6)


def test_a_format_of_two_transformers_refuses_it(tmp_path: Path) -> None:
    model = with_table(tmp_path / "encoder")
    with pytest.raises(InputError, match=r"static"):
        export_folder(model, tmp_path / "out", "hf-dpr", source="model")
    assert not (tmp_path / "out").exists()


def test_commands_train_it_beside_a_frozen_transformer_and_search_with_it(place: Path) -> None:
    passages = [Passage(text, id=f"p{number}") for number, text in enumerate(TEXTS)]
    write_passages(place / "corpus.jsonl", passages)
    encoder = "encoder.pretrained_model_cfg=encoder encoder.pretrained=false encoder.sequence_length=24"
    assert train(f"{TRAIN} {encoder} encoder.shared=true output_dir=first".split()) == 0
    assert train(f"{TRAIN} {TABLE} model_file=first output_dir=run".split()) == 0
    first, run = BiEncoder.load(place / "first"), BiEncoder.load(place / "run")
    assert np.array_equal(first.encode_passages(TEXTS), run.encode_passages(TEXTS))
    first.use_static_questions()
    assert not np.array_equal(first.encode_questions(TEXTS), run.encode_questions(TEXTS)), "it has learned"
    assert embed("model_file=run ctx_src=corpus.jsonl out_file=run/vectors".split()) == 0
    (place / "q.jsonl").write_text('{"_id": "q", "text": "ba be"}\n')
    texts = "qa_dataset=q.jsonl ctx_datatsets=[corpus.jsonl] search_folder=run"
    assert retrieve(f"model_file=run encoded_ctx_files=[run/vectors_*] {texts}".split()) == 0
    scores = run.encode_passages(passages) @ run.encode_questions("ba be")
    found = Retriever.open(place / "run").search("ba be", 3)
    # two of the scores are equal but for rounding, so their order says nothing
    expected = {str(passage.id): float(score) for passage, score in zip(passages, scores, strict=True)}
    assert {hit.id: hit.score for hit in found} == pytest.approx(expected, rel=1e-6)
    assert found[-1].id == min(expected, key=lambda key: expected[key])
