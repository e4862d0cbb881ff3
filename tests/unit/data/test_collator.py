"""A batch has slots, distinct contexts and identities; negatives depend on (seed, epoch, data set, row)."""

from dataclasses import replace
from typing import Any
from unicodedata import normalize

import numpy as np
import pytest
import torch

from dpr.core.batch import BiEncoderBatch
from dpr.core.records import Passage, TrainingSample
from dpr.data.collator import Augmentation, Collator, DataRow, Selection, passage_identity
from dpr.data.iterators import MultiSetDataIterator, ShardedDataIterator
from dpr.data.loader import GlobalBatchDataset, batch_loader, data_row
from dpr.data.settings import DataSetSettings
from dpr.data.tensorizer import Tensorizer
from dpr.data.training_data import TrainingData
from dpr.losses.candidates import names_of
from tests.helpers.tiny import ListSource, encoder_folder, make_samples

A, B, C, D = (Passage(text, id=text) for text in ("ba", "be", "bi", "bo"))
OPTIONS = DataSetSettings()


@pytest.fixture(scope="module")
def tensorizer(tmp_path_factory: pytest.TempPathFactory) -> Tensorizer:
    return Tensorizer.load(encoder_folder(tmp_path_factory.mktemp("tokenizer")), sequence_length=24)


def collate(
    tensorizer: Tensorizer, samples: list[TrainingSample], num_hard: int = 1, num_other: int = 0, **more: Any
) -> BiEncoderBatch:
    source = ListSource(samples)
    collator = Collator(tensorizer, num_hard=num_hard, num_other=num_other, **more)
    return collator([data_row(source, row, OPTIONS) for row in range(len(samples))])


def test_slots_are_filled_up_and_each_passage_is_encoded_once(tensorizer: Tensorizer) -> None:
    samples = [TrainingSample("ca", (A,), (B, C)), TrainingSample("ce", (B,), (), (D,))]
    batch = collate(tensorizer, [*samples, TrainingSample("ci", (C,))], 2)
    assert batch.context_valid.tolist() == [True, True, True, True, True, False, True, False, False]
    assert batch.positive_idx.tolist() == [0, 3, 6]
    assert len(batch.contexts) == 4
    assert batch.context_row.tolist() == [0, 1, 2, 1, 3, 0, 2, 0, 0]
    assert batch.context_ids[1].tolist() == batch.context_ids[3].tolist() == list(passage_identity(B, "tiny"))
    assert batch.context_ids[5].tolist() == [0, 0]
    assert batch.num_tokens == int(batch.questions.lengths.sum() + batch.contexts.lengths.sum())
    assert batch.num_tokens == 3 * 3 + 4 * 3


def test_passages_are_the_same_by_id_within_their_namespace_or_by_text() -> None:
    def same(one: Passage, other: Passage, namespace: str = "a") -> bool:
        names = names_of(torch.tensor(passage_identity(one, "a")))
        others = names_of(torch.tensor(passage_identity(other, namespace)))
        return any(bool(mine == theirs) for mine, theirs in zip(names, others, strict=True))

    assert same(Passage("x", id="7"), Passage("y", id="7"))
    assert not same(Passage("x", id="7"), Passage("y", id="7"), "b")
    assert same(Passage("x", "t"), Passage("x", "t"), "b")
    assert not same(Passage("x", "t"), Passage("x"))
    assert not same(Passage("7"), Passage("x", id="7"))
    for other in (Passage("X  y", id="8"), Passage("x y"), Passage("x\ny", id="7")):
        assert same(Passage("x y", id="7"), other)
        assert same(Passage("x y", id="7"), other, "b"), "equal texts of two data sets are one passage"
    for form in ("NFC", "NFD"):
        assert same(Passage(normalize(form, "\xc9T\xc9"), id="7"), Passage("\xe9t\xe9", id="8")), form
    assert same(Passage("\ufb01le \uff17", id="7"), Passage("file 7", id="8"))


