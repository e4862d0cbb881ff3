"""Graphs that onnxruntime computes give the vectors of the model, whatever it is made of; lower precisions
say what they change."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from dpr.core.records import Passage
from dpr.export import onnx_folder, sentence_transformers
from dpr.export.checking import check, nasty_texts
from dpr.export.onnx_graph import GraphEncoder, overlap
from dpr.export.tower_files import sides
from dpr.formats.corpora import write_passages
from dpr.models.biencoder import BiEncoder
from tests.architecture.source_files import REPOSITORY
from tests.helpers.exports import MODELS, PROMPTS, rooted, shared, static
from tests.helpers.jobs import export as main
from tests.helpers.patience import patient

for package in ("onnxruntime", "onnxscript", "onnx"):
    pytest.importorskip(package, reason="the extra onnx is not installed")

MADE = {
    "two towers, projection": MODELS["projection"],
    "maximum": lambda folder: shared(folder, pooling="max"),
    "idf of a transformer": lambda folder: shared(folder, pooling="idf", normalize=True),
    "decoder": MODELS["decoder, shared"],
    "static, cut": lambda folder: static(folder, shared=True, dimensions=8),
    "roots of repeats": lambda folder: static(
        folder, pooling="idf_sqrt", title_template="{title} {title} {text}"
    ),
    "the original's [SEP]": lambda folder: shared(
        folder, pooling="mean", dpr_trailing_sep=True, title_template="{title} - {text}"
    ),
}


@pytest.mark.parametrize("name", MADE)
def test_every_model_gives_the_same_vectors(name: str, tmp_path: Path) -> None:
    model, folder = MADE[name](tmp_path / "made_of"), tmp_path / "onnx"
    folder.mkdir()
    onnx_folder.write(model, folder, source=name)
    assert len(list((folder / "onnx").iterdir())) == len(model.towers)
    texts = nasty_texts(model.tensorizer)
    more = texts._replace(
        questions=[" be  "], passages=[Passage(" be\n", title=" ce "), Passage(" a ", title="be")]
    )
    difference = check(model, folder, onnx_folder.FORMAT, "model", more=more)
    assert difference is not None and max(difference[:2]) < 1e-5
    print(f"{name}: {difference}")
    alone = np.concatenate([onnx_folder.encode(folder, "question", [text]) for text in texts.questions])
    expected = model.encode_questions(texts.questions)
    assert alone.dtype == np.float32 and np.abs(expected).max() > 0.05
    np.testing.assert_allclose(alone, expected, rtol=0, atol=1e-5 * max(1.0, float(np.abs(expected).max())))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[BiEncoder, Path]:
    """A folder with lower precisions, as the command writes it."""
    place = tmp_path_factory.mktemp("served")
    model = shared(place / "made_of", pooling="mean", normalize=True, plain_apostrophes=True, **PROMPTS)
    model.save(place / "model")
    arguments = [
        "to=onnx",
        f"model_file={place / 'model'}",
        f"out={place / 'onnx'}",
        "precisions=[fp16,int8]",
        "license=apache-2.0",
    ]
    assert main(arguments) == 0
    return model, place / "onnx"


def test_lower_precisions_are_measured_against_fp32(served: tuple[BiEncoder, Path]) -> None:
    model, folder = served
    measured = json.loads((folder / "serving.json").read_text())["precisions"]
    assert (
        measured["fp16"]["bytes"] < 0.8 * measured["fp32"]["bytes"]
        and measured["int8"]["bytes"] < measured["fp32"]["bytes"]
    )
    assert measured["fp16"]["least_cosine"] > 0.999 and measured["int8"]["least_cosine"] > 0.9
    assert 0.9 < measured["fp16"]["top10_overlap"] <= 1 and 0.3 < measured["int8"]["top10_overlap"] <= 1
    found = onnx_folder.encode(folder, "question", ["ba be bi"], precision="fp16")
    expected = model.encode_questions(["ba be bi"])
    assert 0 < np.abs(found - expected).max() < 1e-2
    assert not any(str(REPOSITORY).encode() in path.read_bytes() for path in (folder / "onnx").iterdir())
    card = (folder / "README.md").read_text()
    assert (
        f"| int8 | {measured['int8']['bytes'] / 1e6:.1f} | {measured['int8']['top10_overlap']:.3f} |" in card
    )
    assert card.startswith("---\n") and "license: apache-2.0" in card


def test_overlap_counts_what_stays_among_the_best() -> None:
    passages = np.eye(4, dtype=np.float32)
    questions = np.array([[4.0, 3, 2, 1], [1, 2, 3, 4]], dtype=np.float32)
    other = np.array([[4.0, 2, 3, 1], [1, 2, 3, 4]], dtype=np.float32)
    found = overlap((other, passages), (questions, passages), top=2)
    assert found["top10_overlap"] == 0.75
    assert found["least_cosine"] == pytest.approx(29 / 30)


def test_the_example_serves_without_torch(served: tuple[BiEncoder, Path], tmp_path: Path) -> None:
    model, folder = served
    example = runpy.run_path(str(REPOSITORY / "examples" / "serve_onnx.py"))
    texts = nasty_texts(model.tensorizer)
    side = example["Side"](folder, "question")
    for text in [*texts.questions, "who’s be"]:  # noqa: RUF001
        np.testing.assert_allclose(side.question(text), model.encode_questions(text), rtol=0, atol=1e-5)
    pairs = [(passage.title, passage.text) for passage in texts.passages]
    np.testing.assert_allclose(
        example["Side"](folder, "ctx").passages(pairs),
        model.encode_passages(texts.passages),
        rtol=0,
        atol=1e-5,
    )
    write_passages(tmp_path / "corpus.tsv", [Passage("ba be", "bi", "1"), Passage("da de", "", "2")])
    blocked = (
        "import sys, runpy; sys.modules['torch'] = sys.modules['transformers'] = None; sys.argv ="
        " sys.argv[1:]; "
    )
    command = [
        sys.executable,
        "-c",
        blocked + "runpy.run_path(sys.argv[0], run_name='__main__')",
        "examples/serve_onnx.py",
    ]
    done = subprocess.run(
        [*command, str(folder), "ba be", str(tmp_path / "corpus.tsv")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=patient(60),
    )
    assert done.returncode == 0, done.stderr
    scores = model.encode_passages([Passage("ba be", "bi"), Passage("da de")]) @ model.encode_questions(
        "ba be"
    )
    assert (
        float(done.stdout.split()[0]) == pytest.approx(scores.max(), abs=1e-3)
        and len(done.stdout.splitlines()) == 2
    )


def test_what_the_readme_says_gives_the_same_vectors(served: tuple[BiEncoder, Path], tmp_path: Path) -> None:
    model, folder = served
    code = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    (tmp_path / "usage.py").write_text(code.replace("PATH", str(folder)))
    scope = runpy.run_path(str(tmp_path / "usage.py"))
    np.testing.assert_allclose(scope["question"], model.encode_questions(["a question"]), atol=1e-5)
    np.testing.assert_allclose(
        scope["passage"], model.encode_passages([Passage("A text.", "A title")]), atol=1e-5
    )


@pytest.mark.parametrize("name", ["shared", "two towers", "decoder", "static"])
def test_a_folder_of_sentence_transformers_has_its_states_where_servers_look(
    name: str, tmp_path: Path
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = MODELS[name](tmp_path / "made_of")
    model.save(tmp_path / "model")
    assert (
        main(
            [
                "to=sentence-transformers",
                f"model_file={tmp_path / 'model'}",
                f"out={tmp_path / 'out'}",
                "onnx=true",
            ]
        )
        == 0
    )
    for body in [""] if model.settings.shared else ["question_encoder", "ctx_encoder"]:
        folder = tmp_path / "out" / body
        tokens = AutoTokenizer.from_pretrained(str(folder))(
            ["ba be", "bi bo bu ca ce ci"], padding=True, return_tensors="np"
        )
        session = onnxruntime.InferenceSession(
            str(folder / "onnx" / "model.onnx"), providers=["CPUExecutionProvider"]
        )
        (found,) = session.run(
            ["last_hidden_state"], {key: tokens[key] for key in ("input_ids", "attention_mask")}
        )
        with torch.no_grad():
            ids, mask = (torch.from_numpy(np.asarray(tokens[key])) for key in ("input_ids", "attention_mask"))
            expected = (
                AutoModel.from_pretrained(str(folder))
                .eval()(input_ids=ids, attention_mask=mask)
                .last_hidden_state.numpy()
            )
        assert np.abs(found - expected)[tokens["attention_mask"] == 1].max() < 1e-5


@pytest.mark.parametrize("name", ["shared", "two towers", "mean and cosine"])
def test_lower_precisions_beside_the_states_are_measured_on_vectors(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = MODELS[name](tmp_path / "made_of")
    model.save(tmp_path / "model")
    out = tmp_path / "out"
    arguments = [
        "to=sentence-transformers",
        f"model_file={tmp_path / 'model'}",
        f"out={out}",
        "onnx=true",
        "precisions=[fp16,int8]",
    ]
    assert main(arguments) == 0
    texts = nasty_texts(model.tensorizer)
    measured = sentence_transformers.write_lower_graphs(model, out, ["fp16", "int8"], texts)
    assert measured["fp16"]["least_cosine"] > 0.999 and 0.9 < measured["int8"]["least_cosine"] < 1
    assert measured["fp16"]["bytes"] < 0.8 * measured["fp32"]["bytes"]
    part = sides(model)[0]
    graph = GraphEncoder(out / part.folder / "onnx" / "model.onnx", pad_id=0, output="last_hidden_state")
    found = graph.encode(model.tensorizer.question_tokens(texts.questions), part.tower)
    np.testing.assert_allclose(
        found,
        model.encode_questions(texts.questions),
        rtol=0,
        atol=1e-5 * max(1.0, float(np.abs(found).max())),
    )
    assert {path.name for path in (out / part.folder / "onnx").iterdir()} == {
        "model.onnx",
        "model_fp16.onnx",
        "model_quantized.onnx",
    }
    assert "| int8 |" in (out / "README.md").read_text()


def test_onnxruntime_leaves_nothing_in_the_home_folder(
    served: tuple[BiEncoder, Path], tmp_path: Path
) -> None:
    graph = next((served[1] / "onnx").glob("*.onnx"))
    code = (
        "import sys, pathlib\nfrom dpr.export.onnx_graph import"
        " GraphEncoder\nGraphEncoder(pathlib.Path(sys.argv[1]), pad_id=0)"
    )
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME")
    }
    own = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-c", code, str(graph)], env=kept | own, check=True, timeout=patient(120))
    assert [str(path) for path in tmp_path.rglob("*") if path.is_file()] == []


def test_precisions_need_graphs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            [
                "to=sentence-transformers",
                f"model_file={tmp_path}",
                f"out={tmp_path / 'out'}",
                "precisions=[int8]",
            ]
        )
        == 2
    )
    assert "set onnx=true, or leave precisions out" in capsys.readouterr().err


def test_a_graph_is_refused_where_it_has_no_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rooted(tmp_path / "made_of").save(tmp_path / "model")
    given = [f"model_file={tmp_path / 'model'}", f"out={tmp_path / 'out'}", "onnx=true"]
    assert main(["to=sentence-transformers", *given]) == 3 and "no transformer" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
