"""Batches for a rank, made ahead of the model in worker processes, always in the order that the iterators
state."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from dpr.core import lost_ranks
from dpr.core.batch import BiEncoderBatch
from dpr.core.distributed import Ranks
from dpr.core.errors import ConfigError, DprError
from dpr.core.seeding import generator_for
from dpr.core.stopping import ignore_in_worker
from dpr.data.collator import Collator, DataRow, one_encoder_type
from dpr.data.iterators import (
    GlobalBatchIterator,
    GlobalBatchRows,
    MixedDataIterator,
    MultiSetDataIterator,
    Sampling,
    ShardedDataIterator,
)
from dpr.data.order import PAIRS
from dpr.data.row_words import row_words
from dpr.data.settings import DataSetSettings
from dpr.data.training_data import OpenedSets, SampleSource, known_document

Item = TypeVar("Item")
_BATCHES_AHEAD = 4
"""Batches that each worker makes ahead."""


def data_row(
    source: SampleSource,
    number: int,
    options: DataSetSettings,
    *,
    dataset: int = 0,
    pass_number: int = 0,
    seed: int | None = None,
) -> DataRow:
    """Reads one row of a set. In training, with a ``seed``, a set that draws its samples gives the one of
    this pass over it."""
    drawn = getattr(source, "drawn", None)  # of a set whose rows give another sample in each pass over it
    if seed is None or drawn is None:
        sample = source[number]
        known = source.known_positives(number)
    else:
        sample = drawn(number, generator_for(PAIRS, seed, pass_number, dataset, number))
        known = (known_document(sample),)
    return DataRow(sample, number, known, source.name, options, dataset, pass_number)


class GlobalBatchDataset(Dataset[BiEncoderBatch]):
    """Maps (epoch, global batch) to this rank's batch."""

    def __init__(self, sets: OpenedSets, iterator: GlobalBatchIterator, collator: Collator) -> None:
        self.sources = [source for source, _ in sets]
        self.options = [options for _, options in sets]
        self.iterator = iterator
        self.collator = collator

    def __getitem__(self, key: tuple[int, int]) -> BiEncoderBatch:
        return self.collator(self.read(self.iterator.global_batch(*key)))

    def read(self, global_batch: GlobalBatchRows) -> list[DataRow]:
        """Reads the rows of a global batch."""
        seed = self.collator.seed
        places = zip(*(part.tolist() for part in global_batch), strict=True)
        return [
            data_row(
                self.sources[set_], row, self.options[set_], dataset=set_, pass_number=pass_number, seed=seed
            )
            for set_, row, pass_number in places
        ]


def cut_into_batches(
    sets: OpenedSets,
    collator: Collator,
    *,
    global_batch_size: int,
    ranks: Ranks,
    seed: int,
    sampling: Sampling | None = None,
) -> GlobalBatchDataset:
    """Returns this rank's part of the data sets' global batches of ``global_batch_size`` questions.

    Raises:
        ConfigError: the global batch does not divide among the ranks, a set is smaller than a global batch,
        shares and sets do not match, a selector does not fit the tokenizer.
    """
    sources = [source for source, _ in sets]
    options = [options for _, options in sets]
    for item in options:
        collator.tensorizer.check_selector(item.selector)
    sampling = with_weights_of_sets(sampling or Sampling(), sets)
    num_rows = [len(source) for source in sources]
    names = [source.name for source in sources]
    features = [row_words(source) for source in sources] if sampling.group_by_words else None
    share: dict[str, Any] = {
        "global_batch_size": global_batch_size,
        "seed": seed,
        "rank": ranks.rank,
        "world_size": ranks.world_size,
    }
    iterator: GlobalBatchIterator
    if sampling.mixed:
        one_encoder_type(zip(names, options, strict=True))
        iterator = MixedDataIterator(num_rows, **share, sampling=sampling, names=names, features=features)
    else:
        parts = [
            ShardedDataIterator(
                rows, dataset=number, **share, features=features[number] if features else None
            )
            for number, rows in enumerate(num_rows)
        ]
        iterator = MultiSetDataIterator(parts, seed=seed, sampling=sampling, names=names)
    return GlobalBatchDataset(sets, iterator, collator)


def with_weights_of_sets(sampling: Sampling, sets: OpenedSets) -> Sampling:
    """Returns ``sampling`` with the weights of the sets' options, if they have any.

    Raises:
        ConfigError: only some sets have one, or another setting also determines the shares.
    """
    weights = [options.weight for _, options in sets if options.weight is not None]
    if not weights:
        return sampling
    name = next(source.name for source, options in sets if options.weight is not None)
    if len(weights) < len(sets):
        other = next(source.name for source, options in sets if options.weight is None)
        raise ConfigError(
            f"datasets.{name}.weight is set, but {other} has none; give every train set a weight"
        )
    if not any(weights):
        raise ConfigError(f"datasets.{name}.weight=0, and no train set has more; give one a weight above 0")
    for key, value in (
        ("train_sampling_rates", sampling.rates),
        ("train.sampling.temperature", sampling.temperature),
    ):
        if value is not None:
            raise ConfigError(
                f"datasets.{name}.weight and {key} are mutually exclusive, since both set its share;"
                " leave one of them out"
            )
    return replace(sampling, weights=weights)


def _start_worker(_: int) -> None:
    ignore_in_worker()
    lost_ranks.close_in_worker()
    # A worker is one of several processes that share the machine; more threads in each only get in the
    # model's way.
    torch.set_num_threads(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


# Torch says so only of an iterator that has started its workers; one that could not, on a full disk, would
# print a traceback when it is collected.
_MultiProcessingDataLoaderIter._shutdown = True


class WorkerLoader(DataLoader[Item]):
    """Items of a dataset in the sampler's order, made by worker processes. Errors for users arrive as they
    were raised; torch itself would raise them again with a traceback as their message."""

    def __init__(
        self, dataset: Dataset[Item], *, sampler: Iterable[Any], num_workers: int, **options: Any
    ) -> None:
        start = _start_worker if num_workers else None
        items: Any = _ErrorsAsItems(dataset)
        super().__init__(
            items, batch_size=None, sampler=sampler, num_workers=num_workers, worker_init_fn=start, **options
        )

    def __iter__(self) -> Iterator[Item]:  # type: ignore[override]
        for item in super().__iter__():
            if isinstance(item, Exception):
                raise item
            yield item


class _ErrorsAsItems(Dataset[Item | Exception]):
    def __init__(self, dataset: Dataset[Item]) -> None:
        self._dataset = dataset

    def __getitem__(self, key: Any) -> Item | Exception:
        try:
            return self._dataset[key]
        except (DprError, OSError) as error:
            return error


def batch_loader(
    dataset: GlobalBatchDataset,
    order: Iterable[tuple[int, int]],
    *,
    num_workers: int = 1,
    pin_memory: bool = False,
) -> WorkerLoader[BiEncoderBatch]:
    """Returns a loader of batches, by (epoch, global batch) in the given order. With workers, they are made
    while the model computes."""
    ahead = _BATCHES_AHEAD if num_workers else None
    return WorkerLoader(
        dataset, sampler=order, num_workers=num_workers, prefetch_factor=ahead, pin_memory=pin_memory
    )
