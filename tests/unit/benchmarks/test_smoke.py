"""Benchmarks run with tiny sizes, both sides of each compute the same losses, and pages say what was measured."""

import json
import re
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from benchmarks import measuring, page, plot, sides
from benchmarks.__main__ import INTRODUCTION
from benchmarks.compare_peers import QUICK, prepare, rows_of, train_ours, train_rival, values_of
from benchmarks.gpu import __main__ as gpu
from benchmarks.workload import Texts, write_encoder
from tests.architecture.source_files import REPOSITORY
from tests.helpers.examples import IS_THOROUGH

PAGE = REPOSITORY / "benchmarks" / "results" / "benchmarks.md"
WITH_RIVAL = pytest.mark.skipif(
    find_spec("sentence_transformers") is None, reason="sentence-transformers is not installed"
)
SVG = "http://www.w3.org/2000/svg"
CPU, BATCH, LENGTH, ROUNDS = torch.device("cpu"), 4, 32, 3


def test_a_part_is_rehearsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "matrix_peak", lambda *arguments, **options: 1e12)  # which takes longest
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # torch sets it with its compiler
    assert gpu.run("training", tmp_path, is_rehearsal=True) == 0
    stored = json.loads((tmp_path / "training.json").read_text())
    assert stored["state"] == "done" and {"sdpa", "padded", "plain loop"} <= set(stored["results"])


@pytest.mark.parametrize("rival", [pytest.param("sentence-transformers", marks=WITH_RIVAL), "plain loop"])
def test_both_sides_have_the_same_losses_and_updates(rival: str, tmp_path: Path) -> None:
    passages = [f"passage {number} tells of " + "things " * (number % 5) for number in range(4 * BATCH)]
    texts = Texts([f"what is number {number}" for number in range(4 * BATCH)], passages, "made up")
    folder = tmp_path / "encoder"
    write_encoder(folder, texts, layers=2, width=64)
    model = sides.our_model(folder, dropout=0.0, length=LENGTH)
    batches = sides.our_batches(model, texts, batch=BATCH)
    ours = sides.our_training(model, batches, CPU)
    if rival == "plain loop":
        theirs = sides.plain_training(folder, batches, CPU, dropout=0.0, pad_to=0)
    else:
        shape = {"batch": BATCH, "length": LENGTH, "dropout": 0.0}
        theirs = sides.st_training(folder, texts, CPU, **shape, mini_batch_size=0)
    losses = torch.tensor([ours() for _ in range(ROUNDS)])
    torch.testing.assert_close(losses, torch.tensor([theirs() for _ in range(ROUNDS)]), rtol=1e-4, atol=1e-5)
    assert losses[0].max() > 0.1 and not torch.equal(losses[0], losses[-1]), "nothing was learned"


@pytest.mark.skipif(not IS_THOROUGH, reason="takes long; make fuzz runs it")
@WITH_RIVAL
def test_both_trainers_take_the_same_steps_and_find_the_same(tmp_path: Path) -> None:
    out = tmp_path
    prepare(out, None)
    case = QUICK[0]
    assert len(rows_of(case, out)) == case.rows
    for name in ("ours", "theirs"):
        (out / name).mkdir()
    ours = train_ours(case, out, out / "ours", 3, same_loss=True, log_every=1)
    theirs = train_rival(case, out, out / "theirs", 3, log_every=1)
    assert len(ours) == case.epochs * case.rows // case.batch
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-3, atol=1e-4)
    assert ours[-1] < 0.9 * ours[0], "something is learned"
    found = [values_of(out / name, out, out / name / "model") for name in ("ours", "theirs")]
    assert found[0] == pytest.approx(found[1]) and 0 < sum(found[0].values()) < len(found[0])


def test_the_pages_say_what_was_measured() -> None:
    sections = page.read(PAGE.with_suffix(".json"))
    assert PAGE.read_text(encoding="utf-8") == page.render(INTRODUCTION, sections, "benchmarks.svg")
    assert PAGE.with_suffix(".svg").read_text(encoding="utf-8") == plot.bars(sections.values())
    link = "benchmarks/results/benchmarks.md"
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    rows = re.findall(rf"(?m)^\| \[.+\]\({link}#.+$", readme)
    known = {page.summary_row(part, ratio, link) for part in sections.values() for ratio in part.ratios}
    assert not set(rows) - known, "not on the page; take these of\n" + "\n".join(sorted(known))


def test_curves_have_each_value_at_its_step() -> None:
    drawing = plot.curves(
        "nDCG@10", [0, 25, 50], {"model": [0.645, 0.69, 0.719], "both": [0.72, 0.73, 0.749]}, {"BM25": 0.672}
    )
    texts = [element.text for element in ElementTree.fromstring(drawing).iter(f"{{{SVG}}}text")]
    assert {"0.645", "0.690", "0.719", "0.720", "0.730", "0.749", "BM25 0.672", "model", "both"} <= set(texts)
    assert [text for text in texts if text in ("0", "25", "50")] == ["0", "25", "50"]
