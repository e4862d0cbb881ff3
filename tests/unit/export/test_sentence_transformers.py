"""Exports for sentence-transformers give the model's vectors, load in transformers, or are refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpr.core.errors import InputError
from dpr.core.records import Passage
from dpr.export.folders import edge_cases, export_folder, format_of
from dpr.export.sentence_transformers import to_sentence_transformer
from dpr.export.towers import merged
from dpr.formats.corpora import write_passages
from dpr.formats.question_sets import write_qrels
from dpr.models.biencoder import BiEncoder
from dpr.storage.durable import verify_folder
from examples.sentence_transformers_evaluator import evaluate
from tests.helpers.exports import COSINE, MODELS, PROMPTS, bag, bert, decoder, rooted, shared, static
from tests.helpers.jobs import embed, retrieve
from tests.helpers.jobs import export as main
from tests.unit.retrieval.conftest import World
from tests.unit.retrieval.conftest import world as world

pytestmark = pytest.mark.skipif(find_spec("sentence_transformers") is None, reason="the extra interop has it")


def library() -> Any:
    import sentence_transformers

    return sentence_transformers


FORM = format_of("sentence-transformers")
MODULE = Path("dpr/export/root_static_embedding.py")


# each format says something of every model, and shared code writes the towers
CHECKED = [
    "shared, two lengths",
    "two towers",
    "prompts, shared, cosine",
    "cut, projection, cosine",
    "static without special tokens, two towers",
    "encoder of an encoder-decoder",
    "adapters",
    "decoder",
]


@pytest.mark.parametrize("name", CHECKED)
def test_every_model_gives_the_same_vectors(name: str, tmp_path: Path) -> None:
    model = MODELS[name](tmp_path / "made_of")
    export_folder(model, tmp_path / "out", "sentence-transformers", source=name)  # compares all vectors
    assert not verify_folder(tmp_path / "out")
    model, again = merged(model), BiEncoder.load(tmp_path / "out")
    methods = ("encode_questions", "encode_passages")
    for encode, texts in zip(methods, edge_cases(model.tensorizer), strict=True):
        np.testing.assert_allclose(getattr(again, encode)(texts), getattr(model, encode)(texts), atol=1e-5)


WEIGHTED: dict[str, Callable[[Path], BiEncoder]] = {
    "the quickstart's": rooted,
    "roots, two towers": lambda folder: rooted(
        folder, shared=False, plain_apostrophes=True, question_length=9, projection_dim=5, **PROMPTS
    ),
    "roots without special tokens": lambda folder: bag(folder, pooling="idf_sqrt"),
}


@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_of_tokens_arrive_too(name: str, tmp_path: Path) -> None:
    model = WEIGHTED[name](tmp_path / "made_of")
    with torch.no_grad():
        for tower in model.towers:
            tower.pooling.token_weights.uniform_(0.2, 3)
    export_folder(model, tmp_path / "out", "sentence-transformers", source=name)
    texts = ["ba ba ba be", "", "ba", "bi bo bi"][: 1 if "without special" in name else None]
    np.testing.assert_allclose(
        to_sentence_transformer(model).encode_query(texts), model.encode_questions(texts), atol=1e-6
    )


def test_a_folder_with_a_module_of_its_own_is_opened_by_the_library_alone_and_only_if_trusted(
    tmp_path: Path,
) -> None:
    model = rooted(tmp_path / "made_of")
    export_folder(model, tmp_path / "out", "sentence-transformers", source="model")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "BiEncoder.load" not in card
    assert 'SentenceTransformer("PATH", trust_remote_code=True)  # root_static_embedding.py' in card
    assert "dpr" not in {
        line.split()[1].split(".")[0]
        for line in MODULE.read_text().splitlines()
        if line.startswith(("import", "from"))
    }
    assert (tmp_path / "out" / MODULE.name).read_bytes() == MODULE.read_bytes()
    load = partial(library().SentenceTransformer, str(tmp_path / "out"), device="cpu", local_files_only=True)
    np.testing.assert_allclose(
        load(trust_remote_code=True).encode_query(["ba ba be"]),
        model.encode_questions(["ba ba be"]),
        atol=1e-6,
    )
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        load()


@pytest.mark.parametrize("name", ["two towers", "mean and cosine", "weighted mean", "decoder"])
def test_programs_that_serve_such_folders_find_the_pooling(name: str, tmp_path: Path) -> None:
    model = MODELS[name](tmp_path / "made_of")
    (tmp_path / "out").mkdir()
    FORM.write(model, tmp_path / "out", source=name)
    stated = json.loads((tmp_path / "out" / "1_Pooling" / "config.json").read_text())
    chosen = [key for key, value in stated.items() if value is True and key.startswith("pooling_mode_")]
    names = {
        "cls": "cls_token",
        "mean": "mean_tokens",
        "weighted_mean": "weightedmean_tokens",
        "last": "lasttoken",
    }
    assert chosen == [f"pooling_mode_{names[model.settings.pooling]}"]
    assert stated["embedding_dimension"] == model.question_model.config.hidden_size


@pytest.mark.parametrize("name", ["shared", "two towers", "static"])
def test_weights_are_there_once_and_plain_transformers_loads_them(name: str, tmp_path: Path) -> None:
    from transformers import AutoModel

    model = MODELS[name](tmp_path / "made_of")
    export_folder(model, tmp_path / "out", "sentence-transformers", source=name)
    bodies = [""] if model.settings.shared else ["question_encoder", "ctx_encoder"]
    assert sorted(tmp_path.glob("out/**/model.safetensors")) == sorted(
        tmp_path / "out" / body / "model.safetensors" for body in bodies
    )
    for body in bodies:
        _, info = AutoModel.from_pretrained(str(tmp_path / "out"), subfolder=body, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"]


def test_the_library_finds_prompts_similarity_and_dimensions(tmp_path: Path) -> None:
    model = bert(tmp_path / "made_of", dimensions=5, **PROMPTS)
    export_folder(model, tmp_path / "out", "sentence-transformers", source="model")
    loaded = library().SentenceTransformer(str(tmp_path / "out"), device="cpu", local_files_only=True)
    assert (loaded.prompts["query"], loaded.prompts["document"], loaded.prompts["web"]) == (
        "be: ",
        "ga: ",
        "da: ",
    )
    assert loaded.similarity_fn_name == "dot" and loaded.get_embedding_dimension() == 5
    expected = model.encode_questions(["ba be"], prompt="web")
    np.testing.assert_allclose(loaded.encode_query(["ba be"], prompt_name="web"), expected, atol=1e-5)
    passage = model.encode_passages([Passage("ba be", "bi")])
    np.testing.assert_allclose(loaded.encode_document([("bi", "ba be")]), passage, atol=1e-5)
    assert np.abs(loaded.encode_document(["bi ba be"]) - passage).max() > 1e-3
    assert to_sentence_transformer(bert(tmp_path / "cosine", **COSINE)).similarity_fn_name == "cosine"


def test_names_that_the_library_tries_for_passages_do_not_matter(tmp_path: Path) -> None:
    model = bert(tmp_path / "made_of", query_prompt="be: ", prompts={"passage": "ga: ", "corpus": "da: "})
    export_folder(model, tmp_path / "out", "sentence-transformers", source="model")
    loaded = library().SentenceTransformer(str(tmp_path / "out"), device="cpu", local_files_only=True)
    np.testing.assert_allclose(loaded.encode_document(["ba be"]), model.encode_passages(["ba be"]), atol=1e-5)
    assert loaded.prompts["passage"] == "ga: "


REFUSED: dict[str, tuple[Any, str]] = {
    "apostrophes of one side": (
        lambda folder: shared(folder, plain_apostrophes=True),
        "encoder.plain_apostrophes=false",
    ),
    "apostrophe of a prompt": (
        lambda folder: bert(folder, query_prompt="what\u2019s: "),
        "prompts have typographic",
    ),
    "trailing SEP": (lambda folder: bert(folder, dpr_trailing_sep=True), r"original's \[SEP\]"),
    "user-defined pooling": (
        lambda folder: bert(folder, pooling="dpr.models.pooling:MeanPooling"),
        "user-defined",
    ),
    "repeats in a transformer": (lambda folder: bert(folder, pooling="idf_sqrt"), "weights the tokens"),
    "names of prompts": (lambda folder: bert(folder, prompts={"query": "x"}), "a prompt called query"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_library_cannot_say_is_refused(name: str, tmp_path: Path) -> None:
    make, reason = REFUSED[name]
    with pytest.raises(InputError, match=reason):
        export_folder(make(tmp_path / "made_of"), tmp_path / "out", "sentence-transformers", source="model")
    assert not (tmp_path / "out").exists()


def test_other_vectors_there_are_an_error_and_the_folder_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = bert(tmp_path / "made_of")
    monkeypatch.setattr(
        model,
        "encode_passages",
        lambda texts, **_: type(model).encode_passages(model, texts) + np.float32(1e-3),
    )
    with pytest.raises(InputError, match=r"vector of the passage ['\"].*['\"] differs by"):
        export_folder(model, tmp_path / "out", "sentence-transformers", source="model")
    assert not [path for path in tmp_path.iterdir() if path.name != "made_of"]


def test_the_command_says_what_was_compared_and_a_rerun_finds_its_work_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared(tmp_path / "made_of", dimensions=0).save(tmp_path / "model")
    arguments = ["to=sentence-transformers", f"model_file={tmp_path / 'model'}", f"out={tmp_path / 'out'}"]
    assert main(arguments) == 0
    assert "checked by sentence-transformers" in "".join(capsys.readouterr())
    before = (tmp_path / "out" / "manifest.json").read_bytes()
    assert main(arguments) == 0
    assert (tmp_path / "out" / "manifest.json").read_bytes() == before
    assert main([*arguments, "dimensions=4"]) == 3  # something else is there
    shared(tmp_path / "made_of", seed=1).save(tmp_path / "model", overwrite=True)
    assert main(arguments) == 3
    assert "made with another model" in capsys.readouterr().err
    modules = json.loads((tmp_path / "out" / "modules.json").read_text())
    assert [module["path"] for module in modules] == ["", "1_Pooling"]


def test_a_template_is_what_users_join_by(tmp_path: Path) -> None:
    loaded = to_sentence_transformer(model := decoder(tmp_path / "made_of"))
    expected = model.encode_passages([Passage("ba be", "bi")])
    np.testing.assert_allclose(loaded.encode_document(["bi ba be"]), expected, atol=1e-5)
    assert "bi" not in FORM.usage(model) and "'A title A text.'" in FORM.usage(model)
    assert static(tmp_path / "static").settings.title_template == ""


def test_its_evaluator_finds_the_metrics_of_retrieval(world: World, tmp_path: Path) -> None:
    export_folder(world.model, tmp_path / "out", "sentence-transformers", source="model")
    corpus, qrels, metrics = (tmp_path / name for name in ("corpus.tsv", "qrels.tsv", "metrics.json"))
    passages = [replace(one, title=one.title if row % 3 else "") for row, one in enumerate(world.passages)]
    write_passages(corpus, passages)
    write_qrels(qrels, {one.id: {f"p{row * 5:03d}": 1} for row, one in enumerate(world.questions)})
    dense = [f"model_file={world.path('model')}", "no_cuda=true"]
    assert embed([*dense, f"ctx_src={corpus}", f"out_file={tmp_path / 'vectors'}"]) == 0
    files = [f"qa_dataset={world.path('questions.jsonl')}", f"qrels={qrels}", f"ctx_datatsets=[{corpus}]"]
    files += [f"encoded_ctx_files={tmp_path / 'vectors_0'}", f"metrics_file={metrics}"]
    assert retrieve([*dense, *files]) == 0
    ours = json.loads(metrics.read_text())["metrics"]
    theirs = evaluate(str(tmp_path / "out"), str(corpus), world.path("questions.jsonl"), str(qrels))
    for name in ("accuracy@1", "accuracy@5", "accuracy@20", "recall@20", "mrr@10", "ndcg@10"):
        assert theirs[f"dot_{name}"] == pytest.approx(ours[name], abs=1e-9), name
    assert 0 < ours["ndcg@10"] < 1
