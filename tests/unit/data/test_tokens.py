"""Stored tokens give the batches of the text; stores that are damaged or stale are not used."""

import logging
import math
import multiprocessing as mp
import os
import pickle
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpr.core.batch import BiEncoderBatch
from dpr.core.distributed import Ranks
from dpr.core.errors import OutputError
from dpr.core.records import Passage, TrainingSample
from dpr.data import tokens
from dpr.data.collator import Augmentation, Collator
from dpr.data.loader import batch_loader, cut_into_batches
from dpr.data.settings import DataSetSettings
from dpr.data.tensorizer import Tensorizer
from dpr.data.tokens import StoredTokens, open_tokens
from dpr.formats import arrow_files
from dpr.formats.stored_training_set import TrainingSet
from dpr.formats.training_files.dpr import write_training_set
from dpr.formats.training_sets import open_training_set
from dpr.storage.durable import read_manifest, verify_folder
from dpr.storage.steps import Steps
from tests.helpers.tiny import encoder_folder, make_samples
from tests.unit.core.test_batch import values

PLAIN = DataSetSettings()
CROPPED = Augmentation(crop_tokens=8)
ASKED = DataSetSettings(special_token="[unused1]", query_special_suffix="?", selector=1)
ALL_OPTIONS = replace(ASKED, shuffle_positives=True, normalize=True, exclude_gold=True)


def with_scores(sample: TrainingSample, row: int) -> TrainingSample:
    """The same passage has another score of the teacher in every row; some have none."""

    def scored(listed: tuple[Passage, ...]) -> tuple[Passage, ...]:
        places = range(row, row + len(listed))
        scores = [None if place % 4 == 3 else math.sin(16 * row + place) for place in places]
        return tuple(replace(one, teacher_score=score) for one, score in zip(listed, scores, strict=True))

    lists = ("positives", "hard_negatives", "other_negatives")
    return replace(sample, **{name: scored(getattr(sample, name)) for name in lists})


