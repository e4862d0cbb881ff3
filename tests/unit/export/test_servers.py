"""What the report of an export says of programs that serve folders: rules read from their sources, and the vectors that follow."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpr.core.errors import InputError
from dpr.export.folders import export_folder
from dpr.export.servers import check_servers, text_embeddings_inference, transformers_js, vllm
from dpr.models.biencoder import BiEncoder
from tests.helpers.exports import COSINE, adapters, bag, bert, decoder, shared, static

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
TEI, VLLM, JS = "text-embeddings-inference", "vLLM", "transformers.js"
ONE_TOWER: dict[str, Any] = {"shared": True, "plain_apostrophes": False}
PROJECTED = {"projection_dim": 6, "projection_activation": "tanh", "pooling": "mean"}

# Which programs serve a model, and what keeps the others from it.
MODELS: dict[str, tuple[Callable[[Path], BiEncoder], dict[str, str]]] = {
    "cls": (shared, {}),
    "mean and cosine, prompts": (lambda folder: shared(folder, query_prompt="be: ", passage_prompt="ga: ", **COSINE), {}),
    "projection": (lambda folder: shared(folder, **PROJECTED), {JS: "lists a Dense"}),
    "merged adapters": (lambda folder: adapters(folder, **ONE_TOWER), {}),
    "decoder": (lambda folder: decoder(folder, query_prompt="find\n", **ONE_TOWER), {JS: "chooses pooling_mode_lasttoken"}),
    "two towers": (bert, dict.fromkeys((TEI, VLLM, JS), "serve question_encoder and ctx_encoder apart")),
    "static, special tokens": (
        lambda folder: static(folder, question_length=0, **ONE_TOWER),
        {TEI: "model_type is openai-gpt", VLLM: "OpenAIGPTModel"},
    ),
    "maximum": (lambda folder: shared(folder, pooling="max"), dict.fromkeys((TEI, VLLM, JS), "chooses pooling_mode_max_tokens")),
    "poolings joined": (
        lambda folder: shared(folder, pooling="cls+mean"),
        {TEI: "states no pooling_mode_cls_token", VLLM: "chooses no pooling_mode", JS: "chooses no pooling_mode"},
    ),
    "prompts left out": (
        lambda folder: shared(folder, pooling="mean", pool_prompts=False, query_prompt="be: "),
        dict.fromkeys((TEI, VLLM, JS), "include_prompt is false"),
    ),
    "cut": (lambda folder: shared(folder, dimensions=5), dict.fromkeys((TEI, VLLM, JS), "ask for dimensions=5")),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_report_says_who_serves_a_model_and_why_others_do_not(tmp_path: Path, name: str) -> None:
    make, refusals = MODELS[name]
    model = make(tmp_path / "made_of")
    export_folder(model, tmp_path / "out", "sentence-transformers", source=name, onnx=JS not in refusals)
    card = (tmp_path / "out" / "README.md").read_text()
    if JS in refusals:  # by other files than the graph, which takes long to trace
        (tmp_path / "out" / "onnx").mkdir()
        (tmp_path / "out" / "onnx" / "model.onnx").touch()
    report = {line.program.split()[0]: line for line in check_servers(model, tmp_path / "out")}
    assert list(report) == [TEI, VLLM, JS]
    for program, line in report.items():
        if program in refusals:
            assert refusals[program] in line.refusal and line.difference is None
        else:
            assert line.difference is not None, line.refusal
            assert max(line.difference[:2]) < 5e-6 and line.difference.top10 == 1, line
        assert f"| {program} |" in card or (program == JS and JS in refusals)
        print(f"{name}: {line}")


def test_a_bag_of_words_without_a_graph_is_served_by_none(tmp_path: Path) -> None:
    export_folder(model := bag(tmp_path / "made_of"), tmp_path / "out", "sentence-transformers", source="model")
    assert [line.program for line in check_servers(model, tmp_path / "out") if line.refusal] == [TEI, VLLM]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    export_folder(shared(folder / "made_of", **COSINE), folder / "out", "sentence-transformers", source="model", onnx=True)
    return folder / "out"


def change(name: str, **values: Any) -> Callable[[Path], None]:
    """Sets fields of a JSON file of the folder; those that are None go."""

    def changed(folder: Path) -> None:
        stated = json.loads((folder / name).read_text()) | values
        (folder / name).write_text(json.dumps({key: value for key, value in stated.items() if value is not None}))

    return changed


def types(old: str, new: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "modules.json").write_text((folder / "modules.json").read_text().replace(old, new)) and None


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


POOLING, LENGTHS = "1_Pooling/config.json", "sentence_bert_config.json"
EVERY, BOTH = (text_embeddings_inference, vllm, transformers_js), (text_embeddings_inference, vllm)
BROKEN: dict[str, tuple[tuple[Callable[[Path], Any], ...], Callable[[Path], None], str]] = {
    "no config": (EVERY, without("config.json"), "config.json: there is no such file"),
    "no tokenizer": (EVERY, without("tokenizer.json"), "tokenizer.json: there is no such file"),
    "no weights": (EVERY, without("model.safetensors"), "model.safetensors: there is no such file"),
    "no pooling": (EVERY, without(POOLING), "1_Pooling/config.json: there is no such file"),
    "no graph": ((transformers_js,), without("onnx/model.onnx"), "model.onnx: there is no such file"),
    "no class": (BOTH, change("config.json", architectures=None), "architectures"),
    "a classifier": ((text_embeddings_inference,), change("config.json", architectures=["BertForSequenceClassification"]), "a classifier"),
    "another class": ((vllm,), change("config.json", architectures=["AlbertModel"]), "begins with AlbertModel"),
    "another family": ((text_embeddings_inference,), change("config.json", model_type="albert"), "model_type is albert"),
    "no positions": ((text_embeddings_inference,), change("config.json", max_position_embeddings=None), "max_position_embeddings"),
    "new keys alone": (
        (text_embeddings_inference,),
        change(POOLING, pooling_mode_cls_token=None, pooling_mode_mean_tokens=None),
        "states no pooling_mode_cls_token",
    ),
    "two poolings": (EVERY, change(POOLING, pooling_mode_cls_token=True), "chooses pooling_mode_cls_token, pooling_mode_mean_tokens"),
    "mean over the root": (
        EVERY,
        change(POOLING, pooling_mode_mean_tokens=False, pooling_mode_mean_sqrt_len_tokens=True),
        "chooses pooling_mode_mean_sqrt_len_tokens",
    ),
    "two lengths": (EVERY, change(LENGTHS, query_length=9), "query_length is 9"),
    "no length": (EVERY, change(LENGTHS, max_seq_length=None), "states no max_seq_length"),
    "another name of the pooling": (
        (vllm,),
        types("sentence_transformers.models.Pooling", "sentence_transformers.sentence_transformer.modules.pooling.Pooling"),
        "lists no sentence_transformers.models.Pooling",
    ),
    "another module": (EVERY, types("models.Normalize", "models.LayerNorm"), "lists sentence_transformers.models.LayerNorm"),
    "cut": (EVERY, change("config_sentence_transformers.json", truncate_dim=4), "ask for dimensions=4"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_folder_that_breaks_a_rule_is_named(exported: Path, tmp_path: Path, name: str) -> None:
    rules, damage, message = BROKEN[name]
    shutil.copytree(exported, tmp_path / "out")
    for rule in rules:
        assert rule(tmp_path / "out").pooling == "mean"
    damage(tmp_path / "out")
    for rule in rules:
        with pytest.raises(InputError, match=message):
            rule(tmp_path / "out")


SCRIPT = """
import { pipeline, env } from '@huggingface/transformers';
env.allowRemoteModels = false; env.localModelPath = process.argv[2] + '/';
const embed = await pipeline('feature-extraction', process.argv[3], { dtype: 'fp32' });
const found = await embed(JSON.parse(process.argv[4]), { pooling: 'mean', normalize: true });
process.stdout.write('\\nvectors ' + JSON.stringify(found.tolist()));
"""


def test_transformers_js_itself_where_it_is_installed(exported: Path, tmp_path: Path) -> None:
    """Runs where ``node`` finds @huggingface/transformers from this folder or NODE_PATH's, as after ``npm install`` here."""
    import os

    modules = next((Path(place) for place in (os.environ.get("NODE_PATH", ""), "node_modules") if place and Path(place).is_dir()), None)
    if shutil.which("node") is None or modules is None or not (modules / "@huggingface" / "transformers").is_dir():
        pytest.skip("needs node and npm install @huggingface/transformers")
    (tmp_path / "node_modules").symlink_to(modules.resolve())
    (tmp_path / "script.mjs").write_text(SCRIPT)
    texts = ["ba be bi", "da", "don't fa ga " * 30]
    arguments = ["node", str(tmp_path / "script.mjs"), str(exported.parent), exported.name, json.dumps(texts)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = np.array(json.loads(done.stdout.rpartition("vectors ")[2]))
    model = BiEncoder.load(exported)
    np.testing.assert_allclose(found[:2], model.encode_questions(texts[:2]), atol=1e-6)
    cut = model.tensorizer.tokenizer(texts[2], truncation=False, verbose=False)["input_ids"][: model.settings.sequence_length]
    np.testing.assert_allclose(found[2:], model.encode_tokens([cut], encoder_type="question"), atol=1e-6)  # without the [SEP] at its end
