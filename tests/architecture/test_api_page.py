"""The Python of docs/api.md runs as it stands there."""

import re
import runpy
from pathlib import Path

import pytest

from dpr.formats.training_files.dpr import write_training_set
from tests.architecture.source_files import REPOSITORY
from tests.helpers.tiny import encoder_folder, make_samples

PAGE = (REPOSITORY / "docs" / "api.md").read_text(encoding="utf-8")


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    encoder_folder(Path("tiny"))
    write_training_set("train.jsonl", make_samples(64))
    write_training_set("dev.jsonl", make_samples(32, seed=1))
    code = "\n".join(re.findall(r"```python\n(.+?)```", PAGE, re.DOTALL))
    code = code.replace(
        '"bert-base-uncased", EncoderSettings(sequence_length=256',
        '"tiny", EncoderSettings(sequence_length=24',
    ).replace(', pooling="mean")', ', pooling="mean"), pretrained=False')
    Path("page.py").write_text(code.replace("num_train_epochs=3", "num_train_epochs=1"))
    names = runpy.run_path("page.py")
    assert (names["scores"].shape, names["vector"].shape) == ((1, 2), (16,))
    assert names["best"] in (0, 1)
    assert names["again"].fingerprint == names["model"].fingerprint
    assert len(names["train_set"]) == names["train_set"].counts.kept == 64