def many_samples(count: int = 60) -> list[TrainingSample]:
    """Samples with repeated questions across parts, scores, typographic signs and several lists."""
    samples = make_samples(count, seed=4)
    scored = tuple(
        Passage(f'"{p.text}\n\N{RIGHT SINGLE QUOTATION MARK}"', p.title, p.id, True)
        for p in samples[0].positives
    )
    samples[0] = TrainingSample(
        "ba\N{RIGHT SINGLE QUOTATION MARK} be",
        (*samples[0].positives, *scored),
        (),
        samples[1].other_negatives,
    )
    for row in (count // 2, count - 1):
        samples[row] = replace(samples[row], question=samples[0].question, other_negatives=())
    last_part = 2 * count // 3
    scored_samples = [with_scores(sample, row) for row, sample in enumerate(samples[:last_part])]
    return [*scored_samples, *samples[last_part:]]


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainingSet:
    """60 rows in blocks of 5, so in parts of 20."""
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(arrow_files, "BATCH_ROWS", 5)
    write_training_set(tmp_path / "train.jsonl", many_samples())
    return open_training_set(tmp_path / "train.jsonl", name="tiny")


@pytest.fixture
def tensorizer(tmp_path: Path) -> Tensorizer:
    return Tensorizer.load(encoder_folder(tmp_path / "tokenizer"), sequence_length=12, question_length=6)


def stored(
    text: TrainingSet, tensorizer: Tensorizer, options: DataSetSettings = PLAIN, **more: Any
) -> StoredTokens:
    opened = open_tokens(text, tensorizer, options, **more)
    assert isinstance(opened, StoredTokens)
    return opened


def store_folder(tmp_path: Path) -> Path:
    (found,) = (path for path in (tmp_path / "cache").glob("tokens-*") if path.is_dir())
    return found


def batches(
    source: Any, tensorizer: Tensorizer, options: DataSetSettings, *, workers: int = 0, **collating: Any
) -> list[BiEncoderBatch]:
    collator = Collator(tensorizer, num_hard=2, num_other=1, **collating)
    sets = [(source, options)]
    global_batches = cut_into_batches(sets, collator, global_batch_size=6, ranks=Ranks(), seed=3)
    numbers = range(global_batches.iterator.batches_per_epoch)
    order = [(epoch, number) for epoch in range(2) for number in numbers]
    return list(batch_loader(global_batches, order, num_workers=workers))


@pytest.mark.parametrize(
    ("options", "collating"),
    [
        (PLAIN, {"seed": 1}),
        (PLAIN, {}),
        (ALL_OPTIONS, {"seed": 1}),
        (DataSetSettings(query_prefix="ba bo: ", passage_prefix="be bi: "), {}),
        (DataSetSettings(passage_prefix="be bi: ", normalize=True), {"seed": 1, "augmentation": CROPPED}),
        (PLAIN, {"seed": 1, "augmentation": CROPPED}),
        (PLAIN, {"seed": 2, "augmentation": replace(CROPPED, mask_probability=0.3)}),
    ],
    ids="training,validation,all options,prefixes,prefix and crop,cropped,cropped and masked".split(","),
)
def test_batches_are_those_of_the_text(
    text: TrainingSet,
    tensorizer: Tensorizer,
    options: DataSetSettings,
    collating: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = batches(text, tensorizer, options, **collating)
    source = stored(text, tensorizer, options)
    assert len(source) == len(text) and source.fingerprint == text.fingerprint

    call = type(tensorizer.tokenizer).__call__

    def tokenise(tokenizer: Any, texts: list[str], *rest: Any, **settings: Any) -> Any:
        # the prefix, once, tells where a crop may begin
        assert texts == [str(options.passage_prefix).strip()], "a text was tokenised"
        return call(tokenizer, texts, *rest, **settings)

    monkeypatch.setattr(type(tensorizer.tokenizer), "__call__", tokenise)
    found = batches(source, tensorizer, options, **collating)
    assert len(found) == 20 and any(batch.teacher_scores is not None for batch in found)
    assert list(map(values, found)) == list(map(values, expected))
    parts = sorted(Path(source._folder).glob("part-*"))
    assert [np.load(part / "scores.npy").size > 0 for part in parts] == [True, True, False]


def test_a_store_serves_every_length(text: TrainingSet, tensorizer: Tensorizer, tmp_path: Path) -> None:
    stored(text, tensorizer)
    short = Tensorizer(tensorizer.tokenizer, sequence_length=5)
    source = stored(text, short, build=False)
    assert_as_text(source, text, short)
    assert store_folder(tmp_path)


def assert_as_text(
    source: Any, text: TrainingSet, tensorizer: Tensorizer, options: DataSetSettings = PLAIN
) -> None:
    found, expected = (batches(each, tensorizer, options) for each in (source, text))
    assert list(map(values, found)) == list(map(values, expected))


def written_parts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the parts that builds write from now on, in this process."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    names: list[str] = []
    write = tokens.TokenPartWriter.write

    def noted(self: Any, steps: Steps, number: int) -> None:
        names.append(f"part-{number:05d}")
        write(self, steps, number)

    monkeypatch.setattr(tokens.TokenPartWriter, "write", noted)
    return names


PARTS = ["part-00000", "part-00001", "part-00002"]


@pytest.mark.parametrize("change", ["text", "prefix", "passage prefix", "normalize", "name", "vocabulary"])
def test_what_changes_tokens_makes_another_store(
    text: TrainingSet, tensorizer: Tensorizer, tmp_path: Path, change: str
) -> None:
    first = stored(text, tensorizer)
    options = PLAIN
    if change == "text":
        write_training_set(tmp_path / "train.jsonl", many_samples()[:-1])
        text = open_training_set(tmp_path / "train.jsonl", name="tiny")
    elif change == "vocabulary":
        folder = tmp_path / "tokenizer"
        tensorizer = Tensorizer.load(folder, sequence_length=12, question_length=6, special_tokens=["[Q]"])
    elif change == "name":
        text = open_training_set(tmp_path / "train.jsonl", name="b")
    else:
        changed = {"prefix": {"query_prefix": "ba"}, "passage prefix": {"passage_prefix": "ba "}}
        changed["normalize"] = {"normalize": True}
        options = DataSetSettings(**changed[change])  # type: ignore[arg-type]
    assert not isinstance(open_tokens(text, tensorizer, options, build=False), StoredTokens)
    second = stored(text, tensorizer, options)
    assert first._folder != second._folder
    assert_as_text(second, text, tensorizer, options)


@pytest.mark.parametrize("damage", ["truncated", "missing", "a byte", "no manifest", "another's part"])
def test_damage_found_at_opening_is_repaired_and_good_parts_are_kept(
    text: TrainingSet, tensorizer: Tensorizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    stored(text, tensorizer)
    folder = store_folder(tmp_path)
    written = written_parts(monkeypatch)
    file = folder / "part-00001" / "tokens.npy"
    if damage == "truncated":
        file.write_bytes(file.read_bytes()[:-2])
    elif damage == "missing":
        file.unlink()
    elif damage == "no manifest":
        (folder / "manifest.json").unlink()
    elif damage == "a byte":
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    else:
        for name in ("tokens.npy", "passages.npy", "rows.npy", "slots.npy"):
            (folder / "part-00001" / name).write_bytes((folder / "part-00000" / name).read_bytes())
    source = stored(text, tensorizer)
    # Without the manifest nothing says what the parts were.
    assert written == (PARTS if damage == "no manifest" else ["part-00001"])
    assert_as_text(source, text, tensorizer)
    assert verify_folder(folder) == []


def _build_slowly(text: TrainingSet, tensorizer: Tensorizer, delay_s: float, writes: Any) -> None:
    os.sched_getaffinity = lambda _: {0}  # type: ignore[assignment]
    write = tokens.TokenPartWriter.write

    def slow(self: Any, steps: Steps, number: int) -> None:
        with writes.get_lock():
            writes.value += 1
        write(self, steps, number)
        time.sleep(delay_s)

    tokens.TokenPartWriter.write = slow  # type: ignore[method-assign]
    open_tokens(text, tensorizer, PLAIN)


def test_a_killed_build_keeps_its_finished_parts(
    text: TrainingSet, tensorizer: Tensorizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = mp.get_context("fork")
    process = context.Process(target=_build_slowly, args=(text, tensorizer, 30.0, context.Value("i", 0)))
    process.start()
    deadline = time.monotonic() + 60
    while not list((tmp_path / "cache").glob("tokens-*/step-00000.json")):
        assert time.monotonic() < deadline and process.is_alive()
        time.sleep(0.02)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    written = written_parts(monkeypatch)
    stored(text, tensorizer)
    assert written == PARTS[1:]


def test_processes_that_start_together_build_one_store(text: TrainingSet, tensorizer: Tensorizer) -> None:
    context = mp.get_context("fork")
    writes = context.Value("i", 0)
    started = [context.Process(target=_build_slowly, args=(text, tensorizer, 0.1, writes)) for _ in range(3)]
    for each in started:
        each.start()
    for each in started:
        each.join(60)
    assert [each.exitcode for each in started] == [0, 0, 0]
    assert writes.value == len(PARTS)
    stored(text, tensorizer)


def test_several_processes_build_what_one_builds(
    text: TrainingSet, tensorizer: Tensorizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = torch.get_rng_state()
    contents = []
    for cores in ({0}, {0, 1}):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: cores)
        source = stored(text, tensorizer, folder=tmp_path / f"store-{len(cores)}")
        stored_files = {path.relative_to(source._folder): path for path in source._folder.rglob("*.npy")}
        contents.append({name: path.read_bytes() for name, path in stored_files.items()})
    assert contents[0] == contents[1] and len(contents[0]) == 15
    assert torch.equal(torch.get_rng_state(), state)


def test_where_nothing_can_be_stored_training_is_from_the_text(
    text: TrainingSet, tensorizer: Tensorizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"train\.token_store"):
        open_tokens(text, tensorizer, PLAIN, folder=tmp_path / "file" / "tokens")
    os.environ["DPR_CACHE"] = str(tmp_path / "file" / "cache")
    with caplog.at_level(logging.WARNING):
        assert open_tokens(text, tensorizer, PLAIN) is text
    assert "tiny: trained from the text, since its tokens cannot be stored" in caplog.text


def test_a_tokenizer_that_joins_by_a_rule_of_its_own_is_found_out(
    text: TrainingSet,
    tensorizer: Tensorizer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    encode = Tensorizer._encode

    def reversed_pairs(self: Tensorizer, texts: Any, max_length: int) -> Any:
        return encode(self, [text if isinstance(text, str) else text[::-1] for text in texts], max_length)

    monkeypatch.setattr(Tensorizer, "_encode", reversed_pairs)
    with caplog.at_level(logging.WARNING):
        assert open_tokens(text, tensorizer, PLAIN) is text
    assert "an unknown rule" in caplog.text


def test_large_vocabularies(
    tmp_path: Path, text: TrainingSet, tensorizer: Tensorizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tensorizer, "largest_id", property(lambda self: 70_000))
    source = stored(text, tensorizer)
    made_of = read_manifest(source._folder)["metadata"]["made_of"]
    assert (made_of["bits"], made_of["layout"]) == (32, 6)
    assert_as_text(source, text, tensorizer)


def test_spawned_workers_make_the_same_batches(text: TrainingSet, tensorizer: Tensorizer) -> None:
    """As on Windows and macOS, where workers are not forked and everything they need is sent to them."""
    sent, other = pickle.loads(pickle.dumps((stored(text, tensorizer), tensorizer)))
    assert_as_text(sent, text, other)
