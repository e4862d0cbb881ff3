"""A configuration names nothing to import or to call."""

from pathlib import Path

import pytest

from dpr.cli.launch import launch
from dpr.core.errors import ConfigError
from dpr.retrieval.sources import resolve_passage_source, resolve_question_set
from dpr.training.command_settings import TrainCommand
from dpr.training.data_sets import resolve_training_files
from tests.cli.dry_job import Seen

NAMES = ["os.system", "builtins.eval", "dpr.cli.main.main", "os:system", "open", ""]


@pytest.mark.parametrize("name", NAMES)
def test_a_catalogue_entry_with_a_target_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[]")
    catalogue = {"a": {"_target_": name, "file": str(tmp_path / "x.json"), "_args_": ["touch witness"]}}
    for resolve in (resolve_training_files, resolve_question_set, resolve_passage_source):
        with pytest.raises(ConfigError):
            resolve("a", catalogue)


@pytest.mark.parametrize("key", ["_target_", "train._target_", "_partial_", "train.optimizer._target_"])
@pytest.mark.parametrize("sign", ["", "++"])
def test_a_setting_cannot_be_a_target(
    key: str, sign: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    seen = Seen()
    assert launch("biencoder_train_cfg", TrainCommand, seen, [f"{sign}{key}=os.system"]) == 2
    assert not seen.configs
    assert len(capsys.readouterr().err.strip().splitlines()) <= 5


@pytest.mark.parametrize(
    "value", ["${oc.env:HOME}/x", "${hydra:runtime.cwd}", "${now:%Y}", "${python:os.system}"]
)
def test_interpolation_calls_nothing_but_what_omegaconf_brings(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = launch("biencoder_train_cfg", TrainCommand, Seen(), [f"output_dir={value}"])
    assert code == (0 if "oc.env" in value else code)
    assert code in (0, 2)
    assert "Traceback" not in capsys.readouterr().err
