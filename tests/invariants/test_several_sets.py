"""Global batches of several data sets have the loss and gradient of the formula, from text and stored tokens."""

import json
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dpr.core.batch import BiEncoderBatch
from dpr.core.distributed import Ranks, current_ranks
from dpr.core.errors import CheckpointError, ConfigError
from dpr.core.records import Passage, TrainingSample
from dpr.data.collator import Augmentation, Collator
from dpr.data.iterators import Sampling
from dpr.data.loader import GlobalBatchDataset, batch_loader, cut_into_batches, with_weights_of_sets
from dpr.data.settings import DataSetSettings
from dpr.data.tokens import StoredTokens, open_tokens
from dpr.formats.training_files.dpr import write_training_set
from dpr.formats.training_sets import open_training_set
from dpr.losses.nll import BiEncoderNllLoss
from dpr.training.bi_encoder_trainer import BiEncoderTrainer
from dpr.training.callbacks import Callback
from dpr.training.settings import TrainNode
from dpr.training.trainer import make_step
from tests.helpers.processes import run_on_ranks
from tests.helpers.reference import question_losses, slow_vectors
from tests.helpers.tiny import ListSource, encoder_folder, make_samples, tiny_model
from tests.helpers.training import (
    StopAfter,
    assert_near,
    assert_same_bits,
    gradients,
    make_trainer,
    stored,
    taken,
)

GLOBAL_BATCH, NUM_HARD, NUM_OTHER, ACCUMULATION = 8, 2, 1, 2
TOLERANCE = 1e-10
FIRST = DataSetSettings(loss_scale=0.3, shuffle_positives=True)
SECOND = DataSetSettings(
    query_prefix="ba be ", query_special_suffix=" bo", selector=1, loss_scale=1.7, normalize=True
)


def two_sets() -> list[tuple[ListSource, DataSetSettings]]:
    """Both have passages of the same text, some with ids: one passage, whatever its id and its set."""
    return [
        (ListSource(make_samples(30, seed=1), "first"), FIRST),
        (ListSource(make_samples(22, seed=1), "second"), SECOND),
    ]


def batches_of(
    model: Any, *, sampling: Sampling | None = None, ranks: Ranks | None = None
) -> GlobalBatchDataset:
    collator = Collator(model.tensorizer, num_hard=NUM_HARD, num_other=NUM_OTHER, seed=5)
    mixture = sampling or Sampling(mixed=True, weights=[1, 1])
    return cut_into_batches(
        two_sets(), collator, global_batch_size=GLOBAL_BATCH, ranks=ranks or Ranks(), seed=5, sampling=mixture
    )


def gradient_of_a_step(
    folder: Path, grad_cache_tokens: int = 0, max_scores: int = 1 << 22
) -> dict[str, torch.Tensor]:
    ranks = current_ranks()
    model = tiny_model(folder).train()
    loss, options = BiEncoderNllLoss(max_scores=max_scores), TrainNode(grad_cache_tokens=grad_cache_tokens)
    step = make_step(model, loss, options, ranks=ranks, device=torch.device("cpu"))
    dataset = batches_of(model, ranks=ranks)
    return taken(step, model, [dataset[1, global_batch] for global_batch in range(ACCUMULATION)])


def reference(folder: Path) -> dict[str, torch.Tensor]:
    """The formula of docs/numerics.md, question by question: sum of w_i l_i / Q, the mean over global batches."""
    model = tiny_model(folder).train()
    dataset = batches_of(model)
    encode = model.tensorizer.tokenizer
    objective, plain = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for global_batch in range(ACCUMULATION):
        rows = dataset.read(dataset.iterator.global_batch(1, global_batch))
        assert {row.dataset for row in rows} == {0, 1}, "else this proves little"
        chosen = [dataset.collator.select(row).in_slot_order() for row in rows]
        _, contexts, *places = slow_vectors(model, [row.sample for row in rows], chosen, 24)
        questions, weights = [], []
        for row in rows:
            text, is_second = row.sample.question, row.namespace == "second"
            if is_second:
                text = f"ba be {text}" + ("" if text.endswith(" bo") else " bo")
            ids = torch.tensor([encode(text, truncation=True, max_length=24)["input_ids"]])
            states = model.question_model.backbone(input_ids=ids).last_hidden_state[0]
            questions.append(states[int(is_second)])
            weights.append(1.7 if is_second else 0.3)
        known = [row.known_positives for row in rows]
        losses = question_losses(torch.stack(questions), contexts, *places, known, distinct=True)
        objective = objective + (torch.tensor(weights, dtype=torch.float64) * losses).mean() / ACCUMULATION
        plain = plain + losses.detach().mean() / ACCUMULATION
    objective.backward()
    return {"loss": plain, **gradients(model)}


CASES = {"direct": {}, "cached": {"grad_cache_tokens": 40}, "in blocks": {"max_scores": 50}}


