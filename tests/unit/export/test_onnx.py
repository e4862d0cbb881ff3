"""Graphs that onnxruntime computes give the vectors of the model, whatever it is made of."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dpr.core.records import Passage
from dpr.export import onnx
from dpr.export.folders import check, edge_cases
from dpr.formats.corpora import write_passages
from dpr.models.biencoder import BiEncoder
from tests.architecture.source_files import REPOSITORY
from tests.helpers.examples import some
from tests.helpers.exports import MODELS, PROMPTS, shared, static
from tests.helpers.jobs import export as main
from tests.helpers.patience import patient

for package in ("onnxruntime", "onnxscript", "onnx"):
    pytest.importorskip(package, reason="the extra onnx is not installed")

MADE = {
    "decoder": MODELS["decoder, shared"],
    "roots of repeats, cut": lambda folder: static(
        folder, shared=True, pooling="idf_sqrt", dimensions=8, title_template="{title} {title} {text}"
    ),
}


@pytest.mark.parametrize("name", some(list(MADE), "roots of repeats, cut"))
def test_every_model_gives_the_same_vectors(name: str, tmp_path: Path) -> None:
    model, folder = MADE[name](tmp_path / "made_of"), tmp_path / "onnx"
    folder.mkdir()
    onnx.write(model, folder, source=name)
    assert len(list((folder / "onnx").iterdir())) == len(model.towers)
    texts = edge_cases(model.tensorizer)
    difference = check(model, folder, onnx.FORMAT, "model")
    assert difference is not None and difference.largest < 1e-5
    print(f"{name}: {difference}")
    alone = np.concatenate([onnx.encode(folder, "question", [text]) for text in texts.questions])
    expected = model.encode_questions(texts.questions)
    assert alone.dtype == np.float32 and np.abs(expected).max() > 0.05
    np.testing.assert_allclose(alone, expected, rtol=0, atol=1e-5 * max(1.0, float(np.abs(expected).max())))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[BiEncoder, Path]:
    place = tmp_path_factory.mktemp("served")
    model = shared(
        place / "made_of",
        pooling="mean",
        normalize=True,
        plain_apostrophes=True,
        dpr_trailing_sep=True,
        **PROMPTS,
    )
    model.save(place / "model")
    arguments = ["to=onnx", f"model_file={place / 'model'}", f"out={place / 'onnx'}"]
    assert main(arguments) == 0
    return model, place / "onnx"


def test_the_example_serves_without_torch(served: tuple[BiEncoder, Path], tmp_path: Path) -> None:
    model, folder = served
    example = runpy.run_path(str(REPOSITORY / "examples" / "serve_onnx.py"))
    texts = edge_cases(model.tensorizer)
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
    code = "import sys, runpy\nsys.modules['torch'] = sys.modules['transformers'] = None\n"
    code += "sys.argv = sys.argv[1:]\nrunpy.run_path(sys.argv[0], run_name='__main__')"
    arguments = ["examples/serve_onnx.py", str(folder), "ba be", str(tmp_path / "corpus.tsv")]
    (home := tmp_path / "home").mkdir()
    environment = os.environ | {"HOME": str(home), "TMPDIR": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    for name in ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=REPOSITORY,
        env=environment,
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
    assert [str(path) for path in home.rglob("*") if path.is_file()] == []


def test_graphs_name_no_file_of_this_machine(served: tuple[BiEncoder, Path]) -> None:
    assert not any(str(REPOSITORY).encode() in path.read_bytes() for path in (served[1] / "onnx").iterdir())


def test_what_the_readme_says_gives_the_same_vectors(served: tuple[BiEncoder, Path], tmp_path: Path) -> None:
    model, folder = served
    code = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    (tmp_path / "usage.py").write_text(code.replace("PATH", str(folder)))
    scope = runpy.run_path(str(tmp_path / "usage.py"))
    np.testing.assert_allclose(scope["question"], model.encode_questions(["a question"]), atol=1e-5)
    np.testing.assert_allclose(
        scope["passage"], model.encode_passages([Passage("A text.", "A title")]), atol=1e-5
    )
