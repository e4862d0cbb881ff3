"""What is looked at in a model folder before libraries read it: sizes, links, names, and numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from dpr.core.errors import InputError
from dpr.data.tokenizer_files import check_files, check_numbers, check_tokenizer_files


def unigram(folder: Path) -> Path:
    """A tokenizer as the tokenizers package writes it, whose vocabulary is a list."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁ba", -1.0), ("b", -2.0)], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def change(folder: Path, name: str, **values: Any) -> None:
    state = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
    (folder / name).write_text(json.dumps(state | values))


@pytest.mark.parametrize(
    ("vocab", "is_sound"),
    [
        ({"ba": 0, "be": (1 << 24) - 1}, True),
        ({"ba": 1 << 24}, False),
        ({"ba": -1}, False),
        ({"ba": True}, False),
        ({"ba": 0.0}, False),
        ([["ba", -1.0]], True),
        ([["ba", -1.0], ["be"]], False),
        ([["ba", -1.0], "be"], False),
        (None, False),
    ],
)
def test_a_vocabulary_is_tokens_with_their_numbers(vocab: Any, is_sound: bool, tmp_path: Path) -> None:
    folder = unigram(tmp_path)
    change(folder, "tokenizer.json", model={"type": "Unigram", "vocab": vocab})
    if is_sound:
        check_tokenizer_files(folder)
    else:
        with pytest.raises(InputError, match="its model has no vocabulary"):
            check_tokenizer_files(folder)


@pytest.mark.parametrize(
    ("name", "values", "found"),
    [
        ("special_tokens_map.json", {"vocab_file": "/etc/hostname"}, "vocab_file is"),
        (
            "tokenizer_config.json",
            {"fast_tokenizer_files": ["tokenizer.4.json", "../tokenizer.json"]},
            "a file or folder inside",
        ),
        ("tokenizer_config.json", {"fast_tokenizer_files": [7]}, "a file or folder inside"),
        ("config.json", {"num_hidden_layers": 1001}, "num_hidden_layers is the number 1001"),
    ],
)
def test_files_that_name_files_or_sizes_without_end_are_refused(
    name: str, values: dict[str, Any], found: str, tmp_path: Path
) -> None:
    folder = unigram(tmp_path)
    change(folder, "special_tokens_map.json", unk_token="<unk>")
    change(folder, "tokenizer_config.json", fast_tokenizer_files=["tokenizer.4.json"])
    check_tokenizer_files(folder)
    change(folder, name, **values)
    with pytest.raises(InputError, match=found) as caught:
        check_tokenizer_files(folder)
    assert caught.value.file == folder / name
    (folder / name).write_text("[]")
    with pytest.raises(InputError, match="expected an object"):
        check_tokenizer_files(folder)


@pytest.mark.parametrize(
    ("values", "refused"),
    [
        ({"encoder": {"num_layers": 1001}}, "num_layers is the number 1001"),
        ({"n_layer": -1001}, "n_layer is the number -1001"),
        ({"depth": 1001}, "depth is the number 1001"),
        ({"num_labels": 10_001}, "num_labels is the number 10001"),
        ({"hidden_size": (1 << 31) + 1}, "hidden_size is"),
        ([], "expected an object"),
        (
            {
                "num_layers": 1000,
                "num_labels": 10_000,
                "hidden_size": 1 << 31,
                "layer_types": ["full"] * 2000,
                "layer_scale": 1e12,
            },
            "",
        ),
    ],
)
def test_a_config_asks_for_no_more_than_models_have(values: Any, refused: str, tmp_path: Path) -> None:
    if refused:
        with pytest.raises(InputError, match=refused):
            check_numbers(values, tmp_path / "config.json")
    else:
        check_numbers(values, tmp_path / "config.json")


def test_links_lead_nowhere_but_to_the_blobs_of_their_own_repository(tmp_path: Path) -> None:
    snapshot, blobs, other = (
        tmp_path / name for name in ("models--a/snapshots/1", "models--a/blobs", "models--b/blobs")
    )
    for folder in (snapshot, blobs, other):
        folder.mkdir(parents=True)
    unigram(blobs)
    (blobs / "tokenizer.json").rename(blobs / "0f")
    (snapshot / "tokenizer.json").symlink_to(blobs / "0f")
    (snapshot / "README.md").symlink_to(other)  # nobody reads it
    check_tokenizer_files(snapshot)
    (other / "0e").write_bytes((blobs / "0f").read_bytes())
    (snapshot / "vocab.json").symlink_to(other / "0e")
    with pytest.raises(InputError, match="is a link") as caught:
        check_tokenizer_files(snapshot)
    assert caught.value.file == snapshot / "vocab.json"


def test_a_folder_that_is_a_link_is_followed_where_a_person_named_it(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "linked").symlink_to(unigram(tmp_path / "whole"))
    check_files(tmp_path / "model" / "linked")
    with pytest.raises(InputError, match="is a link"):
        check_files(tmp_path / "model" / "linked", within=tmp_path / "model")


@pytest.mark.parametrize(
    ("name", "most"),
    [("config.json", 1 << 20), ("tokenizer_config.json", 32 << 20), ("vocab.txt", 256 << 20)],
)
def test_files_are_as_large_as_a_model_needs_them(name: str, most: int, tmp_path: Path) -> None:
    for size in (most, most + 1):
        with open(tmp_path / name, "wb") as file:
            file.truncate(size)  # no disk is used
        with open(tmp_path / "model.safetensors", "wb") as file:
            file.truncate(1 << 34)
        if size == most:
            check_files(tmp_path)
        else:
            with pytest.raises(InputError, match=f"expected at most {most:,}"):
                check_files(tmp_path)


@pytest.mark.parametrize(
    ("weight_map", "found"),
    [
        ({"a": "model-1.safetensors"}, ""),
        ({"a": "../model-1.safetensors"}, "a file or folder inside"),
        ({"a": "model-1.bin"}, "expected safetensors files beside it"),
        ({"a": 1}, "a file or folder inside"),
        (["model-1.safetensors"], "has no weight_map"),
    ],
)
def test_an_index_of_weights_names_safetensors_beside_it(weight_map: Any, found: str, tmp_path: Path) -> None:
    change(tmp_path, "model.safetensors.index.json", weight_map=weight_map)
    if found:
        with pytest.raises(InputError, match=found):
            check_files(tmp_path)
    else:
        check_files(tmp_path)
