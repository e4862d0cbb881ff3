"""A model folder's sizes, links, names, numbers and character tables are checked before libraries read it."""

import base64
import json
import string
import struct
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from dpr.core.errors import InputError
from dpr.data.tokenizer_files import check_numbers, check_tokenizer_files
from dpr.formats.model_folder import look


def unigram(folder: Path, charsmap: bytes | None = None) -> Path:
    """A tokenizer whose vocabulary is a list, with a table of characters if one is given."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁ba", -1.0), ("b", -2.0)], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    if charsmap is not None:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap), normalizers.Strip()])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def table(units: dict[int, int], texts: bytes = b"b\0", *, count: int = 768) -> bytes:
    """A double array of these units, and the texts that its values point into."""
    trie = struct.pack(f"<{count}I", *(units.get(place, 0) for place in range(count)))
    return struct.pack("<I", len(trie)) + trie + texts


LEAF, END = 1 << 8, 1 << 31
A_TO_B = {0: 256 << 10, 256 ^ ord("a"): 97 << 10 | LEAF | ord("a"), 256: END}
"""The root's children are at 256; "a" is one of them, and its first child, at 256 again, says that the text
at 0 takes its place."""
FIRST, SECOND = "é".encode()
ACCENT_TO_B = {
    0: 256 << 10,
    256 ^ FIRST: (256 ^ FIRST ^ 512) << 10 | FIRST,
    512 ^ SECOND: (512 ^ SECOND ^ 700) << 10 | LEAF | SECOND,
    700: END,
}


def change(folder: Path, name: str, **values: Any) -> None:
    state = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
    (folder / name).write_text(json.dumps(state | values))


@pytest.mark.parametrize("units", [A_TO_B, ACCENT_TO_B])
def test_a_table_of_characters_that_the_library_reads_is_sound(units: dict[int, int], tmp_path: Path) -> None:
    folder = unigram(tmp_path, table(units))
    check_tokenizer_files(folder)
    check_tokenizer_files(unigram(tmp_path / "end", table(A_TO_B | {256: END | 2})))  # where the texts end
    text = "a" if units is A_TO_B else "é"
    assert Tokenizer.from_file(str(folder / "tokenizer.json")).normalizer.normalize_str(text) == "b"


@pytest.mark.parametrize(
    "charsmap",
    [
        table(A_TO_B | {256: END | 3}),  # behind the last text
        table(A_TO_B | {256 ^ ord("a"): 4000 << 10 | LEAF | ord("a")}),  # children behind the array
        table(ACCENT_TO_B | {512 ^ SECOND: 4000 << 10 | LEAF | SECOND}),  # the same one level down
        table(A_TO_B)[:2000],
        b"",
    ],
)
def test_a_table_that_leads_outside_itself_is_refused(charsmap: bytes, tmp_path: Path) -> None:
    folder = unigram(tmp_path)
    step = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}
    for _ in range(2):
        step = {"type": "Sequence", "normalizers": [step]}
    change(folder, "tokenizer.json", normalizer=step)
    with pytest.raises(InputError, match="precompiled_charsmap of its normalizer is damaged"):
        check_tokenizer_files(folder)


GREEDY = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 999}
PUNCTUATION = [normalizers.Replace(letter, f" {letter} ") for letter in string.punctuation]
STEPS = {
    "XLM-R": (
        [normalizers.Precompiled(table(A_TO_B, b"b" * 18 + b"\0")), normalizers.Replace(Regex(" {2,}"), "▁")],
        [pre_tokenizers.Metaspace()],
    ),
    "Qwen": (
        [normalizers.NFC()],
        [pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"), pre_tokenizers.ByteLevel(use_regex=False)],
    ),
    "Gemma": ([normalizers.Replace(" ", "▁")], [pre_tokenizers.Split(" ", "merged_with_previous")]),
    "Llama": ([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")], []),
    "CLIP": (
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()],
        [pre_tokenizers.ByteLevel()],
    ),
    "model2vec": (
        [normalizers.BertNormalizer(), *PUNCTUATION, normalizers.Replace(Regex(r"\s+"), " ")],
        [pre_tokenizers.Metaspace()],
    ),
}


@pytest.mark.parametrize("family", STEPS)
def test_the_steps_of_todays_tokenizers_are_read(family: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(unigram(tmp_path) / "tokenizer.json"))
    before, splits = STEPS[family]
    tokenizer.normalizer = normalizers.Sequence(before)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    check_tokenizer_files(tmp_path)


GROWING = {
    "forms": [
        normalizers.Replace("a", "\u0644"),
        *[normalizers.Replace("\u0644", "\ufdfa"), normalizers.NFKC()] * 4,
    ],
    "lower case": [*[normalizers.Replace("i", "\u0130" * 9), normalizers.Lowercase()] * 4],
}


@pytest.mark.parametrize("steps", GROWING.values(), ids=GROWING)
def test_steps_that_multiply_a_text_together_are_refused(steps: list[Any], tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(unigram(tmp_path) / "tokenizer.json"))
    tokenizer.normalizer = normalizers.Sequence(steps)
    assert len(tokenizer.normalizer.normalize_str("ai")) > 2000
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(InputError, match=r"its steps can make [\d,]+ characters of one"):
        check_tokenizer_files(tmp_path)


def test_a_step_that_pretends_to_hold_others_is_one_step(tmp_path: Path) -> None:
    change(unigram(tmp_path), "tokenizer.json", normalizer=GREEDY | {"normalizers": []})
    with pytest.raises(InputError, match="its steps can make 1,998 characters of one"):
        check_tokenizer_files(tmp_path)


def test_another_file_of_the_tokenizer_is_looked_at_too(tmp_path: Path) -> None:
    change(unigram(tmp_path), "tokenizer_config.json", fast_tokenizer_files=["tokenizer.4.0.json"])
    (tmp_path / "tokenizer.4.0.json").write_bytes((tmp_path / "tokenizer.json").read_bytes())
    check_tokenizer_files(tmp_path)
    change(tmp_path, "tokenizer.4.0.json", normalizer=GREEDY)
    with pytest.raises(InputError, match=r"tokenizer\.4\.0\.json: its steps can make 1,998"):
        check_tokenizer_files(tmp_path)


@pytest.mark.parametrize(
    ("vocab", "is_sound"),
    [
        ({"ba": 0, "be": (1 << 24) - 1}, True),
        ({"ba": 1 << 24}, False),
        ({"ba": True}, False),
        ([["ba", -1.0]], True),
        ([["ba", -1.0], ["be"]], False),
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


@pytest.mark.parametrize("key", ["normalizer", "pre_tokenizer", "post_processor", "decoder", "added_tokens"])
def test_a_long_text_is_refused_beside_the_vocabulary_and_not_in_it(key: str, tmp_path: Path) -> None:
    folder = unigram(tmp_path)
    long = {"vocab": [["x" * 20_000, 0.0]]}
    change(folder, "tokenizer.json", model=long, **{key: [{"content": "x" * (1 << 14)}]})
    check_tokenizer_files(folder)
    change(folder, "tokenizer.json", **{key: [{"deeper": {"content": "x" * ((1 << 14) + 1)}}]})
    with pytest.raises(InputError, match="a text of more than 16,384 characters beside its vocabulary"):
        check_tokenizer_files(folder)


def test_a_config_asks_for_no_more_than_models_have(tmp_path: Path) -> None:
    most = {"num_layers": 1000, "num_labels": 10_000, "hidden_size": 1 << 31, "layer_types": ["full"] * 2000}
    check_numbers(most | {"layer_scale": 1e12}, tmp_path / "config.json")
    for more in ({"num_layers": 1001}, {"n_layer": -1001}, {"depth": 1001}, {"num_labels": 10_001}):
        for values in (more, {"encoder": more}):
            with pytest.raises(InputError, match=f"{next(iter(more))} is the number"):
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
    look(tmp_path / "model" / "linked")
    with pytest.raises(InputError, match="is a link"):
        look(tmp_path / "model" / "linked", within=tmp_path / "model")


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
            look(tmp_path)
        else:
            with pytest.raises(InputError, match=f"expected at most {most:,}"):
                look(tmp_path)


def test_an_index_of_weights_names_safetensors_beside_it(tmp_path: Path) -> None:
    for weight_map in ({"a": 1}, {"a": "model-1.bin"}, ["model-1.safetensors"]):
        change(tmp_path, "model.safetensors.index.json", weight_map=weight_map)
        with pytest.raises(InputError, match=r"inside|expected safetensors|has no weight_map"):
            look(tmp_path)
    change(tmp_path, "model.safetensors.index.json", weight_map={"a": "model-1.safetensors"})
    look(tmp_path)