def test_identities_of_texts_in_the_usual_form_stay_as_they_are() -> None:
    """Token stores hold them, and resumed runs compare them."""
    passage = Passage("L'\xe9t\xe9 de 10 ans", "T")
    assert passage_identity(passage, "a") == (-5853434909548537207, -5853434909548537207)


def selected(sample: TrainingSample, num_hard: int, num_other: int = 0, **options: Any) -> Selection:
    """As in validation, without a seed."""
    collator = Collator(None, num_hard=num_hard, num_other=num_other)  # type: ignore[arg-type]
    return collator.select(DataRow(sample, 0, (), "tiny", DataSetSettings(**options)))


def test_gold_without_a_score_is_excluded_unless_nothing_would_remain() -> None:
    scored = Passage("be", id="s", has_score=True)
    assert selected(TrainingSample("q", (A, scored)), 0, exclude_gold=True).positive is scored
    assert selected(TrainingSample("q", (A, B)), 0, exclude_gold=True).positive is A


def test_negatives_depend_on_seed_epoch_set_and_row_alone(tensorizer: Tensorizer) -> None:
    many = tuple(Passage(f"ba be {number}", id=str(number)) for number in range(30))
    sample = TrainingSample("q", many[:5], many[5:])
    options = DataSetSettings(shuffle_positives=True)

    def chosen(seed: int | None, *key: int) -> tuple[str | None, ...]:
        row = DataRow(sample, key[0], (), "tiny", options, key[2], key[1])
        selection = Collator(tensorizer, num_hard=4, num_other=0, seed=seed).select(row)
        return tuple(passage.id for passage in (selection.positive, *selection.hard_negatives))

    draws = {chosen(*key) for key in ((1, 0, 0, 0), (2, 0, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0), (1, 0, 0, 1))}
    assert len(draws) == 5
    assert chosen(1, 0, 0, 0) == chosen(1, 0, 0, 0)
    assert chosen(None, 3, 2, 1) == ("0", "5", "6", "7", "8")
    assert len({chosen(1, row, 0, 0)[0] for row in range(40)}) == 5


def test_augmentation_changes_training_only_and_repeats(tensorizer: Tensorizer) -> None:
    samples = [TrainingSample("ba be bi", (Passage("ba be bi bo bu ca ce ci co cu da de di do du", "ka"),))]
    augmentation = Augmentation(crop_tokens=8, mask_probability=0.3)
    plain = collate(tensorizer, samples)
    first, again = (collate(tensorizer, samples, seed=4, augmentation=augmentation) for _ in range(2))
    dev = collate(tensorizer, samples, augmentation=augmentation)
    assert first.contexts.lengths.tolist() == [8]
    assert torch.equal(first.contexts.tokens, again.contexts.tokens)
    assert torch.equal(dev.contexts.tokens, plain.contexts.tokens)
    assert (
        not torch.equal(first.questions.tokens, plain.questions.tokens)
        or first.contexts.tokens.shape != plain.contexts.tokens.shape
    )
    positive = samples[0].positives[0]
    twice = TrainingSample("ba", (positive,), (Passage(positive.text, positive.title, "other"),))
    assert len(collate(tensorizer, [twice], 1, seed=4, augmentation=augmentation).contexts) == 2, "by slot"


def test_every_slot_has_the_teacher_score_of_its_passage_for_its_question(tensorizer: Tensorizer) -> None:
    scores = (4.0, -1.5, 1 / 3)
    a, b, d = (replace(one, teacher_score=score) for one, score in zip((A, B, D), scores, strict=True))
    other = replace(A, teacher_score=-7.0)  # the same text beside another question
    samples = [TrainingSample("ca", (a,), (b,), (C,)), TrainingSample("ce", (d,), (other,))]
    batch = collate(tensorizer, samples, 1, 1)
    found = batch.to("meta").teacher_scores
    assert found is not None and found.dtype == torch.float32 and found.device.type == "cpu"
    np.testing.assert_array_equal(found, np.float32([4.0, np.nan, -1.5, 1 / 3, -7.0, np.nan]))
    assert len(batch.contexts) == 4
    assert collate(tensorizer, [TrainingSample("ca", (C,), (A,))]).teacher_scores is None


