"""Automatic choices of ``dpr adapt`` and ``dpr quickstart``: how a given model is adapted, the length of the
training, the encoder's share in the hybrid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpr.adaptation.settings import AdaptSettings
from dpr.adaptation.stages import AdaptFolder
from dpr.core.errors import ConfigError, InputError
from dpr.core.records import json_sha256
from dpr.formats.run_folders import resolve_checkpoint
from dpr.indexer.registry import Index, IndexChoice
from dpr.indexer.settings import DEFAULT_WEIGHT, Bm25Settings
from dpr.models.folders.layouts import layout_of
from dpr.models.sources import files_of_model, local_model
from dpr.retrieval.search_json import SearchSettings
from dpr.retrieval.settings import IndexerConfig, RetrievalConfig
from dpr.retrieval.sides import open_text_index
from dpr.retrieval.sources import resolve_passage_sources
from dpr.storage.checksums import content_sha256
from dpr.storage.durable import read_manifest, remove_folder
from dpr.training.command_settings import TrainCommand

TEMPERATURE = 0.15
"""Temperature of a new encoder; best or nearly best in 20 of 21 runs (benchmarks/results/adapt.md)."""
TEMPERATURE_OF_GIVEN = 0.05
"""Temperature of a given backbone."""
WEIGHT_BOUNDS = (0.2, 0.6)
"""Bounds of the encoder's share in the hybrid; pseudo-questions alone would choose too high a share."""
WEIGHT_OF_GIVEN = 0.5
"""Share in the hybrid of a given model that was already trained (benchmarks/results/adapt_trained.md)."""
CLEARLY = 0.02
"""Margin by which another choice must beat the default."""
DEPTH = 1000
"""Passages that each side of the hybrid lists."""
METRIC = "ndcg@10"
LEAST_PAIRS = 8192
LEAST_PASSAGES = 20
"""Fewest passages: a batch has 16, and a tenth of the passages are held back."""


@dataclass(frozen=True)
class AdaptTexts:
    """Texts to search and train on, as the first stage prepares them."""

    prepared: Path
    """Folder of that stage, with the dev questions and the corpus to evaluate on."""
    corpus: Path
    """Passages to search."""
    without_questions: Path
    """Passages to evaluate on, without the text that became a question."""
    train_sets: dict[str, dict[str, Any]]
    """Entries of the data sets to train on."""
    vocabulary: list[str] = field(default_factory=list)
    """Files with more text for a new vocabulary."""

    def counts(self) -> dict[str, Any]:
        """Returns the numbers of passages, questions and everything else."""
        return dict(read_manifest(self.prepared)["metadata"]["counts"])


def find_model(key: str, name: str | None, out: Path) -> tuple[str | None, str | None]:
    """Returns the folder of the model that a setting names, fetched if it is on the hub, and a hash of its
    content, before anything is made.

    Raises:
        ConfigError: there is none, or it is inside ``out``, whose stages may be rerun.
    """
    if name is None:
        return None, None
    path = local_model(name)
    if path.is_file():
        raise ConfigError(f"{key}={name} is a file, expected a folder, or the name of a model")
    if path.is_dir() and next(path.rglob("*.safetensors"), None) is None:
        found = "holds no model.safetensors, expected the folder of a trained model"
        if any(path.rglob("*.bin")):
            found += "; pickled weights (.bin) are not read: save it again by its own library"
        raise ConfigError(f"{key}={name} {found}")
    if not path.exists():
        raise ConfigError(
            f"{key}={name}: there is no such file or folder; name a folder, or a model on the hub"
        )
    if path.resolve().is_relative_to(out.resolve()):
        raise ConfigError(f"{key}={name} is inside out={out}, which this command replaces; set another out=")
    files = files_of_model(resolve_checkpoint(path))
    content = [[name, content_sha256(file)] for name, file in files.items()]
    return str(path), json_sha256(content)


def will_fit(config: AdaptSettings) -> bool:
    """True if the given model will get a linear layer, or static towers that learn its vectors, instead of
    being trained. This is so if it states how a text becomes a vector, as a model trained for retrieval does."""
    return config.model_file is not None and states_vectors(config.model_file)


def states_vectors(model_file: str) -> bool:
    """True if a model states how a text becomes a vector."""
    layout, _ = layout_of(Path(model_file))
    return layout is not None and layout.states_vectors


def clearly_best(reached: Mapping[str, float], default: str) -> str:
    """Returns the default, unless another choice is clearly better."""
    best = max(reached, key=lambda choice: reached[choice])
    return best if reached[best] > reached[default] + CLEARLY else default


def chosen_weight(by_weight: dict[float, float]) -> float:
    """Returns the share nearest to the default, among those within the bounds that are not clearly worse on
    the dev questions than the best. A share of 0 is BM25 alone, of 1 the encoder."""
    within = {
        weight: value for weight, value in by_weight.items() if WEIGHT_BOUNDS[0] <= weight <= WEIGHT_BOUNDS[1]
    }
    good = [weight for weight, value in within.items() if value >= max(within.values()) - CLEARLY]
    return min(good, key=lambda weight: (abs(weight - DEFAULT_WEIGHT), weight))