def every_case(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    return {name: gradient_of_a_step(folder, **case) for name, case in CASES.items()}


def test_weighted_loss_and_gradient_of_mixed_global_batches_are_the_formula_on_1_and_2_processes(
    tmp_path: Path,
) -> None:
    folder = encoder_folder(tmp_path / "encoder")
    expected = reference(folder)
    assert max(float(tensor.norm()) for name, tensor in expected.items() if name != "loss") > 1e-3
    for world_size in (1, 2):
        for results in run_on_ranks(every_case, world_size, folder):
            for case, found in results.items():
                found.pop("correct")
                assert_near(found, expected, TOLERANCE, f"{case}, {world_size} processes")


def test_weights_really_weigh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = encoder_folder(tmp_path / "encoder")
    weighed = gradient_of_a_step(folder)
    monkeypatch.setattr(f"{__name__}.FIRST", replace(FIRST, loss_scale=1.0))
    even = gradient_of_a_step(folder)
    torch.testing.assert_close(weighed["loss"], even["loss"])  # what is logged is the loss as it is
    assert any(
        not torch.allclose(weighed[key], even[key]) for key in weighed if key not in ("loss", "correct")
    )


def test_ids_of_two_sets_are_apart_and_equal_texts_are_not(tmp_path: Path) -> None:
    model = tiny_model(encoder_folder(tmp_path / "encoder"))
    same = TrainingSample("ba", (Passage("be", id="7"), Passage("bi")))
    sets = [(ListSource([same] * 4, name), DataSetSettings(exclude_gold=True)) for name in ("a", "b")]
    collator = Collator(model.tensorizer, num_hard=0, num_other=0, seed=0)
    dataset = cut_into_batches(
        sets, collator, global_batch_size=8, ranks=Ranks(), seed=0, sampling=Sampling(mixed=True)
    )
    batch = dataset[0, 0]
    assert len({tuple(pair) for pair in batch.context_ids.tolist()}) == 2 and len(batch.contexts) == 1
    known = {tuple(map(tuple, row)) for row in batch.known_positive_ids.tolist()}
    assert len(known) == 2 and len(set.intersection(*(set(row) for row in known))) == 1
    assert sorted(batch.datasets) == [0] * 4 + [1] * 4


def test_sets_of_different_towers_cannot_share_a_global_batch(tmp_path: Path) -> None:
    model = tiny_model(encoder_folder(tmp_path / "encoder"))
    sets = [
        (source, replace(options, encoder_type=kind))
        for (source, options), kind in zip(two_sets(), ("", "ctx"), strict=True)
    ]
    collator = Collator(model.tensorizer, num_hard=1, num_other=0, seed=0)
    shared: dict[str, Any] = {"global_batch_size": 8, "ranks": Ranks(), "seed": 0}
    message = (
        r"mixed=true and datasets\.first\.encoder_type=null beside datasets\.second\.encoder_type=ctx are"
        r" mutually exclusive"
    )
    with pytest.raises(ConfigError, match=message):
        cut_into_batches(sets, collator, **shared, sampling=Sampling(mixed=True))
    kinds = {
        dataset[0, global_batch].encoder_type
        for dataset in [cut_into_batches(sets, collator, **shared)]
        for global_batch in range(5)
    }
    assert kinds == {"", "ctx"}, "apart they are trained as ever"


def values(batch: BiEncoderBatch) -> str:
    parts = {item.name: getattr(batch, item.name) for item in fields(batch)}
    flat = {
        f"{name}.{item.name}": getattr(part, item.name)
        for name, part in parts.items()
        if is_dataclass(part)
        for item in fields(part)
    }
    return repr(
        [
            (name, part.tolist() if isinstance(part, torch.Tensor) else part)
            for name, part in (parts | flat).items()
            if name not in ("questions", "contexts")
        ]
    )


MIXTURES = [
    Sampling(mixed=True, temperature=2.0),
    Sampling(mixed=True, group_by_words=True),
    Sampling(weights=[1, 3], group_by_words=True),
]
NAMES = ["mixed", "mixed, by words", "by words"]


@pytest.mark.parametrize("sampling", MIXTURES, ids=NAMES)
def test_batches_from_text_and_from_stored_tokens_and_with_workers_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampling: Sampling
) -> None:
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    tensorizer = tiny_model(encoder_folder(tmp_path / "encoder")).tensorizer
    texts: list[Any] = []
    for source, options in two_sets():
        write_training_set(tmp_path / f"{source.name}.jsonl", source.samples)
        texts.append((open_training_set(tmp_path / f"{source.name}.jsonl", name=source.name), options))
    stored = [(open_tokens(source, tensorizer, options), options) for source, options in texts]
    assert all(isinstance(source, StoredTokens) for source, _ in stored)
    collator = Collator(tensorizer, num_hard=1, num_other=1, seed=3, augmentation=Augmentation(8, 0.2))
    runs = []
    for sets, workers in ((texts, 0), (stored, 0), (stored, 2)):
        dataset = cut_into_batches(
            sets, collator, global_batch_size=GLOBAL_BATCH, ranks=Ranks(), seed=5, sampling=sampling
        )
        global_batches = range(dataset.iterator.batches_per_epoch)
        order = [(epoch, global_batch) for epoch in (1, 2) for global_batch in global_batches][2:]
        runs.append([values(batch) for batch in batch_loader(dataset, order, num_workers=workers)])
    assert len(runs[0]) > 6 and len(set(runs[0])) == len(runs[0])
    assert runs[0] == runs[1] == runs[2]