class Mine(TrainingData):
    """A user's data."""

    def __init__(self, samples: list[TrainingSample]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> TrainingSample:
        return self.samples[row]


def test_the_fingerprint_of_a_users_data_changes_with_scores_and_not_without() -> None:
    passages = [Passage("p"), replace(A, teacher_score=4.0), replace(A, teacher_score=5.0)]
    prints = [Mine([TrainingSample("q", (passage,))]).fingerprint for passage in passages]
    assert len(set(prints)) == 3
    assert prints[0][:24] == "e868e8ed60d2e0458bb3e17c"


def words_of(tensorizer: Tensorizer, batch: BiEncoderBatch) -> list[str]:
    sequences = batch.contexts.tokens.split(batch.contexts.lengths.tolist())
    return [" ".join(tensorizer.tokenizer.convert_ids_to_tokens(sequence.tolist())) for sequence in sequences]


def test_prefixes_stand_before_question_and_title_or_text(tensorizer: Tensorizer) -> None:
    sample = TrainingSample("ba", (Passage(" be bi"),), (Passage("bo", "bu"),))
    options = DataSetSettings(query_prefix="ca ", passage_prefix="ce-", selector=1)
    batch = Collator(tensorizer, num_hard=1, num_other=0)([data_row(ListSource([sample]), 0, options)])
    assert words_of(tensorizer, batch) == ["[CLS] ce - be bi [SEP]", "[CLS] ce - bu [SEP] bo [SEP]"]
    asked = tensorizer.tokenizer.convert_ids_to_tokens(batch.questions.tokens.tolist())
    assert asked == ["[CLS]", "ca", "ba", "[SEP]"]
    assert batch.context_ids[0].tolist() == list(passage_identity(sample.positives[0], "tiny"))


def test_a_prefix_stays_where_the_text_is_cropped(tensorizer: Tensorizer) -> None:
    long = "ca ce ci co cu da de di do du fa fe fi fo fu ga ge gi"
    options = DataSetSettings(passage_prefix="ba be ")
    passages = Passage(f"{long} {long}"), Passage(long, "ka")
    source = ListSource([TrainingSample("q", (passage,)) for passage in passages])
    seen = set()
    for seed in range(12):
        cropping = Augmentation(crop_tokens=9)
        collator = Collator(tensorizer, num_hard=0, num_other=0, seed=seed, augmentation=cropping)
        words = words_of(tensorizer, collator([data_row(source, row, options) for row in range(2)]))
        assert words[0].startswith("[CLS] ba be ") and words[1].startswith("[CLS] ba be ka [SEP] ")
        assert {len(text.split()) for text in words} == {9}
        seen.add(words[0])
    assert len(seen) > 6, "the window behind it is drawn"


def test_workers_do_not_change_batches_or_their_order(tensorizer: Tensorizer) -> None:
    source = ListSource(make_samples(40))
    order = MultiSetDataIterator([ShardedDataIterator(40, global_batch_size=8, seed=2)], seed=2)
    collator = Collator(tensorizer, num_hard=2, num_other=1, seed=2, augmentation=Augmentation(0, 0.2))
    dataset = GlobalBatchDataset([(source, OPTIONS)], order, collator)
    runs = []
    for workers in (0, 1, 2):
        schedule = [(1, 3), (1, 4), *((2, global_batch) for global_batch in range(5))]
        runs.append(list(batch_loader(dataset, schedule, num_workers=workers)))
    assert len(runs[0]) == 2 + 5
    for other in runs[1:]:
        for mine, theirs in zip(runs[0], other, strict=True):
            assert mine.rows == theirs.rows
            assert torch.equal(mine.contexts.tokens, theirs.contexts.tokens)
            assert torch.equal(mine.questions.tokens, theirs.questions.tokens)