def training_settings(config: AdaptSettings, texts: AdaptTexts) -> TrainCommand:
    """Returns the settings of the training, with the dev questions for validation.

    If there are few passages, the batch is small, so that there are enough steps. The number of pairs is a
    multiple of the number of passages within bounds, so that the time is bounded.
    """
    folder = AdaptFolder(Path(str(config.out)))
    made = TrainCommand(output_dir=str(folder.model), seed=config.seed, device=config.device)
    made.train_datasets = list(texts.train_sets)
    made.datasets = texts.train_sets
    made.train.sampling.mixed = len(texts.train_sets) > 1
    made.train.hard_negatives = 0
    dev = {"kind": "retrieval", "corpus": str(texts.without_questions), "name": "dev"}
    dev["questions"] = str(texts.prepared / "dev_questions.jsonl")
    dev["qrels"] = str(texts.prepared / "dev_qrels.tsv")
    made.train.validation = [dev]
    made.train.eval_at_start = False
    made.train.best_metric = f"eval/dev/{METRIC}"
    made.train.keep_last = 1

    passages = texts.counts()["passages"]
    if passages < LEAST_PASSAGES:
        raise InputError(
            f"has {passages} passages, too few to train on",
            file=texts.corpus,
            expected=f"{LEAST_PASSAGES} or more",
            hint=f"dpr search {texts.corpus} searches them with BM25",
        )
    batch = max(16, min(1024, 2 ** (passages.bit_length() - 2)))
    if config.model_file is None:
        made.loss.temperature = TEMPERATURE
        pairs: float = max(LEAST_PAIRS, min(16 * passages, 131_072))
        made.encoder.encoder_model_type = "static"
        made.encoder.pretrained_model_cfg = str(folder.untrained)
        made.encoder.shared = True
        made.encoder.pooling = "idf_sqrt"
        made.encoder.normalize = True
        made.encoder.dropout = 0.0
        made.train.learning_rate = 0.02
    else:
        batch = min(batch, 32)
        pairs = max(1024, min(4 * passages, 20_000))
        made.loss.temperature = TEMPERATURE_OF_GIVEN
        made.model_file = config.model_file
        if not states_vectors(config.model_file):
            made.encoder.pooling = "mean"
            made.encoder.normalize = True
    steps = max(1, round((config.max_pairs or pairs) / batch))
    made.train.batch_size = batch // config.processes
    made.train.global_batch_size = batch
    made.train.max_steps = steps
    made.train.num_train_epochs = -(-steps // max(1, passages // batch))
    made.train.eval_every_steps = steps
    return made


def search_settings(config: AdaptSettings, texts: AdaptTexts, name: str, split: str) -> RetrievalConfig:
    """Returns the settings of a stage that searches by the hybrid, with the questions of a split."""
    folder = AdaptFolder(Path(str(config.out)))
    return RetrievalConfig(
        qa_dataset=str(texts.prepared / f"{split}_questions.jsonl"),
        qrels=str(texts.prepared / f"{split}_qrels.tsv"),
        ctx_datasets=str(texts.without_questions),
        model_file=str(folder.model),
        encoded_ctx_files=str(folder.evaluation_vectors),
        bm25_index_path=str(folder.evaluation_index),
        hybrid="linear",
        hybrid_depth=DEPTH,
        metrics_file=str(folder.metrics(name)),
        device=config.device,
    )


def open_bm25(out: Path, corpus: Path) -> Index:
    """Opens the index of BM25 in the folder ``out``, or builds it."""
    passages = resolve_passage_sources([str(corpus)], {})
    words = out / "bm25_index"
    choice = IndexChoice("bm25", Bm25Settings())
    try:
        return open_text_index(choice, passages, str(words))
    except InputError:  # an index of earlier texts, or damaged
        if not words.exists():
            raise
        remove_folder(words)
        return open_text_index(choice, passages, str(words))


def write_search(out: Path, corpus: Path, weight: float | None, *, vectors: str = "vectors") -> None:
    """Writes ``search.json`` and the index of BM25, so that ``dpr search`` and ``dpr serve`` open the folder
    ``out``. Without a weight, they search by BM25 alone; ``vectors`` is the stage that embedded the corpus."""
    open_bm25(out, corpus)
    passages = resolve_passage_sources([str(corpus)], {})
    words = str(out / "bm25_index")
    if weight is None:
        search = SearchSettings(passages=passages, bm25_index_path=words, indexer=IndexerConfig(kind="bm25"))
    else:
        search = SearchSettings(
            model_file=str(AdaptFolder(out).model),
            encoded_ctx_files=[str(out / vectors / "corpus_0")],
            passages=passages,
            bm25_index_path=words,
            hybrid="linear",
            hybrid_weight=weight,
            hybrid_depth=DEPTH,
        )
    search.write(out)


def labelled_training(config: AdaptSettings, texts: AdaptTexts, out: str, precision: str) -> TrainCommand:
    """Returns the settings of the fine-tuning on labelled questions (benchmarks/results/labels.md)."""
    made = TrainCommand(
        model_file=config.model_file,
        output_dir=out,
        seed=config.seed,
        device=config.device,
        train_datasets=[str(texts.prepared / "train.jsonl")],
    )
    made.loss.temperature = TEMPERATURE_OF_GIVEN
    made.train.learning_rate = 1e-4
    made.train.batch_size = 32 // config.processes
    made.train.global_batch_size = 32
    made.train.precision = precision
    made.train.eval_per_epoch = 0
    made.train.keep_last = 1
    return made