def a_trainer(folder: Path, output_dir: Path, *callbacks: Callback, **options: Any) -> BiEncoderTrainer:
    given: dict[str, Any] = {"num_train_epochs": 3, "gradient_accumulation_steps": 2, "learning_rate": 1e-3}
    return make_trainer(
        tiny_model(folder, dropout=0.1, dtype=torch.float32),
        two_sets(),
        [],
        output_dir,
        *callbacks,
        **{**given, **options},
    )


@pytest.mark.parametrize("mixture", [*MIXTURES[1:], Sampling(rates=[0.5, 2.5])], ids=[*NAMES[1:], "rates"])
def test_a_run_stopped_in_the_middle_resumes_as_if_it_had_not_been(tmp_path: Path, mixture: Sampling) -> None:
    folder, sampling = (
        encoder_folder(tmp_path / "encoder"),
        {"sampling": mixture, "train_sampling_rates": mixture.rates},
    )
    whole = a_trainer(folder, tmp_path / "whole", **sampling)
    assert whole.steps_per_epoch >= 2, "stops are in the middle of epochs"
    whole.train()
    stop = whole.steps_per_epoch + 1
    part = a_trainer(folder, tmp_path / "parts", StopAfter(stop), **sampling)
    part.train()
    assert part.progress.step == stop < part.total_steps
    a_trainer(folder, tmp_path / "parts", **sampling).train()
    assert_same_bits(stored(tmp_path / "parts"), stored(tmp_path / "whole"))


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"temperature": 3.0}, r"train\.sampling\.temperature was 2\.0, is now 3\.0"),
        ({"group_by_words": True}, r"train\.sampling\.group_by_words was False, is now True"),
    ],
)
def test_a_run_with_another_mixture_is_refused_by_name(
    tmp_path: Path, changed: dict[str, Any], name: str
) -> None:
    folder, first = encoder_folder(tmp_path / "encoder"), Sampling(mixed=True, temperature=2.0)
    a_trainer(folder, tmp_path / "run", sampling=first, max_steps=1).train()
    with pytest.raises(CheckpointError, match=name):
        a_trainer(folder, tmp_path / "run", sampling=replace(first, **changed)).resume()


def test_runs_that_mix_nothing_have_the_identity_they_had(tmp_path: Path) -> None:
    trainer = a_trainer(encoder_folder(tmp_path / "encoder"), tmp_path / "run")
    trainer.resume()
    trainer.checkpoints.lock.release()
    assert trainer.identity.fixed["train_sampling_rates"] == [3, 2]
    assert json.dumps(trainer.identity.fixed["datasets"][0]) == (
        '{"namespace": "first", "query_prefix": null, "query_suffix": null, "selector": null, "encoder_type": "",'
        ' "shuffle_positives": true, "normalize": false, "exclude_gold": false, "loss_scale": 0.3}'
    )


def test_a_set_that_is_open_already_names_no_file(tmp_path: Path) -> None:
    model, options = tiny_model(encoder_folder(tmp_path / "encoder")), DataSetSettings(file="train.json")
    with pytest.raises(ConfigError, match="options of tiny name files, but the data set is already open"):
        make_trainer(model, [(ListSource(make_samples(8)), options)], [], tmp_path / "run")


def weighted(first: float | None, second: float | None) -> list[tuple[ListSource, DataSetSettings]]:
    (one, options), (other, others) = two_sets()
    return [(one, replace(options, weight=first)), (other, replace(others, weight=second))]


@pytest.mark.parametrize(
    ("weights", "sampling", "message"),
    [
        ((1.0, None), Sampling(), r"datasets\.first\.weight is set, but second has none"),
        ((0.0, 0.0), Sampling(), r"datasets\.first\.weight=0, and no train set has more"),
        ((1.0, 2.0), Sampling(temperature=1.0), "and train.sampling.temperature are mutually exclusive"),
        ((1.0, 2.0), Sampling(rates=[1, 1]), "and train_sampling_rates are mutually exclusive"),
    ],
)
def test_weights_of_sets_are_for_all_sets_and_alone(weights: Any, sampling: Sampling, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        with_weights_of_sets(sampling, weighted(*weights))


def test_weights_of_sets_are_the_shares() -> None:
    given = Sampling(mixed=True)
    assert with_weights_of_sets(given, weighted(1.0, 3.0)) == replace(given, weights=[1.0, 3.0])
