"""The model card says what was measured and trained on, and nothing about the machine."""

import json
from pathlib import Path

import pytest
import yaml

from tests.helpers.jobs import export
from tests.helpers.jobs import train as main
from tests.helpers.tiny import training_folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    folder = tmp_path_factory.mktemp("trained")
    training_folder(folder, train=16, dev=6)
    arguments = [
        f"train_datasets={folder / 'train.json'}", f"dev_datasets=[{folder / 'dev.json'}]", f"output_dir={folder / 'run'}",
        f"encoder.pretrained_model_cfg={folder / 'encoder'}", "encoder.pretrained=false", "encoder.sequence_length=24", "no_cuda=true",
        "train.batch_size=8", "train.num_train_epochs=2", "train.hard_negatives=0", "seed=7",
    ]  # fmt: skip
    assert main(arguments) == 0
    return folder, arguments


def test_a_card_holds_what_is_known(trained: tuple[Path, list[str]], tmp_path: Path) -> None:
    folder, _ = trained
    arguments = [f"model_file={folder / 'run'}", f"out={tmp_path / 'out'}", "to=hf-dpr"]
    assert export(arguments) == 0
    text = (tmp_path / "out" / "README.md").read_text()
    head = yaml.safe_load(text.split("---\n")[1])
    assert (head["library_name"], head["pipeline_tag"]) == ("transformers", "feature-extraction")
    assert "seed 7" in text and "| eval/nll_loss | " in text
    state = json.loads(next((folder / "run").glob("*.step*/trainer_state.json")).read_text())
    assert state["identity"]["fixed"]["train_datasets"][0] in text
    assert str(folder) not in text and not {"base_model", "license"} & head.keys()


def test_a_run_from_a_model_file_has_only_that_base(trained: tuple[Path, list[str]], tmp_path: Path) -> None:
    folder, arguments = trained
    kept = [argument for argument in arguments if not argument.startswith(("encoder.", "output_dir"))]
    assert main([*kept, f"model_file={folder / 'run'}", f"output_dir={tmp_path / 'run'}"]) == 0
    assert export([f"model_file={tmp_path / 'run'}", f"out={tmp_path / 'out'}", "to=hf-dpr"]) == 0
    text = (tmp_path / "out" / "README.md").read_text()
    assert "base_model" not in yaml.safe_load(text.split("---\n")[1])
