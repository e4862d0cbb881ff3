"""``train.renew_negatives``: hard negatives mined in the pass that a retrieval validation makes over the corpus, within one run.

1. Every so many validations the questions of the train sets are searched beside those of the validation: the corpus is encoded once.
2. Rank 0 filters what was found as ``dpr mine`` does and writes ``<output_dir>/negatives/step<N>/<set>.jsonl``, with an audit.
3. From the next update on the run reads these files. A checkpoint names them, so a resumed run goes on with those that it had.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpr.core.batch import TokenBatch
from dpr.core.distributed import current_ranks, from_main, on_main, sum_over_ranks
from dpr.core.errors import CheckpointError, ConfigError
from dpr.core.logs import get_logger
from dpr.core.settings import listed
from dpr.data.settings import DataSetSettings
from dpr.data.tokens import StoredTokens
from dpr.data.training_data import OpenedSets, SampleSource
from dpr.embedding.corpus_tokens import CorpusTokens
from dpr.formats import checkpoints
from dpr.formats.training_sets import TrainingSet, open_training_set
from dpr.indexer.ranking import RunningTopK, decode_ids
from dpr.mining.corpus import MiningCorpus
from dpr.mining.job import mine
from dpr.mining.search import Query, QueryHits
from dpr.mining.settings import MiningSettings
from dpr.models.biencoder import BiEncoder
from dpr.storage.durable import read_json, remove_folder
from dpr.training.callbacks import Callback
from dpr.training.checkpointing import CALLBACKS_FILE
from dpr.training.command_settings import BiEncoderTrainConfig
from dpr.training.metrics import Metrics
from dpr.training.run import Run
from dpr.training.validations.corpus_pass import PassResult, QuerySet
from dpr.training.validations.retrieval import RetrievalValidation, shared_content
from dpr.training.validations.retrieval_settings import is_built_in, read_entry

logger = get_logger(__name__)

_FOLDER, _WORK = "negatives", ".tmp-positives"


class RenewNegatives(Callback):
    """Renews the negatives of the train sets every ``train.renew_negatives`` validations.

    Args:
        train_sets: what the run begins with, and the options that it reads them with.
        reopen: as the run opens sets, e.g. with their tokens from a store.
        searches: the run's validations by retrieval, by the number of their entry; it listens to the passes of one.

    Raises:
        ConfigError: no validation searches the whole corpus when negatives are to be renewed, or a set is user-defined.
    """

    def __init__(
        self,
        config: BiEncoderTrainConfig,
        train_sets: OpenedSets,
        reopen: Callable[[OpenedSets], OpenedSets],
        searches: Mapping[int, RetrievalValidation],
    ) -> None:
        self._every, self._sets, self._reopen = config.train.renew_negatives, train_sets, reopen
        self._texts = [_text_of(source, options) for source, options in train_sets]
        number = searching_entry(config)
        self._options = searches[number].options
        self._mining = mining_settings(self._options.negatives, number)
        searches[number].listeners.append(self)
        self._pairs: list[np.ndarray] | None = None
        self._results: list[PassResult] = []
        self._run: Run | None = None
        self._step = 0

    def content(self) -> dict[str, Any]:
        """The corpus is training data here."""
        corpus = shared_content([self._options.corpus])
        return {"corpus": corpus, "passage_prefix": self._options.passage_prefix, "negatives": asdict(self._mining)}

    def on_train_begin(self, run: Run) -> None:
        self._run = run
        if self._step:
            self._use(run)

    def asked(self, model: BiEncoder, corpus: CorpusTokens) -> list[QuerySet]:
        """The questions of all train sets, when their negatives are due."""
        run = self._run
        if run is None or run.progress.validations % self._every or run.progress.step >= run.last_step:
            return []
        if self._pairs is None:
            self._pairs = self._positives(run.output_dir, corpus)
        depth = min(self._mining.to_rank, corpus.num_passages)
        sets = zip(self._texts, self._sets, self._pairs, strict=True)
        return [QuerySet(len(text), partial(_tokens, model, text, options), depth, pairs) for text, (_, options), pairs in sets]

    def take(self, results: list[PassResult]) -> None:
        self._results = results

    def on_validate_end(self, run: Run, metrics: Metrics) -> None:
        if not self._results:
            return
        results, self._results = self._results, []
        self._step, fingerprint = run.progress.step, run.model.fingerprint
        for text, one in zip(self._texts, results, strict=True):
            search = PassSearch(one, fingerprint)
            out = self._file(run.output_dir, text)
            arguments: dict[str, Any] = {"search": search, "corpus": Path(self._options.corpus), "overwrite": True}
            on_main(partial(_mine, text, out, self._mining, arguments))
        self._use(run)

    def on_save(self, run: Run, folder: Path) -> None:
        """Removes the negatives that no checkpoint names any more."""
        if not run.ranks.is_main:
            return
        kept = {self._step}
        for checkpoint in checkpoints.checkpoint_folders(run.output_dir, run.settings.checkpoint_file_name):
            kept.add(read_json(checkpoint / CALLBACKS_FILE).get(self.state_key, {}).get("step", 0))
        for old in (run.output_dir / _FOLDER).glob("step*"):
            if old.name.removeprefix("step").isdigit() and int(old.name.removeprefix("step")) not in kept:
                remove_folder(old)

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._step} if self._step else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._step = int(state["step"])

    def _use(self, run: Run) -> None:
        """Lets the run read the negatives of the present step."""
        renewed: OpenedSets = []
        for text, (_, options) in zip(self._texts, self._sets, strict=True):
            file = self._file(run.output_dir, text)
            if not file.is_file():
                hint = "restore it, or start again in a new output_dir"
                raise CheckpointError("the negatives that the run goes on with are missing", file=file, hint=hint)
            renewed.append((open_training_set([file], name=text.name), options))
        run.use_train_sets([source for source, _ in self._reopen(renewed)])

    def _file(self, output_dir: Path, text: TrainingSet) -> Path:
        return output_dir / _FOLDER / f"step{self._step}" / f"{text.name}.jsonl"

    def _positives(self, output_dir: Path, corpus: CorpusTokens) -> list[np.ndarray]:
        """The questions of each set with the rows of their positives in the corpus (P, 2), found on rank 0, on every rank."""
        positives: list[np.ndarray] = [np.empty((0, 2), dtype=np.int64) for _ in self._texts]

        def find() -> None:
            work = output_dir / _WORK
            passages = MiningCorpus(corpus.source.file, work)
            for index, text in enumerate(self._texts):
                rows = ((row, passages.row_of(passage)) for row in range(len(text)) for passage in text[row].positives)
                positives[index] = np.array([pair for pair in rows if pair[1] is not None], dtype=np.int64).reshape(-1, 2)
            remove_folder(work)

        on_main(find)
        shared = []
        for pairs in positives:
            values = torch.zeros(from_main(len(pairs)), 2, dtype=torch.int64)
            if current_ranks().is_main:
                values = torch.from_numpy(pairs)
            shared.append(sum_over_ranks(values).numpy())
        return shared


def _mine(text: TrainingSet, out: Path, settings: MiningSettings, arguments: Mapping[str, Any]) -> None:
    audit = mine(text, out, settings, **arguments)
    counts = audit["counts"]
    left_out = ", ".join(f"{count} {reason}" for reason, count in sorted(audit["left_out"].items()))
    logger.info("%s: %d negatives of %d questions; left out: %s", out, counts["negatives"], counts["questions"], left_out or "none")


@dataclass(frozen=True)
class PassSearch:
    """For ``mine``, what a pass over the corpus has found."""

    result: PassResult
    model_fingerprint: str

    @property
    def mined_by(self) -> str:
        return f"dense:{self.model_fingerprint[:12]}"

    @property
    def block_rows(self) -> int:
        return 4096

    def facts(self) -> dict[str, Any]:
        return {"kind": "pass", "model_fingerprint": self.model_fingerprint}

    def prepare(self, train: TrainingSet, blocks: Sequence[range], corpus: MiningCorpus, work: Path) -> PassFinder:
        return PassFinder(self.result.best, self.result.pair_scores)


@dataclass(frozen=True)
class PassFinder:
    """It holds what was found, so one process mines."""

    best: RunningTopK
    positive_scores: np.ndarray

    def find(self, rows: range, queries: Sequence[Query], depth: int) -> list[QueryHits]:
        scores, ids, counts = self.best.part(slice(rows.start, rows.stop))
        result = []
        for row, values, keys, count in zip(rows, scores, ids, counts, strict=True):
            positive = float(self.positive_scores[row])
            hits = list(zip(decode_ids(keys[:count]), values[:count].tolist(), strict=True))[:depth]
            result.append(QueryHits(hits, None if np.isnan(positive) else positive))
        return result


def _tokens(model: BiEncoder, text: TrainingSet, options: DataSetSettings, rows: range) -> TokenBatch:
    tensorizer = model.tensorizer
    sequences = tensorizer.question_tokens([text[row].question for row in rows], **options.of_questions)
    return TokenBatch.from_lists(sequences, tensorizer.representation_positions(sequences, options.selector))


def _text_of(source: SampleSource, options: DataSetSettings) -> TrainingSet:
    text, name = source.text if isinstance(source, StoredTokens) else source, source.name
    if not isinstance(text, TrainingSet):
        how = "is pairs cut in training (dpr prepare-pairs rounds=N writes a file)" if options.pairs else "is read by a user-defined class"
        raise ConfigError(f"train.renew_negatives writes files of train sets, but {name} {how}; leave one out")
    if options.encoder_type == "ctx":
        raise ConfigError(f"train.renew_negatives and datasets.{name}.encoder_type=ctx are mutually exclusive; leave one of them out")
    return text


def searching_entry(config: BiEncoderTrainConfig) -> int:
    """The number of the entry of ``train.validation`` in whose pass negatives are mined.

    Raises:
        ConfigError: there is none, it is not due whenever negatives are, or what it says of negatives cannot be used.
    """
    every = config.train.renew_negatives
    for index, entry in enumerate(listed(config.train.validation)):
        if is_built_in(entry) and not (options := read_entry(entry, index)).sample:
            if every % options.every:
                key = f"train.validation[{index}].every={options.every}"
                raise ConfigError(f"train.renew_negatives={every} must be a multiple of {key}, in whose pass negatives are mined")
            mining_settings(options.negatives, index)
            return index
    example = "train.validation=[{kind: retrieval, corpus: corpus.tsv, questions: dev.jsonl, qrels: dev.tsv}]"
    raise ConfigError(f"train.renew_negatives={every} needs a validation that searches the whole corpus, e.g. {example}")


def mining_settings(given: Mapping[str, Any], number: int) -> MiningSettings:
    """The settings in ``negatives`` of entry ``number`` of ``train.validation``, checked."""
    prefix = f"train.validation[{number}].negatives."
    settings = MiningSettings.from_mapping(given, prefix)
    if settings.veto_above is not None:
        raise ConfigError(f"{prefix}veto_above is a setting of a cross-encoder, which dpr mine has; leave it out")
    return settings
