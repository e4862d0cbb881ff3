"""A static table encodes questions beside a transformer of passages, and is saved, loaded and exported."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpr import Retriever
from dpr.core.errors import ConfigError, InputError
from dpr.core.records import Passage
from dpr.export.folders import check, export_folder, format_of
from dpr.formats.corpora import write_passages
from dpr.models.biencoder import BiEncoder
from dpr.models.encoder import EncoderSettings
from dpr.models.properties import is_static
from tests.helpers.jobs import embed, retrieve, train
from tests.helpers.tiny import encoder_folder, static_folder, tiny_model, training_folder

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
        model.question_model.pooling.token_weights.uniform_(
            0.2, 3, generator=torch.Generator().manual_seed(1)
        )
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
    texts = "qa_dataset=q.jsonl ctx_datatsets=[corpus.jsonl]"
    assert (
        retrieve(f"model_file=run encoded_ctx_files=[run/vectors_*] search_folder=run {texts}".split()) == 0
    )
    scores = run.encode_passages(passages) @ run.encode_questions("ba be")
    found = Retriever.open(place / "run").search("ba be", 3)
    # two of the scores are equal but for rounding, so their order says nothing
    expected = {str(passage.id): float(score) for passage, score in zip(passages, scores, strict=True)}
    assert {hit.id: hit.score for hit in found} == pytest.approx(expected, rel=1e-6)
    assert found[-1].id == min(expected, key=lambda key: expected[key])
